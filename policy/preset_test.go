package policy

import (
	"slices"
	"strings"
	"testing"
)

func mustPresets(t *testing.T) Presets {
	t.Helper()
	ps, err := LoadPresets()
	if err != nil {
		t.Fatal(err)
	}
	return ps
}

func TestBuiltInTableIsSound(t *testing.T) {
	ps := mustPresets(t)
	if want := []string{"claude", "codex", "gemini", "generic", "opencode"}; !slices.Equal(ps.Names(), want) {
		t.Errorf("got %v, want %v", ps.Names(), want)
	}
	for _, name := range ps.Names() {
		p, _ := ps.Named(name)
		req, err := NewRequest("/home/u/w", "/home/u", Flags{}, p, Agent{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		plan, err := Narrow(req, ps.Executor)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(plan.Refused) != 0 {
			t.Errorf("%s: the executor base refuses what the preset asks for: %v", name, plan.Refused)
		}
		for _, r := range ps.Executor.Rules {
			if r.Source.Line == 0 || r.Source.File != executorsFile {
				t.Fatalf("rule without its line: %+v", r)
			}
		}
		if got := plan.Net.Mode == NetAllow; got != (len(p.Hosts) > 0) {
			t.Errorf("%s: mode %s", name, plan.Net.Mode)
		}
	}
}

func TestNoPresetPassesOrReadsSecrets(t *testing.T) {
	ps := mustPresets(t)
	for _, name := range ps.Names() {
		p, _ := ps.Named(name)
		req, err := NewRequest("/home/u/w", "/home/u", Flags{ReadHost: true, Env: []string{"*"}}, p, Agent{})
		if err != nil {
			t.Fatal(err)
		}
		plan, err := Narrow(req, ps.Executor)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/home/u/.ssh/id_ed25519", "/home/u/.gnupg/x", "/home/u/.aws/credentials", "/home/u/.netrc", "/home/u/.docker/config.json", "/home/u/.kube/config",
			"/home/u/.config/gcloud/x", "/home/u/.config/gh/hosts.yml", "/home/u/.git-credentials", "/home/u/.npmrc", "/home/u/.codex/auth.json", "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/sudoers.d/x",
			"/etc/ssh/ssh_host_ed25519_key", "/etc/ssl/private/x", "/home/u/.bash_history"} {
			if plan.readable(path) {
				t.Errorf("%s: %s is readable", name, path)
			}
		}
		for _, path := range []string{"/etc/passwd", "/etc/ssh/ssh_config", "/etc/ssl/certs/x", "/etc/ssh/ssh_host_ed25519_key.pub", "/usr/bin/cc"} {
			if !plan.readable(path) {
				t.Errorf("%s: %s is not readable", name, path)
			}
		}
		for _, v := range []string{"SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "_STAGE_ENTER", "XDG_RUNTIME_DIR"} {
			if ok, _ := plan.Env(v); ok {
				t.Errorf("%s: %s passes", name, v)
			}
		}
	}
	generic, _ := ps.Named(Generic)
	codex, _ := ps.Named("codex")
	for _, c := range []struct {
		preset Preset
		name   string
		want   bool
	}{
		{generic, "PATH", true}, {generic, "LC_TIME", true}, {generic, "HOME", true},
		{generic, "OPENAI_API_KEY", false}, {generic, "CODEX_API_KEY", false}, {generic, "AWS_SECRET_ACCESS_KEY", false}, {generic, "GITHUB_TOKEN", false}, {generic, "LD_PRELOAD", false}, {generic, "TMPDIR", false},
		{codex, "PATH", true}, {codex, "CODEX_API_KEY", true}, {codex, "OPENAI_API_KEY", false}, {codex, "ANTHROPIC_API_KEY", false},
	} {
		req, err := NewRequest("/w", "/h", Flags{}, c.preset, Agent{})
		if err != nil {
			t.Fatal(err)
		}
		plan, err := Narrow(req, ps.Executor)
		if err != nil {
			t.Fatal(err)
		}
		if got, by := plan.Env(c.name); got != c.want {
			t.Errorf("%s passes %s: got %v (%s)", c.preset.Name, c.name, got, by)
		}
	}
}

func TestPresetIsTakenOnlyFromOutsideWhatTheJobWrites(t *testing.T) {
	ps := mustPresets(t)
	for _, c := range []struct{ explicit, argv0, resolved, want, hint string }{
		{"", "codex", "/usr/bin/codex", "codex", ""},
		{"", "/opt/x/codex", "/opt/x/node_modules/codex.js", "codex", ""},
		{"", "./codex", "/home/u/w/codex", Generic, "--executor codex"},
		{"", "codex", "/home/u/w", Generic, "--executor codex"},
		{"", "codex", "", Generic, "--executor codex"}, // not found
		{"", "codex", "/home/u/wide/codex", "codex", ""},
		{"", "make", "/usr/bin/make", Generic, ""},
		{"codex", "./codex", "/home/u/w/codex", "codex", ""},
		{Generic, "codex", "/usr/bin/codex", Generic, ""},
	} {
		p, hint, err := ps.Choose(c.explicit, c.argv0, c.resolved, []string{"/home/u/w"})
		if err != nil || p.Name != c.want || !strings.Contains(hint, c.hint) || c.hint == "" && hint != "" {
			t.Errorf("%+v: got %s, %q, %v", c, p.Name, hint, err)
		}
	}
	if _, _, err := ps.Choose("nobody", "x", "/x", nil); err == nil || !strings.Contains(err.Error(), "codex") {
		t.Errorf("unknown preset: got %v", err)
	}
}

func TestNetFlagBeatsThePreset(t *testing.T) {
	codex, _ := mustPresets(t).Named("codex")
	for _, c := range []struct {
		flags Flags
		agent Agent
		mode  NetMode
		hosts string
	}{
		{Flags{}, Agent{}, NetAllow, "api.openai.com:443"},
		{Flags{}, Agent{Hosts: []string{"127.0.0.1:8080"}}, NetAllow, "127.0.0.1:8080"},
		{Flags{}, Agent{Hosts: []string{}}, NetNone, ""},
		{Flags{Net: "none"}, Agent{}, NetNone, ""},
		{Flags{Net: "host"}, Agent{}, NetHost, ""},
		{Flags{Net: "allow"}, Agent{}, NetAllow, "api.openai.com:443"},
		{Flags{AllowHost: []string{"x.example:8443"}}, Agent{}, NetAllow, "api.openai.com:443 x.example:8443"},
	} {
		req, err := NewRequest("/w", "/h", c.flags, codex, c.agent)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := Narrow(req)
		if err != nil {
			t.Fatal(err)
		}
		var hosts []string
		for _, h := range plan.Net.Allow {
			hosts = append(hosts, h.String())
		}
		slices.Sort(hosts)
		if plan.Net.Mode != c.mode || strings.Join(hosts, " ") != c.hosts {
			t.Errorf("%+v %+v: got %s %v", c.flags, c.agent, plan.Net.Mode, hosts)
		}
	}
}

func TestPresetLimitsAreNoDemands(t *testing.T) {
	generic, _ := mustPresets(t).Named(Generic)
	find := func(f Flags, d Dimension, id string) ControlNeed {
		req, err := NewRequest("/w", "/h", f, generic, Agent{})
		if err != nil {
			t.Fatal(err)
		}
		plan, err := Narrow(req)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range plan.Controls()[d] {
			if n.ID == id {
				return n
			}
		}
		t.Fatalf("no control %s", id)
		return ControlNeed{}
	}
	for _, c := range []struct {
		flags Flags
		d     Dimension
		id    string
		want  bool
		rules int
	}{
		{Flags{}, Subprocesses, "pids.limit", false, 1},
		{Flags{Pids: 10}, Subprocesses, "pids.limit", true, 1},
		{Flags{}, Subprocesses, "exec.rules", false, 0},
		{Flags{DenyExec: []string{"/usr/bin/sudo"}}, Subprocesses, "exec.rules", true, 1},
		{Flags{}, Resources, "res.memory", false, 0},
		{Flags{Memory: "1G"}, Resources, "res.memory", true, 1},
		{Flags{CPU: "1"}, Resources, "res.cpu", true, 1},
		{Flags{Timeout: "1s"}, Resources, "res.wall", true, 1},
		{Flags{Disk: "1G"}, Resources, "res.disk", true, 1},
		{Flags{Disk: "1G"}, FileWrites, "fs.quota", true, 1},
		{Flags{MaxOutput: "1M"}, Resources, "res.output", true, 1},
		{Flags{Nofile: "64"}, Resources, "res.nofile", true, 1},
		{Flags{}, Network, "net.netns", true, 0},
		{Flags{}, Network, "net.mediator", false, 0},
		{Flags{AllowHost: []string{"a.example"}}, Network, "net.mediator", true, 1},
		{Flags{Net: "host"}, Network, "net.netns", true, 1},
		{Flags{}, FileReads, "fs.rules", false, 0},
		{Flags{DenyRead: []string{".env"}}, FileReads, "fs.rules", true, 1},
		{Flags{Hide: []string{"/srv/x"}}, FileReads, "fs.rules", false, 0},
		{Flags{Hide: []string{"/srv/x"}}, FileReads, "mask.secrets", true, 1},
		{Flags{}, FileReads, "landlock.fs", false, 0},
		{Flags{Strict: true}, FileReads, "landlock.fs", true, 0},
		{Flags{Share: []string{"/x"}}, FileWrites, "mount.shares", true, 1},
		{Flags{}, FileWrites, "mount.shares", false, 0},
	} {
		if n := find(c.flags, c.d, c.id); n.Required != c.want || len(n.Rules) != c.rules {
			t.Errorf("%s with %+v: got required %v, rules %v", c.id, c.flags, n.Required, n.Rules)
		}
	}
	if n := find(Flags{Net: "host"}, Network, "net.netns"); !n.DegradedAllowed {
		t.Errorf("--net host: got %+v, want that the run goes on without the control", n)
	}
	if n := find(Flags{Pids: 3, AllowDegraded: []string{"pids.limit"}}, Subprocesses, "pids.limit"); !n.Required || !n.DegradedAllowed {
		t.Errorf("--allow-degraded: got %+v", n)
	}
}

func TestHostsFromEnv(t *testing.T) {
	claude, _ := mustPresets(t).Named("claude")
	lookup := func(v string) func(string) (string, bool) {
		return func(string) (string, bool) { return v, v != "" }
	}
	if got, err := claude.HostsFromEnv(lookup("http://[::1]:8080/v1")); err != nil || !slices.Equal(got, []string{"[::1]:8080"}) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := claude.HostsFromEnv(lookup("")); err != nil || got != nil {
		t.Errorf("unset: got %v, %v", got, err)
	}
	for _, v := range []string{"ftp://x", "https://", "https://a:99999", "https://\x7f", "api.example"} {
		if got, err := claude.HostsFromEnv(lookup(v)); err == nil {
			t.Errorf("%q: taken as %v", v, got)
		}
	}
	if _, err := claude.HostsFromEnv(lookup("https://u:secret@\x00")); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a password is in the message: %v", err)
	}
}

func TestBrokenTableIsRefused(t *testing.T) {
	for _, c := range [][2]string{
		{"version = 1", "version = 9"}, {"[preset.generic]", "[preset.general]"}, {"pids = 4096", "pidz = 4096"},
		{"[executor.credentials]", "[executor.credential]"}, {"deny_env = [", "deny_envs = ["}, {"sandbox = true", "sandboxed = true"},
	} {
		text := strings.Replace(executorsText, c[0], c[1], 1)
		if text == executorsText {
			t.Fatalf("no %q in the table", c[0])
		}
		if _, err := loadPresets(text); err == nil || !strings.HasPrefix(err.Error(), executorsFile+":") {
			t.Errorf("%s: got %v", c[1], err)
		}
	}
}
