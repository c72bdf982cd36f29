package apply_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"stage/apply"
	"stage/fs/hostfs"
	"stage/fs/staged/stagedtest"
	"stage/fs/tree"
	"stage/test/testenv"
)

func path(s string) tree.Path { return tree.MustParsePath(s) }

// apply applies everything, changed by edit, and returns what happened.
func (w *world) apply(edit func(*apply.Options)) (*apply.Result, error) {
	w.t.Helper()
	o := w.options(w.newBatch(), nil)
	if edit != nil {
		edit(&o)
	}
	return apply.Apply(w.t.Context(), o)
}

// refused makes sure that err is a conflict over exactly these paths and that nothing was written.
func (w *world) refused(err error, before testenv.Tree, paths ...string) {
	w.t.Helper()
	c := new(apply.ConflictError)
	if !errors.As(err, &c) {
		w.t.Fatalf("got %v, want a conflict", err)
	}
	var got []string
	for _, p := range c.Paths {
		got = append(got, p.Path.String())
		if p.Why == "" {
			w.t.Errorf("conflict over %q has no reason", p.Path)
		}
	}
	if !slices.Equal(got, paths) {
		w.t.Errorf("conflicts over %q, want %q", got, paths)
	}
	if d := testenv.Untouched(before, w.snapshot()); d != "" {
		w.t.Errorf("a refused apply wrote:\n%s", d)
	}
	if _, err := os.Stat(filepath.Join(w.store, "apply", "1", "ledger")); err == nil {
		w.t.Error("a refused apply left a ledger")
	}
}

// TestHostChangesAreConflicts: each case changes one path in the Job, something by hand, and names
// the paths that conflict.
func TestHostChangesAreConflicts(t *testing.T) {
	cases := []struct {
		name  string
		job   func(x stagedtest.Tree)
		host  func(x stagedtest.Plain)
		paths []string
	}{
		{"edited", func(x stagedtest.Tree) { x.Write("f", "job") }, func(x stagedtest.Plain) { x.Write("f", "host") }, []string{"f"}},
		{"edited to the same size and time", func(x stagedtest.Tree) { x.Write("f", "job") }, func(x stagedtest.Plain) {
			info, _ := os.Lstat(filepath.Join(x.Dir, "f"))
			x.Write("f", "CONTENT 0\n")
			x.SetMtime("f", info.ModTime())
		}, []string{"f"}},
		{"deleted", func(x stagedtest.Tree) { x.Write("f", "job") }, func(x stagedtest.Plain) { x.Remove("f") }, []string{"f"}},
		{"created", func(x stagedtest.Tree) { x.Write("n", "job") }, func(x stagedtest.Plain) { x.Write("n", "host") }, []string{"n"}},
		{"replaced by a folder", func(x stagedtest.Tree) { x.Remove("f") }, func(x stagedtest.Plain) { x.Remove("f"); x.Mkdir("f") }, []string{"f"}},
		{"mode changed", func(x stagedtest.Tree) { x.Write("f", "job") }, func(x stagedtest.Plain) { x.Chmod("f", 0o600) }, []string{"f"}},
		{"added to a removed folder", func(x stagedtest.Tree) { x.Remove("empty") }, func(x stagedtest.Plain) { x.Write("empty/n", "host") }, []string{"empty"}},
		{"edited deep in a removed folder", func(x stagedtest.Tree) {
			stagedtest.RemoveAll(x, []string{"d", "d/e", "d/e/f", "d/e/g", "d/f", "d/h"}, "d")
		}, func(x stagedtest.Plain) { x.Write("d/e/f", "host") }, []string{"d", "d/e/f"}},
		{"edited in a moved folder", func(x stagedtest.Tree) { x.Rename("a/b", "m") }, func(x stagedtest.Plain) { x.Write("a/b/c/f", "host") }, []string{"a/b", "m"}},
		{"created where a folder is moved to", func(x stagedtest.Tree) { x.Rename("a/b", "m") }, func(x stagedtest.Plain) { x.Write("m", "host") }, []string{"m"}},
		{"link retargeted", func(x stagedtest.Tree) { x.Remove("l") }, func(x stagedtest.Plain) { x.Remove("l"); x.Symlink("x", "l") }, []string{"l"}},
		{"parent removed", func(x stagedtest.Tree) { x.Write("empty/n", "job") }, func(x stagedtest.Plain) { x.Remove("empty") }, []string{"empty/n"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			c.job(w.job)
			w.job.Seal()
			nextTick(t)
			c.host(w.work)
			before := w.snapshot()
			_, err := w.apply(nil)
			w.refused(err, before, c.paths...)
		})
	}
}

