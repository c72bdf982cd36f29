package hostfs

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ErrLocked is the cause when Lock finds that somebody else holds the lock.
var ErrLocked = errors.New("locked by another process")

// Lock takes the exclusive flock(2) of directory d without waiting. It belongs to the handle and
// goes with its Close, or with the death of the process. Nothing is written into the directory.
func Lock(d Reader) error {
	err := retry(func() error { return unix.Flock(d.Fd(), unix.LOCK_EX|unix.LOCK_NB) })
	if err == unix.EWOULDBLOCK {
		err = ErrLocked
	}
	return fail("lock directory", ".", err)
}
