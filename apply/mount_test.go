package apply_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"stage/apply"
	"stage/fs/staged/stagedtest"
	"stage/test/testenv"
)

// bindOld mounts a folder, which was there before the Job, on dir of the workspace.
func (w *world) bindOld(old, dir string) {
	w.t.Helper()
	at := filepath.Join(w.work.Dir, dir)
	if err := unix.Mount(old, at, "", unix.MS_BIND, ""); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		for _, m := range testenv.Mounts(w.t, w.dir) { // wherever it is now
			if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
				w.t.Error(err)
			}
		}
	})
}

// TestMountBelowARemovedFolder: what the host mounts in a folder that the Job moved and then removed is
// older than the removal, and is not the folder's.
func TestMountBelowARemovedFolder(t *testing.T) {
	testenv.Need(t, testenv.Root)
	old := t.TempDir()
	if err := os.WriteFile(filepath.Join(old, "precious"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.job.Rename("d", "q")
	stagedtest.RemoveAll(w.job, []string{"q", "q/e", "q/e/f", "q/e/g", "q/f", "q/h"}, "q")
	w.job.Seal()
	nextTick(t)
	w.bindOld(old, "d/e")
	before := w.snapshot()
	_, err := w.apply(nil)
	w.refused(err, before, "d")
}

// TestMountInAMovedFolderGoesAlong: a folder may move with what is mounted in it.
func TestMountInAMovedFolderGoesAlong(t *testing.T) {
	testenv.Need(t, testenv.Root)
	old := t.TempDir()
	if err := os.WriteFile(filepath.Join(old, "precious"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.job.Rename("d", "q")
	w.job.Seal()
	nextTick(t)
	w.bindOld(old, "d/e")
	if _, err := w.apply(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(w.work.Dir, "q/e/precious")); err != nil {
		t.Error(err)
	}
}

// TestMountOutlivesAnUndo: a folder that an apply made is not removed with what somebody mounted in it.
func TestMountOutlivesAnUndo(t *testing.T) {
	testenv.Need(t, testenv.Root)
	old := t.TempDir()
	w := newWorld(t)
	w.job.Mkdir("new")
	w.job.Mkdir("new/sub")
	w.job.Seal()
	batch := w.newBatch()
	if _, err := apply.Apply(t.Context(), w.options(batch, nil)); err != nil {
		t.Fatal(err)
	}
	nextTick(t)
	w.bindOld(old, "new/sub")
	if err := os.WriteFile(filepath.Join(old, "precious"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := apply.Undo(t.Context(), apply.UndoOptions{Job: "job", Target: stagedtest.OpenRoot(t, w.work.Dir), Batch: stagedtest.OpenRoot(t, batch)}); err == nil {
		t.Error("undo took a folder with a mount away")
	}
	if _, err := os.Stat(filepath.Join(old, "precious")); err != nil {
		t.Error(err)
	}
}
