package overlay

import (
	"os"
	"testing"
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
