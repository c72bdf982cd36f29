package policy

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/bmatcuk/doublestar/v4"
)

// The laws of narrowing, against a model: random requests and layers are written down as flags and
// TOML, narrowed, and every decision of the plan compared with what the model says of each party.

var seedFlag = flag.Uint64("seed", 0, "replay this seed of the narrowing laws")

const (
	modelWorkspace = "/home/u/w"
	modelHome      = "/home/u"
)

// party is the model of a request or layer. A nil list is no opinion.
type party struct {
	Read, Stage, Share, Scratch  []string
	DenyRead, Hide, DenyW, DenyX []string
	Hosts, DenyHosts             []modelHost
	Env, DenyEnv                 []string
	Mode                         string
	Userns                       *bool
	Timeout, Memory, Pids        int
}

type modelHost struct {
	Host  string
	Ports []int
}

var (
	modelRoots = []string{"/usr", "/usr/lib/**", "/etc", "/data", "/data/sub", "~/go", "~/.cache/x/", "/opt/a b", "/", "."}
	modelGlobs = []string{"**/.env*", "~/.ssh", "/etc/*_key", "/data/sub/**", "sub/**", ".git/hooks/", "/usr/{bin,sbin}", "[a-c]*/x", "/srv/q?", "~/go/*/secret"}
	modelHosts = []string{"api.example.org", "*.example.org", "evil.example.org", "10.1.2.3", "10.0.0.0/8", "127.0.0.1", "::1", "0.0.0.0/0", "localhost", "1.1.1.1"}
	modelEnv   = []string{"PATH", "LC_*", "*TOKEN*", "HOME", "?OO", "MY_SECRET", "*"}

	paths = []string{"/", "/usr", "/usr/bin/cc", "/usr/lib/x/y", "/usr/libx", "/etc/passwd", "/etc/host_key", "/etc/d/host_key", "/data", "/data/sub", "/data/sub/f",
		"/data/subx", "/home/u/go", "/home/u/go/a/secret/k", "/home/u/.ssh/id", "/home/u/.cache/x/f", "/opt/a b/c", "/srv/q1/x", "/srv/q12",
		"/home/u/w", "/home/u/w/.env", "/home/u/w/d/.env.local/x", "/home/u/w/sub/f", "/home/u/w/.git/hooks/p", "/home/u/w/b1/x", "/home/u/w/d/x"}
	hostNames = []string{"api.example.org", "API.Example.ORG.", "x.y.example.org", "example.org", "evil.example.org", "10.1.2.3", "0x0a010203", "10.9.9.9", "127.0.0.1",
		"::1", "::ffff:10.1.2.3", "localhost", "1.1.1.1", "8.8.8.8", "a@b"}
	ports    = []uint16{80, 443, 5432}
	envNames = []string{"PATH", "LC_ALL", "GITHUB_TOKEN", "github_token", "HOME", "FOO", "MY_SECRET", "LC", ""}
)

func pick(r *rand.Rand, from []string, most int) []string {
	out := []string{}
	for range r.IntN(most + 1) {
		out = append(out, from[r.IntN(len(from))])
	}
	return out
}

func pickHosts(r *rand.Rand, most int) []modelHost {
	out := []modelHost{}
	for _, h := range pick(r, modelHosts, most) {
		var ps []int
		for range 1 + r.IntN(2) {
			ps = append(ps, int(ports[r.IntN(len(ports))]))
		}
		out = append(out, modelHost{h, ps})
	}
	return out
}

// maybe returns the list, or no opinion.
func maybe[T any](r *rand.Rand, s []T) []T {
	if r.IntN(3) > 0 {
		return nil
	}
	return s
}

