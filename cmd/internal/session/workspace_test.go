package session

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"stage/policy"
)

func TestFindWorkspace(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"repo/.git/objects", "repo/.git/refs", "repo/sub/deep", "plain/sub", "home"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(base, "repo/.git/HEAD"), "ref: refs/heads/main\n")
	write(t, filepath.Join(base, "file"), "")
	if err := os.Symlink("repo/sub", filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(base, "home")
	for _, c := range []struct{ named, cwd, want string }{
		{"", "repo/sub/deep", "repo"},
		{"", "repo", "repo"},
		{"", "link", "repo"},
		{"", "plain/sub", "plain/sub"},
		{"", "home", ""},
		{"home", "plain", "home"},
		{"link", "plain", "repo/sub"},
		{"no/such", "plain", ""},
		{"file", "plain", ""},
	} {
		named, want := c.named, c.want
		if named != "" {
			named = filepath.Join(base, named)
		}
		if want != "" {
			want = filepath.Join(base, want)
		}
		cwd, err := filepath.EvalSymlinks(filepath.Join(base, c.cwd))
		if err != nil {
			t.Fatal(err)
		}
		got, err := FindWorkspace(named, cwd, home)
		_, invalid := errors.AsType[*InvalidError](err)
		if got != want || (err != nil) != (want == "") || err != nil && !invalid {
			t.Errorf("FindWorkspace(%q) in %q: %q, %v; want %q", c.named, c.cwd, got, err, want)
		}
	}
}

// admission is what the generic preset admits with some flags, no policy file but the executor base.
func admission(t testing.TB, f policy.Flags) *Admission {
	t.Helper()
	presets, err := policy.LoadPresets()
	if err != nil {
		t.Fatal(err)
	}
	a := &Admission{Workspace: "/w", Home: "/home/u"}
	a.Preset, _ = presets.Named(policy.Generic)
	if a.Request, err = policy.NewRequest(a.Workspace, a.Home, f, a.Preset, policy.Agent{}); err != nil {
		t.Fatal(err)
	}
	if a.Plan, err = policy.Narrow(a.Request, presets.Executor); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestEnvironmentIsBuiltFromTheAllowList(t *testing.T) {
	a := admission(t, policy.Flags{Env: []string{"MY_FLAG", "SET=by flag"}, AllowHost: []string{"api.example.org"}})
	a.buildEnv([]string{"PATH=/usr/bin", "GITHUB_TOKEN=secret", "SSH_AUTH_SOCK=/run/agent", "MY_FLAG=1", "TMPDIR=/big/tmp", "LC_ALL=C", "HOME=/elsewhere"})
	for _, want := range []string{"PATH=/usr/bin", "MY_FLAG=1", "SET=by flag", "LC_ALL=C", "HOME=/home/u",
		"HTTPS_PROXY=http://127.0.0.1:3128", "no_proxy=127.0.0.1,localhost,::1"} {
		if !slices.Contains(a.Env, want) {
			t.Errorf("%q is missing in %q", want, a.Env)
		}
	}
	for _, name := range []string{"GITHUB_TOKEN", "SSH_AUTH_SOCK"} {
		if !slices.Contains(a.EnvDropped, name) || slices.Contains(a.EnvPassed, name) {
			t.Errorf("%s is not dropped: passed %q, dropped %q", name, a.EnvPassed, a.EnvDropped)
		}
		for _, kv := range a.Env {
			if len(kv) > len(name) && kv[:len(name)+1] == name+"=" {
				t.Errorf("the command gets %s", name)
			}
		}
	}
	if !slices.IsSorted(a.Env) {
		t.Error("the environment is not sorted")
	}
}

func TestUnsupportedControlsAreRefusedUnlessDegraded(t *testing.T) {
	if err := admission(t, policy.Flags{}).CheckSupported(); err != nil {
		t.Errorf("nothing asked for: %v", err)
	}
	err := admission(t, policy.Flags{Memory: "1GiB"}).CheckSupported()
	ce, ok := errors.AsType[*ControlError](err)
	if !ok || ce.Control != "res.memory" || ce.Fix == "" {
		t.Errorf("--memory gives %v, want a ControlError for res.memory with a fix", err)
	}
	if err := admission(t, policy.Flags{Memory: "1GiB", AllowDegraded: []string{"res.memory"}}).CheckSupported(); err != nil {
		t.Errorf("--memory with --allow-degraded: %v", err)
	}
}
