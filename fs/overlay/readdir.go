package overlay

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// DirEntry is one entry of a directory. Off is where reading goes on behind it.
type DirEntry struct {
	Name  string
	Ino   uint64
	Mode  uint32 // type bits
	Off   uint64
	Entry *Entry // nil for "." and "..", and where attributes could not be read
}

// Readdir calls emit for the entries of a directory from off on, until it returns false; that
// entry is not counted as looked up. Without plus no entry is.
//
// There are no handles, so offsets belong to the directory: a name keeps the one behind it as long as
// it is there, so that a reader in the middle neither misses nor repeats what stays.
func (f *FS) Readdir(id, off uint64, plus bool, emit func(*DirEntry) bool) error {
	n, err := f.dirNode(id)
	if err != nil {
		return err
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	list, err := f.listing(n, off == 0)
	if err != nil {
		return err
	}
	r := f.listed.Get().(*listed)
	defer f.listed.Put(r)
	for ; off < firstOffset; off++ {
		r.dot(n, off)
		if !emit(&r.d) {
			return nil
		}
	}
	first := list.from(off)
	if first == len(list.items) {
		f.dropListing(n)
		return nil
	}
	for i := first; i < len(list.items); i++ {
		if !f.listEntry(n, list, i, &r.d, &r.e) {
			continue
		}
		r.d.Off = list.items[i].end
		more := emit(&r.d)
		if r.d.Entry != nil && !(plus && more) {
			f.takeBack(r.d.Entry.ID)
		}
		if !more {
			return nil
		}
	}
	return nil
}

// listed is the memory of an entry while it is emitted.
type listed struct {
	d DirEntry
	e Entry
}

// dot makes d "." or "..".
func (r *listed) dot(n *node, off uint64) {
	r.d = DirEntry{Name: ".", Ino: n.ino, Mode: unix.S_IFDIR, Off: off + 1}
	if off == 0 {
		return
	}
	r.d.Name = ".."
	if n.parent != nil {
		r.d.Ino = n.parent.ino
	}
}

// listEntry makes d the entry of item i of p's listing. It reports false when the name is not there
// any more, or does not show.
func (f *FS) listEntry(p *node, l *listing, i int, d *DirEntry, e *Entry) bool {
	name := f.ownName(p, l.name(i))
	if !p.dir.hasUpper(name) && p.dir.isWhite(name) {
		return false
	}
	switch err := f.lookup(p, name, e, false); err {
	case nil:
		*d = DirEntry{Name: name, Ino: e.Ino, Mode: e.Mode & unix.S_IFMT, Entry: e}
		return true
	case unix.ENOENT:
		return false
	case errExclusive: // listed without attributes, which can be had under the exclusive lock only
		return f.listBare(p, name, d) == nil
	default: // listed without attributes: an error here would end the whole listing
		*d = DirEntry{Name: name, Mode: uint32(l.items[i].typ) << 12}
		return true
	}
}

// listBare makes d the entry of name in p, without attributes.
func (f *FS) listBare(p *node, name string, d *DirEntry) error {
	var st unix.Stat_t
	upper, err := f.find(p, name, &st)
	if err != nil {
		return err
	}
	f.tab.mu.Lock()
	defer f.tab.mu.Unlock()
	*d = DirEntry{Name: name, Ino: f.inoLocked(upper, &st), Mode: st.Mode & unix.S_IFMT}
	return nil
}

// takeBack is Forget of one lookup with FS.mu held.
func (f *FS) takeBack(id uint64) {
	if n := f.tab.get(id); n != nil {
		f.letGo(n)
	}
}

// listing returns the names in n in a lasting order, read anew when fresh is set.
func (f *FS) listing(n *node, fresh bool) (*listing, error) {
	f.tab.mu.Lock()
	old := n.dir.list
	f.tab.mu.Unlock()
	if old != nil && !fresh {
		return old, nil
	}
	lower := newListing()
	err := f.eachLower(n, func(name []byte, typ uint8) error { return lower.add(string(name), typ) })
	if err != nil {
		return nil, err
	}
	list, err := merge(old, lower, n.dir.names)
	if err != nil {
		return nil, err
	}
	f.tab.mu.Lock()
	n.dir.list = list
	f.tab.mu.Unlock()
	return list, nil
}

// dropListing forgets a listing that was read to its end, if reading the directory again gives the
// same order: as long as it lies in the lower alone.
func (f *FS) dropListing(n *node) {
	if n.upper.Load() {
		return
	}
	f.tab.mu.Lock()
	n.dir.list = nil
	f.tab.mu.Unlock()
}

// eachLower calls visit for the names in the lower directory that shows in n, in its order, until it
// returns an error.
func (f *FS) eachLower(n *node, visit func(name []byte, typ uint8) error) error {
	if n.dir.lower == nil {
		return nil
	}
	f.watch(n)
	d, err := f.lowerFD(n.dir.lower)
	if absent(err) == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.fds.put(d)
	return f.eachName(d.fd, visit)
}

// listDir returns the names in the directory dirfd is an O_PATH descriptor of.
func (f *FS) listDir(dirfd int) ([]string, error) {
	var list []string
	err := f.eachName(dirfd, func(name []byte, _ uint8) error {
		list = append(list, string(name))
		return nil
	})
	return list, err
}

// eachName calls visit for the names in the directory dirfd is an O_PATH descriptor of, until it
// returns an error. The name is good until then only.
func (f *FS) eachName(dirfd int, visit func(name []byte, typ uint8) error) error {
	flags := unix.O_RDONLY | unix.O_DIRECTORY
	fd, err := f.fds.openat(dirfd, ".", flags|unix.O_NOATIME, 0)
	if err == unix.EPERM {
		fd, err = f.fds.openat(dirfd, ".", flags, 0)
	}
	if err == unix.EACCES { // "." needs the right to search, listing does not
		fd, err = unix.Open(procFD(dirfd), flags|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return err
	}
	defer closeFD(fd)
	buf := f.dirents.Get().(*[1 << 15]byte)
	defer f.dirents.Put(buf)
	for {
		n, err := unix.ReadDirent(fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return err
		}
		if err := eachDirent(buf[:n], visit); err != nil {
			return err
		}
	}
}

// eachDirent parses struct linux_dirent64 (getdents(2)).
func eachDirent(buf []byte, visit func(name []byte, typ uint8) error) error {
	const nameOff = 19
	for len(buf) >= nameOff {
		size := int(binary.NativeEndian.Uint16(buf[16:]))
		if size < nameOff || size > len(buf) {
			return unix.EIO
		}
		name, _, _ := bytes.Cut(buf[nameOff:size], []byte{0})
		if s := string(name); s != "." && s != ".." && s != "" {
			if err := visit(name, buf[18]); err != nil {
				return err
			}
		}
		buf = buf[size:]
	}
	return nil
}
