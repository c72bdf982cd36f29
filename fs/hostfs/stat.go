package hostfs

import (
	"math"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

func (d *osDir) Stat(name string) (tree.Node, error) {
	if err := checkSelf(name); err != nil {
		return tree.Node{}, fail("stat", name, err)
	}
	if name == "." {
		n, err := statFd(d.fd)
		return n, fail("stat", name, err)
	}
	n, err := statx(d.fd, name)
	if err == nil && n.Kind == tree.Symlink {
		n, err = d.statLink(name)
	}
	return n, fail("stat", name, err)
}

// statLink reads state and target through one handle, so that both are of the same link even when
// name is replaced meanwhile.
func (d *osDir) statLink(name string) (tree.Node, error) {
	fd, err := d.openat(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return tree.Node{}, err
	}
	defer unix.Close(fd)
	n, err := statFd(fd)
	if err != nil || n.Kind != tree.Symlink {
		return n, err
	}
	n.Target, err = readlink(fd, n.Size)
	return n, err
}

// readlink reads the target of the link fd is an O_PATH handle of. size is a hint: special file
// systems say 0.
func readlink(fd int, size int64) (string, error) {
	for n := max(int(size)+1, 128); ; n *= 2 {
		buf := make([]byte, n)
		m, err := retryInt(func() (int, error) { return unix.Readlinkat(fd, "", buf) })
		if err != nil {
			return "", err
		}
		if m < n {
			return string(buf[:m]), nil
		}
	}
}

func statFd(fd int) (tree.Node, error) { return statx(fd, "") }

// statx asks for name in dirfd, or for dirfd itself when name is empty.
func statx(dirfd int, name string) (tree.Node, error) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_EMPTY_PATH
	var s unix.Statx_t
	err := retry(func() error { return unix.Statx(dirfd, name, flags, unix.STATX_BASIC_STATS, &s) })
	if err != nil {
		return tree.Node{}, err
	}
	n := tree.Node{
		Kind:  kindOf(uint32(s.Mode)),
		Mode:  tree.Mode(s.Mode & 0o7777),
		UID:   s.Uid,
		GID:   s.Gid,
		Size:  int64(s.Size),
		Mtime: timeOf(s.Mtime),
		Ctime: timeOf(s.Ctime),
		Dev:   unix.Mkdev(s.Dev_major, s.Dev_minor),
		Ino:   s.Ino,
		Nlink: s.Nlink,
	}
	if n.Kind == tree.Char || n.Kind == tree.Block {
		n.Rdev = unix.Mkdev(s.Rdev_major, s.Rdev_minor)
	}
	return n, nil
}

func kindOf(mode uint32) tree.Kind {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return tree.File
	case unix.S_IFDIR:
		return tree.Dir
	case unix.S_IFLNK:
		return tree.Symlink
	case unix.S_IFIFO:
		return tree.FIFO
	case unix.S_IFSOCK:
		return tree.Socket
	case unix.S_IFCHR:
		return tree.Char
	case unix.S_IFBLK:
		return tree.Block
	}
	return tree.Absent
}

// timeOf converts a time, cut to what tree.Time can hold: the years 1678 to 2261.
func timeOf(t unix.StatxTimestamp) tree.Time {
	const limit = math.MaxInt64 / 1_000_000_000
	switch {
	case t.Sec >= limit:
		return math.MaxInt64
	case t.Sec <= -limit:
		return math.MinInt64
	}
	return tree.Time(t.Sec*1_000_000_000 + int64(t.Nsec))
}
