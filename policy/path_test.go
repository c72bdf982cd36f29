package policy

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"stage/fs/tree"
)

func TestGlobsAreAnchoredAndCoverWhatLiesBelow(t *testing.T) {
	a := anchors{"/home/u/[w]", "/home/{u}"}
	for _, c := range []struct{ pattern, yes, no string }{
		{".", "/home/u/[w] /home/u/[w]/a", "/home/u/w /home/u"},
		{"**", "/home/u/[w] /home/u/[w]/a/b", "/home/u"},
		{".git/hooks/**", "/home/u/[w]/.git/hooks /home/u/[w]/.git/hooks/a/b", "/home/u/[w]/.git /home/u/[w]/.git/hooksx /x/.git/hooks"},
		{"**/.env*", "/home/u/[w]/.env /home/u/[w]/a/b/.env.local /home/u/[w]/.envdir/x", "/home/u/[w]/env /.env /home/u/.env"},
		{"./a//b/", "/home/u/[w]/a/b/c", "/home/u/[w]/a/b /home/u/[w]/a"},
		{"~", "/home/{u} /home/{u}/x", "/home/u"},
		{"~/.ssh", "/home/{u}/.ssh /home/{u}/.ssh/id", "/home/{u}/.sshx /home/{u}"},
		{"/etc/*_key", "/etc/a_key /etc/a_key/b", "/etc/d/a_key /etc/key"},
		{`/a/\*`, "/a/*", "/a/b"},
		{"/a/{b,c}/d", "/a/b/d /a/c/d/e", "/a/d"},
		{"/", "/ /x /x/y", ""},
		{"/**/secret", "/secret /a/b/secret/c", "/a/secrets"},
		{"x\xff", "/home/u/[w]/x\xff", "/home/u/[w]/x"},
	} {
		g, err := newGlob(a, Rule{Value: c.pattern})
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		for _, p := range strings.Fields(c.yes) {
			if !g.Covers(p, false) {
				t.Errorf("%s does not cover %s (%+v)", c.pattern, p, g)
			}
		}
		for _, p := range strings.Fields(c.no) {
			if g.Covers(p, false) {
				t.Errorf("%s covers %s (%+v)", c.pattern, p, g)
			}
		}
	}
	if g, _ := newGlob(a, Rule{Value: "a/b/"}); !g.Covers("/home/u/[w]/a/b", true) {
		t.Error("a trailing slash does not match the directory")
	}
}

// The shortcuts of Covers agree with matching every prefix. (doublestar matches /a by /a/** but not by
// /a*/**; here DIR/** always means DIR with what is below it.)
func TestCoversIsMatchingEveryPrefix(t *testing.T) {
	parts := []string{"a", "b", "*", "**", "a*", "?", "{a,b}", "[a-b]", `\*`, "ab"}
	names := []string{"a", "b", "ab", "*", "abc", "x"}
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		pattern, p := "", ""
		for range 1 + r.IntN(4) {
			pattern += "/" + parts[r.IntN(len(parts))]
		}
		for range 1 + r.IntN(5) {
			p += "/" + names[r.IntN(len(names))]
		}
		g, err := newGlob(anchors{"/w", "/h"}, Rule{Value: pattern})
		if err != nil {
			t.Fatalf("%s: %v", pattern, err)
		}
		want := false
		for strings.HasSuffix(pattern, "/**") {
			pattern = strings.TrimSuffix(pattern, "/**")
		}
		if pattern == "" {
			pattern = "/"
		}
		for q := p; q != ""; q = q[:strings.LastIndexByte(q, '/')] {
			ok, _ := doublestar.Match(pattern, q)
			want = want || ok
		}
		if ok, _ := doublestar.Match(pattern, "/"); ok {
			want = true
		}
		if got := g.Covers(p, false); got != want {
			t.Fatalf("%s on %s: got %v, want %v (%+v)", pattern, p, got, want, g)
		}
	}
}

func TestMatchName(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	word := func(letters string) string {
		var b strings.Builder
		for range r.IntN(7) {
			b.WriteByte(letters[r.IntN(len(letters))])
		}
		return b.String()
	}
	for range 50000 {
		pattern, name := word("ab*?"), word("ab")
		want, _ := doublestar.Match(strings.ReplaceAll(pattern, "**", "*"), name)
		if strings.Contains(pattern, "***") {
			continue
		}
		if got := matchName(pattern, name); got != want {
			t.Fatalf("%q on %q: got %v, want %v", pattern, name, got, want)
		}
	}
	if !matchName("*TOKEN*", "A/B_TOKEN=x") || !deniesName("*TOKEN*", "my_token") {
		t.Error("a name with a slash, or in lower case, is missed")
	}
	if matchName(strings.Repeat("*a", 50)+"b", strings.Repeat("a", 5000)) {
		t.Error("matched")
	}
}

