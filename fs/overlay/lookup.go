package overlay

import (
	"errors"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Lookup finds name in directory parent. When it is not there, EntryValid tells how long that holds.
func (f *FS) Lookup(parent uint64, name string, e *Entry) error {
	p, err := f.dirNode(parent)
	if err != nil {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	f.mu.RLock()
	err = f.lookup(p, name, e, false)
	f.mu.RUnlock()
	if err != errExclusive {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lookup(p, name, e, true)
}

// NameIn returns name in directory parent as a string: where a node is known by it that node's own, so
// that to look a name up again needs no memory.
func (f *FS) NameIn(parent uint64, name []byte) string {
	p, err := f.dirNode(parent)
	if err != nil {
		return string(name)
	}
	return f.ownName(p, unsafe.String(unsafe.SliceData(name), len(name))) // which does not keep it
}

// ownName returns a string like name that is part of nothing larger: a node may keep it.
func (f *FS) ownName(p *node, name string) string {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	n := f.tab.kidLocked(p, name)
	if n != nil && n.parent == p && n.name == name {
		return n.name
	}
	return strings.Clone(name)
}

// errExclusive says that a lookup has to be made with FS.mu held exclusively.
var errExclusive = errors.New("lookup needs the tree lock exclusively")

// lookup is Lookup with FS.mu held, exclusively if excl is set.
func (f *FS) lookup(p *node, name string, e *Entry, excl bool) error {
	var st unix.Stat_t
	f.watch(p)
	upper, fd, err := f.findHeld(p, name, &st)
	e.EntryValid = f.entryValid(p, name)
	if err == unix.ENOENT {
		f.serveAbsent(p, name)
	}
	if err != nil {
		return err
	}
	if f.rules != nil && f.verdict(p, name, st.Mode&unix.S_IFMT == unix.S_IFDIR)&Hide != 0 {
		f.count.deniedLookups.Add(1)
		if fd >= 0 {
			closeFD(fd)
		}
		return unix.ENOENT
	}
	if err := f.countNames(upper, &st, excl); err != nil {
		return err
	}
	n := f.adopt(p, name, upper, &st, excl)
	if fd >= 0 && n != nil {
		f.fds.put(f.fds.add(&n.slot, fd))
	} else if fd >= 0 {
		closeFD(fd)
	}
	if n == nil {
		return errExclusive
	}
	valid := e.EntryValid
	f.enter(n, &st, e)
	e.EntryValid = valid
	f.servePresent(p, name)
	f.serve(n, &st, &e.Attr)
	return nil
}

// recent is how long after its last change a file counts as one that changes often.
const recent = 10 * time.Second

func isRecent(st *unix.Stat_t) bool { return time.Since(time.Unix(st.Ctim.Unix())) < recent }

// findHeld is find, but opens a lower file that was changed a moment ago, whose state st then is: the
// host may put another file in its place before the Job, which opens without a message, has read it.
// fd is negative for anything else.
func (f *FS) findHeld(p *node, name string, st *unix.Stat_t) (upper bool, fd int, err error) {
	for range copyTries {
		upper, err = f.find(p, name, st)
		if err != nil || upper || st.Mode&unix.S_IFMT != unix.S_IFREG || !isRecent(st) {
			break
		}
		d, err := f.lowerFD(p.dir.lower)
		if err != nil {
			return false, -1, absent(err)
		}
		fd, err := f.openContent(place{d, name}, unix.O_RDONLY|unix.O_NOATIME, st)
		f.fds.put(d)
		if err == nil {
			return false, fd, nil
		}
		if err == unix.EACCES || err == unix.EPERM {
			break // READ finds out
		}
	}
	return upper, -1, err
}

// enter makes e the entry of n in the upper.
func (f *FS) enter(n *node, st *unix.Stat_t, e *Entry) {
	e.ID, e.Generation, e.EntryValid = n.id, n.id>>32, Long
	f.fill(n, st, &e.Attr)
}

// hold finds name in p and counts a lookup that the caller gives back with Forget.
func (f *FS) hold(p *node, name string) (*node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var st unix.Stat_t
	upper, err := f.find(p, name, &st)
	if err != nil {
		return nil, err
	}
	if err := f.countNames(upper, &st, true); err != nil {
		return nil, err
	}
	return f.adopt(p, name, upper, &st, true), nil
}

// Getattr returns the attributes of a node.
func (f *FS) Getattr(id uint64, a *Attr) error {
	n, err := f.node(id)
	if err != nil {
		return err
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	var st unix.Stat_t
	err = f.stat(n, &st)
	if !n.upper.Load() && (absent(err) == unix.ENOENT || err == nil && !f.shows(n, &st)) {
		return f.lastServed(n, a)
	}
	if err != nil {
		return err
	}
	f.fill(n, &st, a)
	f.serve(n, &st, a)
	return nil
}

// getattr is Getattr with FS.mu held.
func (f *FS) getattr(n *node, a *Attr) error {
	var st unix.Stat_t
	if err := f.stat(n, &st); err != nil {
		return err
	}
	f.fill(n, &st, a)
	return nil
}

// Readlink returns the target of a symbolic link.
func (f *FS) Readlink(id uint64) ([]byte, error) {
	n, err := f.node(id)
	if err != nil {
		return nil, err
	}
	if n.kind != unix.S_IFLNK {
		return nil, unix.EINVAL
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	p, err := f.where(n)
	if err != nil {
		return nil, err
	}
	defer f.leave(p)
	return readlink(p.d.fd, p.name)
}

// readlink reads a link's target; an empty name means the link fd itself is an O_PATH handle of.
func readlink(fd int, name string) ([]byte, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, name, buf)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}

// Statfs returns the state of the file system that holds the upper: writes land there.
func (f *FS) Statfs(st *unix.Statfs_t) error { return unix.Fstatfs(f.cfg.Upper.Fd(), st) }
