package hostfs

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// osFile is a regular file of the operating system.
type osFile struct {
	*os.File
	name string
}

var _ File = (*osFile)(nil)

// newFile takes over fd. The *os.File carries the quoted name, so that its own errors read like
// those of this package: write "a b": no space left on device.
func newFile(fd int, name string) *osFile {
	return &osFile{os.NewFile(uintptr(fd), strconv.Quote(name)), name}
}

func (d *osDir) Open(name string) (File, error) { return d.openFile(name, unix.O_RDONLY) }

func (d *osDir) OpenWrite(name string) (File, error) { return d.openFile(name, unix.O_RDWR) }

// openFile looks at what name is through an O_PATH handle and then reopens that very node: opening
// a FIFO can block, and opening a device can do anything.
func (d *osDir) openFile(name string, flags int) (File, error) {
	if err := checkName(name); err != nil {
		return nil, fail("open", name, err)
	}
	path, err := d.openat(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fail("open", name, err)
	}
	defer unix.Close(path)
	n, err := statFd(path)
	switch {
	case err != nil:
		return nil, fail("open", name, err)
	case n.Kind != tree.File:
		return nil, fail("open", name, ErrNotRegular)
	}
	fd, err := retryInt(func() (int, error) { return unix.Open(fdPath(path), flags|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, fail("open", name, err)
	}
	return newFile(fd, name), nil
}

func (f *osFile) Stat() (tree.Node, error) {
	n, err := statFd(int(f.Fd()))
	return n, fail("stat", f.name, err)
}

func (f *osFile) OSFile() *os.File { return f.File }
