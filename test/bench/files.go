package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// limits are gates: rows that match a pattern must not be above a ratio.
type limits []limit

type limit struct {
	row *regexp.Regexp
	max float64
}

func (l *limits) String() string { return "" }

func (l *limits) Set(s string) error {
	pattern, ratio, ok := strings.Cut(s, "=")
	if !ok {
		return errors.New("want REGEX=RATIO")
	}
	re, err := regexp.Compile("^(?:" + pattern + ")$")
	if err != nil {
		return err
	}
	most, err := strconv.ParseFloat(ratio, 64)
	*l = append(*l, limit{re, most})
	return err
}

// comparison is a run of bench fs.
type comparison struct {
	fix     fixture
	rounds  int
	targets []string
	loads   []string
	profile string
	took    map[string]map[string][]time.Duration // by row and target, one for each round
	cost    map[string]map[string]uint64          // messages of the view by row, of the last round
	rows    []string
}

func files(args []string) error {
	f := flag.NewFlagSet("fs", flag.ExitOnError)
	dir := f.String("dir", "/var/tmp/stage-bench", "where the fixture is, or is made and kept (3 GB)")
	rounds := f.Int("rounds", 5, "rounds")
	rows := f.String("rows", "", "workloads to run, separated by commas: "+strings.Join(loadNames(), ","))
	targets := f.String("targets", "", "what to measure: "+strings.Join(available(), ","))
	profile := f.String("profile", "", "new directory for CPU profiles of the view's server, of the last round")
	quick := f.Bool("quick", false, "one round of native and stage")
	var max limits
	f.Var(&max, "max", "REGEX=RATIO: fail when a row whose \"TARGET: ROW\" matches is above, as in \"stage: .* again=1.2\"; may be repeated")
	if err := f.Parse(args); err != nil {
		return err
	}
	c := &comparison{
		fix: fixture{*dir, 1}, rounds: *rounds, profile: *profile, targets: available(), loads: loadNames(),
		took: map[string]map[string][]time.Duration{}, cost: map[string]map[string]uint64{},
	}
	if *quick {
		c.rounds, c.targets = 1, []string{native, viewLoop}
	}
	if *rows != "" {
		c.loads = strings.Split(*rows, ",")
	}
	if *targets != "" {
		c.targets = strings.Split(*targets, ",")
	}
	if !slices.Contains(c.targets, native) {
		c.targets = append([]string{native}, c.targets...)
	}
	if err := errors.Join(c.fix.make(), c.fix.spread(), c.fix.warm()); err != nil {
		return err
	}
	before, err := cacheDrops()
	if err != nil {
		return err
	}
	if err := c.run(); err != nil {
		return err
	}
	c.report(os.Stdout)
	after, err := cacheDrops()
	if err != nil || after == before {
		return errors.Join(err, c.check(max))
	}
	return errors.Join(c.check(max), errors.New("somebody dropped this machine's caches meanwhile: the figures mean nothing"))
}

// cacheDrops returns how often caches were dropped since the machine began (proc_sys_vm(5)).
func cacheDrops() (n int, err error) {
	text, err := os.ReadFile("/proc/vmstat")
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, " "); ok && strings.HasPrefix(key, "drop_") {
			drops, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				return 0, err
			}
			n += drops
		}
	}
	return n, err
}

func loadNames() []string {
	var names []string
	for _, l := range workloads {
		names = append(names, l.name)
	}
	return names
}

// available returns the targets this machine has.
func available() []string {
	all := []string{native, viewLoop}
	if on, err := os.ReadFile("/sys/module/fuse/parameters/enable_uring"); err == nil && strings.TrimSpace(string(on)) == "Y" {
		all = append(all, viewUring)
	}
	all = append(all, overlayfs)
	if _, err := exec.LookPath("fuse-overlayfs"); err == nil {
		all = append(all, fuseOverlay)
	}
	return all
}

