package policy

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

// example is the policy that the documentation shows.
const example = `version = 1
[file_reads]
hide = ["~/.config/**"]
deny = ["**/.env*"]
allow = ["/usr/**"]
[file_writes]
deny = [".git/hooks/**"]
stage = ["."]
share = []
scratch = [
  "~/.cache/x", # cache
  "~/.cache/y",
]
disk = "10GiB"
[network]
mode = "allow"
[[network.allow]]
host = "*.example.org"
ports = [443, 80]
[[network.allow]]
host = "Example.ORG."
[[network.deny]]
host = "evil.example.org"
[subprocesses]
deny_exec = ["/usr/bin/sudo"]
userns = false
pids = 512
[credentials]
env = ["PATH", "LANG", "LC_*"]
deny_env = ["*TOKEN*"]
[resources]
memory = "4GiB"
cpu = 2.0
timeout = "30m"
nofile = 4096
max_output = "64MiB"
`

func TestParseFileGivesEveryRuleItsLine(t *testing.T) {
	l, err := ParseFile(User, "policy.toml", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range l.Rules {
		got = append(got, strings.Join([]string{string(r.Dimension), string(r.Verb), r.Object, r.Value, r.Source.String()}, " "))
	}
	want := []string{
		"file_reads hide path ~/.config/** policy.toml:3",
		"file_reads deny read **/.env* policy.toml:4",
		"file_reads allow read /usr/** policy.toml:5",
		"file_writes deny write .git/hooks/** policy.toml:7",
		"file_writes allow stage . policy.toml:8",
		"file_writes allow share  policy.toml:9",
		"file_writes allow scratch ~/.cache/x policy.toml:11",
		"file_writes allow scratch ~/.cache/y policy.toml:12",
		"file_writes limit disk 10737418240 policy.toml:14",
		"network limit mode allow policy.toml:16",
		"network allow host *.example.org:80,443 policy.toml:17",
		"network allow host example.org:443 policy.toml:20",
		"network deny host evil.example.org:* policy.toml:22",
		"subprocesses deny exec /usr/bin/sudo policy.toml:25",
		"subprocesses limit userns false policy.toml:26",
		"subprocesses limit pids 512 policy.toml:27",
		"credentials allow env PATH policy.toml:29",
		"credentials allow env LANG policy.toml:29",
		"credentials allow env LC_* policy.toml:29",
		"credentials deny env *TOKEN* policy.toml:30",
		"resources limit memory 4294967296 policy.toml:32",
		"resources limit cpu 2 policy.toml:33",
		"resources limit timeout 1800000000000 policy.toml:34",
		"resources limit nofile 4096 policy.toml:35",
		"resources limit max_output 67108864 policy.toml:36",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if l.Digest == "" || l.Name != User || l.File != "policy.toml" {
		t.Errorf("got %+v", l)
	}
}

// Every refusal names file and line, what is wrong and what to do.
func TestParseFileRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, line, says string }{
		{"no version", "[file_reads]\n", "1", "no version"},
		{"unknown version before unknown keys", "x = 1\nversion = 2\n", "2", "unknown version 2"},
		{"version as text", "version = \"1\"\n", "1", "unknown version"},
		{"not TOML", "version = 1\nx = @\n", "2", "not valid TOML"},
		{"key twice", "version = 1\nversion = 1\n", "2", "not valid TOML"},
		{"unknown table", "version = 1\n\n[files]\n", "3", `unknown key "files"`},
		{"unknown key", "version = 1\n[file_reads]\nallow = []\nalow = []\n", "4", `unknown key "alow" in [file_reads]`},
		{"dimension that is no table", "version = 1\nnetwork = 3\n", "2", "not a table"},
		{"list that is none", "version = 1\n[file_reads]\nhide = \"x\"\n", "3", "not a list"},
		{"element that is no string", "version = 1\n[file_reads]\nhide = [\n\"x\",\n3]\n", "5", "not a string"},
		{"unclosed glob", "version = 1\n[file_reads]\nhide = [\"a\",\n\"b[\"]\n", "4", "unclosed"},
		{"empty glob", "version = 1\n[file_reads]\nhide = [\"\"]\n", "3", "empty pattern"},
		{"parent", "version = 1\n[file_writes]\ndeny = [\"../x\"]\n", "3", `".."`},
		{"parent in braces", "version = 1\n[file_writes]\ndeny = [\"{a,../x}\"]\n", "3", `".."`},
		{"other user's home", "version = 1\n[file_writes]\ndeny = [\"~joe/x\"]\n", "3", "only ~ and ~/"},
		{"wildcards in an allow list of roots", "version = 1\n[file_reads]\nallow = [\"/usr/*/x\"]\n", "3", "does not name one directory"},
		{"size", "version = 1\n[resources]\nmemory = \"4XB\"\n", "3", "unknown unit"},
		{"negative size", "version = 1\n[resources]\nmemory = -1\n", "3", "memory"},
		{"duration", "version = 1\n[resources]\ntimeout = \"soon\"\n", "3", "positive duration"},
		{"number of seconds", "version = 1\n[resources]\ntimeout = 30\n", "3", "positive duration"},
		{"no CPU", "version = 1\n[resources]\ncpu = 0.0\n", "3", "CPUs"},
		{"CPU that is no number", "version = 1\n[resources]\ncpu = nan\n", "3", "CPUs"},
		{"limit as list", "version = 1\n[resources]\nnofile = [1]\n", "3", "nofile"},
		{"mode", "version = 1\n[network]\nmode = \"some\"\n", "3", "none of none, allow, host"},
		{"userns as text", "version = 1\n[subprocesses]\nuserns = \"maybe\"\n", "3", "userns"},
		{"host with a port", "version = 1\n[[network.allow]]\nhost = \"a:80\"\n", "3", "holds a port"},
		{"host missing", "version = 1\n[[network.allow]]\nports = [1]\n", "2", "no host"},
		{"host with user", "version = 1\n[[network.deny]]\nhost = \"a@b\"\n", "3", `'@'`},
		{"bare star", "version = 1\n[[network.allow]]\nhost = \"*\"\n", "3", `'*'`},
		{"unknown key of a host", "version = 1\n[[network.allow]]\nhost = \"a\"\nport = 1\n", "4", `unknown key "port"`},
		{"no ports", "version = 1\n[[network.allow]]\nhost = \"a\"\nports = []\n", "4", "not a list of ports"},
		{"port range", "version = 1\n[[network.allow]]\nhost = \"a\"\nports = [\n80,\n70000]\n", "6", "70000 is not a port"},
		{"hosts as strings", "version = 1\n[network]\nallow = [\"a\"]\n", "3", "not a table"},
		{"hosts as text", "version = 1\n[network]\nallow = \"a\"\n", "3", "not a list of tables"},
		{"second host", "version = 1\n[[network.allow]]\nhost = \"a\"\n[[network.allow]]\nhost = \"b c\"\n", "5", "b c"},
		{"variable with =", "version = 1\n[credentials]\nenv = [\"A=B\"]\n", "3", "holds ="},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseFile(User, "p.toml", []byte(c.text))
			e := (*Error)(nil)
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an *Error", err)
			}
			if !strings.HasPrefix(err.Error(), "p.toml:"+c.line+": ") || !strings.Contains(e.Msg, c.says) || e.Next == "" {
				t.Errorf("got %v (next %q), want line %s and %q", err, e.Next, c.line, c.says)
			}
		})
	}
	if _, err := ParseFile(User, "p.toml", make([]byte, MaxFile+1)); err == nil {
		t.Error("a huge file was taken")
	}
}

