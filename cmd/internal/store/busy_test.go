package store

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"stage/bundle"
)

func wantBusy(t *testing.T, s *Store, want ...bundle.ID) {
	t.Helper()
	got, err := s.Busy()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("busy are %v, want %v", got, want)
	}
}

func TestMarkStandsUntilDone(t *testing.T) {
	w := newWorld(t)
	j := w.create(t)
	wantBusy(t, w.store, j.ID())
	if err := j.Seal(endedBundle(j.Run(), bundle.SealedByRun)); err != nil {
		t.Fatal(err)
	}
	wantBusy(t, w.store)
	_, dir, err := j.NewBatch()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	wantBusy(t, w.store, j.ID())
	for range 2 {
		if err := j.Done(); err != nil {
			t.Fatal(err)
		}
	}
	wantBusy(t, w.store)
}

func TestKilledProcessLeavesItsMark(t *testing.T) {
	w := newWorld(t)
	c := startChild(t, "hold", w.store.Path(), w.workspace.Path.String())
	c.kill()
	if err := w.store.Clean(); err != nil {
		t.Fatal(err)
	}
	wantBusy(t, w.store, c.id)
}

func TestCleanDropsMarksOfAbsentJobsOnly(t *testing.T) {
	w := newWorld(t)
	unreadable := w.create(t).ID()
	if err := os.Truncate(filepath.Join(w.store.Path(), jobsName, string(unreadable), runName), 3); err != nil {
		t.Fatal(err)
	}
	o := optionsFor(w.workspace)
	o.Dir = filepath.Join(w.dir, "job")
	elsewhere, err := w.store.Create(o)
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	absent, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.mark(absent, false); err != nil {
		t.Fatal(err)
	}
	if err := w.store.Clean(); err != nil {
		t.Fatal(err)
	}
	wantBusy(t, w.store, unreadable, elsewhere.ID())
}
