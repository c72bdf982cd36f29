package overlay

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// copyTries is how often a file that changes while it is copied is copied again.
const copyTries = 4

// errMoving is the cause when a lower file kept changing.
var errMoving = errors.New("the file in the workspace keeps changing")

// errUnreadable is the cause when a lower file cannot be copied because the caller may not read it.
var errUnreadable = errors.New("a file of the workspace that cannot be read cannot be changed or renamed")

// copyUp brings n's object into the upper.
//
// Preconditions:
//   - FS.mu is not held.
func (f *FS) copyUp(n *node, why reason) error {
	if n.upper.Load() {
		return nil
	}
	mu := &f.copying[n.id%uint64(len(f.copying))]
	mu.Lock()
	defer mu.Unlock()
	if n.upper.Load() {
		return nil
	}
	err := f.copyUpKind(n, why)
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(err, errMoving):
		f.event(Event{Kind: EventMoving, Path: f.lockedPathOf(n), Err: err})
		return fmt.Errorf("copy up: %w: %w", err, unix.EIO)
	case errors.Is(err, unix.EACCES) && n.kind == unix.S_IFREG: // more than the Job could expect
		f.event(Event{Kind: EventError, Path: f.lockedPathOf(n), Err: fmt.Errorf("%w: %w", errUnreadable, err)})
	}
	return fmt.Errorf("copy up: %w", err)
}

func (f *FS) lockedPathOf(n *node) tree.Path {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.pathOf(n)
}

func (f *FS) copyUpKind(n *node, why reason) error {
	if n.kind == unix.S_IFREG {
		return f.copyUpFile(n, why)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.isDir() {
		return f.copyUpDir(n)
	}
	return f.copyUpSpecial(n)
}

// copied is the content and state of a lower file in an unnamed upper file.
type copied struct {
	fd   int
	st   unix.Stat_t // of the lower file
	node tree.Node   // the same as a base, digest included if the content was read
}

// copyUpFile copies without the tree lock, which it takes to put the copy in place.
func (f *FS) copyUpFile(n *node, why reason) error {
	src, err := f.copySource(n)
	if err != nil {
		return err
	}
	defer f.fds.put(src)
	c, err := f.copyFile(src.fd, why)
	if err != nil {
		return err
	}
	if err := f.settle(n, c); err != nil {
		return errors.Join(err, f.discard(c.fd))
	}
	f.count.copyUps.Add(1)
	return nil
}

// openContent opens the regular file at p. It cannot block: what is no regular file is opened with
// O_NONBLOCK and refused.
func (f *FS) openContent(p place, flags int, st *unix.Stat_t) (int, error) {
	flags |= unix.O_NONBLOCK | unix.O_NOCTTY
	fd, err := f.openPlace(p, flags)
	if err == unix.EPERM && flags&unix.O_NOATIME != 0 { // O_NOATIME is for the owner
		fd, err = f.openPlace(p, flags&^unix.O_NOATIME)
	}
	if err == unix.EACCES && f.cfg.OpenOwn != nil && flags&unix.O_ACCMODE == unix.O_RDONLY {
		fd, err = f.openOwn(p)
	}
	if err != nil {
		return -1, absent(err)
	}
	if err := unix.Fstat(fd, st); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		closeFD(fd)
		return -1, unix.ESTALE
	}
	return fd, nil
}