func randomLayer(r *rand.Rand) party {
	p := party{
		Read: maybe(r, pick(r, modelRoots, 6)), Stage: maybe(r, append(pick(r, modelRoots, 2), ".")), Share: maybe(r, pick(r, modelRoots, 4)),
		Scratch: maybe(r, pick(r, modelRoots, 4)), DenyRead: pick(r, modelGlobs, 1), Hide: pick(r, modelGlobs, 1), DenyW: pick(r, modelGlobs, 1),
		Hosts: maybe(r, pickHosts(r, 6)), DenyHosts: pickHosts(r, 1), Env: maybe(r, pick(r, modelEnv, 5)), DenyEnv: pick(r, modelEnv[:6], 1),
		Mode: []string{"", "", "", "none", "allow", "host"}[r.IntN(6)], Timeout: r.IntN(3) * r.IntN(100), Memory: r.IntN(2) * r.IntN(1000), Pids: r.IntN(2) * r.IntN(50),
	}
	if r.IntN(4) == 0 {
		b := r.IntN(2) == 0
		p.Userns = &b
	}
	if r.IntN(8) == 0 {
		p.DenyX = pick(r, modelGlobs, 1)
	}
	return p
}

func randomRequest(r *rand.Rand) party {
	p := randomLayer(r)
	abs := func(s []string) []string {
		out := []string{}
		for _, x := range s {
			if x != "." {
				out = append(out, modelAbs(x))
			}
		}
		return out
	}
	p.Read, p.Stage, p.Share, p.Scratch = abs(pick(r, modelRoots, 5)), abs(pick(r, modelRoots, 1)), nil, nil
	if r.IntN(2) == 0 {
		p.Share = []string{"/home/u/share"}
		p.Scratch = []string{"/data/sub/scratch"}
	}
	p.Env, p.DenyEnv = pick(r, modelEnv, 5), nil // no flag denies a variable
	p.Hosts, p.DenyHosts = nil, nil
	if p.Mode == "allow" {
		p.Hosts, p.DenyHosts = pickHosts(r, 6), pickHosts(r, 1)
	}
	if p.Userns != nil && !*p.Userns {
		p.Userns = nil
	}
	return p
}

// modelAbs resolves a root or pattern the plain way.
func modelAbs(s string) string {
	s = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(s, "/"), "/**"), "/")
	switch {
	case s == ".":
		return modelWorkspace
	case s == "":
		return "/"
	case strings.HasPrefix(s, "~/"):
		return modelHome + s[1:]
	case strings.HasPrefix(s, "/"):
		return s
	default:
		return modelWorkspace + "/" + s
	}
}

// toml writes a layer as a policy file.
func (p party) toml() string {
	var b strings.Builder
	list := func(key string, v []string) {
		if v != nil {
			text, _ := json.Marshal(v)
			fmt.Fprintf(&b, "%s = %s\n", key, text)
		}
	}
	number := func(key string, n int, unit string) {
		if n > 0 {
			fmt.Fprintf(&b, "%s = \"%d%s\"\n", key, n, unit)
		}
	}
	b.WriteString("version = 1\n[file_reads]\n")
	list("allow", p.Read)
	list("deny", p.DenyRead)
	list("hide", p.Hide)
	b.WriteString("[file_writes]\n")
	list("stage", p.Stage)
	list("share", p.Share)
	list("scratch", p.Scratch)
	list("deny", p.DenyW)
	b.WriteString("[subprocesses]\n")
	list("deny_exec", p.DenyX)
	if p.Userns != nil {
		fmt.Fprintf(&b, "userns = %v\n", *p.Userns)
	}
	number("pids", p.Pids, "")
	b.WriteString("[credentials]\n")
	list("env", p.Env)
	list("deny_env", p.DenyEnv)
	b.WriteString("[resources]\n")
	number("timeout", p.Timeout, "s")
	number("memory", p.Memory, "KiB")
	b.WriteString("[network]\n")
	if p.Mode != "" {
		fmt.Fprintf(&b, "mode = %q\n", p.Mode)
	}
	if p.Hosts != nil && len(p.Hosts) == 0 {
		b.WriteString("allow = []\n")
	}
	for _, h := range p.Hosts {
		fmt.Fprintf(&b, "[[network.allow]]\nhost = %q\nports = %s\n", h.Host, jsonText(h.Ports))
	}
	for _, h := range p.DenyHosts {
		fmt.Fprintf(&b, "[[network.deny]]\nhost = %q\nports = %s\n", h.Host, jsonText(h.Ports))
	}
	return b.String()
}

