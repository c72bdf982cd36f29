package session

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"stage/fs/tree"
	"stage/policy"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAgentFilesAreChosenByPattern(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"config.toml", "auth.json", "AGENTS.md", "rules/a", "rules/deep/b", "sessions/1", "history.jsonl"} {
		write(t, filepath.Join(dir, f), f)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "AGENTS.link.md")); err != nil {
		t.Fatal(err)
	}
	got, err := agentFiles(dir, []string{"config.toml", "AGENTS*.md", "rules"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"AGENTS.md", "config.toml", "rules/a", "rules/deep/b"}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, err := agentFiles(filepath.Join(dir, "absent"), []string{"*"}); err != nil || len(got) != 0 {
		t.Errorf("absent home: %q, %v; want nothing", got, err)
	}
}

// newAgentHome is an agent home on a made-up host, copied into a private directory.
func newAgentHome(t *testing.T) *agentHome {
	t.Helper()
	h := &agentHome{
		preset: policy.AgentHome{WriteBack: []string{"auth.json"}}, path: t.TempDir(), files: []string{"auth.json", "config.toml"},
		edited: map[string][]byte{"config.toml": []byte("edited")}, digests: map[string]tree.Digest{},
	}
	write(t, filepath.Join(h.path, "auth.json"), "old")
	write(t, filepath.Join(h.path, "config.toml"), "original")
	if err := h.populate(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestPopulateEditsTheCopyAlone(t *testing.T) {
	h := newAgentHome(t)
	for path, want := range map[string]string{
		filepath.Join(h.dir, "auth.json"): "old", filepath.Join(h.dir, "config.toml"): "edited",
		filepath.Join(h.path, "config.toml"): "original",
	} {
		if got := read(t, path); got != want {
			t.Errorf("%s holds %q, want %q", path, got, want)
		}
	}
}

func TestWriteBack(t *testing.T) {
	for _, c := range []struct {
		name string
		job  func(t *testing.T, h *agentHome) // what the Job and the host do
		want string                           // what the host holds afterwards
		n    int                              // files written back
	}{
		{"refreshed by the Job", func(t *testing.T, h *agentHome) { write(t, filepath.Join(h.dir, "auth.json"), "new") }, "new", 1},
		{"unchanged", func(*testing.T, *agentHome) {}, "old", 0},
		{"refreshed on the host too", func(t *testing.T, h *agentHome) {
			write(t, filepath.Join(h.dir, "auth.json"), "new")
			write(t, filepath.Join(h.path, "auth.json"), "host's")
		}, "host's", 0},
		{"replaced by a link to a secret", func(t *testing.T, h *agentHome) {
			secret := filepath.Join(t.TempDir(), "secret")
			write(t, secret, "secret")
			p := filepath.Join(h.dir, "auth.json")
			if err := os.Remove(p); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(secret, p); err != nil {
				t.Fatal(err)
			}
		}, "old", 0},
		{"removed by the Job", func(t *testing.T, h *agentHome) {
			if err := os.Remove(filepath.Join(h.dir, "auth.json")); err != nil {
				t.Fatal(err)
			}
		}, "old", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newAgentHome(t)
			c.job(t, h)
			wrote, err := h.writeBack()
			if err != nil || len(wrote) != c.n {
				t.Errorf("wrote %q, %v; want %d files", wrote, err, c.n)
			}
			if got := read(t, filepath.Join(h.path, "auth.json")); got != c.want {
				t.Errorf("host holds %q, want %q", got, c.want)
			}
		})
	}
}

func TestToolchainsInUseAreReadable(t *testing.T) {
	home := t.TempDir()
	for _, dir := range []string{"go/bin", "sdk", "ws/tools/bin", ".cargo"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	a := &Admission{Home: home, Workspace: filepath.Join(home, "ws")}
	t.Setenv("PATH", filepath.Join(home, "go/bin")+":/usr/bin")
	t.Setenv("CARGO_HOME", "")
	t.Setenv("GOROOT", filepath.Join(home, "sdk"))
	t.Setenv("EVERYTHING", home)
	for _, c := range []struct {
		tool policy.Toolchain
		want string
	}{
		{policy.Toolchain{Path: "~/go", Env: "NO_SUCH"}, filepath.Join(home, "go")},
		{policy.Toolchain{Path: "~/other", Env: "GOROOT"}, filepath.Join(home, "sdk")},
		{policy.Toolchain{Path: "~/.cargo", Env: "CARGO_HOME"}, ""},  // not in use
		{policy.Toolchain{Path: "~/x", Env: "EVERYTHING"}, ""},       // would open the home directory
		{policy.Toolchain{Path: "~/no/such/toolchain", Env: ""}, ""}, // absent
		{policy.Toolchain{Path: "~/nothing", Env: "PATH"}, ""},       // no directory at all
	} {
		if got := a.toolchain(c.tool); got != c.want {
			t.Errorf("%+v: %q, want %q", c.tool, got, c.want)
		}
	}
}