// openOwn opens a file that its owner, the caller, may not read: he could let himself. One with user
// attributes, which an open file does not give, is refused: its copy would not be exact.
func (f *FS) openOwn(p place) (int, error) {
	path, err := f.openPlace(p, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	defer closeFD(path)
	var st unix.Stat_t
	if err := unix.Fstat(path, &st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != f.ids.UID {
		return -1, unix.EACCES
	}
	names, err := xattrAt(path, "").names()
	if err != nil {
		return -1, err
	}
	for _, name := range names {
		if strings.HasPrefix(name, "user.") {
			return -1, unix.EACCES
		}
	}
	return f.cfg.OpenOwn(path)
}

func (f *FS) openPlace(p place, flags int) (int, error) {
	if p.name != "" {
		return f.fds.openat(p.d.fd, p.name, flags, 0)
	}
	return f.fds.reopen(p.d.fd, flags)
}

// copyFile copies src until it held still from before to after the copy.
func (f *FS) copyFile(src int, why reason) (*copied, error) {
	for range copyTries {
		c, err := f.copyOnce(src, why)
		if err != nil {
			return nil, err
		}
		var after unix.Stat_t
		if err := unix.Fstat(src, &after); err != nil {
			return nil, errors.Join(err, f.discard(c.fd))
		}
		if sameState(&c.st, &after) {
			return c, nil
		}
		if err := f.discard(c.fd); err != nil {
			return nil, err
		}
	}
	return nil, errMoving
}

// discard closes an unnamed upper file. What is known of its inode number must not be said of the
// next one that gets it.
func (f *FS) discard(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	f.tab.clearAttr(st.Ino)
	return unix.Close(fd)
}

func sameState(a, b *unix.Stat_t) bool {
	return a.Size == b.Size && a.Mtim == b.Mtim && a.Ctim == b.Ctim
}

// clockTick is more than the coarsest clock from which files get their times ticks (CONFIG_HZ 100).
const clockTick = 11 * time.Millisecond

// stillStat is fstat(2) of a state that a later change cannot have too: before Linux 6.13 a file that
// changes twice within one tick of the clock has the same times after both.
func stillStat(fd int, st *unix.Stat_t) error {
	if err := unix.Fstat(fd, st); err != nil {
		return err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
		return err
	}
	age := time.Duration(now.Nano() - st.Ctim.Nano())
	if age < 0 || age >= clockTick {
		return nil
	}
	time.Sleep(clockTick - age)
	return unix.Fstat(fd, st)
}

func (f *FS) copyOnce(src int, why reason) (*copied, error) {
	c := &copied{fd: -1}
	if err := stillStat(src, &c.st); err != nil {
		return nil, err
	}
	c.node = nodeOf(&c.st, owner{c.st.Mode, c.st.Uid, c.st.Gid})
	var err error
	if c.node.Xattrs, err = readXattrs(xattrAt(src, "")); err != nil {
		return nil, err
	}
	if c.fd, err = f.tmpfile(c.st.Mode); err != nil {
		return nil, err
	}
	if f.isSmall(&c.st) {
		err = f.copySmall(c, src, why)
	} else {
		err = f.copyAll(c, src, why)
	}
	if err == nil {
		err = f.giveAttrs(c.fd, &c.st, c.node.Xattrs)
	}
	if err != nil {
		return nil, errors.Join(err, f.discard(c.fd))
	}
	return c, nil
}

// copyAll makes the content of c that of src, unless it is to go, and keeps it if it is to change.
func (f *FS) copyAll(c *copied, src int, why reason) (err error) {
	from := src
	if why != toTruncate {
		from = c.fd
		if c.node.Digest, err = f.copyContent(c.fd, src, c.st.Size); err != nil {
			return err
		}
	}
	c.node.Digest, err = f.keepContent(from, c.st.Size, c.node.Digest, why != toMove)
	return err
}

// tmpfile makes an unnamed file in the upper. Nobody but the server reaches it there.
func (f *FS) tmpfile(mode uint32) (int, error) {
	return f.fds.openat(f.cfg.Upper.Fd(), ".", unix.O_TMPFILE|unix.O_RDWR, mode&0o777|0o600)
}

// giveAttrs gives an upper file or directory the owner, xattrs, mode and times of a lower one.
func (f *FS) giveAttrs(fd int, st *unix.Stat_t, xattrs tree.Xattrs) error {
	p := place{d: &descriptor{fd: fd, kept: true}}
	if err := f.setOwner(p, owner{st.Mode, st.Uid, st.Gid}, xattrs); err != nil {
		return err
	}
	return utimes(fd, "", st.Atim, st.Mtim)
}

// settle puts the copy of n in place: at n's name, or as what keeps n if it has lost its names.
func (f *FS) settle(n *node, c *copied) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var st unix.Stat_t
	if err := unix.Fstat(c.fd, &st); err != nil {
		return err
	}
	if n.parent != nil && f.kid(n.parent, n.name) != n {
		f.nameTaken(n) // the host put another file in its place, which the Job was shown
	}
	if n.parent == nil && n.odd().group != nil {
		if err := f.findName(n); err != nil {
			return err
		}
	}
	if n.parent == nil {
		return f.settleOrphan(n, c.fd, &st)
	}
	if err := f.copyUpDir(n.parent); err != nil {
		return err
	}
	recs, err := f.copyUpRecords(n, c.node)
	if err != nil {
		return err
	}
	if err := f.append(recs...); err != nil {
		return err
	}
	err = f.keepMtime(n.parent, func(up int) error {
		return unix.Linkat(unix.AT_FDCWD, procFD(c.fd), up, n.name, unix.AT_SYMLINK_FOLLOW)
	})
	if err != nil {
		return err
	}
	n.parent.dir.addName(n.name)
	n.parent.dir.mark(n.name, markCopy)
	f.raise(n, &st)
	f.fresh[st.Ino] = struct{}{}
	if c.st.Nlink > 1 {
		n.parent.dir.mark(n.name, markLink)
		f.groupCopied(n, &c.st, &st)
	}
	f.fds.replace(&n.slot, c.fd)
	return f.adopted(n)
}

// settleOrphan puts the copy of n, which has lost its names, among the orphans.
func (f *FS) settleOrphan(n *node, fd int, st *unix.Stat_t) error {
	orphan := f.newOrphan()
	if err := unix.Linkat(unix.AT_FDCWD, procFD(fd), f.orphanTop.fd, orphanName(orphan), unix.AT_SYMLINK_FOLLOW); err != nil {
		return err
	}
	f.setOrphan(n, orphan, st)
	f.raise(n, st)
	f.fds.replace(&n.slot, fd)
	return nil
}

// copyUpRecords returns what the change log must say before the copy of n appears: the base, with
// what was learned while copying, that it was a hard link, and that it is a copy.
func (f *FS) copyUpRecords(n *node, lower tree.Node) ([]Record, error) {
	path, err := f.path(n)
	if err != nil {
		return nil, err
	}
	// First: a power loss may cut the log in between, and a base without it vouches for the content.
	recs := []Record{{Op: OpCopy, Path: path, Ino: n.ino}}
	b, err := f.baseFor(n, n.parent, n.name, false)
	if err != nil {
		return nil, err
	}
	if b != nil {
		if b.Node.SameIdentity(lower) {
			b.Node.Digest = lower.Digest
		}
		recs = append(recs, *b)
	}
	if lower.Nlink > 1 && !n.isDir() {
		recs = append(recs, Record{Op: OpLink, Path: path, Node: &lower})
	}
	return recs, nil
}

// raise notes that n's object is now the upper one with state st, shown with the inode number n
// has had all along.
func (f *FS) raise(n *node, st *unix.Stat_t) {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	f.tab.origin[st.Ino] = n.ino
	n.upper.Store(true)
}

// keepMtime runs change, which adds an entry to the upper directory of p that the view has had all
// along, and puts the directory's mtime back.
func (f *FS) keepMtime(p *node, change func(up int) error) error {
	d, err := f.upperFD(p)
	if err != nil {
		return err
	}
	defer f.fds.put(d)
	var st unix.Stat_t
	if err := fstatat(d.fd, "", &st, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	if err := change(d.fd); err != nil {
		return err
	}
	return utimes(d.fd, "", unix.Timespec{Nsec: unix.UTIME_OMIT}, st.Mtim)
}

// copyUpDir gives n an upper directory with the attributes of its lower one, and all its parents
// too. Names that are only in the lower stay there.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) copyUpDir(n *node) error {
	if n.upper.Load() {
		return nil
	}
	if n == f.tab.root {
		return f.copyUpRoot()
	}
	if n.parent == nil || n.dir.lower == nil {
		return unix.ENOENT
	}
	if err := f.copyUpDir(n.parent); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := f.stat(n, &st); err != nil {
		return err
	}
	node, err := f.lowerNode(n.parent, n.name)
	if err != nil {
		return err
	}
	recs, err := f.copyUpRecords(n, node)
	if err != nil {
		return err
	}
	if err := f.append(recs...); err != nil {
		return err
	}
	return f.makeUpperDir(n, &st, node.Xattrs)
}

// build makes something among the orphans, and when it is complete renames it to name in upper directory
// up: a process that is killed leaves all of it or nothing.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) build(up int, name string, act func(dir int, name string) error) error {
	tmp := orphanName(f.newOrphan())
	err := act(f.orphanTop.fd, tmp)
	if err == nil {
		err = unix.Renameat2(f.orphanTop.fd, tmp, up, name, unix.RENAME_NOREPLACE)
	}
	if err == nil {
		return nil
	}
	if gone := removeAt(f.orphanTop.fd, tmp); gone != unix.ENOENT {
		err = errors.Join(err, gone)
	}
	return err
}

