package hostfs

import (
	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// Chmod goes through an O_PATH handle because fchmodat(2) follows links, and fchmodat2(2), which
// need not, is younger than the kernels stage runs on.
func (d *osDir) Chmod(name string, mode tree.Mode) error {
	return fail("chmod", name, d.chmod(name, mode))
}

func (d *osDir) chmod(name string, mode tree.Mode) error {
	if err := checkSelf(name); err != nil {
		return err
	}
	if name == "." {
		return retry(func() error { return unix.Fchmod(d.fd, uint32(mode)) })
	}
	fd, err := d.openat(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	n, err := statFd(fd)
	switch {
	case err != nil:
		return err
	case n.Kind == tree.Symlink:
		return unix.EOPNOTSUPP // Linux keeps no mode for links; old kernels would pretend
	}
	return retry(func() error { return unix.Chmod(fdPath(fd), uint32(mode)) })
}

func (d *osDir) Chown(name string, uid, gid uint32) error {
	err := checkSelf(name)
	if err == nil {
		err = retry(func() error { return unix.Fchownat(d.fd, name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW) })
	}
	return fail("chown", name, err)
}

func (d *osDir) SetMtime(name string, mtime tree.Time) error {
	err := checkSelf(name)
	if err == nil {
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(int64(mtime))}
		err = retry(func() error { return unix.UtimesNanoAt(d.fd, name, ts, unix.AT_SYMLINK_NOFOLLOW) })
	}
	return fail("set mtime of", name, err)
}

func (d *osDir) Sync() error {
	return fail("sync directory", ".", retry(func() error { return unix.Fsync(d.fd) }))
}

func (d *osDir) Syncfs() error {
	return fail("sync file system of", ".", retry(func() error { return unix.Syncfs(d.fd) }))
}
