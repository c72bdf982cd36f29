package hostfs

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// Anonymous returns an open file that holds content and is in no directory (memfd_create(2)). Its
// name is for errors only.
func Anonymous(name string, content []byte) (File, error) {
	fd, err := unix.MemfdCreate("stage", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fail("create", name, err)
	}
	f := newFile(fd, name)
	_, err = f.Write(content)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
