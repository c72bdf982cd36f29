package render

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"stage/bundle"
	"stage/fs/hostfs"
	"stage/fs/tree"
	"stage/test/testenv"
)

const testJob = bundle.ID("01jf3a0000000000000000000a")

// trees are a workspace before and after a Job, on disk, and what package staged would tell of them.
type trees struct {
	t             *testing.T
	before, after string
	moves         map[string]string // directories of after that were moved as a whole: to, from
}

func newTrees(t *testing.T) *trees {
	dir := t.TempDir()
	w := &trees{t, filepath.Join(dir, "before"), filepath.Join(dir, "after"), map[string]string{}}
	for _, d := range []string{w.before, w.after} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// base fills the workspace and makes after a copy of it.
func (w *trees) base(fill func(dir string)) {
	w.t.Helper()
	fill(w.before)
	if out, err := exec.CommandContext(w.t.Context(), "cp", "-a", w.before+"/.", w.after).CombinedOutput(); err != nil {
		w.t.Fatalf("cp: %v\n%s", err, out)
	}
}

func put(t testing.TB, dir, name, text string) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openIn(root string, p tree.Path) (hostfs.File, error) {
	d, err := hostfs.OpenRoot(filepath.Join(root, p.Parent().String()))
	if err != nil {
		return nil, err
	}
	f, err := d.Open(p.Base())
	return f, errors.Join(err, d.Close())
}

func (w *trees) OpenNew(p tree.Path) (hostfs.File, error)  { return openIn(w.after, p) }
func (w *trees) OpenBase(p tree.Path) (hostfs.File, error) { return openIn(w.before, p) }

// WalkMoved lists the files below a moved directory that are as they were.
func (w *trees) WalkMoved(c tree.Change, f func(from, to tree.Path, n tree.Node) error) error {
	now := snapshot(w.t, w.after)
	old := snapshot(w.t, w.before)
	for _, p := range sortedPaths(now) {
		if p == c.Path || !c.Path.Contains(p) || now[p].Kind == tree.Dir {
			continue
		}
		from := p.Rebase(c.Path, *c.RenameFrom)
		if old[from].SameMeta(now[p]) && old[from].SameContent(now[p]) == tree.Same {
			if err := f(from, p, now[p]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *trees) WalkRemoved(c tree.Change, f func(p tree.Path, n tree.Node) error) error {
	old := snapshot(w.t, w.before)
	for _, p := range sortedPaths(old) {
		if p != c.Path && c.Path.Contains(p) && old[p].Kind != tree.Dir {
			if err := f(p, old[p]); err != nil {
				return err
			}
		}
	}
	return nil
}

func sortedPaths(m map[tree.Path]tree.Node) []tree.Path {
	var l []tree.Path
	for p := range m {
		l = append(l, p)
	}
	slices.SortFunc(l, tree.Path.Compare)
	return l
}

// snapshot returns all nodes below root, .git and the root itself left out.
func snapshot(t testing.TB, root string) map[tree.Path]tree.Node {
	t.Helper()
	m := map[tree.Path]tree.Node{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		p, err := tree.ParsePath(rel)
		if err != nil {
			return err
		}
		m[p], err = nodeAt(path)
		return err
	})
	must(t, err)
	return m
}

func nodeAt(path string) (tree.Node, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return tree.Node{}, err
	}
	n := tree.Node{Mode: tree.Mode(st.Mode & 0o7777), UID: st.Uid, GID: st.Gid, Size: st.Size, Mtime: tree.Time(st.Mtim.Nano()), Nlink: uint32(st.Nlink)}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		n.Kind = tree.File
		data, err := os.ReadFile(path)
		n.Digest = tree.DigestBytes(data)
		return n, err
	case syscall.S_IFDIR:
		n.Kind = tree.Dir
	case syscall.S_IFLNK:
		target, err := os.Readlink(path)
		n.Kind, n.Target = tree.Symlink, target
		return n, err
	case syscall.S_IFIFO:
		n.Kind = tree.FIFO
	default:
		return n, errors.New("unexpected kind of file")
	}
	return n, nil
}

// review tells the difference of the two trees as package staged does: directories that were moved
// or removed as a whole are one change each.
func (w *trees) review() *Review {
	w.t.Helper()
	old, now := snapshot(w.t, w.before), snapshot(w.t, w.after)
	var list []tree.Change
	for to, from := range w.moves {
		f, p := tree.MustParsePath(from), tree.MustParsePath(to)
		list = append(list, tree.Change{Path: p, New: now[p], RenameFrom: &f, Moved: true})
	}
	for _, p := range sortedPaths(now) {
		if from, ok := w.origin(p); ok {
			if from != nil && !same(old[*from], now[p]) {
				c := tree.Change{Path: p, New: now[p]}
				if old[*from].Kind != tree.Absent {
					c.RenameFrom = from
				}
				list = append(list, c)
			}
			continue
		}
		if !same(old[p], now[p]) {
			list = append(list, tree.Change{Path: p, Base: old[p], New: now[p], Subtree: old[p].Kind == tree.Dir && now[p].Kind != tree.Dir})
		}
	}
	removed := map[tree.Path]bool{}
	for _, p := range sortedPaths(old) {
		if now[p].Kind != tree.Absent {
			if old[p].Kind == tree.Dir && now[p].Kind != tree.Dir {
				removed[p] = true
			}
			continue
		}
		if removed[p.Parent()] {
			removed[p] = true
			continue
		}
		removed[p] = old[p].Kind == tree.Dir
		list = append(list, tree.Change{Path: p, Base: old[p], Subtree: old[p].Kind == tree.Dir})
	}
	for to, from := range w.moves { // what is gone from a moved directory is told by its old path
		for _, p := range sortedPaths(old) {
			f := tree.MustParsePath(from)
			if p != f && f.Contains(p) && now[p.Rebase(f, tree.MustParsePath(to))].Kind == tree.Absent {
				list = append(list, tree.Change{Path: p, Base: old[p], Subtree: old[p].Kind == tree.Dir})
			}
		}
	}
	slices.SortFunc(list, func(a, b tree.Change) int { return a.Path.Compare(b.Path) })
	r := &Review{Job: testJob, Root: "workspace", Contents: w, Walker: w}
	for _, c := range list {
		r.Changes = append(r.Changes, Entry{Change: c, Verdict: bundle.VerdictClean})
	}
	return r
}

// origin tells where a path at or below a moved directory came from; nil for the directory itself.
func (w *trees) origin(p tree.Path) (from *tree.Path, moved bool) {
	for to, old := range w.moves {
		t, o := tree.MustParsePath(to), tree.MustParsePath(old)
		if t == p {
			return nil, true
		}
		if t.Contains(p) {
			q := p.Rebase(t, o)
			return &q, true
		}
	}
	return nil, false
}

func same(a, b tree.Node) bool { return a.SameMeta(b) && a.SameContent(b) == tree.Same }

// entry returns the entry of a path, to add what the caller of render would.
func entryOf(t testing.TB, r *Review, path string) *Entry {
	t.Helper()
	for i := range r.Changes {
		if r.Changes[i].Path.String() == path {
			return &r.Changes[i]
		}
	}
	t.Fatalf("no change of %q", path)
	return nil
}

// rendered returns the review in one form as a file gets it.
func rendered(t testing.TB, r *Review, f Format) string {
	t.Helper()
	var b bytes.Buffer
	must(t, Write(t.Context(), &Screen{W: &b}, r, f))
	return b.String()
}

// onTerminal returns the review in one form as a terminal gets it, with or without colour.
func onTerminal(t testing.TB, r *Review, f Format, colour bool) string {
	t.Helper()
	var b bytes.Buffer
	must(t, Write(t.Context(), &Screen{W: &b, TTY: true, Colour: colour}, r, f))
	return b.String()
}

// git runs git in dir with nobody's configuration.
func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	testenv.Need(t, testenv.Tool("git"))
	c := exec.CommandContext(t.Context(), "git", args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	var errs strings.Builder
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, errs.String())
	}
	return string(out)
}

// gitTrees stores both trees in one repository and returns it with the names of its two trees.
func (w *trees) gitTrees() (dir, before, after string) {
	w.t.Helper()
	dir = w.t.TempDir()
	git(w.t, dir, "init", "-q", "--bare", ".")
	store := func(work string) string {
		git(w.t, dir, "-c", "core.fileMode=true", "--work-tree="+work, "add", "-A", work)
		return strings.TrimSpace(git(w.t, dir, "write-tree"))
	}
	return dir, store(w.before), store(w.after)
}
