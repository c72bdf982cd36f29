package fusefs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"stage/fs/overlay"
)

// mount translates go-fuse's requests for one overlay. What it does not implement is ENOSYS by the
// embedded default: OPENDIR, which makes opening a directory free, and locks, which stay with the
// kernel.
type mount struct {
	fuse.RawFileSystem
	fs   *overlay.FS
	pass *passthrough // nil: opens are free
}

// id returns the overlay's number of a node.
func id(node uint64) uint64 {
	if node == rootAlias {
		return overlay.RootID
	}
	return node &^ epochMask
}

func caller(h *fuse.InHeader, umask uint32) overlay.Caller {
	return overlay.Caller{UID: h.Uid, GID: h.Gid, Umask: umask}
}

func setAttr(out *fuse.Attr, a *overlay.Attr) {
	out.Ino, out.Size, out.Blocks = a.Ino, a.Size, a.Blocks
	out.Atime, out.Atimensec = uint64(a.Atime.Sec), uint32(a.Atime.Nsec)
	out.Mtime, out.Mtimensec = uint64(a.Mtime.Sec), uint32(a.Mtime.Nsec)
	out.Ctime, out.Ctimensec = uint64(a.Ctime.Sec), uint32(a.Ctime.Nsec)
	out.Mode, out.Nlink, out.Uid, out.Gid = a.Mode, a.Nlink, a.UID, a.GID
	out.Rdev, out.Blksize = uint32(a.Rdev), a.Blksize
}

func (m *mount) setEntry(out *fuse.EntryOut, e *overlay.Entry) {
	out.NodeId, out.Generation = e.ID, e.Generation
	if m.pass != nil {
		out.NodeId = m.pass.wire(e.ID)
	}
	out.SetEntryTimeout(e.EntryValid)
	out.SetAttrTimeout(e.AttrValid)
	setAttr(&out.Attr, &e.Attr)
}

func setAttrOut(out *fuse.AttrOut, a *overlay.Attr) {
	out.SetTimeout(a.AttrValid)
	setAttr(&out.Attr, a)
}

// entry answers an operation that made or found e.
func (m *mount) entry(err error, e *overlay.Entry, out *fuse.EntryOut) fuse.Status {
	if err != nil {
		return m.status(err)
	}
	m.setEntry(out, e)
	return fuse.OK
}

func (m *mount) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	var e overlay.Entry
	err := m.fs.Lookup(id(h.NodeId), name, &e)
	if err == unix.ENOENT { // node number 0: an absence to be remembered
		out.SetEntryTimeout(e.EntryValid)
		return fuse.OK
	}
	return m.entry(err, &e, out)
}

func (m *mount) Forget(node, count uint64) { m.fs.Forget(id(node), count) }

func (m *mount) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	var a overlay.Attr
	if err := m.fs.Getattr(id(in.NodeId), &a); err != nil {
		return m.status(err)
	}
	setAttrOut(out, &a)
	return fuse.OK
}

func (m *mount) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	s := overlay.SetAttr{Mode: in.Mode, UID: in.Uid, GID: in.Gid, Size: in.Size}
	for _, f := range []struct {
		wire uint32
		set  overlay.Field
	}{
		{fuse.FATTR_MODE, overlay.SetMode}, {fuse.FATTR_UID, overlay.SetUID}, {fuse.FATTR_GID, overlay.SetGID},
		{fuse.FATTR_SIZE, overlay.SetSize}, {fuse.FATTR_ATIME | fuse.FATTR_MTIME, overlay.SetTimes},
		{fuse.FATTR_KILL_SUIDGID, overlay.KillPriv},
	} {
		if in.Valid&f.wire != 0 {
			s.Set |= f.set
		}
	}
	if s.Set == 0 { // chown(-1, -1), the only one that sets nothing: it drops setuid (chown_common, fs/open.c)
		s.Set = overlay.KillPriv
	}
	s.Atime = timeOf(in.Valid, fuse.FATTR_ATIME, fuse.FATTR_ATIME_NOW, in.Atime, in.Atimensec)
	s.Mtime = timeOf(in.Valid, fuse.FATTR_MTIME, fuse.FATTR_MTIME_NOW, in.Mtime, in.Mtimensec)
	var a overlay.Attr
	if err := m.fs.Setattr(id(in.NodeId), &s, &a); err != nil {
		return m.status(err)
	}
	setAttrOut(out, &a)
	return fuse.OK
}

// timeOf returns a time of SETATTR as utimensat(2) takes it.
func timeOf(valid, set, now uint32, sec uint64, nsec uint32) unix.Timespec {
	switch {
	case valid&now != 0:
		return unix.Timespec{Nsec: unix.UTIME_NOW}
	case valid&set != 0:
		return unix.Timespec{Sec: int64(sec), Nsec: int64(nsec)}
	}
	return unix.Timespec{Nsec: unix.UTIME_OMIT}
}

func (m *mount) Readlink(_ <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	target, err := m.fs.Readlink(id(h.NodeId))
	return target, m.status(err)
}

func (m *mount) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	var e overlay.Entry
	return m.entry(m.fs.Mknod(caller(&in.InHeader, in.Umask), id(in.NodeId), name, in.Mode, in.Rdev, &e), &e, out)
}

func (m *mount) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	var e overlay.Entry
	return m.entry(m.fs.Mkdir(caller(&in.InHeader, in.Umask), id(in.NodeId), name, in.Mode, &e), &e, out)
}

func (m *mount) Symlink(_ <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	var e overlay.Entry
	return m.entry(m.fs.Symlink(caller(h, 0), id(h.NodeId), name, target, &e), &e, out)
}

