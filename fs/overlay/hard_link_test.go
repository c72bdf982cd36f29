package overlay

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A name that goes below a moved directory has no base of its own: an overlay opened again counted
// it all the same.
func TestLinksBelowMovedDirectoryAfterReopen(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("a/f", "shared")
		j.put("d/other", "")
		j.must(os.Link(j.low("a/f"), j.low("d/linked")))
		j.must(os.Link(j.low("a/f"), j.low("d/third")))
		j.open()
		j.must(j.rename("a", "b", 0))
		j.unlink("b/f")
		if got := j.stat("d/linked").Nlink; got != 2 {
			t.Errorf("before: got %d links, want 2", got)
		}
		j.reopen()
		if got := j.stat("d/linked").Nlink; got != 2 {
			t.Errorf("after: got %d links, want 2", got)
		}
		j.unlink("d/linked")
		if got := j.stat("d/third").Nlink; got != 1 {
			t.Errorf("after unlink: got %d links, want 1", got)
		}
	})
}

// The kernel counts the entry that answers LINK as a lookup (fuse_iget, fs/fuse/inode.c). Uncounted, a
// FORGET that overtook the next LOOKUP freed a node in use, and writes failed with ESTALE.
func TestLinkCountsAsLookup(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("d/keep", "")
		j.open()
		id := j.create("f", "content")
		dir, name := j.parent("d/linked")
		var e Entry
		j.must(j.fs.Link(id, dir, name, &e))
		if e.ID != id {
			t.Fatalf("got node %d, want %d", e.ID, id)
		}
		var a Attr
		j.fs.Forget(id, 1)
		if err := j.fs.Getattr(id, &a); err != nil {
			t.Errorf("after one FORGET of two lookups: %v", err)
		}
		j.fs.Forget(id, 1)
		if err := j.fs.Getattr(id, &a); err != unix.ESTALE {
			t.Errorf("after both: got %v, want ESTALE", err)
		}
	})
}
