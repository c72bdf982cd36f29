package hostfs

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

func (d *osDir) Create(name string, mode tree.Mode) (File, error) {
	if err := checkName(name); err != nil {
		return nil, fail("create", name, err)
	}
	fd, err := d.openat(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, mode&0o700)
	if err != nil {
		return nil, fail("create", name, err)
	}
	if err := retry(func() error { return unix.Fchmod(fd, uint32(mode)) }); err != nil {
		unix.Close(fd)
		return nil, errors.Join(fail("create", name, err), d.Unlink(name))
	}
	return newFile(fd, name), nil
}

// Mkdir makes the directory for its owner alone, then gives it its mode: others never see it wider
// than it will be, and neither umask nor a setgid parent has a say.
func (d *osDir) Mkdir(name string, mode tree.Mode) error {
	if err := checkName(name); err != nil {
		return fail("make directory", name, err)
	}
	if err := retry(func() error { return unix.Mkdirat(d.fd, name, uint32(mode&0o700)) }); err != nil {
		return fail("make directory", name, err)
	}
	if err := d.Chmod(name, mode); err != nil {
		return errors.Join(err, d.Rmdir(name))
	}
	return nil
}

func (d *osDir) Symlink(target, name string) error {
	if err := checkName(name); err != nil {
		return fail("symlink", name, err)
	}
	return fail("symlink", name, retry(func() error { return unix.Symlinkat(target, d.fd, name) }))
}

func (d *osDir) Mknod(name string, n tree.Node) error {
	err := checkName(name)
	format, ok := nodFormat(n.Kind)
	switch {
	case err != nil:
	case !ok:
		err = unix.EINVAL
	default:
		err = retry(func() error { return unix.Mknodat(d.fd, name, format|uint32(n.Mode&0o700), int(n.Rdev)) })
	}
	if err != nil {
		return fail("make "+n.Kind.String(), name, err)
	}
	if err := d.Chmod(name, n.Mode); err != nil {
		return errors.Join(err, d.Unlink(name))
	}
	return nil
}

func nodFormat(k tree.Kind) (format uint32, ok bool) {
	switch k {
	case tree.FIFO:
		return unix.S_IFIFO, true
	case tree.Socket:
		return unix.S_IFSOCK, true
	case tree.Char:
		return unix.S_IFCHR, true
	case tree.Block:
		return unix.S_IFBLK, true
	default:
		return 0, false
	}
}

func (d *osDir) Link(name string, newDir Dir, newName string) error {
	err := errors.Join(checkName(name), checkName(newName))
	if err == nil {
		err = retry(func() error { return unix.Linkat(d.fd, name, newDir.Fd(), newName, 0) })
	}
	return fail("link "+strconv.Quote(name)+" to", newName, err)
}
