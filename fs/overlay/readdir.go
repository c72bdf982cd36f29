package overlay

import (
	"bytes"
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// dirName is one entry of a listing.
type dirName struct {
	name string
	typ  uint8 // DT_*, DT_UNKNOWN where the file system does not tell
}

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
// There are no handles, so offsets belong to the directory: entry i of its listing ends at i+3,
// behind "." and "..". A listing made anew keeps the place of every name of the one before, so that
// a reader in the middle neither misses nor repeats what stays.
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
	for ; off < 2; off++ {
		if !emit(f.dotEntry(n, off)) {
			return nil
		}
	}
	var e Entry
	d := DirEntry{}
	for i := off - 2; i < uint64(len(list)); i++ {
		if !f.listEntry(n, list[i], &d, &e) {
			continue
		}
		d.Off = i + 3
		more := emit(&d)
		if d.Entry != nil && !(plus && more) {
			f.takeBack(d.Entry.ID)
		}
		if !more {
			return nil
		}
	}
	f.dropListing(n)
	return nil
}

// dotEntry returns "." or "..".
func (f *FS) dotEntry(n *node, off uint64) *DirEntry {
	if off == 0 {
		return &DirEntry{Name: ".", Ino: n.ino, Mode: unix.S_IFDIR, Off: 1}
	}
	if n.parent != nil {
		n = n.parent
	}
	return &DirEntry{Name: "..", Ino: n.ino, Mode: unix.S_IFDIR, Off: 2}
}

// listEntry makes d the entry of one name of p's listing. It reports false when the name is not
// there any more, or does not show.
func (f *FS) listEntry(p *node, l dirName, d *DirEntry, e *Entry) bool {
	if l.name == "" || !p.dir.hasUpper(l.name) && p.dir.isWhite(l.name) {
		return false
	}
	switch err := f.lookup(p, l.name, e, false); err {
	case nil:
		*d = DirEntry{Name: l.name, Ino: e.Ino, Mode: e.Mode & unix.S_IFMT, Entry: e}
		return true
	case unix.ENOENT:
		return false
	case errExclusive: // listed without attributes, which can be had under the exclusive lock only
		return f.listBare(p, l.name, d) == nil
	default: // listed without attributes: an error here would end the whole listing
		*d = DirEntry{Name: l.name, Mode: uint32(l.typ) << 12}
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
func (f *FS) listing(n *node, fresh bool) ([]dirName, error) {
	f.tab.mu.Lock()
	old := n.dir.list
	f.tab.mu.Unlock()
	if old != nil && !fresh {
		return old, nil
	}
	names, err := f.lowerNames(n)
	if err != nil {
		return nil, err
	}
	list := mergeNames(old, names, n.dir.names)
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

// mergeNames returns old, names that are gone replaced by empty ones, and behind it what is new:
// the lower names in their order, whether they show or not, then those of the upper, sorted.
func mergeNames(old, lower []dirName, upper map[string]struct{}) []dirName {
	seen := make(map[string]uint8, len(lower)+len(upper))
	for _, e := range lower {
		seen[e.name] = e.typ
	}
	for name := range upper {
		if _, ok := seen[name]; !ok {
			seen[name] = unix.DT_UNKNOWN
		}
	}
	list := make([]dirName, 0, len(old)+len(seen))
	for _, e := range old {
		if _, ok := seen[e.name]; !ok {
			e = dirName{}
		}
		delete(seen, e.name)
		list = append(list, e)
	}
	for _, e := range lower {
		if _, ok := seen[e.name]; ok {
			list = append(list, e)
			delete(seen, e.name)
		}
	}
	rest := len(list)
	for name, typ := range seen {
		list = append(list, dirName{name, typ})
	}
	slices.SortFunc(list[rest:], func(a, b dirName) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
	return list
}

// lowerNames returns the names in the lower directory that shows in n, in its order.
func (f *FS) lowerNames(n *node) ([]dirName, error) {
	if n.dir.lower == nil {
		return nil, nil
	}
	d, err := f.lowerFD(n.dir.lower)
	if absent(err) == unix.ENOENT {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.fds.put(d)
	return f.listDir(d.fd)
}

// listDir returns the names in the directory dirfd is an O_PATH descriptor of.
func (f *FS) listDir(dirfd int) ([]dirName, error) {
	flags := unix.O_RDONLY | unix.O_DIRECTORY
	fd, err := f.fds.openat(dirfd, ".", flags|unix.O_NOATIME, 0)
	if err == unix.EPERM {
		fd, err = f.fds.openat(dirfd, ".", flags, 0)
	}
	if err != nil {
		return nil, err
	}
	defer closeFD(fd)
	var list []dirName
	buf := make([]byte, 1<<15)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			return list, nil
		}
		list = appendDirents(list, buf[:n])
	}
}

// appendDirents parses struct linux_dirent64 (getdents(2)).
func appendDirents(list []dirName, buf []byte) []dirName {
	const nameOff = 19
	for len(buf) >= nameOff {
		size := int(binary.NativeEndian.Uint16(buf[16:]))
		if size < nameOff || size > len(buf) {
			return list
		}
		name := buf[nameOff:size]
		if i := bytes.IndexByte(name, 0); i >= 0 {
			name = name[:i]
		}
		if s := string(name); s != "." && s != ".." && s != "" {
			list = append(list, dirName{s, buf[18]})
		}
		buf = buf[size:]
	}
	return list
}
