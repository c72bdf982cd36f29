package overlay

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Create makes a regular file and opens nothing: opens cost no message. flags are those of open(2);
// without O_EXCL a file the kernel did not know of is taken as it is, or truncated with O_TRUNC.
func (f *FS) Create(c Caller, parent uint64, name string, flags, mode uint32, e *Entry) error {
	err := f.make(c, parent, name, unix.S_IFREG|mode&0o7777, e, func(up int, name string, mode uint32) (int, error) {
		return f.fds.openat(up, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, mode)
	})
	if err != unix.EEXIST || flags&unix.O_EXCL != 0 {
		return err
	}
	if err := f.lookupTaken(parent, name, e); err != nil {
		return err
	}
	err = f.reuse(e, flags)
	if err != nil {
		f.Forget(e.ID, 1)
	}
	return err
}

// lookupTaken is Lookup of a name that the kernel, which always looks first, took for free: it was told
// so, or has forgotten what it was told. The base of what the Job does to the file stays what it was
// shown there, nothing.
func (f *FS) lookupTaken(parent uint64, name string, e *Entry) error {
	p, err := f.dirNode(parent)
	if err != nil {
		return err
	}
	f.mu.RLock()
	unseen := f.servedAbsent(p, name)
	f.mu.RUnlock()
	if err := f.Lookup(parent, name, e); err != nil || !unseen {
		return err
	}
	if n := f.tab.get(e.ID); n != nil {
		n.flags.Or(flagUnseen)
	}
	return nil
}

// reuse makes an existing file do for open(2) with O_CREAT.
func (f *FS) reuse(e *Entry, flags uint32) error {
	switch {
	case e.Mode&unix.S_IFMT == unix.S_IFDIR:
		return unix.EISDIR
	case e.Mode&unix.S_IFMT != unix.S_IFREG:
		return unix.ESTALE // the kernel looks the name up again
	case flags&unix.O_TRUNC != 0:
		return f.Setattr(e.ID, &SetAttr{Set: SetSize | KillPriv}, &e.Attr)
	}
	return nil
}

// Mknod makes a regular file, FIFO or socket, and a device node where the Config allows it.
func (f *FS) Mknod(c Caller, parent uint64, name string, mode, rdev uint32, e *Entry) error {
	switch mode & unix.S_IFMT {
	case 0, unix.S_IFREG:
		return f.Create(c, parent, name, unix.O_EXCL, mode, e)
	case unix.S_IFIFO, unix.S_IFSOCK:
		rdev = 0
	case unix.S_IFCHR, unix.S_IFBLK:
		if !f.cfg.Devices {
			return unix.EPERM
		}
	default:
		return unix.EPERM
	}
	return f.make(c, parent, name, mode, e, func(up int, name string, mode uint32) (int, error) {
		return -1, unix.Mknodat(up, name, mode, int(rdev))
	})
}

// Mkdir makes a directory.
func (f *FS) Mkdir(c Caller, parent uint64, name string, mode uint32, e *Entry) error {
	return f.make(c, parent, name, unix.S_IFDIR|mode&0o7777, e, func(up int, name string, mode uint32) (int, error) {
		return -1, unix.Mkdirat(up, name, mode&0o7777)
	})
}

// Symlink makes a symbolic link; target is kept as it is.
func (f *FS) Symlink(c Caller, parent uint64, name, target string, e *Entry) error {
	return f.make(Caller{UID: c.UID, GID: c.GID}, parent, name, unix.S_IFLNK|0o777, e, func(up int, name string, _ uint32) (int, error) {
		return -1, unix.Symlinkat(target, up, name)
	})
}

// maker makes an object called name in directory dir, and may return a descriptor for its content.
type maker func(dir int, name string, mode uint32) (fd int, err error)

// make adds a new object called name to parent.
func (f *FS) make(c Caller, parent uint64, name string, mode uint32, e *Entry, act maker) error {
	p, err := f.dirNode(parent)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	isDir := mode&unix.S_IFMT == unix.S_IFDIR
	if err := f.prepare(p, name, isDir); err != nil {
		return err
	}
	recs, err := f.newRecords(p, name, isDir)
	if err != nil {
		return err
	}
	if err := f.append(recs...); err != nil {
		return err
	}
	up, err := f.upperFD(p)
	if err != nil {
		return err
	}
	defer f.fds.put(up)
	if !f.handsDown(p) {
		mode &^= c.Umask & 0o777
	}
	o, plain, err := f.newOwner(c, p, mode)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	fd := -1
	if plain {
		fd, err = f.makePlain(place{up, name}, o, act, &st)
	} else {
		fd, err = f.makeOwned(p, place{up, name}, o, act, &st)
	}
	if err != nil {
		return err
	}
	p.dir.addName(name)
	n := f.adopt(p, name, true, &st, true)
	if fd >= 0 { // the first write is next
		f.fds.replace(&n.slot, fd)
	}
	if isDir {
		n.dir.explicit = p.dir.lower != nil
		if err := f.queueDir(p, name); err != nil {
			return err
		}
	}
	f.enter(n, &st, e)
	return nil
}