func jsonText(v any) string { b, _ := json.Marshal(v); return string(b) }

// flags writes a request as flags.
func (p party) flags() Flags {
	hosts := func(hs []modelHost) []string {
		var out []string
		for _, h := range hs {
			for _, port := range h.Ports {
				text := h.Host
				if strings.Contains(text, ":") {
					text = "[" + text + "]"
				}
				out = append(out, fmt.Sprintf("%s:%d", text, port))
			}
		}
		return out
	}
	f := Flags{Read: p.Read, StageRoot: p.Stage, Share: p.Share, Scratch: p.Scratch, Hide: p.Hide, DenyRead: p.DenyRead, DenyWrite: p.DenyW,
		DenyExec: p.DenyX, Net: p.Mode, AllowHost: hosts(p.Hosts), DenyHost: hosts(p.DenyHosts), Env: p.Env, Pids: uint64(p.Pids)}
	if p.Userns != nil {
		f.Allow = []string{"userns"}
	}
	if p.Timeout > 0 {
		f.Timeout = fmt.Sprintf("%ds", p.Timeout)
	}
	if p.Memory > 0 {
		f.Memory = fmt.Sprintf("%dK", p.Memory)
	}
	return f
}

// covers reports whether a pattern matches a path or a directory above it, the slow way. A trailing
// slash on the path says that it is a directory.
func covers(patterns []string, path string) bool {
	p := strings.TrimSuffix(path, "/")
	if p == "" {
		p = "/"
	}
	for _, pattern := range patterns {
		for q := p; ; q = q[:max(strings.LastIndexByte(q, '/'), 1)] {
			isDir := q != path
			if ok, _ := doublestar.Match(modelAbs(pattern), q); ok && (isDir || !strings.HasSuffix(pattern, "/")) {
				return true
			}
			if q == "/" {
				break
			}
		}
	}
	return false
}

func (p party) reads(x string) bool {
	return (p.Read == nil || below(p.Read, x)) && !covers(p.Hide, x) && !covers(p.DenyRead, x)
}

// below reports whether a path lies at or below one of the roots.
func below(roots []string, x string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		root = modelAbs(root)
		return root == "/" || x == root || strings.HasPrefix(x, root+"/")
	})
}

func (p party) contacts(h string, port uint16) bool {
	if p.Hosts != nil && !slices.ContainsFunc(p.Hosts, func(m modelHost) bool { return m.holds(h, port, true) }) {
		return false
	}
	return !slices.ContainsFunc(p.DenyHosts, func(m modelHost) bool { return m.holds(h, port, false) })
}

// canonicalNames are the spellings of hostNames that are not canonical.
var canonicalNames = map[string]string{"API.Example.ORG.": "api.example.org", "0x0a010203": "10.1.2.3", "::ffff:10.1.2.3": "10.1.2.3"}

// holds reports whether the rule matches; as an allow rule it must name a special address.
func (m modelHost) holds(h string, port uint16, allow bool) bool {
	if c, ok := canonicalNames[h]; ok {
		h = c
	}
	if !slices.Contains(m.Ports, int(port)) {
		return false
	}
	if suffix, ok := strings.CutPrefix(m.Host, "*"); ok {
		return strings.HasSuffix(h, suffix)
	}
	if r, err := netip.ParsePrefix(m.Host); err == nil {
		a, err := netip.ParseAddr(h)
		isSpecial := err == nil && (a.IsPrivate() || a.IsLoopback())
		return err == nil && r.Contains(a) && (!allow || !isSpecial || r.Bits() > 0)
	}
	return h == m.Host
}

