package apply_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"stage/apply"
	"stage/fs/hostfs"
	"stage/fs/staged"
	"stage/fs/staged/stagedtest"
)

// TestCostFollowsTheChanges counts what review and apply ask the file system for ten changes in a small
// workspace and in one of 20,000 files: the same.
func TestCostFollowsTheChanges(t *testing.T) {
	var first [2]int64
	for _, files := range []int{100, 20_000} {
		review, published := cost(t, files)
		t.Logf("%d files: review %d operations, apply %d", files, review, published)
		if got := [2]int64{review, published}; first == [2]int64{} {
			first = got
		} else if got != first {
			t.Errorf("%d files: review and apply did %v operations, in a small tree %v", files, got, first)
		}
	}
}

// cost returns how many operations review and apply do in a workspace of so many files.
func cost(t *testing.T, files int) (review, published int64) {
	t.Helper()
	dir := t.TempDir()
	lower, store, batch := filepath.Join(dir, "work"), filepath.Join(dir, "store"), filepath.Join(dir, "batch")
	for _, d := range []string{lower, store, batch} {
		must(t, os.Mkdir(d, 0o755))
	}
	for i := range 10 {
		must(t, os.Mkdir(filepath.Join(lower, fmt.Sprint("d", i)), 0o755))
	}
	for i := range files {
		must(t, os.WriteFile(filepath.Join(lower, fmt.Sprintf("d%d/f%d", i%10, i/10)), []byte("lower"), 0o644))
	}
	job := stagedtest.NewJob(t, lower, store)
	for i := range 3 {
		job.Write(fmt.Sprintf("d%d/f1", i), "changed")
		job.Write(fmt.Sprintf("d%d/new", i), "added")
		job.Remove(fmt.Sprintf("d%d/f2", i))
	}
	job.Rename("d4/f3", "d5/renamed")
	job.Seal()

	var n atomic.Int64
	count := func(string) error { n.Add(1); return nil }
	target := hostfs.NewReadFault(stagedtest.OpenRoot(t, lower), count)
	upper := hostfs.NewReadFault(stagedtest.OpenRoot(t, filepath.Join(store, "upper")), count)
	log, err := os.ReadFile(filepath.Join(store, "log"))
	must(t, err)
	r, err := staged.Open(staged.Config{
		Lower: target, Upper: upper, Log: bytes.NewReader(log),
		Rootless: os.Geteuid() != 0, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	})
	must(t, err)
	changes, err := r.Changes(t.Context())
	must(t, err)
	if len(changes) < 10 {
		t.Fatalf("got %d changes", len(changes))
	}
	for _, c := range changes {
		_, err := r.Verdict(t.Context(), c)
		must(t, err)
	}
	review = n.Swap(0)
	res, err := apply.Apply(t.Context(), apply.Options{
		Job: "job", Source: r, Target: target, Batch: hostfs.NewReadFault(stagedtest.OpenRoot(t, batch), count),
		Allow: map[apply.Class]bool{apply.All: true},
	})
	must(t, err)
	if res.Outcome != apply.Published {
		t.Fatalf("got %v", res.Outcome)
	}
	return review, n.Load()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
