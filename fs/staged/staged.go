// Package staged reads what a Job staged, without FUSE: its upper tree, its change log and the
// workspace below. It yields the net changes; what was touched and restored, or created and
// deleted, is none.
//
// The cost follows what changed: only the upper tree and the workspace paths that the log or the
// upper names are looked at, and directories that were moved or replaced.
package staged

import (
	"context"
	"errors"
	"io"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Config is what a Reader reads.
type Config struct {
	Lower hostfs.Reader // the workspace
	Upper hostfs.Reader // upper/<root>/ of the Job
	Log   io.Reader     // base/<root>.log, read to its end by Open
	// Rootless: the Job's logical modes and owners are in the attribute overlay.AttrXattr.
	Rootless bool
	UID, GID uint32 // the caller's real ids
	// Rebased is what earlier applies published: the base of these paths from now on.
	Rebased map[tree.Path]tree.Node
}

// Reader reads one staged root of a Job that is not running. It is for one goroutine at a time.
type Reader struct {
	cfg Config
}

// Open reads the change log. The directories of cfg stay the caller's.
func Open(cfg Config) (*Reader, error) { return nil, errors.ErrUnsupported }

// Changes returns the net changes, sorted by path, with the digest of every new file. A directory
// moved or deleted as a whole is one change.
func (r *Reader) Changes(ctx context.Context) ([]tree.Change, error) {
	return nil, errors.ErrUnsupported
}

// OpenNew opens the staged content of the regular file that the Job sees at p.
func (r *Reader) OpenNew(p tree.Path) (hostfs.File, error) { return nil, errors.ErrUnsupported }

// OpenBase opens the workspace's content of the regular file p, as it is now.
func (r *Reader) OpenBase(p tree.Path) (hostfs.File, error) { return nil, errors.ErrUnsupported }

// WalkMoved calls f for all that is no directory below the directory that c, a Moved change, moved,
// as far as no other change is about it.
func (r *Reader) WalkMoved(c tree.Change, f func(from, to tree.Path, n tree.Node) error) error {
	return errors.ErrUnsupported
}

// WalkRemoved calls f for all that is no directory in the workspace below the directory that c, a
// Subtree change, deleted or moved away.
func (r *Reader) WalkRemoved(c tree.Change, f func(p tree.Path, n tree.Node) error) error {
	return errors.ErrUnsupported
}

// Verdict compares what the workspace has now with the base of c, one of Changes.
func (r *Reader) Verdict(ctx context.Context, c tree.Change) (tree.Judgement, error) {
	return tree.Judgement{}, errors.ErrUnsupported
}

// DirTimes returns the mtimes that directory p had when the Job first changed it and has in the
// view. ok is false for a directory that the Job did not change or made.
func (r *Reader) DirTimes(p tree.Path) (base, view tree.Time, ok bool) { return 0, 0, false }

// LinkAnchor returns an unchanged workspace file that the names of a link group are to be linked to.
func (r *Reader) LinkAnchor(group int) (tree.Path, bool) { return tree.Path{}, false }
