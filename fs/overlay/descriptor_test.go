package overlay

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// limitDescriptors leaves the process room for few more descriptors, for the length of the test.
func limitDescriptors(t *testing.T, few int) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	lim := old
	lim.Cur = uint64(descriptors(t) + few)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	})
}

// TestFewDescriptorsForManyFiles lists, reads and changes far more directories and files than there
// are descriptors. The cache is larger than what is left of them, as where the process has others.
func TestFewDescriptorsForManyFiles(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		const dirs, each = 200, 3
		for i := range dirs {
			for k := range each {
				j.put(fmt.Sprintf("d%d/f%d", i, k), "lower")
			}
		}
		j.open()
		limitDescriptors(t, 40)
		var files []uint64
		for range 2 {
			walkAll(t, j.fs, RootID, func(id uint64) {
				if j.fs.tab.get(id).kind == unix.S_IFREG {
					files = append(files, id)
				}
			})
		}
		if len(files) != 2*dirs*each {
			t.Fatalf("listed %d files, want %d", len(files), 2*dirs*each)
		}
		for _, id := range files {
			c, err := j.fs.Content(id)
			j.must(err)
			c.Done(1, false) // part of it: the descriptor stays
		}
		for _, id := range files {
			j.write(id, "UPPER")
		}
		for i := range dirs {
			j.unlink(fmt.Sprintf("d%d/f0", i))
			j.create(fmt.Sprintf("d%d/new", i), "new")
			j.must(j.rename(fmt.Sprintf("d%d/new", i), fmt.Sprintf("d%d/f1", (i+1)%dirs), 0))
		}
	})
}