// makePlain makes an object in place that is o's by itself.
func (f *FS) makePlain(at place, o owner, act maker, st *unix.Stat_t) (int, error) {
	fd, err := act(at.d.fd, at.name, o.mode)
	if err != nil {
		return -1, err
	}
	if err := f.own(at, o, st); err != nil {
		if fd >= 0 {
			closeFD(fd)
		}
		return -1, errors.Join(err, removeAt(at.d.fd, at.name))
	}
	return fd, nil
}

// makeOwned makes an object that has to be given to o first, out of sight, and puts it in p, where at
// is: a process that is killed leaves all of it or nothing.
func (f *FS) makeOwned(p *node, at place, o owner, act maker, st *unix.Stat_t) (int, error) {
	dir, done, err := f.nursery(p, at.d)
	if err != nil {
		return -1, err
	}
	tmp := orphanName(f.newOrphan())
	fd, err := act(dir.fd, tmp, f.serverMode(o.mode))
	if err != nil {
		return -1, errors.Join(err, done())
	}
	if f.handsDown(p) {
		o.mode, err = inheritedMode(place{dir, tmp}, o.mode)
	}
	if err == nil {
		err = f.own(place{dir, tmp}, o, st)
	}
	if err == nil {
		err = unix.Renameat2(dir.fd, tmp, at.d.fd, at.name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		err = errors.Join(err, removeAt(dir.fd, tmp))
	} else {
		err = statPlace(at, st)
	}
	if err = errors.Join(err, done()); err != nil && fd >= 0 {
		closeFD(fd)
		fd = -1
	}
	return fd, err
}

// inheritedMode returns the mode of a new object at p that was asked for with mode asked, by the access
// control list it got; what serverMode added is no part of it.
func inheritedMode(p place, asked uint32) (uint32, error) {
	var st unix.Stat_t
	if err := statPlace(p, &st); err != nil {
		return 0, err
	}
	return asked&^0o777 | st.Mode&0o777&(asked|0o077), nil
}

// nursery returns a directory to make something in that is meant for p, whose upper directory is up: it
// hands down the same access control list. done must be called.
func (f *FS) nursery(p *node, up *descriptor) (dir *descriptor, done func() error, err error) {
	if !f.handsDown(p) {
		return f.orphanTop, func() error { return nil }, nil
	}
	acl, err := xattrAt(up.fd, "").value(aclDefault)
	if err != nil {
		return nil, nil, err
	}
	name := orphanName(f.newOrphan())
	if err := unix.Mkdirat(f.orphanTop.fd, name, 0o700); err != nil {
		return nil, nil, err
	}
	fd, err := f.fds.openat(f.orphanTop.fd, name, dirFlags, 0)
	if err != nil {
		return nil, nil, errors.Join(err, f.removeOrphan(name))
	}
	done = func() error { return errors.Join(unix.Close(fd), f.removeOrphan(name)) }
	if err := xattrAt(fd, "").set(aclDefault, acl, 0); err != nil {
		return nil, nil, errors.Join(err, done())
	}
	return &descriptor{fd: fd, kept: true}, done, nil
}

// queueDir has the next records preceded by the one that identifies the upper directory name in p.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) queueDir(p *node, name string) error {
	path, err := f.childPath(p, name)
	if err != nil {
		return err
	}
	up, err := f.upperFD(p)
	if err != nil {
		return err
	}
	defer f.fds.put(up)
	id, err := dirIDOf(up.fd, name)
	if err != nil {
		return err
	}
	f.queued = append(f.queued, Record{Op: OpDir, Path: path, Ino: id.Ino, Time: id.Made})
	return nil
}

