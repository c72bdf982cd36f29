package apply_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stage/apply"
	"stage/fs/hostfs"
	"stage/fs/overlay"
	"stage/fs/staged"
	"stage/fs/staged/stagedtest"
	"stage/fs/tree"
	"stage/journal"
)

// sameLetters takes files named index for alike that differ in digits alone, as an index that git
// refreshed differs in times.
func sameLetters(p tree.Path, a, b func() (hostfs.File, error)) (bool, error) {
	if p.Base() != "index" {
		return false, nil
	}
	var text [2]string
	for i, open := range []func() (hostfs.File, error){a, b} {
		f, err := open()
		if err != nil {
			return false, err
		}
		defer f.Close()
		all, err := io.ReadAll(f)
		if err != nil {
			return false, err
		}
		text[i] = strings.TrimRight(string(all), "0123456789")
	}
	return text[0] == text[1], nil
}

// keepPreimage keeps content in the Job's store as what the base of path p held, as the overlay does
// for files that are replaced.
func (w *world) keepPreimage(p, content string) hostfs.Reader {
	w.t.Helper()
	dir := filepath.Join(w.store, "pre")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	digest := tree.DigestBytes([]byte(content))
	if err := os.WriteFile(filepath.Join(dir, strings.TrimPrefix(string(digest), "sha256:")), []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.recordDigest(p, digest)
	return stagedtest.OpenRoot(w.t, dir)
}

// recordDigest writes the digest into the base of p in the change log, unless it is there.
func (w *world) recordDigest(p string, digest tree.Digest) {
	w.t.Helper()
	old, err := os.Open(filepath.Join(w.store, "log"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer old.Close()
	f, err := os.OpenFile(filepath.Join(w.store, "log.new"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := journal.Create(f, overlay.LogKind)
	if err != nil {
		w.t.Fatal(err)
	}
	err = journal.Read(old, overlay.LogKind, func(_ uint64, raw json.RawMessage) error {
		var rec overlay.Record
		if err := json.Unmarshal(raw, &rec); err != nil {
			return err
		}
		if rec.Op == overlay.OpBase && rec.Path == path(p) {
			rec.Node.Digest = digest
		}
		_, err := out.Append(rec)
		return err
	})
	if err := errors.Join(err, out.Close(), os.Rename(f.Name(), old.Name())); err != nil {
		w.t.Fatal(err)
	}
}

// indexWorld is a sealed Job that changed an index, whose base was kept.
func indexWorld(t *testing.T) (*world, func() *staged.Reader) {
	t.Helper()
	w := newWorldWith(t, func(x stagedtest.Tree) { x.Mkdir(".git"); x.Write(".git/index", "entries 1") })
	w.job.Write(".git/index", "more entries 1")
	w.job.Mkdir("n")
	w.job.Write("n/index", "new 1")
	w.job.Seal()
	pre := w.keepPreimage(".git/index", "entries 1")
	return w, func() *staged.Reader { return w.job.ReaderWith(nil, pre, sameLetters) }
}

// TestRefreshedIndexIsNoConflict: what a file means decides, where its base can be had, in review
// and apply; what the workspace has is what undo brings back.
func TestRefreshedIndexIsNoConflict(t *testing.T) {
	w, reader := indexWorld(t)
	w.work.Write("tmp", "entries 22")
	w.work.Rename("tmp", ".git/index")
	before := w.snapshot()
	r := reader()
	all, err := r.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if j, err := r.Verdict(t.Context(), c); err != nil || j.Verdict != tree.Clean {
			t.Errorf("verdict over %q: %v, %v", c.Path, j, err)
		}
	}
	batch := w.newBatch()
	o := w.options(batch, nil)
	o.Source, o.Alike = r, sameLetters
	if _, err := apply.Apply(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	w.holds(".git/index", "more entries 1")
	w.undoQuietly(batch)
	if after := w.snapshot(); after[".git/index"].Content != before[".git/index"].Content {
		t.Errorf("undo gave %v, want %v", after[".git/index"], before[".git/index"])
	}
	w.holds(".git/index", "entries 22")
}

func (w *world) holds(p, want string) {
	w.t.Helper()
	if got, err := os.ReadFile(filepath.Join(w.work.Dir, p)); err != nil || string(got) != want {
		w.t.Errorf("%q holds %q, %v, want %q", p, got, err, want)
	}
}

// TestChangedIndexIsAConflict: a different meaning, a base that was not kept, or one that was
// damaged.
func TestChangedIndexIsAConflict(t *testing.T) {
	cases := map[string]func(w *world){
		"other entries": func(w *world) { w.work.Write(".git/index", "others 22") },
		"base not kept": func(w *world) {
			w.work.Write(".git/index", "entries 22")
			if err := os.RemoveAll(filepath.Join(w.store, "pre")); err != nil {
				w.t.Fatal(err)
			}
		},
		"base damaged": func(w *world) {
			w.work.Write(".git/index", "entries 22")
			names, err := filepath.Glob(filepath.Join(w.store, "pre", "*"))
			if err != nil || len(names) != 1 {
				w.t.Fatal(names, err)
			}
			if err := os.WriteFile(names[0], []byte("entries 3"), 0o600); err != nil {
				w.t.Fatal(err)
			}
		},
	}
	for name, host := range cases {
		t.Run(name, func(t *testing.T) {
			w, reader := indexWorld(t)
			host(w)
			before := w.snapshot()
			_, err := w.apply(func(o *apply.Options) { o.Source, o.Alike = reader(), sameLetters })
			w.refused(err, before, ".git/index")
		})
	}
}

// TestUndoAfterRefreshedIndex: undo takes away what only git refreshed, in place and in a new folder.
func TestUndoAfterRefreshedIndex(t *testing.T) {
	for _, with := range []bool{true, false} {
		w, reader := indexWorld(t)
		before := w.snapshot()
		batch := w.newBatch()
		o := w.options(batch, nil)
		o.Source, o.Alike = reader(), sameLetters
		if _, err := apply.Apply(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		nextTick(t)
		for p, text := range map[string]string{".git/index": "more entries 22", "n/index": "new 22"} {
			w.work.Write(p+".lock", text)
			w.work.Rename(p+".lock", p)
		}
		undo := apply.UndoOptions{Job: "job", Target: stagedtest.OpenRoot(t, w.work.Dir), Batch: stagedtest.OpenRoot(t, batch)}
		if with {
			undo.Alike, undo.OpenPublished = sameLetters, reader().OpenNew
		}
		_, err := apply.Undo(t.Context(), undo)
		if !with {
			if !errors.As(err, new(*apply.ConflictError)) {
				t.Errorf("undo that is told nothing: %v, want a conflict", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		w.holds(".git/index", "entries 1")
		if after := w.snapshot(); len(after) != len(before) {
			t.Errorf("undo left %d paths, want %d", len(after), len(before))
		}
	}
}

// TestRefreshedIndexAfterUndo: what undo brought back may be refreshed too, and the Job is applied again.
func TestRefreshedIndexAfterUndo(t *testing.T) {
	w, _ := indexWorld(t)
	pre := stagedtest.OpenRoot(t, filepath.Join(w.store, "pre"))
	o := w.options(w.newBatch(), nil)
	o.Source, o.Alike = w.job.ReaderWith(nil, pre, sameLetters), sameLetters
	batch := filepath.Join(w.store, "apply", "1")
	if _, err := apply.Apply(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	w.undoQuietly(batch)
	nextTick(t)
	w.work.Write(".git/index.lock", "entries 22")
	w.work.Rename(".git/index.lock", ".git/index")
	_, rebased := w.published(batch)
	o = w.options(w.newBatch(), nil)
	o.Source, o.Alike = w.job.ReaderWith(rebased, pre, sameLetters), sameLetters
	if _, err := apply.Apply(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	w.holds(".git/index", "more entries 1")
}
