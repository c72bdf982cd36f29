package apply_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stage/apply"
	"stage/fs/judge"
	"stage/fs/staged/stagedtest"
	"stage/fs/tree"
	"stage/test/testenv"
)

// asUser runs f as an ordinary user in a world that prepare filled as root.
func asUser(t *testing.T, prepare func(x stagedtest.Plain), f func(w *world)) {
	t.Helper()
	testenv.Need(t, testenv.Root)
	u := testenv.Ordinary(t)
	dir := u.TempDir(t)
	w := &world{dir: dir, store: filepath.Join(dir, "store")}
	for _, x := range []*stagedtest.Plain{&w.work, &w.twin} {
		name := map[bool]string{true: "work", false: "twin"}[x == &w.work]
		*x = stagedtest.Plain{T: t, Dir: filepath.Join(dir, name)}
		if err := os.Mkdir(x.Dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(x.Dir, 0o777); err != nil {
			t.Fatal(err)
		}
		prepare(*x)
	}
	t.Run("user", func(t *testing.T) {
		u.Become(t)
		w.t, w.work.T, w.twin.T = t, t, t
		if err := os.Mkdir(w.store, 0o700); err != nil {
			t.Fatal(err)
		}
		nextTick(t)
		w.job = stagedtest.NewJob(t, w.work.Dir, w.store)
		f(w)
	})
}

// TestForeignFolders: in folders that somebody else owns but lets everybody write, what is new,
// replaced and removed is published and taken back.
func TestForeignFolders(t *testing.T) {
	asUser(t, func(x stagedtest.Plain) {
		x.Mkdir("sub")
		x.Chmod("sub", 0o777)
		x.Write("sub/old", "old")
		x.Mkdir("sub/mine")
		x.Chmod("sub/mine", 0o777)
		x.Mkdir("locked")
		x.Write("locked/f", "x")
	}, func(w *world) {
		before := w.snapshot()
		for _, x := range []stagedtest.Tree{w.twin, w.job} {
			x.Write("f", "f")
			x.Write("sub/new", "new")
			x.Remove("sub/old")
			x.Mkdir("sub/dir")
			x.Write("sub/dir/f", "f")
			x.Remove("sub/mine")
			x.Rename("locked", "moved")
		}
		w.job.Seal()
		batch := w.newBatch()
		if res, err := apply.Apply(w.t.Context(), w.options(batch, nil)); err != nil || res.Outcome != apply.Published {
			w.t.Fatalf("got %v, %v", res.Outcome, err)
		}
		if d := testenv.Diff(snapshot(w.t, w.twin.Dir), w.snapshot(), testenv.Mtime); d != "" {
			w.t.Error(d)
		}
		w.undoQuietly(batch)
		if d := testenv.Diff(before, w.snapshot(), testenv.Mtime); d != "" {
			w.t.Errorf("undo:\n%s", d)
		}
	})
}

// TestWhatNeedsAnotherOwnerIsRefused: a change that only the owner could make is a conflict that says
// so, in the review too, and nothing is written.
func TestWhatNeedsAnotherOwnerIsRefused(t *testing.T) {
	cases := []struct {
		name, path, why string
		prepare         func(x stagedtest.Plain)
		job             func(x stagedtest.Tree)
	}{
		{"content of a file", "f", "only root", func(x stagedtest.Plain) { x.Write("f", "x"); x.Chmod("f", 0o666) }, func(x stagedtest.Tree) { x.Write("f", "job") }},
		{"removal of a closed folder", "gone", "undo", func(x stagedtest.Plain) { x.Mkdir("gone") }, func(x stagedtest.Tree) { x.Remove("gone") }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			asUser(t, c.prepare, func(w *world) {
				w.job.Write("new", "new")
				c.job(w.job)
				w.job.Seal()
				before := w.snapshot()
				res, err := w.apply(nil)
				e := new(apply.ConflictError)
				if !errors.As(err, &e) || len(e.Paths) != 1 || e.Paths[0].Path != path(c.path) || !strings.Contains(e.Paths[0].Why, c.why) {
					t.Fatalf("got %v, %v", res.Outcome, err)
				}
				w.refused(err, before, c.path)
				w.reviewAgrees(c.path, tree.Conflict)
			})
		})
	}
}

// TestModeOfForeignFolderIsRefused: whoever lets a Job change them, mode and times of somebody else's
// folder are not set.
func TestModeOfForeignFolderIsRefused(t *testing.T) {
	asUser(t, func(x stagedtest.Plain) { x.Mkdir("sub") }, func(w *world) {
		d := stagedtest.OpenRoot(w.t, w.work.Dir)
		n, err := d.Stat("sub")
		if err != nil {
			w.t.Fatal(err)
		}
		moded, timed := n, n
		moded.Mode, timed.Mtime = 0o700, 1
		for _, c := range []tree.Change{{Path: path("sub"), Base: n, New: moded}, {Path: path("sub"), Base: n, New: timed, TimesSet: true}} {
			f, err := judge.New(d, []tree.Change{c}, judge.Known{}).Judge(w.t.Context(), c)
			if err != nil || f.Verdict != tree.Conflict || !strings.Contains(f.Why, "uid 0") {
				w.t.Errorf("got %v, %v", f.Judgement, err)
			}
		}
	})
}