// prepare checks that name may and can be made in p, and brings p into the upper.
func (f *FS) prepare(p *node, name string, isDir bool) error {
	if err := checkName(name); err != nil {
		return err
	}
	if p != f.tab.root && p.parent == nil {
		return unix.ENOENT
	}
	if err := f.mayCreate(p, name, isDir); err != nil {
		return err
	}
	var st unix.Stat_t
	_, err := f.find(p, name, &st)
	switch err {
	case unix.ENOENT:
		return f.copyUpDir(p)
	case nil:
		return unix.EEXIST
	default:
		return err
	}
}

// newRecords returns what the change log must say before name appears in p.
func (f *FS) newRecords(p *node, name string, isDir bool) ([]Record, error) {
	var recs []Record
	b, err := f.base(p, name, false)
	if err != nil {
		return nil, err
	}
	if b != nil {
		recs = append(recs, *b)
	}
	if isDir && p.dir.lower != nil {
		path, err := f.childPath(p, name)
		if err != nil {
			return nil, err
		}
		recs = append(recs, Record{Op: OpOpaque, Path: path})
	}
	return recs, nil
}

// newOwner returns the owner of a new object in p. A setgid directory passes its group on, and to
// directories the bit too. plain says that the object has it as soon as the server makes it in p.
func (f *FS) newOwner(c Caller, p *node, mode uint32) (o owner, plain bool, err error) {
	c = f.ids.real(c)
	o = owner{mode, c.UID, c.GID}
	var st unix.Stat_t
	if err := f.stat(p, &st); err != nil {
		return o, false, err
	}
	isDir := mode&unix.S_IFMT == unix.S_IFDIR
	if dir := f.logical(p.upper.Load(), &st); dir.mode&unix.S_ISGID != 0 {
		o.gid = dir.gid
		if isDir {
			o.mode |= unix.S_ISGID
		}
	}
	own := owner{o.mode, f.self.uid, f.self.gid}
	if inherits := st.Mode&unix.S_ISGID != 0; inherits {
		own.gid = st.Gid
	} else if isDir {
		own.mode &^= unix.S_ISGID
	}
	plain = o == own && (o.mode&unix.S_IFMT == unix.S_IFLNK || f.serverMode(o.mode)&^f.self.mode == o.mode && !f.handsDown(p))
	return o, plain, nil
}

// handsDown reports whether what is made in p's upper directory gets an access control list from it.
func (f *FS) handsDown(p *node) bool {
	if acl := p.dir.acl.Load(); acl != aclUnknown {
		return acl == aclSome
	}
	up, err := f.upperFD(p)
	if err != nil {
		return true
	}
	defer f.fds.put(up)
	if _, err := xattrAt(up.fd, "").get(aclDefault, nil); err != unix.ENODATA && err != unix.EOPNOTSUPP {
		p.dir.acl.Store(aclSome)
		return true
	}
	p.dir.acl.Store(aclNone)
	return false
}

// serverMode returns the mode a new upper object gets at first, with which the server can use it.
func (f *FS) serverMode(mode uint32) uint32 {
	switch {
	case !f.ids.Rootless:
		return mode
	case mode&unix.S_IFMT == unix.S_IFDIR:
		return mode | 0o700
	default:
		return mode | 0o600
	}
}

// own makes o the owner of the new object at p and returns its state. Mostly it is already.
func (f *FS) own(p place, o owner, st *unix.Stat_t) error {
	if err := statPlace(p, st); err != nil {
		return err
	}
	if st.Uid == o.uid && st.Gid == o.gid && (st.Mode == o.mode || o.mode&unix.S_IFMT == unix.S_IFLNK) {
		return nil
	}
	if err := f.setOwner(p, o, nil); err != nil {
		return err
	}
	return statPlace(p, st)
}

// Tmpfile makes a regular file without a name, which Link may give one.
func (f *FS) Tmpfile(c Caller, parent uint64, mode uint32, e *Entry) error {
	p, err := f.dirNode(parent)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.mayCreate(p, ".", false); err != nil {
		return err
	}
	o, _, err := f.newOwner(c, p, unix.S_IFREG|mode&0o7777&^(c.Umask&0o777))
	if err != nil {
		return err
	}
	orphan := f.newOrphan()
	fd, err := f.fds.openat(f.orphanTop.fd, orphanName(orphan), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, f.serverMode(o.mode)&0o7777)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	var st unix.Stat_t
	if err := f.own(place{f.orphanTop, orphanName(orphan)}, o, &st); err != nil {
		return errors.Join(err, f.removeOrphan(orphanName(orphan)))
	}
	f.enter(f.adoptUnnamed(orphan, &st), &st, e)
	return nil
}

