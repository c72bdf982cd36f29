package judge

import (
	"fmt"
	"os"
	"slices"

	"stage/fs/tree"
)

// needsOwner makes f a conflict if what c does to have, which the workspace has, takes rights that
// only the owner has, or root: it would fail when half of a batch is written.
func (f *Finding) needsOwner(c tree.Change, have tree.Node) {
	me := uint32(os.Geteuid())
	kept := have.Kind == tree.Dir && c.New.Kind == tree.Dir
	switch {
	case me == 0:
	case kept && have.UID != me && (!have.SameMeta(c.New) || c.TimesSet && have.Mtime != c.New.Mtime):
		f.conflict(fmt.Sprintf("belongs to uid %d, who alone may change its mode, owner or times", have.UID))
	case kept:
	case have.Kind == tree.Dir && have.UID != me && !othersMayWrite(have):
		// A directory that moves to another one is written: its ".." changes (rename(2), EACCES).
		f.conflict(fmt.Sprintf("belongs to uid %d and could not be kept for undo", have.UID))
	case c.New.Kind != tree.Absent && c.New.UID != me && c.LinkGroup == 0:
		f.conflict(fmt.Sprintf("belongs to uid %d, to whom only root can give the new version", c.New.UID))
	}
}

// othersMayWrite reports whether the mode of n, which is not the caller's, lets the caller write it.
func othersMayWrite(n tree.Node) bool {
	groups, err := os.Getgroups()
	if err == nil && (int(n.GID) == os.Getegid() || slices.Contains(groups, int(n.GID))) {
		return n.Mode&0o020 != 0
	}
	return n.Mode&0o002 != 0
}