// TestHarmlessHostChangesAreNone: what the host does beside, or alike, or only to times, is no
// conflict.
func TestHarmlessHostChangesAreNone(t *testing.T) {
	cases := []struct {
		name string
		job  func(x stagedtest.Tree)
		host func(x stagedtest.Plain)
	}{
		{"touched", func(x stagedtest.Tree) { x.SetMtime("f", time.Unix(6, 0)); x.Write("f", "job") }, func(x stagedtest.Plain) { x.SetMtime("f", time.Unix(5, 0)) }},
		{"same edit", func(x stagedtest.Tree) { x.Write("f", "job") }, func(x stagedtest.Plain) { x.Write("f", "job") }},
		{"same file made", func(x stagedtest.Tree) { x.Write("n", "job") }, func(x stagedtest.Plain) { x.Write("n", "job") }},
		{"same folder made", func(x stagedtest.Tree) { x.Mkdir("n"); x.Write("n/f", "job") }, func(x stagedtest.Plain) { x.Mkdir("n"); x.Write("n/g", "host") }},
		{"same removal", func(x stagedtest.Tree) { x.Remove("f") }, func(x stagedtest.Plain) { x.Remove("f") }},
		{"same move", func(x stagedtest.Tree) { x.Rename("a/b", "m") }, func(x stagedtest.Plain) { x.Rename("a/b", "m") }},
		{"others beside", func(x stagedtest.Tree) { x.Write("a/f", "job") }, func(x stagedtest.Plain) { x.Write("a/other", "host") }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			c.job(w.job)
			c.host(w.twin)
			w.job.Seal()
			c.host(w.work)
			if _, err := w.apply(nil); err != nil {
				t.Fatal(err)
			}
			if left := w.changesOf(w.all()); left != "" {
				res, err := w.apply(nil)
				if err != nil || res.Outcome != apply.Nothing {
					t.Fatalf("apply again: %v, %v; left: %s", res.Outcome, err, left)
				}
			}
		})
	}
}

// all returns the new bases of all batches.
func (w *world) all() map[tree.Path]tree.Node {
	_, m := w.published(filepath.Join(w.store, "apply", "1"))
	return m
}

// TestParentBecameALink: a folder replaced by a link that leads out of the workspace is a conflict,
// and nothing behind the link is touched.
func TestParentBecameALink(t *testing.T) {
	w := newWorld(t)
	w.job.Write("d/new", "job")
	w.job.Write("d/f", "job")
	w.job.Seal()
	outside := filepath.Join(w.dir, "outside")
	if err := os.Rename(filepath.Join(w.work.Dir, "d"), outside); err != nil {
		t.Fatal(err)
	}
	w.work.Symlink("../outside", "d")
	before, there := w.snapshot(), testenv.Snapshot(t, outside)
	_, err := w.apply(nil)
	w.refused(err, before, "d/f", "d/new")
	if d := testenv.Untouched(there, testenv.Snapshot(t, outside)); d != "" {
		t.Errorf("apply wrote behind a link:\n%s", d)
	}
}

