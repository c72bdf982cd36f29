package overlay

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// cName is a name as system calls take it, in memory of the caller: package unix makes a copy on the
// heap for each call, and most of what is asked of the overlay is one.
type cName [tree.NameMax + 1]byte

func (c *cName) set(name string) error {
	if len(name) > tree.NameMax {
		return unix.ENAMETOOLONG
	}
	copy(c[:], name) // the rest is zero
	return nil
}

// fstatat is fstatat(2) of one name.
func fstatat(dirfd int, name string, st *unix.Stat_t, flags int) error {
	var c cName
	if err := c.set(name); err != nil {
		return err
	}
	_, _, errno := unix.Syscall6(sysFstatat, uintptr(dirfd), uintptr(unsafe.Pointer(&c)), uintptr(unsafe.Pointer(st)), uintptr(flags), 0, 0)
	return errnoOf(errno)
}

// openat is openat(2) of one name.
func openat(dirfd int, name string, flags int, mode uint32) (int, error) {
	var c cName
	if err := c.set(name); err != nil {
		return -1, err
	}
	fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(dirfd), uintptr(unsafe.Pointer(&c)), uintptr(flags|unix.O_LARGEFILE), uintptr(mode), 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

func errnoOf(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
