package overlay

import (
	"golang.org/x/sys/unix"
)

// content returns the descriptor through which n's content is read and, once n is in the upper,
// written; put it back.
func (f *FS) content(n *node) (*descriptor, error) {
	if d := f.fds.get(&n.slot); d != nil {
		return d, nil
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.contentLocked(n)
}

// contentLocked is content with FS.mu held. The descriptor enters the slot under it, or a lower one
// could get there after the copy-up that was to replace it.
func (f *FS) contentLocked(n *node) (*descriptor, error) {
	if d := f.fds.get(&n.slot); d != nil {
		return d, nil
	}
	var st unix.Stat_t
	fd, err := f.openNode(n, &st)
	if err != nil {
		return nil, err
	}
	if !f.shows(n, &st) {
		closeFD(fd)
		return nil, unix.ESTALE
	}
	return f.fds.add(&n.slot, fd), nil
}

// openNode opens the content of what is at n's place, which may be another object than n's.
//
// Preconditions:
//   - FS.mu is held.
func (f *FS) openNode(n *node, st *unix.Stat_t) (int, error) {
	p, err := f.where(n)
	if err != nil {
		return -1, stale(err)
	}
	defer f.leave(p)
	flags := unix.O_RDONLY | unix.O_NOATIME
	if n.upper.Load() {
		flags = unix.O_RDWR
	}
	fd, err := f.openContent(p, flags, st)
	return fd, stale(err)
}

// shows reports whether st, found at the place of n, is of n's own object. The host may have put
// another one there.
func (f *FS) shows(n *node, st *unix.Stat_t) bool {
	if n.upper.Load() || n.odd().lost != nil {
		return true
	}
	return n.kind == st.Mode&unix.S_IFMT && n.ino == f.inoLocked(false, st)
}

// copySource returns a descriptor of the lower file n to copy up; put it back. Where n's own object
// is gone that is what the workspace has now: that the Job was shown another makes a conflict.
func (f *FS) copySource(n *node) (*descriptor, error) {
	if d := f.fds.get(&n.slot); d != nil {
		return d, nil
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	var st unix.Stat_t
	fd, err := f.openNode(n, &st)
	if err != nil {
		return nil, err
	}
	return f.fds.add(&slot{}, fd), nil
}

// InUpper reports whether a node's object is in the upper, so that a change of it copies nothing up.
func (f *FS) InUpper(id uint64) bool {
	n := f.tab.get(id)
	return n != nil && n.upper.Load()
}

// Content is a file being read; Done ends that.
type Content struct {
	f *FS
	n *node
	d *descriptor

	keep bool // the descriptor, when all was read
}

// Content returns the content of a regular file for reading.
func (f *FS) Content(id uint64) (Content, error) {
	n, err := f.node(id)
	if err != nil {
		return Content{}, err
	}
	if n.kind != unix.S_IFREG {
		return Content{}, unix.EINVAL
	}
	first := n.reads.Add(1)-1 == n.dropped.Load() // before the content is read: see serve
	d, err := f.content(n)
	if err != nil {
		return Content{}, err
	}
	keep := n.upper.Load()
	if !keep {
		keep, err = f.serveContent(n, d.fd, first)
	}
	if err != nil {
		f.fds.put(d)
		return Content{}, err
	}
	return Content{f, n, d, keep}, nil
}

// FD returns the descriptor, good for pread(2) until Done.
func (c Content) FD() int { return c.d.fd }

// Done ends the use of c. served is how many bytes were read; whole says that this was all of the
// file, so that its descriptor is of no further use: most files are read once.
func (c Content) Done(served int, whole bool) {
	if c.n.flags.Load()&flagServed == 0 && c.n.flags.Or(flagServed)&flagServed == 0 {
		c.f.count.filesServed.Add(1)
	}
	c.f.count.bytesServed.Add(uint64(served))
	if whole && !c.keep {
		c.f.fds.drop(&c.n.slot)
	}
	c.f.fds.put(c.d)
}

// Release ends the use of c of which nothing is known to have been read.
func (c Content) Release() { c.f.fds.put(c.d) }

// Writable returns the content of a regular file, brought into the upper, for others than f to read and
// write without telling.
func (f *FS) Writable(id uint64) (Content, error) {
	n, d, err := f.writable(id)
	if err != nil {
		return Content{}, err
	}
	return Content{f, n, d, true}, nil
}

// Write writes data at off. kill says that setuid and setgid must go, as the writer is not
// privileged.
func (f *FS) Write(id uint64, data []byte, off int64, kill bool) (int, error) {
	f.count.writeRequests.Add(1)
	n, d, err := f.writable(id)
	if err != nil {
		return 0, err
	}
	defer f.fds.put(d)
	if kill {
		if err := f.killPriv(n, d.fd); err != nil {
			return 0, err
		}
	}
	written, err := unix.Pwrite(d.fd, data, off)
	for err == unix.EINTR {
		written, err = unix.Pwrite(d.fd, data, off)
	}
	if err != nil {
		return 0, err
	}
	f.count.bytesWritten.Add(uint64(written))
	return written, nil
}

// writable returns a file that is in the upper now, and its descriptor; put it back.
func (f *FS) writable(id uint64) (*node, *descriptor, error) {
	n, err := f.node(id)
	if err != nil {
		return nil, nil, err
	}
	if n.kind != unix.S_IFREG {
		return nil, nil, unix.EINVAL
	}
	if err := f.mayAlter(n, false); err != nil {
		return nil, nil, err
	}
	if err := f.copyUp(n, toChange); err != nil {
		return nil, nil, err
	}
	d, err := f.content(n)
	return n, d, err
}

// killPriv clears setuid and setgid of an upper file that has them.
func (f *FS) killPriv(n *node, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if o := f.logical(true, &st); killPriv(o.mode) == o.mode {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.setattr(n, &SetAttr{Set: KillPriv})
}

// Fallocate is fallocate(2).
func (f *FS) Fallocate(id uint64, mode uint32, off, length int64) error {
	n, d, err := f.writable(id)
	if err != nil {
		return err
	}
	defer f.fds.put(d)
	if err := f.killPriv(n, d.fd); err != nil {
		return err
	}
	return unix.Fallocate(d.fd, mode, off, length)
}

// CopyFileRange is copy_file_range(2).
func (f *FS) CopyFileRange(from uint64, fromOff int64, to uint64, toOff int64, length int) (int, error) {
	src, err := f.Content(from)
	if err != nil {
		return 0, err
	}
	n, dst, err := f.writable(to)
	if err != nil {
		src.Done(0, false)
		return 0, err
	}
	defer f.fds.put(dst)
	if err := f.killPriv(n, dst.fd); err != nil {
		src.Done(0, false)
		return 0, err
	}
	copied, err := unix.CopyFileRange(src.FD(), &fromOff, dst.fd, &toOff, length, 0)
	copied = max(copied, 0)
	src.Done(copied, false)
	f.count.bytesWritten.Add(uint64(copied))
	return copied, err
}

// Lseek finds data and holes: whence is SEEK_DATA or SEEK_HOLE.
func (f *FS) Lseek(id uint64, off int64, whence int) (int64, error) {
	if whence != unix.SEEK_DATA && whence != unix.SEEK_HOLE {
		return 0, unix.EINVAL
	}
	c, err := f.Content(id)
	if err != nil {
		return 0, err
	}
	defer f.fds.put(c.d)
	return unix.Seek(c.d.fd, off, whence)
}

// Fsync makes a file durable, and the change log with it. data means that times may be left out.
func (f *FS) Fsync(id uint64, data bool) error {
	n, err := f.node(id)
	if err != nil {
		return err
	}
	if !n.upper.Load() || n.kind != unix.S_IFREG {
		return nil
	}
	d, err := f.content(n)
	if err != nil {
		return err
	}
	defer f.fds.put(d)
	sync := unix.Fsync
	if data {
		sync = unix.Fdatasync
	}
	if err := sync(d.fd); err != nil {
		return err
	}
	if err := f.noteDurable(n); err != nil {
		return err
	}
	return f.syncRecords()
}

// keepCopy makes the content of n durable if it was copied up lately. Whatever gives a copy another name
// does so first: were the record of that name lost, nothing would tell that content may be missing.
//
// Preconditions:
//   - FS.mu is not held.
func (f *FS) keepCopy(n *node) error {
	if fresh, err := f.isFresh(n); err != nil || !fresh {
		return err
	}
	d, err := f.content(n)
	if err != nil {
		return err
	}
	defer f.fds.put(d)
	if err := unix.Fdatasync(d.fd); err != nil {
		return err
	}
	return f.noteDurable(n)
}

// isFresh reports whether n was copied up since the upper was last synced.
func (f *FS) isFresh(n *node) (bool, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if len(f.fresh) == 0 || n.kind != unix.S_IFREG {
		return false, nil
	}
	var st unix.Stat_t
	err := f.stat(n, &st)
	_, fresh := f.fresh[st.Ino]
	return fresh, err
}

// noteDurable records that the content of n is durable, if that was open.
func (f *FS) noteDurable(n *node) error {
	if fresh, err := f.isFresh(n); err != nil || !fresh {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var st unix.Stat_t
	if err := f.stat(n, &st); err != nil {
		return err
	}
	delete(f.fresh, st.Ino)
	a := f.realName(n)
	if a.dir == nil { // unlinked
		return nil
	}
	path, err := f.childPath(a.dir, a.name)
	if err != nil {
		return err
	}
	return f.append(Record{Op: OpSynced, Path: path})
}

// Fsyncdir makes the entries of a directory durable, and the change log with it.
func (f *FS) Fsyncdir(id uint64) error {
	n, err := f.dirNode(id)
	if err != nil {
		return err
	}
	if !n.upper.Load() {
		return nil
	}
	if err := f.syncRecords(); err != nil {
		return err
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	d, err := f.upperFD(n)
	if err != nil {
		return err
	}
	defer f.fds.put(d)
	fd, err := f.fds.openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	return unix.Fsync(fd)
}
