package apply_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stage/apply"
	"stage/fs/hostfs"
	"stage/fs/staged"
	"stage/fs/staged/stagedtest"
	"stage/fs/tree"
	"stage/test/testenv"
)

// mergeWorld is a sealed Job that changed a file whose base was kept, and what else f does to it.
func mergeWorld(t *testing.T, base, job string, f func(w *world)) (w *world, pre hostfs.Reader) {
	t.Helper()
	w = newWorldWith(t, func(x stagedtest.Tree) { x.Write("text", base) })
	w.job.Write("text", job)
	if f != nil {
		f(w)
	}
	w.job.Seal()
	return w, w.keepPreimage("text", base)
}

func (w *world) mergeOptions(batch string, pre hostfs.Reader, mode apply.MergeMode) apply.Options {
	o := w.options(batch, nil)
	o.Source, o.Merge = w.job.ReaderWith(nil, pre, nil), mode
	return o
}

func (w *world) read(p string) string {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(w.work.Dir, p))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

const tenLines = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"

func replaceLine(old, now string) string { return strings.Replace(tenLines, old+"\n", now+"\n", 1) }

// TestMergeText: what both sides did is published, the rest of the Job with it, is no change any
// more, and is taken back as one.
func TestMergeText(t *testing.T) {
	w, pre := mergeWorld(t, tenLines, replaceLine("2", "job"), func(w *world) { w.job.Write("new", "new") })
	w.work.Write("text", replaceLine("9", "host"))
	before := w.snapshot()

	o := w.mergeOptions(w.newBatch(), pre, apply.MergeNone)
	if _, err := apply.Apply(t.Context(), o); !errors.As(err, new(*apply.ConflictError)) {
		t.Fatalf("without --merge: got %v, want a conflict", err)
	}
	batch := w.newBatch()
	res, err := apply.Apply(t.Context(), w.mergeOptions(batch, pre, apply.MergeText))
	if err != nil || res.Outcome != apply.Published {
		t.Fatalf("got %v, %v", res.Outcome, err)
	}
	want := strings.Replace(replaceLine("2", "job"), "9\n", "host\n", 1)
	if got := w.read("text"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := w.read("new"); got != "new" {
		t.Errorf("new: got %q", got)
	}
	if left := w.left(batch, pre); len(left) != 0 {
		t.Errorf("changes after the merge: %v", left)
	}
	w.undoQuietly(batch)
	if d := testenv.Diff(before, w.snapshot(), testenv.Mtime); d != "" {
		t.Errorf("undo:\n%s", d)
	}
	// What was merged is a conflict again: the base never was what the host made of it.
	o = w.options(w.newBatch(), nil)
	o.Source = w.reader(batch, pre)
	if _, err := apply.Apply(t.Context(), o); !errors.As(err, new(*apply.ConflictError)) {
		t.Errorf("after undo: got %v, want a conflict", err)
	}
}

// reader reads the Job as it stands after batch.
func (w *world) reader(batch string, pre hostfs.Reader) *staged.Reader {
	w.t.Helper()
	s, err := apply.Read(stagedtest.OpenRoot(w.t, batch))
	if err != nil {
		w.t.Fatal(err)
	}
	return w.job.ReaderMerged(s.Base, s.Staged, pre)
}

// left returns the changes that are left after batch.
func (w *world) left(batch string, pre hostfs.Reader) []tree.Change {
	w.t.Helper()
	all, err := w.reader(batch, pre).Changes(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// TestMergeConflict: the same lines are a conflict and nothing is written, unless markers are asked for.
func TestMergeConflict(t *testing.T) {
	w, pre := mergeWorld(t, tenLines, replaceLine("2", "job"), func(w *world) { w.job.Write("new", "new") })
	w.work.Write("text", replaceLine("2", "host"))
	before := w.snapshot()
	res, err := apply.Apply(t.Context(), w.mergeOptions(w.newBatch(), pre, apply.MergeText))
	if !errors.As(err, new(*apply.ConflictError)) || res.Wrote {
		t.Fatalf("got %v, wrote %v; want a conflict", err, res.Wrote)
	}
	if d := testenv.Diff(before, w.snapshot()); d != "" {
		t.Fatal(d)
	}
	if res, err = apply.Apply(t.Context(), w.mergeOptions(w.newBatch(), pre, apply.MergeMarkers)); err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(tenLines, "2\n", "<<<<<<< workspace\nhost\n||||||| before job job\n2\n=======\njob\n>>>>>>> job job\n", 1)
	if got := w.read("text"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, p := range res.Paths {
		if p.Path == path("text") && p.Marked != 1 {
			t.Errorf("marked: got %d, want 1", p.Marked)
		}
	}
}

// TestMergeMode: mode and content are merged apart.
func TestMergeMode(t *testing.T) {
	w, pre := mergeWorld(t, tenLines, replaceLine("2", "job"), func(w *world) { w.job.Chmod("text", 0o600) })
	w.work.Write("text", replaceLine("9", "host"))
	if _, err := apply.Apply(t.Context(), w.mergeOptions(w.newBatch(), pre, apply.MergeText)); err != nil {
		t.Fatal(err)
	}
	if m := w.snapshot()["text"].Mode; !strings.HasSuffix(m, "600") {
		t.Errorf("mode: got %s, want 0600", m)
	}
}

// TestMergeRefuses: what cannot be merged stays a conflict that says why.
func TestMergeRefuses(t *testing.T) {
	both := func(host, why string, f func(w *world), after func(w *world)) func(t *testing.T) {
		return func(t *testing.T) {
			w, pre := mergeWorld(t, tenLines, replaceLine("2", "job"), f)
			w.work.Write("text", host)
			if after != nil {
				after(w)
			}
			before := w.snapshot()
			for _, mode := range []apply.MergeMode{apply.MergeText, apply.MergeMarkers} {
				_, err := apply.Apply(t.Context(), w.mergeOptions(w.newBatch(), pre, mode))
				if err == nil || !strings.Contains(err.Error(), why) {
					t.Errorf("mode %d: got %v, want %q", mode, err, why)
				}
			}
			if d := testenv.Diff(before, w.snapshot()); d != "" {
				t.Error(d)
			}
		}
	}
	t.Run("binary", both("1\x002\n", "binary", nil, nil))
	t.Run("several names", both(replaceLine("9", "host"), "several names", nil, func(w *world) { w.work.Link("text", "other") }))
	t.Run("both modes", both(replaceLine("9", "host"), "mode", func(w *world) { w.job.Chmod("text", 0o600) }, func(w *world) { w.work.Chmod("text", 0o640) }))
	t.Run("removed", both(replaceLine("9", "host"), "in place", func(w *world) { w.job.Remove("text") }, nil))
	t.Run("too large", both(strings.Repeat("x", 8<<20+1), "too large", nil, nil))
}

// TestMergeWithoutPreimage: without the content of the base nothing is merged.
func TestMergeWithoutPreimage(t *testing.T) {
	w, _ := mergeWorld(t, tenLines, replaceLine("2", "job"), nil)
	w.work.Write("text", replaceLine("9", "host"))
	empty := filepath.Join(w.store, "none")
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	o := w.mergeOptions(w.newBatch(), stagedtest.OpenRoot(t, empty), apply.MergeText)
	if _, err := apply.Apply(t.Context(), o); err == nil || !strings.Contains(err.Error(), "not kept") {
		t.Errorf("got %v, want that the content was not kept", err)
	}
}
