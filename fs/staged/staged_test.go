package staged_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"stage/fs/hostfs"
	"stage/fs/overlay"
	"stage/fs/staged"
	"stage/fs/staged/stagedtest"
	"stage/fs/tree"
	"stage/journal"
)

func path(s string) tree.Path { return tree.MustParsePath(s) }

// newJob begins a Job over a sample workspace.
func newJob(t *testing.T) (*stagedtest.Job, stagedtest.Plain) {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"work", "store"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	work := stagedtest.Plain{T: t, Dir: filepath.Join(dir, "work")}
	stagedtest.Sample(work)
	return stagedtest.NewJob(t, work.Dir, filepath.Join(dir, "store")), work
}

func changes(t *testing.T, r *staged.Reader) []tree.Change {
	t.Helper()
	all, err := r.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// line writes a change in one line: path, what it was → what it is, and what else is to be said.
func line(c tree.Change) string {
	s := fmt.Sprintf("%s %s→%s", c.Path, c.Base.Kind, c.New.Kind)
	if c.Base.Kind == c.New.Kind && c.Base.SameContent(c.New) == tree.Same {
		s += " same-content"
	}
	if c.RenameFrom != nil {
		s += " from " + c.RenameFrom.String()
	}
	for _, f := range []struct {
		name string
		on   bool
	}{{"moved", c.Moved}, {"subtree", c.Subtree}, {"unknown", c.UnknownBase}, {"times", c.TimesSet}} {
		if f.on {
			s += " " + f.name
		}
	}
	if c.LinkGroup != 0 {
		s += fmt.Sprintf(" group %d", c.LinkGroup)
	}
	return s
}

// TestNetChanges: each case is what a Job does and the net changes it leaves.
func TestNetChanges(t *testing.T) {
	cases := []struct {
		name string
		job  func(x stagedtest.Tree)
		want string // lines
	}{
		{"nothing", func(x stagedtest.Tree) {}, ""},
		{"created and deleted", func(x stagedtest.Tree) {
			x.Write("n", "x")
			x.Remove("n")
			x.Mkdir("m")
			x.Write("m/n", "x")
			x.Remove("m/n")
			x.Remove("m")
		}, ""},
		{"written and restored", func(x stagedtest.Tree) { x.Write("f", "x"); x.Write("f", "content 0\n") }, ""},
		{"deleted and made again alike", func(x stagedtest.Tree) { x.Remove("f"); x.Write("f", "content 0\n") }, ""},
		{"mode there and back", func(x stagedtest.Tree) { x.Chmod("f", 0o600); x.Chmod("f", 0o644) }, ""},
		{"renamed there and back", func(x stagedtest.Tree) { x.Rename("f", "n"); x.Rename("n", "f") }, ""},
		{"folder renamed there and back", func(x stagedtest.Tree) { x.Rename("a", "n"); x.Rename("n", "a") }, ""},
		{"folder whose mtime nobody set", func(x stagedtest.Tree) { x.Write("d/n", "x"); x.Remove("d/n") }, ""},
		{"modified", func(x stagedtest.Tree) { x.Write("f", "x") }, "f file→file"},
		{"mode", func(x stagedtest.Tree) { x.Chmod("f", 0o600) }, "f file→file same-content"},
		{"mode of a folder", func(x stagedtest.Tree) { x.Chmod("a", 0o700) }, "a dir→dir same-content"},
		{"xattr", func(x stagedtest.Tree) { x.Setxattr("f", "user.x", "y") }, "f file→file same-content"},
		{"explicit mtime", func(x stagedtest.Tree) { x.SetMtime("f", time.Unix(1, 0)) }, "f file→file same-content times"},
		{"explicit mtime of a folder", func(x stagedtest.Tree) { x.SetMtime("d", time.Unix(1, 0)) }, "d dir→dir same-content times"},
		{"added", func(x stagedtest.Tree) { x.Mkdir("n"); x.Write("n/f", "x") }, "n absent→dir\nn/f absent→file"},
		{"deleted", func(x stagedtest.Tree) { x.Remove("f") }, "f file→absent"},
		{"folder deleted", func(x stagedtest.Tree) {
			stagedtest.RemoveAll(x, []string{"a", "a/b", "a/b/c", "a/b/c/f", "a/b/c/g", "a/b/f", "a/f", "a/g", "a/l"}, "a")
		}, "a dir→absent subtree"},
		{"file to folder", func(x stagedtest.Tree) { x.Remove("f"); x.Mkdir("f"); x.Write("f/n", "x") }, "f file→dir\nf/n absent→file"},
		{"folder to file", func(x stagedtest.Tree) { x.Remove("empty"); x.Write("empty", "x") }, "empty dir→file subtree"},
		{"file to link", func(x stagedtest.Tree) { x.Remove("f"); x.Symlink("g", "f") }, "f file→symlink"},
		{"link retargeted", func(x stagedtest.Tree) { x.Remove("l"); x.Symlink("g", "l") }, "l symlink→symlink"},
		{"renamed", func(x stagedtest.Tree) { x.Rename("f", "n") }, "f file→absent\nn absent→file from f"},
		{"renamed and changed", func(x stagedtest.Tree) { x.Rename("f", "n"); x.Write("n", "x") }, "f file→absent\nn absent→file from f"},
		{"renamed twice", func(x stagedtest.Tree) { x.Rename("f", "m"); x.Rename("m", "n") }, "f file→absent\nn absent→file from f"},
		{"moved by copy", func(x stagedtest.Tree) { x.Write("n", "content 0\n"); x.Remove("f") }, "f file→absent\nn absent→file from f"},
		{"backup made by rename", func(x stagedtest.Tree) { x.Rename("f", "f~"); x.Write("f", "x") }, "f file→file\nf~ absent→file"},
		{"folder moved", func(x stagedtest.Tree) { x.Rename("a/b", "m") }, "a/b dir→absent subtree\nm absent→dir from a/b moved"},
		{"folder moved and changed", func(x stagedtest.Tree) {
			x.Rename("a/b", "m")
			x.Write("m/f", "x")
			x.Remove("m/c/f")
			x.Write("m/n", "x")
		},
			"a/b dir→absent subtree\na/b/c/f file→absent\nm absent→dir from a/b moved\nm/f absent→file from a/b/f\nm/n absent→file"},
		{"folder moved into a new one", func(x stagedtest.Tree) { x.Mkdir("n"); x.Rename("a/b", "n/b") }, "a/b dir→absent subtree\nn absent→dir\nn/b absent→dir from a/b moved"},
		{"folder replaced by an equal one", func(x stagedtest.Tree) {
			stagedtest.RemoveAll(x, []string{"d/e", "d/e/f", "d/e/g"}, "d/e")
			x.Mkdir("d/e")
			x.Write("d/e/f", "content 8\n")
			x.Write("d/e/new", "x")
		}, "d/e/g file→absent\nd/e/new absent→file"},
		{"folders exchanged", func(x stagedtest.Tree) { x.Exchange("d/e", "a/b/c") },
			"a/b/c dir→dir same-content\na/b/c/f file→file\na/b/c/g file→file\nd/e dir→dir same-content\nd/e/f file→file\nd/e/g file→file"},
		{"new hard links", func(x stagedtest.Tree) { x.Write("m", "x"); x.Link("m", "n") }, "m absent→file group 1\nn absent→file group 1"},
		{"link to a workspace file", func(x stagedtest.Tree) { x.Link("f", "n") }, "n absent→file group 1"},
		{"all names of a changed file", func(x stagedtest.Tree) { x.Write("h", "x") }, "a/g file→file group 1\nd/h file→file group 1\nh file→file group 1"},
		{"fifo", func(x stagedtest.Tree) { x.Mkfifo("n") }, "n absent→fifo"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			j, _ := newJob(t)
			c.job(j)
			j.Seal()
			var got []string
			for _, ch := range changes(t, j.Reader(nil)) {
				got = append(got, line(ch))
				if ch.New.Kind == tree.File && ch.New.Digest == "" {
					t.Errorf("%q has no digest", ch.Path)
				}
			}
			if s := strings.Join(got, "\n"); s != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", s, c.want)
			}
		})
	}
}

