package overlay

import (
	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// Field says which fields of a SetAttr count.
type Field uint8

// The fields.
const (
	SetMode Field = 1 << iota
	SetUID
	SetGID
	SetSize
	SetTimes // Atime and Mtime; UTIME_NOW and UTIME_OMIT mean what they mean to utimensat(2)
	KillPriv // clear setuid and setgid as a write by an ordinary user does
)

// SetAttr is a change of attributes.
type SetAttr struct {
	Set          Field
	Mode         uint32
	UID, GID     uint32 // as they came over the wire
	Size         uint64
	Atime, Mtime unix.Timespec
}

// Setattr changes attributes of a node and returns what they are then.
func (f *FS) Setattr(id uint64, s *SetAttr, a *Attr) error {
	n, err := f.node(id)
	if err != nil {
		return err
	}
	if err := f.mayAlter(n, s.Set&SetMode != 0); err != nil {
		return err
	}
	if err := f.maySetattr(n, s); err != nil {
		return err
	}
	if idle, err := f.changesNothing(n, s, a); idle || err != nil {
		return err
	}
	why := toChange
	if s.Set&SetSize != 0 && s.Size == 0 {
		why = toTruncate
	}
	if err := f.copyUp(n, why); err != nil {
		return err
	}
	if s.Set&SetSize != 0 {
		if err := f.truncate(n, s.Size); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.setattr(n, s); err != nil {
		return err
	}
	return f.getattr(n, a)
}

// maySetattr makes the kernel's checks of ownership again for nodes shown as the caller's that are
// not.
func (f *FS) maySetattr(n *node, s *SetAttr) error {
	if !f.ids.Rootless {
		return nil
	}
	if s.Set&SetUID != 0 && s.UID != 0 || s.Set&SetGID != 0 && s.GID != 0 {
		return unix.EPERM
	}
	explicit := s.Set&SetTimes != 0 && (s.Mtime.Nsec != unix.UTIME_NOW || s.Atime.Nsec != unix.UTIME_NOW)
	if s.Set&(SetMode|SetUID|SetGID) != 0 || explicit && s.Set&SetSize == 0 {
		return f.mustOwn(n)
	}
	if s.Set&SetTimes == 0 || s.Set&SetSize != 0 {
		return nil
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	var a Attr
	if err := f.getattr(n, &a); err != nil {
		return err
	}
	if a.Mode&0o200 == 0 && f.mustOwnLocked(n) != nil {
		return unix.EACCES
	}
	return nil
}

// changesNothing reports whether s sets the mode a lower node has already, or clears bits it has not:
// no reason to copy it up.
func (f *FS) changesNothing(n *node, s *SetAttr, a *Attr) (bool, error) {
	if s.Set != SetMode && s.Set != KillPriv || n.upper.Load() {
		return false, nil
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.getattr(n, a); err != nil {
		return false, err
	}
	if s.Set == KillPriv {
		return killPriv(a.Mode) == a.Mode, nil
	}
	return a.Mode&0o7777 == s.Mode&0o7777, nil
}

func (f *FS) truncate(n *node, size uint64) error {
	if n.kind != unix.S_IFREG {
		return unix.EINVAL
	}
	d, err := f.content(n)
	if err != nil {
		return err
	}
	defer f.fds.put(d)
	return unix.Ftruncate(d.fd, int64(size))
}

// setattr sets owner, mode and times of n, which is in the upper.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) setattr(n *node, s *SetAttr) error {
	p, err := f.where(n)
	if err != nil {
		return err
	}
	defer f.leave(p)
	if s.Set&(SetMode|SetUID|SetGID|KillPriv) != 0 {
		if err := f.changeOwner(p, s); err != nil {
			return err
		}
	}
	// A truncation brings the time along; nobody set it.
	if s.Set&SetTimes == 0 || s.Set&SetSize != 0 && s.Mtime.Nsec == unix.UTIME_NOW {
		return nil
	}
	if s.Mtime.Nsec != unix.UTIME_OMIT {
		if err := f.noteTimes(n); err != nil {
			return err
		}
	}
	return utimes(p.d.fd, p.name, s.Atime, s.Mtime)
}

func (f *FS) changeOwner(p place, s *SetAttr) error {
	var st unix.Stat_t
	if err := statPlace(p, &st); err != nil {
		return err
	}
	o := f.logical(true, &st)
	was := o
	if s.Set&(SetUID|SetGID) != 0 || s.Set&KillPriv != 0 {
		o.mode = killPriv(o.mode)
	}
	c := f.ids.real(Caller{UID: s.UID, GID: s.GID})
	if s.Set&SetUID != 0 {
		o.uid = c.UID
	}
	if s.Set&SetGID != 0 {
		o.gid = c.GID
	}
	if s.Set&SetMode != 0 {
		o.mode = o.mode&unix.S_IFMT | s.Mode&0o7777
	}
	if o == was {
		return nil
	}
	return f.setOwner(p, o, nil)
}

// killPriv returns mode without setuid, and without setgid where it gives group rights. Directories
// keep both (chown_common, fs/open.c).
func killPriv(mode uint32) uint32 {
	if mode&unix.S_IFMT == unix.S_IFDIR {
		return mode
	}
	mode &^= unix.S_ISUID
	if mode&unix.S_IXGRP != 0 {
		mode &^= unix.S_ISGID
	}
	return mode
}

// noteTimes records that the Job sets n's mtime. Where nothing of the workspace shows all is new,
// and every mtime counts.
func (f *FS) noteTimes(n *node) error {
	if n == f.tab.root {
		return f.append(Record{Op: OpTimes})
	}
	if n.parent == nil || n.parent.dir.lower == nil || n.parent.dir.marked[n.name]&markTimes != 0 {
		return nil
	}
	path, err := f.path(n)
	if err != nil {
		return err
	}
	if err := f.append(Record{Op: OpTimes, Path: path}); err != nil {
		return err
	}
	n.parent.dir.mark(n.name, markTimes)
	return nil
}

func statPlace(p place, st *unix.Stat_t) error {
	if p.name == "" {
		return fstatat(p.d.fd, "", st, unix.AT_EMPTY_PATH)
	}
	return fstatat(p.d.fd, p.name, st, statFlags)
}

func chownPlace(p place, uid, gid int) error {
	if p.name == "" {
		return unix.Fchownat(p.d.fd, "", uid, gid, unix.AT_EMPTY_PATH)
	}
	return unix.Fchownat(p.d.fd, p.name, uid, gid, noFollow)
}

// chmodPlace changes the mode of what is not a symbolic link.
func chmodPlace(p place, mode uint32) error {
	if p.name == "" {
		err := unix.Fchmod(p.d.fd, mode&0o7777)
		if err == unix.EBADF { // O_PATH
			err = unix.Fchmodat(unix.AT_FDCWD, procFD(p.d.fd), mode&0o7777, 0)
		}
		return err
	}
	return unix.Fchmodat(p.d.fd, p.name, mode&0o7777, 0)
}

// setOwner gives an upper object owner o and the extended attributes. Root gives them for real.
// Else the object keeps what the server needs to use it, and AttrXattr tells the truth; it is
// written before the mode is widened and removed after, so that a crash in between shows the old
// or the new state. Owner comes before mode and xattrs, since chown clears setuid and capabilities.
func (f *FS) setOwner(p place, o owner, xattrs tree.Xattrs) error {
	var st unix.Stat_t
	if err := statPlace(p, &st); err != nil {
		return err
	}
	if o.mode&unix.S_IFMT == unix.S_IFLNK {
		return f.chownReal(p, &st, o)
	}
	if err := f.chownReal(p, &st, o); err != nil {
		return err
	}
	if err := writeXattrs(xattrAt(p.d.fd, p.name), xattrs); err != nil {
		return err
	}
	switch {
	case f.ids.Rootless && (o.mode&unix.S_IFMT == unix.S_IFREG || o.mode&unix.S_IFMT == unix.S_IFDIR):
		return f.setLogical(p, o)
	case st.Mode == o.mode && st.Uid == o.uid && st.Gid == o.gid && len(xattrs) == 0:
		return nil
	}
	return chmodPlace(p, o.mode)
}

// chownReal changes the owner as far as the server may: root wholly, others to one of their groups.
func (f *FS) chownReal(p place, st *unix.Stat_t, o owner) error {
	if st.Uid == o.uid && st.Gid == o.gid {
		return nil
	}
	if !f.ids.Rootless {
		return chownPlace(p, int(o.uid), int(o.gid))
	}
	if st.Gid == o.gid {
		return nil
	}
	if err := chownPlace(p, -1, int(o.gid)); err != nil && err != unix.EPERM {
		return err
	}
	return nil
}

// setLogical makes o the owner an upper file or directory shows, for a server that is not root.
func (f *FS) setLogical(p place, o owner) error {
	need := uint32(0o600)
	if o.mode&unix.S_IFMT == unix.S_IFDIR {
		need = 0o700
	}
	var st unix.Stat_t
	if err := statPlace(p, &st); err != nil {
		return err
	}
	real := o.mode | need
	if o.mode&unix.S_IFMT == unix.S_IFREG {
		// A write by a server that is not root would clear them, also one that is no write of the Job's
		// but its map written back (file_remove_privs, fs/inode.c).
		real &^= unix.S_ISUID | unix.S_ISGID
	}
	differs := real != o.mode || st.Uid != o.uid || st.Gid != o.gid
	x := xattrAt(p.d.fd, p.name)
	if differs {
		if err := x.set(AttrXattr, EncodeAttr(tree.Mode(o.mode&0o7777), o.uid, o.gid), 0); err != nil {
			return err
		}
		f.tab.setAttr(st.Ino, owner{o.mode & 0o7777, o.uid, o.gid})
	}
	if err := chmodPlace(p, real); err != nil {
		return err
	}
	if err := statPlace(p, &st); err != nil {
		return err
	}
	if differs {
		return nil
	}
	if st.Mode&0o7777 != o.mode&0o7777 { // chmod drops setgid for a group the caller is not in
		f.tab.setAttr(st.Ino, owner{o.mode & 0o7777, o.uid, o.gid})
		return x.set(AttrXattr, EncodeAttr(tree.Mode(o.mode&0o7777), o.uid, o.gid), 0)
	}
	if _, had := f.tab.attrOf(st.Ino); had {
		f.tab.clearAttr(st.Ino)
		return x.remove(AttrXattr)
	}
	return nil
}