func (f *FS) makeUpperDir(n *node, lower *unix.Stat_t, xattrs tree.Xattrs) error {
	err := f.keepMtime(n.parent, func(up int) error {
		var st unix.Stat_t
		fd := -1
		err := f.build(up, n.name, func(dir int, name string) (err error) {
			if err := unix.Mkdirat(dir, name, f.serverMode(lower.Mode)&0o7777); err != nil {
				return err
			}
			if fd, err = f.fds.openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
				return err
			}
			if err := unix.Fstat(fd, &st); err != nil {
				return err
			}
			return f.giveAttrs(fd, lower, xattrs)
		})
		if err != nil {
			if fd >= 0 {
				closeFD(fd)
			}
			return err
		}
		n.parent.dir.addName(n.name)
		f.raise(n, &st)
		f.fds.replace(&n.dir.slot, fd)
		return f.queueDir(n.parent, n.name)
	})
	if err != nil {
		return fmt.Errorf("make upper directory: %w", err)
	}
	f.count.copyUps.Add(1)
	return nil
}

// copyUpRoot gives the upper's own directory, which is there from the start, the attributes of the
// workspace directory. It counts only once all are given: then OpCopy says so.
func (f *FS) copyUpRoot() error {
	root := f.tab.root
	node, err := nodeAt(f.cfg.Lower.Fd(), ".")
	if err != nil {
		return err
	}
	if _, ok := f.bases.Bases[tree.Path{}]; !ok {
		served, _ := f.asServed(root, nil, "", node)
		if err := f.append(Record{Op: OpBase, Node: &served}); err != nil {
			return err
		}
	}
	var lower, st unix.Stat_t
	if err := unix.Fstat(f.cfg.Lower.Fd(), &lower); err != nil {
		return err
	}
	if err := f.giveAttrs(f.cfg.Upper.Fd(), &lower, node.Xattrs); err != nil {
		return err
	}
	if err := unix.Fstat(f.cfg.Upper.Fd(), &st); err != nil {
		return err
	}
	if err := f.append(Record{Op: OpCopy, Ino: root.ino}); err != nil {
		return err
	}
	f.raise(root, &st)
	return nil
}