func (p party) passes(name string) bool {
	match := func(patterns []string, fold bool) bool {
		return slices.ContainsFunc(patterns, func(s string) bool {
			n := name
			if fold {
				s, n = strings.ToUpper(s), strings.ToUpper(n)
			}
			ok, _ := doublestar.Match(s, n)
			return ok
		})
	}
	return (p.Env == nil || match(p.Env, false)) && !match(p.DenyEnv, true)
}

// seeded calls f with many random parties; a failure names the seed.
func seeded(t *testing.T, f func(t *testing.T, r *rand.Rand)) {
	seeds := []uint64{*seedFlag}
	if *seedFlag == 0 {
		seeds = seeds[:0]
		for range 2000 {
			seeds = append(seeds, rand.Uint64())
		}
	}
	for _, seed := range seeds {
		f(t, rand.New(rand.NewPCG(seed, 1)))
		if t.Failed() {
			t.Fatalf("seed %d: replay with -seed %d", seed, seed)
		}
	}
}

func mustRequest(t *testing.T, p party) Request {
	t.Helper()
	req, err := NewRequest(modelWorkspace, modelHome, p.flags(), Preset{Name: "none"}, Agent{})
	if err != nil {
		t.Fatalf("request %+v: %v", p, err)
	}
	return req
}

func mustLayer(t *testing.T, name LayerName, p party) Layer {
	t.Helper()
	l, err := ParseFile(name, string(name)+".toml", []byte(p.toml()))
	if err != nil {
		t.Fatalf("%v in\n%s", err, p.toml())
	}
	return l
}

// readable reports what the plan's roots and rules make of a path outside the writable roots.
func (p *Plan) readable(x string) bool {
	v, _ := p.PathVerdict(x, false)
	return v&(VerdictHide|VerdictDenyRead) == 0 && slices.ContainsFunc(p.Reads, func(r PathRule) bool { return within(x, r.Path) })
}

func TestPlanIsWhatTheRequestAndEveryLayerPermit(t *testing.T) {
	admitted := 0
	seeded(t, func(t *testing.T, r *rand.Rand) {
		m := model{randomRequest(r), randomLayer(r), randomLayer(r)}
		plan, err := Narrow(mustRequest(t, m[0]), mustLayer(t, User, m[1]), mustLayer(t, Workspace, m[2]))
		if e := (*Error)(nil); err != nil {
			if !errors.As(err, &e) || e.Next == "" {
				t.Errorf("error without a next step: %v", err)
			}
			return
		}
		admitted++
		m.checkPaths(t, &plan)
		m.checkRoots(t, plan.StageRoots, append(m[0].Stage, modelWorkspace), func(p party) []string { return p.Stage })
		m.checkRoots(t, plan.Shares, m[0].Share, func(p party) []string { return p.Share })
		m.checkRoots(t, plan.Scratch, m[0].Scratch, func(p party) []string { return p.Scratch })
		m.checkHosts(t, &plan)
		m.checkLimits(t, &plan)
		for _, name := range envNames {
			if got, _ := plan.Env(name); got != m.all(func(p party) bool { return p.passes(name) }) {
				t.Errorf("env %q: got %v", name, got)
			}
		}
	})
	if *seedFlag == 0 && admitted < 200 {
		t.Errorf("only %d plans were admitted: the generator is too wild to mean anything", admitted)
	}
}

// model is a request and its layers.
type model []party

func (m model) all(f func(p party) bool) bool {
	return !slices.ContainsFunc(m, func(p party) bool { return !f(p) })
}

func (m model) checkPaths(t *testing.T, plan *Plan) {
	for _, x := range paths {
		if got, want := plan.readable(x), m.all(func(p party) bool { return p.reads(x) }); got != want {
			t.Errorf("read %s: got %v, want %v", x, got, want)
		}
		v, _ := plan.PathVerdict(x, false)
		if got, want := v&VerdictDenyWrite == 0, m.all(func(p party) bool { return !covers(p.DenyW, x) }); got != want {
			t.Errorf("write %s: got %v, want %v", x, got, want)
		}
	}
}

