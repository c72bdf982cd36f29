package fusefs

import (
	"errors"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// status is where errno leaves stage: it returns what the Job is told of err. An error without an
// errno is EIO and an event; it is never success.
func (m *mount) status(err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		m.fs.Report(err)
		return fuse.EIO
	}
	switch errno {
	case 0, unix.ENOSYS: // ENOSYS would switch the operation off for good
		m.fs.Report(err)
		return fuse.EIO
	}
	return fuse.Status(errno)
}