// TestParentBecomesALinkMeanwhile plants the link between the checks and the swaps.
func TestParentBecomesALinkMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.job.Write("d/f", "job")
	w.job.Seal()
	outside := filepath.Join(w.dir, "outside")
	var there testenv.Tree
	_, err := w.apply(func(o *apply.Options) {
		o.Point = func(name string) {
			if name == "after prepared" {
				if err := os.Rename(filepath.Join(w.work.Dir, "d"), outside); err != nil {
					t.Error(err)
				}
				w.work.Symlink("../outside", "d")
				there = testenv.Snapshot(t, outside)
			}
		}
	})
	if err == nil {
		t.Fatal("apply said nothing")
	}
	if d := testenv.Diff(there, testenv.Snapshot(t, outside)); d != "" {
		t.Errorf("apply wrote behind a link:\n%s", d)
	}
}

// TestChangedBetweenCheckAndSwap: a swap that brings out something else puts it back and undoes the
// batch.
func TestChangedBetweenCheckAndSwap(t *testing.T) {
	edits := map[string]func(x stagedtest.Plain){
		"edited":   func(x stagedtest.Plain) { x.Write("g", "host") },
		"replaced": func(x stagedtest.Plain) { x.Write("tmp", "host"); x.Rename("tmp", "g") },
		"deleted":  func(x stagedtest.Plain) { x.Remove("g") },
		"created":  func(x stagedtest.Plain) { x.Write("n", "host") },
		"moved to": func(x stagedtest.Plain) { x.Mkdir("m") },
		"in a move": func(x stagedtest.Plain) {
			x.Write("a/b/c/f", "host")
		},
		"in a removed folder": func(x stagedtest.Plain) { x.Write("empty/n", "host") },
		"mode":                func(x stagedtest.Plain) { x.Chmod("d/f", 0o711) },
	}
	for name, edit := range edits {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.job.Write("f", "job")
			w.job.Write("g", "job")
			w.job.Write("n", "job")
			w.job.Rename("a/b", "m")
			w.job.Remove("empty")
			w.job.Chmod("d/f", 0o600)
			w.job.Seal()
			nextTick(t)
			edit(w.twin)
			want := snapshot(t, w.twin.Dir)
			res, err := w.apply(func(o *apply.Options) {
				o.Point = func(name string) {
					if name == "after prepared" {
						edit(w.work)
					}
				}
			})
			if !errors.As(err, new(*apply.ConflictError)) || res.Outcome != apply.Conflicts {
				t.Fatalf("got %v, %v, want a conflict", res.Outcome, err)
			}
			if d := testenv.Diff(want, w.snapshot(), testenv.Mtime); d != "" {
				t.Errorf("not the old tree with the host's change:\n%s", d)
			}
		})
	}
}

// TestKeepGoing: clean changes are published although others conflict, with what they need.
func TestKeepGoing(t *testing.T) {
	w := newWorld(t)
	w.job.Write("f", "job")
	w.job.Mkdir("n")
	w.job.Write("n/f", "job")
	w.job.Write("g", "job")
	w.job.Seal()
	w.work.Write("g", "host")
	w.work.Write("n", "host")
	res, err := w.apply(func(o *apply.Options) { o.KeepGoing = true })
	if err != nil || res.Outcome != apply.Published {
		t.Fatalf("got %v, %v", res.Outcome, err)
	}
	w.twin.Write("f", "job")
	w.twin.Write("g", "host")
	w.twin.Write("n", "host")
	if d := testenv.Diff(snapshot(t, w.twin.Dir), w.snapshot(), testenv.Mtime); d != "" {
		t.Error(d)
	}
}