func mustPlan(t *testing.T, f Flags, policies ...string) Plan {
	t.Helper()
	p, err := planOf(t, f, policies...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func planOf(t *testing.T, f Flags, policies ...string) (Plan, error) {
	t.Helper()
	req, err := NewRequest("/home/u/w", "/home/u", f, Preset{Name: "none"}, Agent{})
	if err != nil {
		return Plan{}, err
	}
	var layers []Layer
	for i, text := range policies {
		l, err := ParseFile([]LayerName{User, Workspace, Session}[i], "p.toml", []byte("version = 1\n"+text))
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, l)
	}
	return Narrow(req, layers...)
}

func TestReadableRootsShrinkToWhatLayersAllow(t *testing.T) {
	p := mustPlan(t, Flags{Read: []string{"/usr", "/usr/lib", "/data", "/srv"}}, "[file_reads]\nallow = ['/usr/bin', '/usr/lib/**', '/data', '/opt']\nhide=['/data/x']\n")
	var got []string
	for _, r := range p.Reads {
		got = append(got, r.Path)
	}
	if want := []string{"/data", "/usr/bin", "/usr/lib"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if len(p.Refused) != 1 || p.Refused[0].Want.Value != "/srv" || p.Refused[0].By.Source.Line != 3 {
		t.Errorf("refused: got %v", p.Refused)
	}
	if p.ReadHost {
		t.Error("ReadHost without /")
	}
	if p := mustPlan(t, Flags{ReadHost: true, Read: []string{"/usr"}}); !p.ReadHost || len(p.Reads) != 1 {
		t.Errorf("--read-host: got %v", p.Reads)
	}
}

func TestWritableRootIsGivenWholeOrNotAtAll(t *testing.T) {
	p := mustPlan(t, Flags{Share: []string{"/data", "/out"}, Scratch: []string{"/tmp2"}, StageRoot: []string{"/other"}},
		"[file_writes]\nshare = ['/data/sub', '/out/**']\nscratch = []\n")
	if len(p.Shares) != 1 || p.Shares[0].Path != "/out" || len(p.Scratch) != 0 {
		t.Errorf("got %v %v", p.Shares, p.Scratch)
	}
	if len(p.StageRoots) != 2 || p.StageRoots[0].Path != "/home/u/w" || p.StageRoots[1].Path != "/other" {
		t.Errorf("stage roots: got %v, want the workspace first", p.StageRoots)
	}
	if p := mustPlan(t, Flags{}, "[file_writes]\nstage = ['src']\n"); len(p.StageRoots) != 0 || len(p.Refused) != 1 {
		t.Errorf("workspace outside the list: got %v %v", p.StageRoots, p.Refused)
	}
}

func TestHiddenRootIsNotGiven(t *testing.T) {
	p := mustPlan(t, Flags{Read: []string{"/home/u/.ssh"}, Share: []string{"/home/u/.ssh/x"}}, "[file_reads]\nhide = ['~/.ssh']\n")
	if len(p.Reads)+len(p.Shares) != 0 || len(p.Refused) != 2 {
		t.Errorf("got %v %v, refused %v", p.Reads, p.Shares, p.Refused)
	}
}

func TestRulesBelow(t *testing.T) {
	p := mustPlan(t, Flags{DenyWrite: []string{".git/hooks/"}}, "[file_reads]\nhide = ['**/.env*', '~/.ssh']\ndeny = ['/etc/x', '/home/*/w/secret']\n")
	r := p.RulesBelow("/home/u/w")
	for path, want := range map[string]Verdict{
		".": 0, "a": 0, ".env": VerdictHide, "d/.env/x": VerdictHide, "secret/.env": VerdictHide | VerdictDenyRead, "secret": VerdictDenyRead,
		".git/hooks": VerdictDenyWrite, ".git/hooks/pre": VerdictDenyWrite, ".git": 0,
	} {
		if got := r.Verdict(tree.MustParsePath(path), true); got != want {
			t.Errorf("%s: got %b, want %b", path, got, want)
		}
	}
	if _, rule := r.Explain(tree.MustParsePath(".env"), false); rule.Source.String() != "p.toml:3" {
		t.Errorf("rule: got %s", rule)
	}
	if p.RulesBelow("/data") != nil {
		t.Error("rules where none can match")
	}
	if r := p.RulesBelow("/home/u/.ssh/deep"); r == nil || r.Verdict(tree.MustParsePath("x"), false) != VerdictHide {
		t.Error("a rule above the root is lost")
	}
}

// Rules that could not do what they say are refused, with the line of the rule.
func TestInertRulesAreRefused(t *testing.T) {
	for _, c := range []struct {
		name, policy, says string
		flags              Flags
	}{
		{"exec rules with userns", "[subprocesses]\ndeny_exec = ['/usr/bin/sudo']\n", "user namespaces", Flags{Allow: []string{"userns"}}},
		{"host rules with --net host", "[[network.deny]]\nhost = 'evil.example'\n", "mediator", Flags{Net: "host"}},
		{"host list with --net host", "[[network.allow]]\nhost = 'good.example'\n", "mediator", Flags{Net: "host"}},
		{"deep pattern in a readable root", "[file_reads]\nhide = ['/usr/**/x']\n", "cannot be enforced", Flags{Read: []string{"/usr"}}},
		{"deep pattern over the whole host", "[file_reads]\ndeny = ['/**/x']\n", "cannot be enforced", Flags{ReadHost: true}},
		{"deep pattern in a share", "[file_reads]\ndeny = ['/out/**/x']\n", "cannot be enforced", Flags{Share: []string{"/out"}}},
	} {
		_, err := planOf(t, c.flags, c.policy)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "p.toml:") {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
	for _, c := range []struct {
		name, policy string
		flags        Flags
	}{
		{"exec rules without userns", "[subprocesses]\ndeny_exec = ['/usr/bin/sudo']\n", Flags{}},
		{"userns taken away", "[subprocesses]\ndeny_exec = ['/usr/bin/sudo']\nuserns = false\n", Flags{Allow: []string{"userns"}}},
		{"host rules without a network", "[[network.deny]]\nhost = 'evil.example'\n", Flags{}},
		{"deep pattern in the workspace", "[file_reads]\nhide = ['**/x']\n", Flags{ReadHost: true}},
		{"subtree", "[file_reads]\nhide = ['/usr/share/**', '/usr/*/x']\n", Flags{Read: []string{"/usr"}}},
		{"path that does not exist", "[file_reads]\nhide = ['/no/such']\n", Flags{}},
	} {
		if _, err := planOf(t, c.flags, c.policy); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestFlagsThatContradictAreRefused(t *testing.T) {
	for _, f := range []Flags{
		{Net: "none", AllowHost: []string{"a.example"}}, {Net: "host", AllowHost: []string{"a.example"}}, {Net: "host", DenyHost: []string{"a.example"}},
		{Net: "some"}, {AllowHost: []string{"a b"}}, {AllowHost: []string{"127.0.0.1:*"}}, {Allow: []string{"root"}}, {Read: []string{"rel"}}, {Share: []string{"/a/../b"}},
		{Share: []string{"/x"}, Scratch: []string{"/x"}}, {Share: []string{"/home/u/w"}}, {Hide: []string{"["}}, {Env: []string{"=x"}}, {Env: []string{""}},
		{Timeout: "-1s"}, {Memory: "lots"}, {CPU: "0"}, {Nofile: "0"}, {Disk: "1e3"}, {AllowDegraded: []string{"net.nothing"}}, {DenyExec: []string{""}},
	} {
		_, err := planOf(t, f)
		if err == nil || !strings.HasPrefix(err.Error(), "--") || strings.Count(err.Error(), ": ") < 2 {
			t.Errorf("%+v: got %v, want an error that names a flag and what to do", f, err)
		}
	}
}

func TestRequestDefaults(t *testing.T) {
	p := mustPlan(t, Flags{AllowHost: []string{"a.example"}, Env: []string{"A", "B=x y", "C="}, Timeout: "1h30m", Disk: "10GiB", CPU: "1.5"}, "[credentials]\ndeny_env = ['C']\n")
	if p.Net.Mode != NetAllow || len(p.Net.Allow) != 1 || !slices.Equal(p.Net.Allow[0].Ports, []uint16{443}) {
		t.Errorf("net: got %+v", p.Net)
	}
	if len(p.SetEnv) != 1 || p.SetEnv["B"] != "x y" {
		t.Errorf("set: got %v", p.SetEnv)
	}
	if ok, r := p.Env("C"); ok || r.Source.Line != 3 {
		t.Errorf("C: got %v %s", ok, r)
	}
	if p.Timeout.Max != 90*time.Minute || p.Disk.Max != 10<<30 || p.CPU.Max != 1.5 || p.Memory.Set {
		t.Errorf("limits: got %+v %+v %+v", p.Timeout, p.Disk, p.CPU)
	}
	for _, r := range p.rulesOf(Credentials) {
		if strings.Contains(r.Value, "x y") {
			t.Errorf("a rule holds a value: %s", r)
		}
	}
}

func TestLayersLowerTheMode(t *testing.T) {
	p := mustPlan(t, Flags{Net: "host"}, "[network]\nmode = 'allow'\n", "[network]\nmode = 'host'\n")
	if p.Net.Mode != NetAllow || p.Net.Rule.Source.Line != 3 {
		t.Errorf("got %+v", p.Net)
	}
	p = mustPlan(t, Flags{AllowHost: []string{"a.example"}}, "[network]\nmode = 'none'\n")
	if p.Net.Mode != NetNone || len(p.Net.Allow) != 0 || len(p.Refused) != 1 {
		t.Errorf("got %+v, refused %v", p.Net, p.Refused)
	}
	if ok, r := p.Host("a.example", 443); ok || r.Source.Line != 3 {
		t.Errorf("host: got %v %s", ok, r)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]uint64{"1": 1, "10GiB": 10 << 30, "64M": 64 << 20, "1.5GB": 15e8, "2 KiB": 2048, "3kb": 3000, "1T": 1 << 40} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "1X", "M", "9999999999G", "0.1", "NaN", "1e99", "1e400GB", "Inf"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q: taken as %d", text, got)
		}
	}
}
