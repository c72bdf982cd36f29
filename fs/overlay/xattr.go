package overlay

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// xattrPlace is where extended attributes are read and written: name in dirfd, or dirfd itself when
// name is empty. A name, and what an O_PATH descriptor is of, are reached by a path below
// /proc/self/fd, since there are no *at calls for them before Linux 6.13; a name is not followed.
type xattrPlace struct {
	dirfd int
	name  string
}

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// xattrAt returns the place of name in dirfd, or of dirfd itself when name is empty.
func xattrAt(dirfd int, name string) xattrPlace { return xattrPlace{dirfd, name} }

func (x xattrPlace) path() string {
	if x.name == "" {
		return procFD(x.dirfd)
	}
	return procFD(x.dirfd) + "/" + x.name
}

func (x xattrPlace) get(attr string, buf []byte) (int, error) {
	if x.name != "" {
		return unix.Lgetxattr(x.path(), attr, buf)
	}
	n, err := unix.Fgetxattr(x.dirfd, attr, buf)
	if err == unix.EBADF {
		return unix.Getxattr(x.path(), attr, buf)
	}
	return n, err
}

func (x xattrPlace) list(buf []byte) (int, error) {
	if x.name != "" {
		return unix.Llistxattr(x.path(), buf)
	}
	n, err := unix.Flistxattr(x.dirfd, buf)
	if err == unix.EBADF {
		return unix.Listxattr(x.path(), buf)
	}
	return n, err
}

func (x xattrPlace) set(attr string, value []byte, flags int) error {
	if x.name != "" {
		return unix.Lsetxattr(x.path(), attr, value, flags)
	}
	return unix.Setxattr(x.path(), attr, value, flags)
}

func (x xattrPlace) remove(attr string) error {
	if x.name != "" {
		return unix.Lremovexattr(x.path(), attr)
	}
	return unix.Removexattr(x.path(), attr)
}

// names returns the names of all attributes; a file system without them has none.
func (x xattrPlace) names() ([]string, error) {
	list, err := grow(x.list)
	if err == unix.EOPNOTSUPP || len(list) == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00"), nil
}

func (x xattrPlace) value(attr string) ([]byte, error) {
	return grow(func(buf []byte) (int, error) { return x.get(attr, buf) })
}

// grow calls read with a small buffer and, while the answer is ERANGE, with a larger one.
func grow(read func([]byte) (int, error)) ([]byte, error) {
	for size := 512; ; size *= 8 {
		buf := make([]byte, size)
		n, err := read(buf)
		if err == unix.ERANGE && size < 1<<20 {
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:n], nil
	}
}

// readXattrs returns the attributes at x that are the file's own and not ours, those the server
// may not read left out.
func readXattrs(x xattrPlace) (tree.Xattrs, error) {
	names, err := x.names()
	if err != nil {
		return nil, err
	}
	var out tree.Xattrs
	for _, name := range names {
		if strings.HasPrefix(name, XattrPrefix) {
			continue
		}
		value, err := x.value(name)
		switch err {
		case nil:
		case unix.ENODATA, unix.EACCES, unix.EPERM, unix.EOPNOTSUPP:
			continue
		default:
			return nil, err
		}
		if out == nil {
			out = tree.Xattrs{}
		}
		out[name] = value
	}
	return out, nil
}

// writeXattrs gives what x names the attributes in from. Labels that belong to the host's security
// modules, and whatever only root may set, cannot be set by a server that is not root: their
// absence shows as a change in review.
func writeXattrs(x xattrPlace, from tree.Xattrs) error {
	for name, value := range from {
		err := x.set(name, value, 0)
		private := strings.HasPrefix(name, "security.") || strings.HasPrefix(name, "trusted.")
		if err != nil && !(private && (err == unix.EPERM || err == unix.EOPNOTSUPP || err == unix.EACCES)) {
			return err
		}
	}
	return nil
}