// TestSelection: named paths, with what they need, and nothing else.
func TestSelection(t *testing.T) {
	job := func(x stagedtest.Tree) {
		x.Write("f", "job")
		x.Mkdir("n")
		x.Mkdir("n/m")
		x.Write("n/m/f", "job")
		x.Write("n/g", "job")
		x.Rename("g", "renamed")
		x.Write("a/new", "job")
	}
	cases := []struct {
		name  string
		edit  func(*apply.Options)
		paths []string // that were applied
	}{
		{"one file", func(o *apply.Options) { o.Paths = []tree.Path{path("f")} }, []string{"f"}},
		{"new parents", func(o *apply.Options) { o.Paths = []tree.Path{path("n/m/f")} }, []string{"n", "n/m", "n/m/f"}},
		{"a folder", func(o *apply.Options) { o.Paths = []tree.Path{path("n/m")} }, []string{"n", "n/m", "n/m/f"}},
		{"both ends of a rename", func(o *apply.Options) { o.Paths = []tree.Path{path("renamed")} }, []string{"g", "renamed"}},
		{"a pattern", func(o *apply.Options) { o.Include = []string{"**/new"} }, []string{"a/new"}},
		{"a pattern of a folder", func(o *apply.Options) { o.Include = []string{"n"} }, []string{"n", "n/g", "n/m", "n/m/f"}},
		{"a folder left out", func(o *apply.Options) { o.Exclude = []string{"n/", "g"} }, []string{"a/new", "f"}},
		{"without", func(o *apply.Options) { o.Exclude = []string{"n/**", "g"} }, []string{"a/new", "f"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			job(w.job)
			w.job.Seal()
			res, err := w.apply(c.edit)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range res.Paths {
				got = append(got, p.Path.String())
			}
			if !slices.Equal(got, c.paths) {
				t.Errorf("applied %q, want %q", got, c.paths)
			}
		})
	}
}

// TestSelectionOfNothing: a path or pattern that matches no change is an error of its own.
func TestSelectionOfNothing(t *testing.T) {
	w := newWorld(t)
	w.job.Write("f", "job")
	stagedtest.RemoveAll(w.job, []string{"a", "a/b", "a/b/c", "a/b/c/f", "a/b/c/g", "a/b/f", "a/f", "a/g", "a/l"}, "a")
	w.job.Seal()
	before := w.snapshot()
	for _, edit := range []func(*apply.Options){
		func(o *apply.Options) { o.Paths = []tree.Path{path("nothing")} },
		func(o *apply.Options) { o.Include = []string{"*.nothing"} },
		func(o *apply.Options) { o.Exclude = []string{"*.nothing"} },
		func(o *apply.Options) { o.Paths = []tree.Path{path("f"), path("nothing")} },
	} {
		if _, err := w.apply(edit); !errors.As(err, new(*apply.NoMatchError)) {
			t.Errorf("got %v, want a NoMatchError", err)
		}
	}
	_, err := w.apply(func(o *apply.Options) { o.Paths = []tree.Path{path("a/b/f")} })
	if n := new(apply.NoMatchError); !errors.As(err, &n) || n.Within == nil || *n.Within != path("a") {
		t.Errorf("got %v, want a NoMatchError that names a", err)
	}
	if d := testenv.Untouched(before, w.snapshot()); d != "" {
		t.Errorf("written:\n%s", d)
	}
}