// reviewAgrees makes sure that the Reader comes to the same verdict.
func (w *world) reviewAgrees(p string, want tree.Verdict) {
	w.t.Helper()
	r := w.job.Reader(nil)
	all, err := r.Changes(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range all {
		if c.Path == path(p) {
			if j, err := r.Verdict(w.t.Context(), c); err != nil || j.Verdict != want {
				w.t.Errorf("verdict over %q: %v, %v, want %v", p, j, err, want)
			}
			return
		}
	}
	w.t.Errorf("no change of %q", p)
}

// TestClosedFolderMoves: a folder that nobody may read is classified, reviewed and moved as it is.
func TestClosedFolderMoves(t *testing.T) {
	asUser(t, func(x stagedtest.Plain) {}, func(w *world) {
		for _, x := range []stagedtest.Plain{w.work, w.twin} {
			for _, p := range []string{"closed", "half", "open", "open/closed"} {
				x.Mkdir(p)
				x.Write(p+"/f", "x")
			}
			x.Chmod("closed", 0)
			x.Chmod("half", 0o444)
			x.Chmod("open/closed", 0)
		}
		w.t.Cleanup(func() { openAll(w.dir) })
		nextTick(w.t)
		for _, x := range []stagedtest.Tree{w.twin, w.job} {
			x.Rename("closed", "moved")
			x.Rename("half", "moved2")
			x.Rename("open", "moved3")
		}
		w.job.Seal()
		r := w.job.Reader(nil)
		all, err := r.Changes(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		if _, err := apply.Classify(w.t.Context(), all, r, 0); err != nil {
			w.t.Fatalf("classify: %v", err)
		}
		for _, c := range all {
			if j, err := r.Verdict(w.t.Context(), c); err != nil || j.Verdict != tree.Clean {
				w.t.Errorf("verdict over %q: %v, %v", c.Path, j, err)
			}
		}
		batch := w.newBatch()
		if _, err := apply.Apply(w.t.Context(), w.options(batch, nil)); err != nil {
			w.t.Fatal(err)
		}
		for _, p := range []string{"moved", "moved2", "moved3/closed"} {
			if _, err := os.Lstat(filepath.Join(w.work.Dir, p)); err != nil {
				w.t.Error(err)
			}
		}
		w.undoQuietly(batch)
		for _, p := range []string{"closed", "half", "open/closed"} {
			if _, err := os.Lstat(filepath.Join(w.work.Dir, p)); err != nil {
				w.t.Error(err)
			}
		}
	})
}

// TestFolderClosedSinceIsAConflict: what cannot be looked at any more is a conflict, in the review and
// in apply, and keeps nothing else from either.
func TestFolderClosedSinceIsAConflict(t *testing.T) {
	asUser(t, func(x stagedtest.Plain) {}, func(w *world) {
		for _, p := range []string{"d", "d/e", "d/gone", "m"} {
			w.work.Mkdir(p)
		}
		for _, p := range []string{"d/f", "d/g", "d/e/f", "d/gone/f", "f", "m/f"} {
			w.work.Write(p, "old "+p)
		}
		w.t.Cleanup(func() { openAll(w.dir) })
		nextTick(w.t)
		w.job.Write("d/f", "old d/g") // as long as before
		w.job.Remove("d/g")
		w.job.Write("d/new", "old d/g")
		w.job.Chmod("d/e", 0o700)
		w.job.Remove("d/gone/f")
		w.job.Remove("d/gone")
		w.job.Rename("d/e/f", "d/e/f2")
		w.job.Rename("m", "d/m")
		w.job.Write("f", "job")
		w.job.Seal()
		w.work.Chmod("d", 0)
		r := w.job.Reader(nil)
		all, err := r.Changes(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		for _, c := range all {
			want := tree.Conflict
			if c.Path == path("f") || c.Path == path("m") {
				want = tree.Clean
			}
			if j, err := r.Verdict(w.t.Context(), c); err != nil || j.Verdict != want {
				w.t.Errorf("verdict over %q: %v, %v, want %v", c.Path, j, err, want)
			}
		}
		if _, err := apply.Classify(w.t.Context(), all, r, 0); err != nil {
			w.t.Errorf("classify: %v", err)
		}
		if res, err := w.apply(func(o *apply.Options) { o.KeepGoing = true }); err != nil || res.Outcome != apply.Published {
			w.t.Errorf("got %v, %v", res.Outcome, err)
		}
		w.holds("f", "job")
		w.holds("m/f", "old m/f")
	})
}

// TestNewClosedFolder: a new folder that even its owner may not look into is published, found as it
// was left, and taken back.
func TestNewClosedFolder(t *testing.T) {
	asUser(t, func(x stagedtest.Plain) {}, func(w *world) {
		w.t.Cleanup(func() { openAll(w.dir) })
		w.job.Mkdir("n")
		w.job.Write("n/f", "job")
		w.job.Mkdir("n/m")
		w.job.Write("n/m/f", "job")
		w.job.Chmod("n/m", 0)
		w.job.Chmod("n", 0o444)
		w.job.Seal()
		batch := w.newBatch()
		if _, err := apply.Apply(w.t.Context(), w.options(batch, nil)); err != nil {
			w.t.Fatal(err)
		}
		if info, err := os.Lstat(filepath.Join(w.work.Dir, "n")); err != nil || info.Mode().Perm() != 0o444 {
			w.t.Errorf("got %v, %v", info.Mode(), err)
		}
		if left := w.changesOf(w.all()); left != "" {
			w.t.Errorf("left: %s", left)
		}
		w.undoQuietly(batch)
		if all := w.work.List(); len(all) > 0 {
			w.t.Errorf("undo left %q", all)
		}
	})
}