// checkRoots: a root is granted as a whole when no party hides it and every layer's list holds it.
func (m model) checkRoots(t *testing.T, got []PathRule, requested []string, list func(p party) []string) {
	for _, root := range requested {
		want := m.all(func(p party) bool { return !covers(p.Hide, root+"/") && !covers(p.DenyRead, root+"/") }) &&
			m[1:].all(func(p party) bool { return list(p) == nil || below(list(p), root) })
		if got := slices.ContainsFunc(got, func(r PathRule) bool { return r.Path == root }); got != want {
			t.Errorf("root %s: got %v, want %v", root, got, want)
		}
	}
}

func (m model) checkHosts(t *testing.T, plan *Plan) {
	for _, h := range hostNames {
		for _, port := range ports {
			got, _ := plan.Host(h, port)
			want := plan.Net.Mode == NetHost ||
				plan.Net.Mode == NetAllow && h != "a@b" && m[0].Hosts != nil && m.all(func(p party) bool { return p.contacts(h, port) })
			if got != want {
				t.Errorf("host %s:%d: got %v, want %v", h, port, got, want)
			}
		}
	}
}

func (m model) checkLimits(t *testing.T, plan *Plan) {
	lowest := func(f func(p party) int) (low int) {
		for _, p := range m {
			if n := f(p); n > 0 && (low == 0 || n < low) {
				low = n
			}
		}
		return low
	}
	// a mode as a number: 0 is no opinion
	mode := func(p party) int { return slices.Index([]string{"", "none", "allow", "host"}, p.Mode) }
	wantMode := lowest(mode)
	if mode(m[0]) == 0 {
		wantMode = 1
	}
	for name, pair := range map[string][2]int{
		"timeout": {int(plan.Timeout.Max.Seconds()), lowest(func(p party) int { return p.Timeout })},
		"memory":  {int(plan.Memory.Max >> 10), lowest(func(p party) int { return p.Memory })},
		"pids":    {int(plan.Pids.Max), lowest(func(p party) int { return p.Pids })},
		"mode":    {mode(party{Mode: string(plan.Net.Mode)}), wantMode},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: got %d, want %d", name, pair[0], pair[1])
		}
	}
	want := m[0].Userns != nil && m.all(func(p party) bool { return p.Userns == nil || *p.Userns })
	if plan.Userns != want {
		t.Errorf("userns: got %v, want %v", plan.Userns, want)
	}
}

// same compares two plans by everything that is exported and by all decisions.
func same(a, b Plan) bool {
	type view struct {
		Plan
		Controls map[Dimension][]ControlNeed
	}
	strip := func(p Plan) view {
		v := view{p, p.Controls()}
		v.hidden = nil // pointers
		return v
	}
	return reflect.DeepEqual(strip(a), strip(b))
}

func TestOrderDoesNotMatter(t *testing.T) {
	seeded(t, func(t *testing.T, r *rand.Rand) {
		req := mustRequest(t, randomRequest(r))
		layers := []Layer{mustLayer(t, User, randomLayer(r)), mustLayer(t, Workspace, randomLayer(r)), mustLayer(t, Session, randomLayer(r))}
		one, err1 := Narrow(req, layers...)
		r.Shuffle(len(layers), func(i, j int) { layers[i], layers[j] = layers[j], layers[i] })
		two, err2 := Narrow(req, layers...)
		if !reflect.DeepEqual(err1, err2) || err1 == nil && !same(one, two) {
			t.Errorf("%v, %v:\n%+v\n%+v", err1, err2, one, two)
		}
	})
}