// run runs every workload on every target, which take turns.
func (c *comparison) run() error {
	for round := range c.rounds {
		for _, load := range c.loads {
			for i := range c.targets {
				target := c.targets[(i+round)%len(c.targets)]
				if err := c.one(round, load, target); err != nil {
					return err
				}
			}
		}
		fmt.Fprintf(os.Stderr, "bench: round %d of %d done\n", round+1, c.rounds)
	}
	return nil
}

func (c *comparison) one(round int, load, target string) error {
	scratch, err := os.MkdirTemp(c.fix.dir, "run-")
	if err != nil {
		return err
	}
	t := task{Fixture: c.fix.dir, Scale: c.fix.scale, Scratch: scratch, Target: target, Workload: load}
	if c.profile != "" && isView(target) && round == c.rounds-1 {
		if t.Profile, err = filepath.Abs(filepath.Join(c.profile, target+"-"+load+".pprof")); err != nil {
			return err
		}
		if err := os.MkdirAll(c.profile, 0o755); err != nil {
			return err
		}
	}
	got, err := t.run()
	if err != nil {
		return errors.Join(err, os.RemoveAll(scratch))
	}
	for _, s := range got {
		if c.took[s.Row] == nil {
			c.took[s.Row] = map[string][]time.Duration{}
			c.rows = append(c.rows, s.Row)
		}
		c.took[s.Row][target] = append(c.took[s.Row][target], s.Took)
		if isView(target) {
			c.cost[s.Row] = s.Messages
		}
	}
	return nil
}

// ratios returns how target compares with native, round by round, sorted.
func (c *comparison) ratios(row, target string) []float64 {
	var r []float64
	for i, d := range c.took[row][target] {
		r = append(r, float64(d)/float64(c.took[row][native][i]))
	}
	slices.Sort(r)
	return r
}

func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// report prints two Markdown tables: ratios, and messages.
func (c *comparison) report(out io.Writer) {
	fmt.Fprintf(out, "Ratios to native, median [least, most] of %d rounds; %s.\n\n| row | native ms |", c.rounds, machine())
	for _, t := range c.targets {
		if t != native {
			fmt.Fprintf(out, " %s |", t)
		}
	}
	fmt.Fprintln(out, "\n|---|---:|"+strings.Repeat("---:|", len(c.targets)-1))
	for _, row := range c.rows {
		var ms []float64
		for _, d := range c.took[row][native] {
			ms = append(ms, float64(d.Microseconds())/1000)
		}
		slices.Sort(ms)
		fmt.Fprintf(out, "| %s | %.1f |", row, median(ms))
		for _, t := range c.targets {
			if t == native {
				continue
			}
			r := c.ratios(row, t)
			fmt.Fprintf(out, " %.2f [%.2f, %.2f] |", median(r), r[0], r[len(r)-1])
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out, "\n| row | messages to the view's server |\n|---|---|")
	for _, row := range c.rows {
		fmt.Fprintf(out, "| %s | %s |\n", row, showMessages(c.cost[row]))
	}
}

func machine() string {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "kernel unknown"
	}
	return "Linux " + strings.TrimSpace(string(kernel))
}

func showMessages(m map[string]uint64) string {
	ops := slices.SortedFunc(maps.Keys(m), func(a, b string) int { return int(m[b]) - int(m[a]) })
	var parts []string
	for _, op := range ops {
		parts = append(parts, fmt.Sprintf("%s %d", op, m[op]))
	}
	return strings.Join(parts, ", ")
}

// check holds rows to the limits.
func (c *comparison) check(max limits) error {
	var errs []error
	for _, row := range c.rows {
		for _, l := range max {
			for _, t := range c.targets {
				if !l.row.MatchString(t + ": " + row) {
					continue
				}
				if r := median(c.ratios(row, t)); r > l.max {
					errs = append(errs, fmt.Errorf("%s: %s: %.2f times native, at most %.2f allowed", t, row, r, l.max))
				}
			}
		}
	}
	return errors.Join(errs...)
}
