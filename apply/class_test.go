package apply_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"stage/apply"
	"stage/fs/staged/stagedtest"
)

// TestClassify: each case is a change and the classes it is flagged with.
func TestClassify(t *testing.T) {
	write := func(p, text string) func(x stagedtest.Tree) {
		return func(x stagedtest.Tree) { mkdirs(x, p); x.Write(p, text) }
	}
	cases := []struct {
		name string
		job  func(x stagedtest.Tree)
		path string
		want []apply.Class
	}{
		{"plain", write("n", "x"), "n", nil},
		{"hook", write("v/.git/hooks/pre-commit", "x"), "v/.git/hooks/pre-commit", []apply.Class{apply.GitHook}},
		{"sample hook", write("v/.git/hooks/x.sample", "x"), "v/.git/hooks/x.sample", nil},
		{"hooks of a module", write("v/.git/modules/m/hooks/update", "x"), "v/.git/modules/m/hooks/update", []apply.Class{apply.GitHook}},
		{"config", write("v/.git/config", "[core]\n\tbare = false\n"), "v/.git/config", nil},
		{"config that executes", write("v/.git/config", "[core]\n\tfsmonitor = x\n"), "v/.git/config", []apply.Class{apply.GitConfig}},
		{"config of a bare repository", func(x stagedtest.Tree) {
			mkdirs(x, "bare/config")
			x.Write("bare/HEAD", "ref: refs/heads/main\n")
			x.Write("bare/config", "[core]\n\tsshCommand = x\n")
		}, "bare/config", []apply.Class{apply.GitConfig}},
		{"git file", write("v/.git", "gitdir: /elsewhere\n"), "v/.git", []apply.Class{apply.GitConfig}},
		{"git attributes", write("a/.gitattributes", "* filter=x\n"), "a/.gitattributes", []apply.Class{apply.GitAttributes}},
		{"info attributes", write("v/.git/info/attributes", "x"), "v/.git/info/attributes", []apply.Class{apply.GitAttributes}},
		{"envrc", write(".envrc", "x"), ".envrc", []apply.Class{apply.Envrc}},
		{"editor", write(".idea/x.xml", "x"), ".idea/x.xml", []apply.Class{apply.EditorTask}},
		{"agent", write("AGENTS.md", "x"), "AGENTS.md", []apply.Class{apply.AgentConfig}},
		{"agent folder", write(".codex/config.toml", "x"), ".codex/config.toml", []apply.Class{apply.AgentConfig}},
		{"setuid", func(x stagedtest.Tree) { x.Write("n", "x"); x.Chmod("n", 0o4755) }, "n", []apply.Class{apply.Setuid, apply.ExecBit}},
		{"link out", func(x stagedtest.Tree) { x.Symlink("../../x", "a/n") }, "a/n", []apply.Class{apply.SymlinkOut}},
		{"absolute link", func(x stagedtest.Tree) { x.Symlink("/etc/passwd", "n") }, "n", []apply.Class{apply.SymlinkOut}},
		{"link inside", func(x stagedtest.Tree) { x.Symlink("../d/../f", "a/n") }, "a/n", nil},
		{"ci", write(".github/workflows/x.yml", "x"), ".github/workflows/x.yml", []apply.Class{apply.CI}},
		{"script", func(x stagedtest.Tree) { x.Write("n", "#!/bin/sh\n"); x.Chmod("n", 0o755) }, "n", []apply.Class{apply.ExecBit, apply.Script}},
		{"secret", write(".env.local", "x"), ".env.local", []apply.Class{apply.Secret}},
		{"brought by a move", func(x stagedtest.Tree) { x.Rename("a/b", ".idea") }, ".idea", []apply.Class{apply.EditorTask}},
		{"mass delete", func(x stagedtest.Tree) { x.Remove("f"); x.Remove("g"); x.Remove("a/f") }, "f", []apply.Class{apply.MassDelete}},
		{"deleted config", func(x stagedtest.Tree) { x.Remove("f") }, "f", nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			c.job(w.job)
			w.job.Seal()
			if got := classes(t, w, c.path, 5); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// mkdirs makes the folders above p that x has not.
func mkdirs(x stagedtest.Tree, p string) {
	if d := filepath.Dir(p); d != "." && !x.Has(d) {
		mkdirs(x, d)
		x.Mkdir(d)
	}
}

func classes(t *testing.T, w *world, p string, tracked int) []apply.Class {
	t.Helper()
	r := w.job.Reader(nil)
	all, err := r.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	flags, err := apply.Classify(t.Context(), all, r, tracked)
	if err != nil {
		t.Fatal(err)
	}
	var got []apply.Class
	for _, f := range flags[path(p)] {
		if f.Reason == "" {
			t.Errorf("flag %s has no reason", f.Class)
		}
		got = append(got, f.Class)
	}
	return slices.Compact(got)
}

// TestGitConfigFlagsWhatIsNew: keys that were there before are no reason; and what git reads
// otherwise than a simple reader does is read as git does.
func TestGitConfigFlagsWhatIsNew(t *testing.T) {
	const old = "[alias]\n\tst = status\n[core]\n\tpager = less\n"
	cases := []struct {
		name, text string
		gated      bool
	}{
		{"nothing new", old + "[user]\n\tname = x\n", false},
		{"new alias", old + "[alias]\n\tx = !sh\n", true},
		{"changed value", "[core]\n\tpager = sh\n", true},
		{"upper case", "[CORE]\n\tHOOKSPATH = x\n", true},
		{"on the section's line", "[core] hooksPath = x\n", true},
		{"subsection", "[filter \"x ] y\"]\n\tclean = x\n", true},
		{"old subsection", "[filter.x]\n\tclean = x\n", true},
		{"include", "[includeIf \"gitdir:x\"]\n\tpath = x\n", true},
		{"in a comment", "# [core]\n; hooksPath = x\n", false},
		{"comment does not continue", "[core]\n\tx = y # \\\n\thooksPath = z\n", true},
		{"quoted comment sign", "[core]\n\tx = \"y # \\\n[user]\"\n\tsshCommand = z\n", true},
		{"continued value", "[user]\n\tname = x \\\n[core]\n\tpager = less\n", false},
		{"DOS lines", "[core]\r\n\teditor = x\r\n", true},
		{"byte order mark", "\ufeff[core]\n\teditor = x\n", true},
		{"unreadable", "[core\n\teditor = x\n", true},
		{"url", "[url \"x\"]\n\tinsteadOf = y\n", true},
		{"remote", "[remote \"origin\"]\n\turl = x\n\tfetch = y\n", true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorldWith(t, func(x stagedtest.Tree) { x.Mkdir(".git"); x.Write(".git/config", old) })
			w.job.Write(".git/config", c.text)
			w.job.Seal()
			if got := slices.Contains(classes(t, w, ".git/config", 0), apply.GitConfig); got != c.gated {
				t.Errorf("gated %v, want %v", got, c.gated)
			}
		})
	}
}

// newWorldWith is newWorld with something more in the workspace.
func newWorldWith(t *testing.T, more func(stagedtest.Tree)) *world {
	t.Helper()
	w := newWorld(t)
	w.job.Seal()
	more(w.work)
	more(w.twin)
	w.store = filepath.Join(w.dir, "store2")
	if err := os.Mkdir(w.store, 0o700); err != nil {
		t.Fatal(err)
	}
	w.job = stagedtest.NewJob(t, w.work.Dir, w.store)
	return w
}
