package overlay

import (
	"errors"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// append writes records to the change log, those queued before them, and on success notes the bases
// among them.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) append(recs ...Record) error {
	if len(recs) == 0 {
		return nil
	}
	if err := appendAll(f.log, append(f.queued[:len(f.queued):len(f.queued)], recs...)); err != nil {
		return err
	}
	f.queued = f.queued[:0]
	for _, r := range recs {
		if r.Op != OpBase {
			continue
		}
		if err := f.bases.Apply(r); err != nil {
			return err
		}
	}
	return nil
}

// appendQueued records what waits for the next record.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) appendQueued() error {
	if len(f.queued) == 0 {
		return nil
	}
	recs := f.queued
	f.queued = nil
	return f.append(recs...)
}

// base returns the record of the workspace's state at name in p, nil if the change log has it
// already. gone says that the entry is about to be deleted or moved away: a directory then gets a
// subtree base. Wherever a path is not covered yet, the workspace path and the view path are the
// same: every move and every removal of a directory records a subtree base first.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) base(p *node, name string, gone bool) (*Record, error) {
	return f.baseFor(nil, p, name, gone)
}

// baseFor is base where kid, if it is not nil, is the node the Job changes at name in p.
func (f *FS) baseFor(kid, p *node, name string, gone bool) (*Record, error) {
	path, err := f.childPath(p, name)
	if err != nil {
		return nil, err
	}
	b, at, ok := f.bases.BaseOf(path)
	if ok && (at != path || !gone || b.Subtree || b.Node.Kind != tree.Dir) {
		return nil, nil
	}
	n, err := f.lowerNode(p, name)
	if err != nil {
		return nil, err
	}
	n, drifted := f.asServed(kid, p, name, n)
	if drifted {
		f.drift(path)
	}
	r := &Record{Op: OpBase, Path: path, Node: &n}
	if gone && n.Kind == tree.Dir {
		r.Subtree = true
		if r.Time, err = f.now(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// lowerNode returns the state of name in the lower directory that shows in p: absent where there
// is none. Unlike statLower it looks behind whiteouts.
func (f *FS) lowerNode(p *node, name string) (tree.Node, error) {
	if p.dir.lower == nil {
		return tree.Node{}, nil
	}
	d, err := f.lowerFD(p.dir.lower)
	if err == nil {
		defer f.fds.put(d)
		n, err := nodeAt(d.fd, name)
		if !errors.Is(absent(err), unix.ENOENT) {
			return n, err
		}
		return tree.Node{}, nil
	}
	if absent(err) == unix.ENOENT {
		return tree.Node{}, nil
	}
	return tree.Node{}, err
}

// nodeAt returns the whole state of name in dirfd, or of dirfd itself when name is empty, but its
// digest.
func nodeAt(dirfd int, name string) (tree.Node, error) {
	var st unix.Stat_t
	if err := fstatat(dirfd, name, &st, statFlags|unix.AT_EMPTY_PATH); err != nil {
		return tree.Node{}, err
	}
	n := nodeOf(&st, owner{st.Mode, st.Uid, st.Gid})
	if n.Kind == tree.Symlink {
		target, err := readlink(dirfd, name)
		if err != nil {
			return tree.Node{}, err
		}
		n.Target = string(target)
	}
	var err error
	n.Xattrs, err = readXattrs(xattrAt(dirfd, name))
	return n, err
}

// now returns the time of the lower's file system: a change there that happens later has a later
// ctime, or the same within one tick of its clock. Where the upper lies on the same device, a file
// is touched and asked; elsewhere it is this machine's coarse clock, from which local file systems
// take their times.
func (f *FS) now() (tree.Time, error) {
	if f.lowerDev != f.upperDev {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts); err != nil {
			return 0, err
		}
		return timeOf(ts), nil
	}
	if err := utimes(f.scratch, "", unix.Timespec{Nsec: unix.UTIME_NOW}, unix.Timespec{Nsec: unix.UTIME_NOW}); err != nil {
		return 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.scratch, &st); err != nil {
		return 0, err
	}
	return timeOf(st.Ctim), nil
}

// utimes sets the times of name in fd, or of fd itself when name is empty.
func utimes(fd int, name string, atime, mtime unix.Timespec) error {
	if name == "" {
		return unix.UtimesNanoAt(fd, "", []unix.Timespec{atime, mtime}, unix.AT_EMPTY_PATH)
	}
	return unix.UtimesNanoAt(fd, name, []unix.Timespec{atime, mtime}, noFollow)
}
