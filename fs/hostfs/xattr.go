package hostfs

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// xattrBuf is enough for the attributes of nearly every file; more is asked for when it is not.
const xattrBuf = 512

func (d *osDir) Xattrs(name string) (tree.Xattrs, error) {
	x, err := d.xattrs(name)
	return x, fail("read xattrs of", name, err)
}

func (d *osDir) xattrs(name string) (tree.Xattrs, error) {
	if err := checkSelf(name); err != nil {
		return nil, err
	}
	list := func(buf []byte) (int, error) { return unix.Llistxattr(d.procPath(name), buf) }
	get := func(attr string, buf []byte) (int, error) { return unix.Lgetxattr(d.procPath(name), attr, buf) }
	if name == "." {
		list = func(buf []byte) (int, error) { return unix.Flistxattr(d.fd, buf) }
		get = func(attr string, buf []byte) (int, error) { return unix.Fgetxattr(d.fd, attr, buf) }
	}
	return readXattrs(list, get)
}

func readXattrs(list func([]byte) (int, error), get func(string, []byte) (int, error)) (tree.Xattrs, error) {
	names, err := grow(list)
	if err == unix.EOPNOTSUPP || len(names) == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	x := tree.Xattrs{}
	for attr := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		v, err := grow(func(buf []byte) (int, error) { return get(attr, buf) })
		switch err {
		case nil:
			x[attr] = v
		case unix.ENODATA, unix.EACCES, unix.EPERM, unix.EOPNOTSUPP:
			// Gone since it was listed, or not the caller's to read.
		default:
			return nil, fail("read xattr", attr, err)
		}
	}
	if len(x) == 0 {
		return nil, nil
	}
	return x, nil
}

// grow calls read with a small buffer, then, as long as the answer is ERANGE, with one of the size
// that read says it needs; what is read may grow in between.
func grow(read func(buf []byte) (int, error)) ([]byte, error) {
	buf := make([]byte, xattrBuf)
	for {
		n, err := retryInt(func() (int, error) { return read(buf) })
		if err == nil {
			return buf[:n:n], nil
		}
		if err != unix.ERANGE {
			return nil, err
		}
		n, err = retryInt(func() (int, error) { return read(nil) })
		if err != nil {
			return nil, err
		}
		buf = make([]byte, n+xattrBuf)
	}
}

func (d *osDir) Setxattr(name, attr string, value []byte) error {
	err := checkSelf(name)
	switch {
	case err != nil:
	case name == ".":
		err = retry(func() error { return unix.Fsetxattr(d.fd, attr, value, 0) })
	default:
		err = retry(func() error { return unix.Lsetxattr(d.procPath(name), attr, value, 0) })
	}
	return fail("set xattr "+strconv.Quote(attr)+" of", name, err)
}

func (d *osDir) Removexattr(name, attr string) error {
	err := checkSelf(name)
	switch {
	case err != nil:
	case name == ".":
		err = retry(func() error { return unix.Fremovexattr(d.fd, attr) })
	default:
		err = retry(func() error { return unix.Lremovexattr(d.procPath(name), attr) })
	}
	return fail("remove xattr "+strconv.Quote(attr)+" of", name, err)
}