// copyUpSpecial copies a link, FIFO, socket or device node: there is no content, only a name.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) copyUpSpecial(n *node) error {
	var st unix.Stat_t
	if err := f.stat(n, &st); err != nil {
		return err
	}
	if n.parent == nil {
		return f.copyUpLost(n, &st)
	}
	if err := f.copyUpDir(n.parent); err != nil {
		return err
	}
	node, err := f.lowerNode(n.parent, n.name)
	if err != nil {
		return err
	}
	recs, err := f.copyUpRecords(n, node)
	if err != nil {
		return err
	}
	if err := f.append(recs...); err != nil {
		return err
	}
	err = f.keepMtime(n.parent, func(up int) error {
		return f.build(up, n.name, func(dir int, name string) error { return f.makeSpecial(dir, name, &st, node) })
	})
	if err != nil {
		return err
	}
	var up unix.Stat_t
	if err := f.statUpper(n.parent, n.name, &up); err != nil {
		return err
	}
	n.parent.dir.addName(n.name)
	n.parent.dir.mark(n.name, markCopy)
	f.raise(n, &up)
	if st.Nlink > 1 {
		n.parent.dir.mark(n.name, markLink)
		f.groupCopied(n, &st, &up)
	}
	f.count.copyUps.Add(1)
	return f.adopted(n)
}

// copyUpLost is copyUpSpecial of a node that has lost its names.
func (f *FS) copyUpLost(n *node, st *unix.Stat_t) error {
	p, err := f.where(n)
	if err != nil {
		return err
	}
	defer f.leave(p)
	node, err := nodeAt(p.d.fd, p.name)
	if err != nil {
		return err
	}
	orphan := f.newOrphan()
	if err := f.makeSpecial(f.orphanTop.fd, orphanName(orphan), st, node); err != nil {
		return err
	}
	var up unix.Stat_t
	if err := statPlace(place{f.orphanTop, orphanName(orphan)}, &up); err != nil {
		return err
	}
	f.setOrphan(n, orphan, &up)
	f.raise(n, &up)
	f.count.copyUps.Add(1)
	return nil
}

// makeSpecial makes the copy of a node without content. Such nodes hold their real attributes even
// without root: an owner the server may not give is not given.
func (f *FS) makeSpecial(up int, name string, st *unix.Stat_t, node tree.Node) error {
	var err error
	if node.Kind == tree.Symlink {
		err = unix.Symlinkat(node.Target, up, name)
	} else {
		err = unix.Mknodat(up, name, st.Mode, int(st.Rdev))
	}
	if err != nil {
		return err
	}
	err = unix.Fchownat(up, name, int(st.Uid), int(st.Gid), noFollow)
	if err != nil && !(f.ids.Rootless && err == unix.EPERM) {
		return err
	}
	if node.Kind != tree.Symlink {
		if err := unix.Fchmodat(up, name, st.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	if err := writeXattrs(xattrAt(up, name), node.Xattrs); err != nil {
		return err
	}
	return utimes(up, name, st.Atim, st.Mtim)
}