func read(t *testing.T, f hostfs.File, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestOpen: staged content comes from the upper, or from where the workspace has it.
func TestOpen(t *testing.T) {
	j, _ := newJob(t)
	j.Write("f", "staged")
	j.Rename("a/b", "m")
	j.Write("m/f", "below a move")
	j.Write("h", "all names")
	j.Seal()
	r := j.Reader(nil)
	changes(t, r)
	for p, want := range map[string]string{
		"f": "staged", "m/f": "below a move", "m/c/f": "content 5\n", "g": "content 1\n", "d/h": "all names",
	} {
		f, err := r.OpenNew(path(p))
		if got := read(t, f, err); got != want {
			t.Errorf("staged %q holds %q, want %q", p, got, want)
		}
	}
	f, err := r.OpenBase(path("f"))
	if got := read(t, f, err); got != "content 0\n" {
		t.Errorf("base of f holds %q", got)
	}
	if _, err := r.OpenNew(path("a/b/f")); err == nil {
		t.Error("a moved file still opens at its old path")
	}
}

// TestWalk: what a moved and a removed folder stand for, without what other changes are about.
func TestWalk(t *testing.T) {
	j, _ := newJob(t)
	j.Rename("a/b", "m")
	j.Write("m/f", "x")
	j.Remove("m/c/g")
	j.Seal()
	r := j.Reader(nil)
	var got []string
	for _, c := range changes(t, r) {
		var err error
		switch {
		case c.Moved:
			err = r.WalkMoved(c, func(from, to tree.Path, n tree.Node) error {
				got = append(got, fmt.Sprintf("%s→%s %s", from, to, n.Kind))
				return nil
			})
		case c.Subtree:
			err = r.WalkRemoved(c, func(p tree.Path, n tree.Node) error {
				got = append(got, fmt.Sprintf("%s %s", p, n.Kind))
				return nil
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	want := "a/b/c/f file\na/b/c/g file\na/b/f file\na/b/c/f→m/c/f file"
	if s := strings.Join(got, "\n"); s != want {
		t.Errorf("got:\n%s\nwant:\n%s", s, want)
	}
}

// TestVerdict: what the host did since decides.
func TestVerdict(t *testing.T) {
	j, work := newJob(t)
	j.Write("f", "job")
	j.Write("g", "job")
	j.Write("n", "job")
	j.Write("a/f", "job")
	j.Seal()
	work.Write("g", "host")
	work.Write("n", "job")
	r := j.Reader(nil)
	want := map[string]tree.Verdict{"f": tree.Clean, "a/f": tree.Clean, "g": tree.Conflict, "n": tree.Applied}
	for _, c := range changes(t, r) {
		v, err := r.Verdict(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if v.Verdict != want[c.Path.String()] {
			t.Errorf("%q: %v (%s), want %v", c.Path, v.Verdict, v.Why, want[c.Path.String()])
		}
	}
}

// hand makes a workspace, an upper and, of the records that upper returns, a change log by hand.
func hand(t *testing.T, upper func(dir string) []overlay.Record) (*staged.Reader, error) {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"work", "upper"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	stagedtest.Plain{T: t, Dir: filepath.Join(dir, "work")}.Write("old", "x")
	records := upper(filepath.Join(dir, "upper"))
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	w, err := journal.Create(log, overlay.LogKind)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if _, err := w.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return stagedtest.OpenReader(stagedtest.OpenRoot(t, filepath.Join(dir, "work")), stagedtest.OpenRoot(t, filepath.Join(dir, "upper")), filepath.Join(dir, "log"), nil)
}

// TestMoveThatDidNotHappen: the log ends with a move that a crash may have kept from happening; what
// was said of the node goes where the node is.
func TestMoveThatDidNotHappen(t *testing.T) {
	for _, at := range []string{"a", "b"} {
		to := path("b")
		r, err := hand(t, func(dir string) []overlay.Record {
			stagedtest.Plain{T: t, Dir: dir}.Write(at, "x")
			n, err := stagedtest.OpenRoot(t, dir).Stat(at)
			if err != nil {
				t.Fatal(err)
			}
			return []overlay.Record{
				{Op: overlay.OpBase, Path: path("a"), Node: &tree.Node{}},
				{Op: overlay.OpBase, Path: to, Node: &tree.Node{}},
				{Op: overlay.OpTimes, Path: path("a")},
				{Op: overlay.OpMove, Path: path("a"), To: &to, Ino: n.Ino},
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		all := changes(t, r)
		if len(all) != 1 || all[0].Path != path(at) || !all[0].TimesSet {
			t.Errorf("node at %q: %v", at, all)
		}
	}
}

// TestUnknownBase: an upper path or a whiteout without a record.
func TestUnknownBase(t *testing.T) {
	r, err := hand(t, func(dir string) []overlay.Record {
		stagedtest.Plain{T: t, Dir: dir}.Write("n", "x")
		return []overlay.Record{{Op: overlay.OpWhite, Path: path("old")}}
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes(t, r) {
		got = append(got, line(c))
		v, err := r.Verdict(t.Context(), c)
		if err != nil || v.Verdict != tree.UnknownBase {
			t.Errorf("%q: %v, %v", c.Path, v, err)
		}
	}
	if s := strings.Join(got, "\n"); s != "n absent→file unknown\nold file→absent unknown" {
		t.Errorf("got:\n%s", s)
	}
}

// TestCostFollowsChanges: what the Job did not touch is not looked at.
func TestCostFollowsChanges(t *testing.T) {
	j, work := newJob(t)
	for i := range 300 {
		work.Mkdir(fmt.Sprintf("big%d", i))
		work.Write(fmt.Sprintf("big%d/f", i), "x")
	}
	j.Write("a/f", "x")
	j.Write("big7/f", "y")
	j.Seal()
	var looks int
	count := func(string) error { looks++; return nil }
	low := hostfs.NewReadFault(stagedtest.OpenRoot(t, work.Dir), count)
	r, err := stagedtest.OpenReader(low, stagedtest.OpenRoot(t, filepath.Join(j.Store, "upper")), filepath.Join(j.Store, "log"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(changes(t, r)); n != 2 {
		t.Fatalf("%d changes", n)
	}
	if looks > 40 {
		t.Errorf("%d operations on the workspace for two changed files", looks)
	}
}