func TestLayerTwiceIsLayerOnce(t *testing.T) {
	seeded(t, func(t *testing.T, r *rand.Rand) {
		req, l := mustRequest(t, randomRequest(r)), mustLayer(t, User, randomLayer(r))
		one, err1 := Narrow(req, l)
		two, err2 := Narrow(req, l, l)
		if !reflect.DeepEqual(err1, err2) || err1 == nil && !same(one, two) {
			t.Errorf("%v, %v:\n%+v\n%+v", err1, err2, one, two)
		}
	})
}

func TestMeetIsAssociativeAndCommutative(t *testing.T) {
	seeded(t, func(t *testing.T, r *rand.Rand) {
		a, b := newGrant(mustLayer(t, User, randomLayer(r)).Rules), newGrant(mustLayer(t, Workspace, randomLayer(r)).Rules)
		c := mustRequest(t, randomRequest(r)).grant()
		if x, y := a.meet(b).meet(c), a.meet(b.meet(c)); !reflect.DeepEqual(x, y) {
			t.Errorf("associative:\n%+v\n%+v", x, y)
		}
		if x, y := a.meet(b), b.meet(a); !reflect.DeepEqual(x, y) {
			t.Errorf("commutative:\n%+v\n%+v", x, y)
		}
		if x := c.meet(newGrant(nil)); !reflect.DeepEqual(x, c.meet(c)) {
			t.Errorf("no opinion narrows:\n%+v\n%+v", x, c)
		}
	})
}

func TestAnotherLayerNeverPermitsMore(t *testing.T) {
	seeded(t, func(t *testing.T, r *rand.Rand) {
		req, l, more := mustRequest(t, randomRequest(r)), mustLayer(t, User, randomLayer(r)), mustLayer(t, Workspace, randomLayer(r))
		wide, err1 := Narrow(req, l)
		narrow, err2 := Narrow(req, l, more)
		if err1 != nil || err2 != nil {
			return
		}
		for _, x := range paths {
			if narrow.readable(x) && !wide.readable(x) {
				t.Errorf("read %s", x)
			}
			v, _ := narrow.PathVerdict(x, true)
			w, _ := wide.PathVerdict(x, true)
			if w&^v != 0 {
				t.Errorf("%s: %b became %b", x, w, v)
			}
		}
		for _, h := range hostNames {
			for _, port := range ports {
				n, _ := narrow.Host(h, port)
				w, _ := wide.Host(h, port)
				if n && !w {
					t.Errorf("host %s:%d", h, port)
				}
			}
		}
		for _, name := range envNames {
			n, _ := narrow.Env(name)
			w, _ := wide.Env(name)
			if n && !w {
				t.Errorf("env %s", name)
			}
		}
		if narrow.Userns && !wide.Userns || wide.Timeout.Set && narrow.Timeout.Max > wide.Timeout.Max {
			t.Error("userns or timeout grew")
		}
	})
}

func TestNothingRequestedIsNothingGranted(t *testing.T) {
	plan, err := Narrow(mustRequest(t, party{}), mustLayer(t, User, party{Read: []string{"/"}, Hosts: []modelHost{{"api.example.org", []int{443}}}, Env: []string{"*"}, Mode: "allow"}))
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Reads)+len(plan.Shares)+len(plan.Scratch)+len(plan.Net.Allow) > 0 || plan.Net.Mode != NetNone || plan.Userns {
		t.Errorf("granted: %+v", plan)
	}
	if ok, _ := plan.Env("PATH"); ok {
		t.Error("PATH passes")
	}
	if ok, _ := plan.Host("api.example.org", 443); ok {
		t.Error("a host is allowed")
	}
	var zero Plan
	if ok, _ := zero.Env("PATH"); ok {
		t.Error("the zero plan passes PATH")
	}
	if ok, _ := zero.Host("a", 1); ok {
		t.Error("the zero plan allows a host")
	}
	if ok, _ := zero.Hosts().Decide("a", 1); ok {
		t.Error("the zero hosts allow a host")
	}
}