func TestCheckFile(t *testing.T) {
	good := FileFacts{Name: "p.toml", Regular: true, Size: MaxFile, UID: 7, Mode: 0o644, CallerUID: 7}
	if err := CheckFile(good); err != nil {
		t.Errorf("refused a good file: %v", err)
	}
	for name, spoil := range map[string]func(*FileFacts){
		"link":           func(f *FileFacts) { f.Regular = false },
		"large":          func(f *FileFacts) { f.Size++ },
		"other's":        func(f *FileFacts) { f.UID = 8 },
		"group-writable": func(f *FileFacts) { f.Mode = 0o664 },
		"world-writable": func(f *FileFacts) { f.Mode = 0o646 },
		"zero facts":     func(f *FileFacts) { *f = FileFacts{} },
	} {
		f := good
		spoil(&f)
		if e := (*Error)(nil); !errors.As(CheckFile(f), &e) || e.Next == "" {
			t.Errorf("%s: not refused with a next step", name)
		}
	}
}

func TestLineIndexOfAllForms(t *testing.T) {
	text := "a = 1 # [x]\n" + // 1
		"b.\"c d\".'e' = \"\"\"\n\\\"\"\"x = [1]\n\"\"\"\n" + // 2-4
		"l = [ # c\n  '''q\n''',\n  {m = 1, n = [\n2]}, ]\n" + // 5-9
		"[t.u]\nk = 1979-05-27 07:32:00\n" + // 10-11
		"[[v]]\nk = 'x#'\n[v.w]\nz = 1\n[[v]]\nk = \"a\\\"]\"\n[[v.y]]\n[[v.y]]\nq = 0x1\n" // 12-20
	if _, err := decode("x", []byte(text)); err != nil {
		t.Fatal(err)
	}
	got := indexLines(text)
	for path, line := range map[string]int{
		"a": 1, "b": 2, "b.c d.e": 2, "l": 5, "l[0]": 6, "l[1]": 8, "l[1].m": 8, "l[1].n": 8, "l[1].n[0]": 9, "t.u": 10, "t.u.k": 11,
		"v[0]": 12, "v[0].k": 13, "v[0].w": 14, "v[0].w.z": 15, "v[1]": 16, "v[1].k": 17, "v[1].y[0]": 18, "v[1].y[1]": 19, "v[1].y[1].q": 20,
	} {
		if got[path] != line {
			t.Errorf("%s: got line %d, want %d", path, got[path], line)
		}
	}
	if got.at("l[1].n[7].x") != 8 || got.at("nowhere") != 1 {
		t.Error("at does not fall back to what is around")
	}
}

