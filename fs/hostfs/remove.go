package hostfs

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

func (d *osDir) Unlink(name string) error { return fail("unlink", name, d.unlinkat(name, 0)) }

func (d *osDir) Rmdir(name string) error {
	return fail("remove directory", name, d.unlinkat(name, unix.AT_REMOVEDIR))
}

func (d *osDir) unlinkat(name string, flags int) error {
	if err := checkName(name); err != nil {
		return err
	}
	return retry(func() error { return unix.Unlinkat(d.fd, name, flags) })
}

func (d *osDir) Rename(name string, newDir Dir, newName string, flags uint) error {
	err := errors.Join(checkName(name), checkName(newName))
	switch {
	case err != nil:
	case flags != 0 && flags != NoReplace && flags != Exchange:
		err = unix.EINVAL
	default:
		err = retry(func() error { return unix.Renameat2(d.fd, name, newDir.Fd(), newName, flags) })
	}
	return fail("rename "+strconv.Quote(name)+" to", newName, err)
}