// TestGate: classes that gate need to be allowed, and a conflict comes first.
func TestGate(t *testing.T) {
	w := newWorld(t)
	w.job.Mkdir(".vscode")
	w.job.Write(".vscode/tasks.json", "{}")
	w.job.Write("f", "job")
	w.job.Seal()
	before := w.snapshot()
	none := func(o *apply.Options) { o.Allow = nil }
	res, err := w.apply(none)
	g := new(apply.GatedError)
	if !errors.As(err, &g) || res.Outcome != apply.Gated || !slices.Equal(g.Paths[apply.EditorTask], []tree.Path{path(".vscode/tasks.json")}) {
		t.Fatalf("got %v, %v, %v", res.Outcome, err, res.Gated)
	}
	if d := testenv.Untouched(before, w.snapshot()); d != "" {
		t.Fatalf("a gated apply wrote:\n%s", d)
	}
	if _, err := w.apply(func(o *apply.Options) {
		o.Allow, o.Gate = map[apply.Class]bool{apply.EditorTask: true}, []apply.Class{apply.Script}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestCheckOnlyWritesNothing: --check tells verdicts, with and without conflicts.
func TestCheckOnlyWritesNothing(t *testing.T) {
	w := newWorld(t)
	w.job.Write("f", "job")
	w.job.Write("g", "job")
	w.job.Seal()
	check := func(o *apply.Options) { o.CheckOnly, o.Batch = true, nil }
	before := w.snapshot()
	if res, err := w.apply(check); err != nil || res.Outcome != apply.Published || len(res.Paths) != 2 {
		t.Errorf("got %v, %v", res, err)
	}
	if d := testenv.Untouched(before, w.snapshot()); d != "" {
		t.Errorf("a check wrote:\n%s", d)
	}
	w.work.Write("g", "host")
	before = w.snapshot()
	_, err := w.apply(check)
	w.refused(err, before, "g")
}

// TestBusy: two applies do not work on one workspace at once.
func TestBusy(t *testing.T) {
	w := newWorld(t)
	w.job.Write("f", "job")
	w.job.Seal()
	if err := hostfs.Lock(stagedtest.OpenRoot(t, w.work.Dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.apply(nil); !errors.Is(err, apply.ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
}

// TestUnknownBase: where the record of a base was lost nothing is applied.
func TestUnknownBase(t *testing.T) {
	w := newWorld(t)
	w.job.Write("f", "job")
	w.job.Seal()
	log := filepath.Join(w.store, "log")
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	header, _, _ := strings.Cut(string(text), "\n")
	if err := os.WriteFile(log, []byte(header+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := w.snapshot()
	res, err := w.apply(nil)
	w.refused(err, before, "f")
	if res.Paths[0].Verdict != tree.UnknownBase {
		t.Errorf("verdict %v", res.Paths[0].Verdict)
	}
}

// TestApplyRecoversFirst: an interrupted batch is recovered by the next apply, whichever way it goes,
// before the changes are compared.
func TestApplyRecoversFirst(t *testing.T) {
	for point, want := range map[string]apply.RecoverResult{"after swap 2": apply.RolledBack, "after committed": apply.RolledForward} {
		t.Run(point, func(t *testing.T) {
			w := crashWorld(t)
			after := snapshot(t, w.twin.Dir)
			batch := w.newBatch()
			if _, killed := w.runCrash(point, false); !killed {
				t.Fatal("not killed")
			}
			states := map[apply.RecoverResult]apply.State{apply.RolledBack: apply.BatchUnfinished, apply.RolledForward: apply.BatchPublished}
			state, _ := w.published(batch)
			if needed, err := apply.NeedsRecovery(stagedtest.OpenRoot(t, batch)); state != states[want] || !needed || err != nil {
				t.Fatalf("state %v, recovery needed %v, %v", state, needed, err)
			}
			o := w.options(w.newBatch(), nil)
			o.Pending = []hostfs.Dir{stagedtest.OpenRoot(t, batch)}
			o.Reopen = func() (apply.Source, error) { return w.job.Reader(w.all()), nil }
			res, err := apply.Apply(t.Context(), o)
			if err != nil || !slices.Equal(res.Recovered, []apply.RecoverResult{want}) {
				t.Fatalf("got %v, %v", res.Recovered, err)
			}
			if d := testenv.Diff(after, w.snapshot(), testenv.Mtime, testenv.Holes); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestRecoveryNeedsAPerson: what somebody else put in the place of a half-published file is not
// touched, and the reason is told.
func TestRecoveryNeedsAPerson(t *testing.T) {
	w := crashWorld(t)
	batch := w.newBatch()
	if _, killed := w.runCrash("before sync steps", false); !killed {
		t.Fatal("not killed")
	}
	w.work.Remove("f")
	w.work.Write("f", "somebody else's")
	w.work.Remove("new/sub/file") // so that not all steps look done
	w.work.Rename("d/e", "elsewhere")
	_, err := apply.Recover(t.Context(), stagedtest.OpenRoot(t, w.work.Dir), stagedtest.OpenRoot(t, batch))
	if !errors.As(err, new(*apply.RecoveryNeededError)) {
		t.Fatalf("got %v, want a RecoveryNeededError", err)
	}
	if text, _ := os.ReadFile(filepath.Join(w.work.Dir, "f")); string(text) != "somebody else's" {
		t.Errorf("f holds %q", text)
	}
}

// TestUndoRefusesAsAWhole: one changed target and nothing is reverted; with KeepGoing the rest is.
func TestUndoRefusesAsAWhole(t *testing.T) {
	w := newWorld(t)
	w.job.Write("f", "job")
	w.job.Write("g", "job")
	w.job.Remove("a/f")
	w.job.Mkdir("n")
	w.job.Write("n/f", "job")
	w.job.Seal()
	batch := w.newBatch()
	if _, err := apply.Apply(t.Context(), w.options(batch, nil)); err != nil {
		t.Fatal(err)
	}
	w.work.Write("g", "host")
	w.work.Write("n/host", "host")
	before := w.snapshot()
	undo := apply.UndoOptions{Job: "job", Target: stagedtest.OpenRoot(t, w.work.Dir), Batch: stagedtest.OpenRoot(t, batch)}
	_, err := apply.Undo(t.Context(), undo)
	c := new(apply.ConflictError)
	if !errors.As(err, &c) || len(c.Paths) != 2 {
		t.Fatalf("got %v, want a conflict over g and n", err)
	}
	if d := testenv.Untouched(before, w.snapshot()); d != "" {
		t.Fatalf("a refused undo wrote:\n%s", d)
	}
	undo.KeepGoing = true
	if _, err := apply.Undo(t.Context(), undo); err != nil {
		t.Fatal(err)
	}
	w.twin.Write("g", "host")
	w.twin.Mkdir("n")
	w.twin.Write("n/f", "job")
	w.twin.Write("n/host", "host")
	if d := testenv.Diff(snapshot(t, w.twin.Dir), w.snapshot(), testenv.Mtime); d != "" {
		t.Error(d)
	}
	if _, err := apply.Undo(t.Context(), undo); !errors.Is(err, apply.ErrNotPublished) {
		t.Errorf("undo again: %v, want ErrNotPublished", err)
	}
}

// TestTimesOfTheView: published files and the folders they are in have the mtimes the Job saw; a
// folder that somebody else changed meanwhile gets the time of the change.
func TestTimesOfTheView(t *testing.T) {
	w := newWorld(t)
	w.job.Write("a/f", "job")
	w.job.Write("a/new", "job")
	w.job.Write("d/new", "job")
	w.job.Seal()
	view := testenv.Snapshot(t, filepath.Join(w.store, "upper"))
	w.work.Write("d/host", "host")
	if _, err := w.apply(nil); err != nil {
		t.Fatal(err)
	}
	now := w.snapshot()
	for _, p := range []string{"a", "a/f", "a/new", "d/new"} {
		if now[p].Mtime != view[p].Mtime {
			t.Errorf("mtime of %q is %s, the Job saw %s", p, now[p].Mtime, view[p].Mtime)
		}
	}
	if now["d"].Mtime == view["d"].Mtime {
		t.Error("d, which the host changed too, has the time of the view")
	}
}

// TestUndoTellsWhatHappened: the reason of each conflict says what somebody did to the path.
func TestUndoTellsWhatHappened(t *testing.T) {
	cases := map[string]struct {
		host func(x stagedtest.Plain)
		why  string
	}{
		"deleted":        {func(x stagedtest.Plain) { x.Remove("f") }, "deleted in the workspace since"},
		"edited":         {func(x stagedtest.Plain) { x.Write("f", "host") }, "content changed in the workspace since"},
		"deleted folder": {func(x stagedtest.Plain) { x.Remove("n") }, "deleted in the workspace since"},
		"deleted, mode":  {func(x stagedtest.Plain) { x.Remove("g") }, "deleted in the workspace since"},
		"deleted, moved": {func(x stagedtest.Plain) { x.Rename("m", "elsewhere") }, "deleted in the workspace since"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.job.Write("f", "job")
			w.job.Mkdir("n")
			w.job.Chmod("g", 0o600)
			w.job.Rename("a/b", "m")
			w.job.Seal()
			batch := w.newBatch()
			if _, err := apply.Apply(t.Context(), w.options(batch, nil)); err != nil {
				t.Fatal(err)
			}
			c.host(w.work)
			_, err := apply.Undo(t.Context(), apply.UndoOptions{Job: "job", Target: stagedtest.OpenRoot(t, w.work.Dir), Batch: stagedtest.OpenRoot(t, batch)})
			e := new(apply.ConflictError)
			if !errors.As(err, &e) || len(e.Paths) != 1 || e.Paths[0].Why != c.why {
				t.Errorf("got %v, %v, want %q", err, e.Paths, c.why)
			}
		})
	}
}

// TestLedgerOfADeepTreeIsSmall: the way to a deep path is not written down again for each path on it.
func TestLedgerOfADeepTreeIsSmall(t *testing.T) {
	const depth, name = 60, 200
	w := newWorld(t)
	p := ""
	for range depth {
		p = filepath.Join(p, strings.Repeat("n", name))
		w.job.Mkdir(p)
	}
	w.job.Write(filepath.Join(p, "f"), "deep")
	w.job.Seal()
	before := w.snapshot()
	batch := w.newBatch()
	if _, err := apply.Apply(t.Context(), w.options(batch, nil)); err != nil {
		t.Fatal(err)
	}
	if err := w.undoErr(batch); err != nil {
		t.Fatal(err)
	}
	if d := testenv.Diff(before, w.snapshot()); d != "" {
		t.Error(d)
	}
	info, err := os.Stat(filepath.Join(batch, "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	if limit := int64(depth * 10 * (name + 500)); info.Size() > limit {
		t.Errorf("the ledger has %d bytes, want at most %d", info.Size(), limit)
	}
}

func (w *world) undoErr(batch string) error {
	_, err := apply.Undo(w.t.Context(), apply.UndoOptions{Job: "job", Target: stagedtest.OpenRoot(w.t, w.work.Dir), Batch: stagedtest.OpenRoot(w.t, batch)})
	return err
}

// commitWorld is a workspace with two repositories, and a Job that committed in both.
func commitWorld(t *testing.T) *world {
	t.Helper()
	w := newWorldWith(t, func(x stagedtest.Tree) {
		for _, d := range []string{".git", "d/.git"} {
			x.Mkdir(d)
			x.Mkdir(d + "/objects")
			x.Write(d+"/index", "index 1")
			x.Write(d+"/ref", "ref 1")
		}
	})
	for _, d := range []string{".git", "d/.git"} {
		w.job.Write(d+"/objects/new", "object")
		w.job.Write(d+"/index", "index 22")
		w.job.Write(d+"/ref", "ref 22")
	}
	w.job.Write("f", "job")
	w.job.Seal()
	return w
}

// gitConflicts returns the paths of res that conflict, with the reasons.
func gitConflicts(res *apply.Result) map[string]string {
	out := map[string]string{}
	for _, p := range res.Paths {
		if p.Verdict == tree.Conflict {
			out[p.Path.String()] = p.Why
		}
	}
	return out
}

// TestKeepGoingLeavesACommitWhole: one conflict below a git directory leaves out all that is in it,
// and says so; other repositories and files go.
func TestKeepGoingLeavesACommitWhole(t *testing.T) {
	w := commitWorld(t)
	w.work.Write(".git/index", "index of the host")
	res, err := w.apply(func(o *apply.Options) { o.KeepGoing = true })
	if err != nil || res.Outcome != apply.Published {
		t.Fatalf("got %v, %v", res.Outcome, err)
	}
	want := map[string]string{
		".git/index":       "content changed in the workspace since",
		".git/ref":         `left out with ".git/index"`,
		".git/objects/new": `left out with ".git/index"`,
	}
	if got := gitConflicts(res); !maps.Equal(got, want) {
		t.Errorf("left out %v, want %v", got, want)
	}
	w.twin.Write(".git/index", "index of the host")
	for p, text := range map[string]string{"d/.git/objects/new": "object", "d/.git/index": "index 22", "d/.git/ref": "ref 22", "f": "job"} {
		w.twin.Write(p, text)
	}
	if d := testenv.Diff(snapshot(t, w.twin.Dir), w.snapshot(), testenv.Mtime); d != "" {
		t.Error(d)
	}
}

// TestUndoLeavesACommitWhole is TestKeepGoingLeavesACommitWhole for undo.
func TestUndoLeavesACommitWhole(t *testing.T) {
	w := commitWorld(t)
	batch := w.newBatch()
	if _, err := apply.Apply(t.Context(), w.options(batch, nil)); err != nil {
		t.Fatal(err)
	}
	w.work.Write("d/.git/ref", "ref of the host")
	undo := apply.UndoOptions{Job: "job", Target: stagedtest.OpenRoot(t, w.work.Dir), Batch: stagedtest.OpenRoot(t, batch), KeepGoing: true}
	res, err := apply.Undo(t.Context(), undo)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"d/.git/ref":         "content changed in the workspace since",
		"d/.git/index":       `left out with "d/.git/ref"`,
		"d/.git/objects/new": `left out with "d/.git/ref"`,
	}
	if got := gitConflicts(res); !maps.Equal(got, want) {
		t.Errorf("left out %v, want %v", got, want)
	}
	for p, text := range map[string]string{"d/.git/objects/new": "object", "d/.git/index": "index 22", "d/.git/ref": "ref of the host"} {
		w.twin.Write(p, text)
	}
	if d := testenv.Diff(snapshot(t, w.twin.Dir), w.snapshot(), testenv.Mtime); d != "" {
		t.Error(d)
	}
}

// TestSelectionWithinGit: what a user names below a git directory is applied alone.
func TestSelectionWithinGit(t *testing.T) {
	w := commitWorld(t)
	res, err := w.apply(func(o *apply.Options) { o.Paths = []tree.Path{path(".git/ref")} })
	if err != nil || len(res.Paths) != 1 {
		t.Fatalf("got %v, %v", res.Paths, err)
	}
}

// TestFolderChangedThenRemovedBelowAMovedOne: what lies in it may be younger than itself, as any file
// that was written to after it was made; it is as old as the move that covered it.
func TestFolderChangedThenRemovedBelowAMovedOne(t *testing.T) {
	w := newWorldWith(t, func(x stagedtest.Tree) {
		x.Mkdir("p")
		x.Mkdir("p/q")
		x.Write("p/q/f", "old")
		nextTick(t)
		x.Write("p/q/f", "younger than its folder")
		nextTick(t)
	})
	work := func(x stagedtest.Tree) {
		x.Write("p/q/new", "new")
		x.Rename("p", "r")
		for _, p := range []string{"r/q/f", "r/q/new", "r/q"} {
			x.Remove(p)
		}
	}
	work(w.twin)
	work(w.job)
	w.job.Seal()
	if _, err := w.apply(func(*apply.Options) {}); err != nil {
		t.Fatal(err)
	}
	if d := testenv.Diff(snapshot(t, w.twin.Dir), w.snapshot(), testenv.Mtime); d != "" {
		t.Error(d)
	}
}

// TestHostChangesInAFolderRemovedBelowAMovedOne: and what the host changes there later is a conflict.
func TestHostChangesInAFolderRemovedBelowAMovedOne(t *testing.T) {
	w := newWorldWith(t, func(x stagedtest.Tree) {
		x.Mkdir("p")
		x.Mkdir("p/q")
		x.Write("p/q/f", "old")
	})
	nextTick(t)
	w.job.Write("p/q/new", "new")
	w.job.Rename("p", "r")
	for _, p := range []string{"r/q/f", "r/q/new", "r/q"} {
		w.job.Remove(p)
	}
	w.job.Seal()
	nextTick(t)
	w.work.Write("p/q/f", "host")
	before := w.snapshot()
	_, err := w.apply(func(*apply.Options) {})
	if !errors.As(err, new(*apply.ConflictError)) {
		t.Errorf("got %v, want a conflict", err)
	}
	if d := testenv.Diff(before, w.snapshot()); d != "" {
		t.Error(d)
	}
}