// adoptUnnamed returns the node of a file without a name and counts one lookup.
func (f *FS) adoptUnnamed(orphan uint64, st *unix.Stat_t) *node {
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	n := &node{kind: st.Mode & unix.S_IFMT, ino: f.inoLocked(true, st), lookups: 1}
	r := n.oddLocked()
	r.orphan, r.doomed = orphan, keyOf(st)
	n.upper.Store(true)
	f.tab.insertLocked(n)
	return n
}

// Link gives a node that is no directory one more name.
func (f *FS) Link(id, parent uint64, name string, e *Entry) error {
	n, err := f.node(id)
	if err != nil {
		return err
	}
	p, err := f.dirNode(parent)
	if err != nil {
		return err
	}
	if n.isDir() {
		return unix.EPERM
	}
	if err := f.mayLink(n, p); err != nil {
		return err
	}
	if err := f.copyUp(n, toChange); err != nil {
		return err
	}
	if err := f.keepCopy(n); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.prepare(p, name, false); err != nil {
		return err
	}
	if err := f.link(n, p, name); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := f.stat(n, &st); err != nil {
		return err
	}
	f.nameShared(n, p, name, &st)
	if n.odd().orphan != 0 {
		if err := f.adopted(n); err != nil {
			return err
		}
		st.Nlink--
	}
	f.enter(n, &st, e)
	return nil
}

// mayLink refuses to link what a rule is about or what lies in another mount than p, and makes the check
// of protected_hardlinks (proc(5)) for what is shown as the caller's and is not.
func (f *FS) mayLink(n, p *node) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if n.parent != nil {
		if err := f.sameMountLocked(n.parent, p); err != nil {
			return err
		}
		if err := f.mayMove(n.parent, n.name, false); err != nil {
			return err
		}
	}
	if !f.ids.Rootless || f.mustOwnLocked(n) == nil {
		return nil
	}
	var a Attr
	if err := f.getattr(n, &a); err != nil {
		return err
	}
	if a.Mode&unix.S_IFMT != unix.S_IFREG || a.Mode&0o600 != 0o600 || killPriv(a.Mode) != a.Mode {
		return unix.EPERM
	}
	return nil
}

// link adds name in p to n's upper object.
func (f *FS) link(n, p *node, name string) error {
	recs, err := f.newRecords(p, name, false)
	if err != nil {
		return err
	}
	more, err := f.linkRecords(n, p, name)
	if err != nil {
		return err
	}
	from, err := f.where(n)
	if err != nil {
		return err
	}
	defer f.leave(from)
	up, err := f.upperFD(p)
	if err != nil {
		return err
	}
	defer f.fds.put(up)
	if err := f.append(append(recs, more...)...); err != nil {
		return err
	}
	if from.name == "" {
		return unix.Linkat(unix.AT_FDCWD, procFD(from.d.fd), up.fd, name, unix.AT_SYMLINK_FOLLOW)
	}
	return unix.Linkat(from.d.fd, from.name, up.fd, name, 0)
}

// linkRecords returns what the change log must say of n's object under its new name, if it is a copy.
func (f *FS) linkRecords(n, p *node, name string) ([]Record, error) {
	var st unix.Stat_t
	if err := f.stat(n, &st); err != nil {
		return nil, err
	}
	f.tab.mu.Lock()
	_, copied := f.tab.origin[st.Ino]
	f.tab.mu.Unlock()
	group := n.odd().group
	if !copied && group == nil {
		return nil, nil
	}
	path, err := f.childPath(p, name)
	if err != nil {
		return nil, err
	}
	var recs []Record
	if group != nil {
		recs = append(recs, Record{Op: OpLink, Path: path, Node: &group.lower})
	}
	if copied { // and made durable
		p.dir.mark(name, markCopy)
		recs = append(recs, Record{Op: OpCopy, Path: path, Ino: n.ino}, Record{Op: OpSynced, Path: path})
	}
	return recs, nil
}

// nameShared notes that n, whose upper object has state st, got the further name.
func (f *FS) nameShared(n, p *node, name string, st *unix.Stat_t) {
	p.dir.addName(name)
	if g := n.odd().group; g != nil {
		g.nlink++
		g.uppers = append(g.uppers, alias{p, name})
		p.dir.mark(name, markLink)
	}
	f.tab.mu.Lock()
	f.shareLocked(n, keyOf(st))
	f.nameLocked(n, p, name)
	n.lookups++ // for the entry that answers LINK
	f.tab.mu.Unlock()
}
