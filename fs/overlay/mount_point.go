package overlay

import "golang.org/x/sys/unix"

// The host may have something mounted in the workspace. The view shows it, as the same file system as
// all the rest; but what the host would refuse with EBUSY or EXDEV is refused, since it could not be
// applied.

// lowerEntry reports whether a lower entry shows at name in p, if the upper one is looked through, and
// whether something is mounted there.
func (f *FS) lowerEntry(p *node, name string) (there, mounted bool, err error) {
	if p.dir.lower == nil || p.dir.isWhite(name) {
		return false, false, nil
	}
	d, err := f.lowerFD(p.dir.lower)
	if err == nil {
		defer f.fds.put(d)
		var st unix.Statx_t
		if err = unix.Statx(d.fd, name, statFlags, unix.STATX_TYPE, &st); err == nil {
			return true, st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
		}
	}
	if absent(err) == unix.ENOENT {
		return false, false, nil
	}
	return false, false, err
}

// sameMount refuses what rename(2) and link(2) refuse between two mounts.
//
// Preconditions:
//   - FS.mu is not held.
func (f *FS) sameMount(a, b *node) error {
	if a == b {
		return nil
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.sameMountLocked(a, b)
}

func (f *FS) sameMountLocked(a, b *node) error {
	of, err := f.mountOf(a)
	if err != nil {
		return err
	}
	other, err := f.mountOf(b)
	if err == nil && of != other {
		return unix.EXDEV
	}
	return err
}

// mountOf returns the id of the mount that p would be in, were the Job's changes applied. All that the
// host removed is in the mount of what is left above it.
func (f *FS) mountOf(p *node) (uint64, error) {
	for ; p != nil; p = p.parent {
		if p.dir.lower == nil {
			continue
		}
		d, err := f.lowerFD(p.dir.lower)
		if absent(err) == unix.ENOENT {
			continue
		}
		if err != nil {
			return 0, err
		}
		defer f.fds.put(d)
		var st unix.Statx_t
		err = unix.Statx(d.fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st)
		return st.Mnt_id, err
	}
	return 0, nil
}
