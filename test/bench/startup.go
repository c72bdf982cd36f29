package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"
)

// startUp measures as whoever calls it and, as root, as the ordinary user too.
func startUp(stage string, rounds, uid int, out io.Writer) error {
	if err := bench(stage, rounds, os.Geteuid(), out); err != nil || os.Geteuid() != 0 {
		return err
	}
	return bench(stage, rounds, uid, out)
}

// contender is one way to run true.
type contender struct {
	name string
	argv []string
	took []time.Duration
}

func bench(stage string, rounds, uid int, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("/var/tmp", "stage-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	home, work, bin := filepath.Join(dir, "home"), filepath.Join(dir, "home", "work"), filepath.Join(dir, "stage")
	if err := errors.Join(os.Chmod(dir, 0o755), os.MkdirAll(work, 0o755), os.Chown(home, uid, uid), os.Chown(work, uid, uid), copyBinary(stage, bin)); err != nil {
		return err
	}
	all := []*contender{
		{name: "native", argv: []string{"true"}},
		{name: "bwrap --unshare-all", argv: []string{"bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"}},
		{name: "stage run", argv: []string{bin, "run", "--", "true"}},
	}
	for range rounds {
		for _, c := range all {
			if err := c.run(work, home, uid); err != nil {
				return fmt.Errorf("%s as uid %d: %w", c.name, uid, err)
			}
		}
	}
	return report(out, uid, all)
}

// copyBinary makes a copy that every user can reach.
func copyBinary(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o755)
}

func (c *contender) run(dir, home string, uid int) error {
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	cmd.Dir, cmd.Env = dir, []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	if uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	begin := time.Now()
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	c.took = append(c.took, time.Since(begin))
	return nil
}

// report prints milliseconds. The first contender is what the others are measured against.
func report(out io.Writer, uid int, all []*contender) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "uid "+strconv.Itoa(uid)+"\tbest ms\tmedian ms\tp95 ms\tover native ms\ttimes bwrap\t")
	base, bwrap := all[0].quantile(50), all[1].quantile(50)
	for _, c := range all {
		m := c.quantile(50)
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t\n", c.name, ms(c.quantile(0)), ms(m), ms(c.quantile(95)), ms(m-base), float64(m)/float64(bwrap))
	}
	return w.Flush()
}

func (c *contender) quantile(percent int) time.Duration {
	sorted := slices.Sorted(slices.Values(c.took))
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