// Whatever the bytes, ParseFile answers with rules that have lines, or with an *Error that has one.
func FuzzParseFile(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("version = 1\n[[network.allow]]\nhost='a'\n[[network.allow]]\nports=[1]\n"))
	f.Add([]byte("version = 1\nfile_reads = {hide = ['a',\n'b[']}\n"))
	if text, err := os.ReadFile("executors.toml"); err == nil {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		last := strings.Count(string(text), "\n") + 1
		l, err := ParseFile(User, "p", text)
		if e := (*Error)(nil); err != nil && (!errors.As(err, &e) || e.Line < 1 || e.Line > last) {
			t.Fatalf("error without a line of the file: %v", err)
		}
		for _, r := range l.Rules {
			if r.Source.Line < 1 || r.Source.Line > last {
				t.Fatalf("%v: line %d", r, r.Source.Line)
			}
		}
		if err == nil {
			fuzzNarrow(t, l)
		}
	})
}

// fuzzNarrow narrows by a layer that parsed: what parses also compiles.
func fuzzNarrow(t *testing.T, l Layer) {
	req, err := NewRequest("/w", "/h", Flags{Read: []string{"/usr"}, Net: "allow", AllowHost: []string{"a.example"}}, Preset{}, Agent{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := Narrow(req, l)
	if e := (*Error)(nil); err != nil && !errors.As(err, &e) {
		t.Fatal(err)
	}
	p.PathVerdict("/w/a/b", false)
	p.Controls()
}

// The line scanner and the TOML library agree about which keys there are.
func FuzzLineIndex(f *testing.F) {
	f.Add(example)
	f.Add("a = [[1,\n2],[{b=1}]]\n[x.y]\n[[x.z]]\nq=\"\"\"\"\"\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		var m map[string]any
		meta, err := toml.Decode(text, &m)
		index := indexLines(text)
		if err != nil {
			return
		}
		for _, key := range meta.Keys() {
			if len(key) == 1 && !strings.ContainsAny(key[0], ".[\"'\\") && index[key[0]] == 0 && index[key[0]+"[0]"] == 0 {
				t.Fatalf("no line for %q in %q", key, text)
			}
		}
	})
}

// The policies that the documentation shows are policies.
func TestDocumentedPoliciesParse(t *testing.T) {
	text, err := os.ReadFile("../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```toml\n")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		if _, err := ParseFile(User, "docs/policy.md", []byte(block)); err != nil {
			t.Errorf("%v in\n%s", err, block)
		}
	}
	if len(blocks) < 3 {
		t.Errorf("%d policies in the documentation", len(blocks))
	}
}