func (m *mount) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	var e overlay.Entry
	return m.entry(m.fs.Link(id(in.Oldnodeid), id(in.NodeId), name, &e), &e, out)
}

func (m *mount) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return m.status(m.fs.Unlink(id(h.NodeId), name))
}

func (m *mount) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return m.status(m.fs.Rmdir(id(h.NodeId), name))
}

func (m *mount) Rename(_ <-chan struct{}, in *fuse.RenameIn, name, newName string) fuse.Status {
	return m.status(m.fs.Rename(id(in.NodeId), name, id(in.Newdir), newName, in.Flags))
}

func (m *mount) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	var e overlay.Entry
	status := m.entry(m.fs.Create(caller(&in.InHeader, in.Umask), id(in.NodeId), name, in.Flags, in.Mode, &e), &e, &out.EntryOut)
	return m.opened(status, out)
}

func (m *mount) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	var e overlay.Entry
	status := m.entry(m.fs.Tmpfile(caller(&in.InHeader, in.Umask), id(in.NodeId), in.Mode, &e), &e, &out.EntryOut)
	return m.opened(status, out)
}

// Flush makes closes free. Locks are the kernel's, and nothing is held back until a close.
func (m *mount) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

func (m *mount) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	c, err := m.fs.Content(id(in.NodeId))
	if err != nil {
		return nil, m.status(err)
	}
	return &reading{c: c, off: int64(in.Offset), size: len(buf)}, fuse.OK
}

// reading is the result of READ: the content goes straight into the reply.
type reading struct {
	c    overlay.Content
	off  int64
	size int
	n    int
}

func (r *reading) Size() int { return r.size }

// Readv is what go-fuse calls in place of Bytes when it finds it.
func (r *reading) Readv(dst [][]byte) (int, fuse.Status) {
	for {
		n, err := unix.Preadv(r.c.FD(), dst, r.off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, fuse.ToStatus(err)
		}
		r.n = n
		return n, fuse.OK
	}
}

func (r *reading) Bytes(buf []byte) ([]byte, fuse.Status) {
	n, status := r.Readv([][]byte{buf[:r.size]})
	return buf[:n], status
}

func (r *reading) Done() { r.c.Done(r.n, r.off == 0 && r.n < r.size) }

func (m *mount) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	n, err := m.fs.Write(id(in.NodeId), data, int64(in.Offset), in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0)
	return uint32(n), m.status(err)
}

func (m *mount) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return m.status(m.fs.Fallocate(id(in.NodeId), in.Mode, int64(in.Offset), int64(in.Length)))
}

func (m *mount) CopyFileRange(_ <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	const most = 1 << 30 // one request must not take for ever, and the reply has 32 bits
	n, err := m.fs.CopyFileRange(id(in.NodeId), int64(in.OffIn), id(in.NodeIdOut), int64(in.OffOut), int(min(in.Len, most)))
	return uint32(n), m.status(err)
}

func (m *mount) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	off, err := m.fs.Lseek(id(in.NodeId), int64(in.Offset), int(in.Whence))
	out.Offset = uint64(off)
	return m.status(err)
}

// fsyncData is FUSE_FSYNC_FDATASYNC (linux/fuse.h).
const fsyncData = 1

func (m *mount) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return m.status(m.fs.Fsync(id(in.NodeId), in.FsyncFlags&fsyncData != 0))
}

func (m *mount) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return m.status(m.fs.Fsyncdir(id(in.NodeId)))
}

func (m *mount) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	var st unix.Statfs_t
	if err := m.fs.Statfs(&st); err != nil {
		return m.status(err)
	}
	*out = fuse.StatfsOut{
		Blocks: st.Blocks, Bfree: st.Bfree, Bavail: st.Bavail, Files: st.Files, Ffree: st.Ffree,
		Bsize: uint32(st.Bsize), NameLen: uint32(st.Namelen), Frsize: uint32(st.Frsize),
	}
	return fuse.OK
}

func (m *mount) GetXAttr(_ <-chan struct{}, h *fuse.InHeader, attr string, dest []byte) (uint32, fuse.Status) {
	n, err := m.fs.Getxattr(id(h.NodeId), attr, dest)
	return uint32(max(n, 0)), m.status(err)
}

func (m *mount) ListXAttr(_ <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	n, err := m.fs.Listxattr(id(h.NodeId), dest)
	return uint32(n), m.status(err)
}

func (m *mount) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, attr string, data []byte) fuse.Status {
	return m.status(m.fs.Setxattr(id(in.NodeId), attr, data, int(in.Flags)))
}

func (m *mount) RemoveXAttr(_ <-chan struct{}, h *fuse.InHeader, attr string) fuse.Status {
	return m.status(m.fs.Removexattr(id(h.NodeId), attr))
}

// Ioctl refuses all of them: none means anything on an overlay.
func (m *mount) Ioctl(<-chan struct{}, *fuse.IoctlIn, []byte, *fuse.IoctlOut, []byte) fuse.Status {
	return fuse.Status(unix.ENOTTY)
}

func (m *mount) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return m.status(m.fs.Readdir(id(in.NodeId), in.Offset, false, func(d *overlay.DirEntry) bool {
		return out.AddDirEntry(fuse.DirEntry{Name: d.Name, Ino: d.Ino, Mode: d.Mode, Off: d.Off})
	}))
}

func (m *mount) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return m.status(m.fs.Readdir(id(in.NodeId), in.Offset, true, func(d *overlay.DirEntry) bool {
		e := out.AddDirLookupEntry(fuse.DirEntry{Name: d.Name, Ino: d.Ino, Mode: d.Mode, Off: d.Off})
		if e != nil && d.Entry != nil {
			m.setEntry(e, d.Entry)
		}
		return e != nil
	}))
}
