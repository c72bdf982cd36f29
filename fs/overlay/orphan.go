package overlay

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// A node in use outlives its last name, and no descriptor is kept for that: there would soon be none
// left. What lies in the upper is renamed into Config.Orphans, where a number is its name until the
// kernel forgets the node. What lies in the lower stays where the host has it.
//
//	upper/a/f ── unlink ──► orphans/17 ── FORGET ──► gone
//
// What takes several steps to make is made there too, and renamed into the upper when it is complete.
//
// Nothing in the change log tells of orphans: after a crash they are no more than left over.

// lost is where the object of a node without names lies in the lower. The host may put another there.
type lost struct {
	lower *lowerDir
	name  string
	key   inodeKey
}

// openOrphans checks that objects of the upper can be renamed into Config.Orphans, and empties it.
func (f *FS) openOrphans() error {
	if f.cfg.Orphans == nil {
		return errors.New("no directory for orphans")
	}
	var up, orphans unix.Statx_t
	for fd, st := range map[int]*unix.Statx_t{f.cfg.Upper.Fd(): &up, f.cfg.Orphans.Fd(): &orphans} {
		if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, st); err != nil {
			return fmt.Errorf("stat directory of upper or orphans: %w", err)
		}
	}
	if up.Dev_major != orphans.Dev_major || up.Dev_minor != orphans.Dev_minor || up.Mnt_id != orphans.Mnt_id {
		return errors.New("the directory for orphans is not in the mount of the upper")
	}
	f.orphanTop = &descriptor{fd: f.cfg.Orphans.Fd(), kept: true}
	return f.clearOrphans()
}

// clearOrphans removes all orphans.
func (f *FS) clearOrphans() error {
	list, err := f.listDir(f.orphanTop.fd)
	if err != nil {
		return fmt.Errorf("list orphans: %w", err)
	}
	for _, name := range list {
		if err := f.removeOrphan(name); err != nil {
			return err
		}
	}
	return nil
}

func (f *FS) removeOrphan(name string) error {
	err := removeAt(f.orphanTop.fd, name)
	if err == unix.ENOTEMPTY { // what was being made in it when the server was killed
		err = f.emptyOrphan(name)
	}
	if err != nil {
		return fmt.Errorf("remove orphan: %w", err)
	}
	return nil
}

// emptyOrphan removes a directory that holds what has nothing below.
func (f *FS) emptyOrphan(orphan string) error {
	fd, err := f.fds.openat(f.orphanTop.fd, orphan, dirFlags, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	list, err := f.listDir(fd)
	if err != nil {
		return err
	}
	for _, name := range list {
		if err := removeAt(fd, name); err != nil {
			return err
		}
	}
	return removeAt(f.orphanTop.fd, orphan)
}

// removeAt removes name from dirfd, be it an empty directory or something else.
func removeAt(dirfd int, name string) error {
	err := unix.Unlinkat(dirfd, name, 0)
	if err == unix.EISDIR {
		return unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
	}
	return err
}

func orphanName(orphan uint64) string { return strconv.FormatUint(orphan, 10) }

// newOrphan returns a number that no orphan has.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) newOrphan() uint64 {
	f.orphans++
	return f.orphans
}

// bury removes orphans of nodes that are freed: dead is what table.takeDeadLocked returned.
//
// Preconditions:
//   - no lock is held: a large file takes its time.
func (f *FS) bury(dead []uint64) {
	for _, orphan := range dead {
		if err := f.removeOrphan(orphanName(orphan)); err != nil {
			f.event(Event{Kind: EventError, Err: err})
		}
	}
}

// takeDeadLocked returns the orphans of nodes that were freed.
func (t *table) takeDeadLocked() []uint64 {
	dead := t.dead
	t.dead = nil
	return dead
}

// setOrphan makes orphan, an upper object with state st, the object of n, which has no names.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) setOrphan(n *node, orphan uint64, st *unix.Stat_t) {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	r := n.oddLocked()
	r.orphan, r.lost, r.doomed = orphan, nil, keyOf(st)
}

// adopted lets go of what kept n while it had no name.
//
// Preconditions:
//   - FS.mu is held exclusively, and n has a name.
func (f *FS) adopted(n *node) error {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	r := n.rare.Load()
	if r == nil {
		return nil
	}
	orphan := r.orphan
	r.orphan, r.lost = 0, nil
	if orphan == 0 {
		return nil
	}
	r.doomed = inodeKey{}
	return f.removeOrphan(orphanName(orphan))
}

// whereLost opens the lower object of a node without names, if it is still the same.
func (f *FS) whereLost(l *lost) (place, error) {
	d, err := f.lowerFD(l.lower)
	if err != nil {
		return place{}, stale(err)
	}
	defer f.fds.put(d)
	fd, err := f.fds.openat(d.fd, l.name, unix.O_PATH, 0)
	if err != nil {
		return place{}, stale(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || keyOf(&st) != l.key {
		closeFD(fd)
		return place{}, errors.Join(err, unix.ESTALE)
	}
	return place{d: &descriptor{fd: fd, refs: 1}}, nil // leave closes it
}

// stale turns what says that there is no such object any more into ESTALE.
func stale(err error) error {
	if absent(err) == unix.ENOENT {
		return unix.ESTALE
	}
	return err
}

// willOrphan reports whether v is the last known name of a node that somebody else uses.
func (f *FS) willOrphan(v *victim) bool {
	r := v.n.odd()
	return r.orphan == 0 && r.lost == nil && len(r.more) == 0 && f.inUse(v.n)
}

// orphanUnlinked takes v's name from directory up by making it an orphan.
func (f *FS) orphanUnlinked(v *victim, up int) error {
	v.orphan = f.newOrphan()
	return unix.Renameat2(up, v.name, f.orphanTop.fd, orphanName(v.orphan), unix.RENAME_NOREPLACE)
}

// orphanReplaced gives v's object, which a rename is about to take the name from, a name as an
// orphan. Of a directory, which is empty, there is nothing to keep but attributes: another one gets
// them, as no directory has two names.
func (f *FS) orphanReplaced(v *victim) error {
	if !v.inUpper || !f.willOrphan(v) {
		return nil
	}
	up, err := f.upperFD(v.p)
	if err != nil {
		return err
	}
	defer f.fds.put(up)
	orphan := f.newOrphan()
	if v.n.isDir() {
		err = f.orphanTwin(v, up.fd, orphanName(orphan))
	} else {
		err = unix.Linkat(up.fd, v.name, f.orphanTop.fd, orphanName(orphan), 0)
	}
	if err != nil {
		return err
	}
	v.orphan = orphan
	return nil
}

// orphanTwin makes a directory with the attributes of v's.
func (f *FS) orphanTwin(v *victim, up int, name string) (err error) {
	xattrs, err := readXattrs(xattrAt(up, v.name))
	if err != nil {
		return err
	}
	if err := unix.Mkdirat(f.orphanTop.fd, name, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.removeOrphan(name))
		}
	}()
	twin := place{f.orphanTop, name}
	if err := f.setOwner(twin, f.logical(true, &v.st), xattrs); err != nil {
		return err
	}
	if err := utimes(f.orphanTop.fd, name, v.st.Atim, v.st.Mtim); err != nil {
		return err
	}
	return statPlace(twin, &v.st)
}

// dropReplaced takes back what orphanReplaced did.
func (f *FS) dropReplaced(v *victim) error {
	if v.orphan == 0 {
		return nil
	}
	return f.removeOrphan(orphanName(v.orphan))
}