// jobMaySee reports whether the Job may know of an attribute of this name: it holds no capability,
// so trusted ones are not for it.
func jobMaySee(attr string) bool {
	return !strings.HasPrefix(attr, XattrPrefix) && !strings.HasPrefix(attr, "trusted.")
}

// Getxattr reads an extended attribute into buf and returns its size; ERANGE if buf is too small.
// An empty buf asks for the size.
func (f *FS) Getxattr(id uint64, attr string, buf []byte) (int, error) {
	n, err := f.node(id)
	if err != nil {
		return 0, err
	}
	if !jobMaySee(attr) {
		return 0, unix.ENODATA
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if n.upper.Load() && !n.isDir() {
		if d := f.fds.get(&n.slot); d != nil { // before the first write to a file the kernel asks for its capabilities
			defer f.fds.put(d)
			return xattrAt(d.fd, "").get(attr, buf)
		}
	}
	p, err := f.where(n)
	if err != nil {
		return 0, err
	}
	defer f.leave(p)
	return xattrAt(p.d.fd, p.name).get(attr, buf)
}

// Listxattr writes the names of extended attributes, each ended by NUL, into buf and returns their
// size; ERANGE if buf is too small. An empty buf asks for the size.
func (f *FS) Listxattr(id uint64, buf []byte) (int, error) {
	n, err := f.node(id)
	if err != nil {
		return 0, err
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	p, err := f.where(n)
	if err != nil {
		return 0, err
	}
	defer f.leave(p)
	names, err := xattrAt(p.d.fd, p.name).names()
	if err != nil {
		return 0, err
	}
	var list []byte
	for _, name := range names {
		if jobMaySee(name) && !(f.ids.Rootless && strings.HasPrefix(name, "system.posix_acl_")) { // fuse_no_acl, fs/fuse/acl.c
			list = append(append(list, name...), 0)
		}
	}
	if len(buf) > 0 && len(buf) < len(list) {
		return 0, unix.ERANGE
	}
	copy(buf, list)
	return len(list), nil
}

// Setxattr sets an extended attribute; flags are those of setxattr(2).
func (f *FS) Setxattr(id uint64, attr string, value []byte, flags int) error {
	return f.alterXattr(id, attr, func(x xattrPlace) error { return x.set(attr, value, flags) })
}

// Removexattr removes an extended attribute.
func (f *FS) Removexattr(id uint64, attr string) error {
	if _, err := f.Getxattr(id, attr, nil); err != nil {
		return err // nothing to copy up for
	}
	return f.alterXattr(id, attr, func(x xattrPlace) error { return x.remove(attr) })
}

func (f *FS) alterXattr(id uint64, attr string, alter func(xattrPlace) error) error {
	n, err := f.node(id)
	if err != nil {
		return err
	}
	if !jobMaySee(attr) {
		return unix.EPERM
	}
	acl := strings.HasPrefix(attr, "system.posix_acl_")
	if err := f.mayAlter(n, acl); err != nil {
		return err
	}
	if acl {
		if err := f.mustOwn(n); err != nil {
			return err
		}
	}
	if err := f.copyUp(n, toChange); err != nil {
		return err
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	p, err := f.where(n)
	if err != nil {
		return err
	}
	defer f.leave(p)
	if n.isDir() && acl {
		defer n.dir.acl.Store(aclUnknown)
	}
	return alter(xattrAt(p.d.fd, p.name))
}

// mustOwn refuses what only the owner may do, where the kernel was shown the wrong owner.
func (f *FS) mustOwn(n *node) error {
	if !f.ids.Rootless {
		return nil
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.mustOwnLocked(n)
}

func (f *FS) mustOwnLocked(n *node) error {
	var st unix.Stat_t
	if err := f.stat(n, &st); err != nil {
		return err
	}
	if f.ids.foreign(f.logical(n.upper.Load(), &st)) {
		return unix.EPERM
	}
	return nil
}
