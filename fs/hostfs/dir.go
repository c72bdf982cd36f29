package hostfs

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// osDir is the directory handle of the operating system. All methods but Close may be called by
// several goroutines at once.
type osDir struct {
	fd int

	readMu sync.Mutex // held by ReadDir, which moves the descriptor's offset
}

var _ Dir = (*osDir)(nil)

// OpenRoot opens the directory path, which must be absolute, clean and free of symbolic links.
func OpenRoot(path string) (Dir, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return nil, fmt.Errorf("open root %q: not a clean absolute path: %w", path, unix.EINVAL)
	}
	if err := checkProc(); err != nil {
		return nil, fmt.Errorf("open root %q: %w", path, err)
	}
	fd, err := openat2(unix.AT_FDCWD, path, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return nil, fail("open root", path, err)
	}
	return &osDir{fd: fd}, nil
}

// checkProc makes sure that /proc/self/fd leads to this process's descriptors: reopening, chmod
// and extended attributes go through it.
func checkProc() error {
	var s unix.Statfs_t
	if err := retry(func() error { return unix.Statfs("/proc/self/fd", &s) }); err != nil {
		return fmt.Errorf("stat /proc/self/fd: %w", err)
	}
	if s.Type != unix.PROC_SUPER_MAGIC {
		return errors.New("/proc is not a proc file system")
	}
	return nil
}

// openat2 opens the directory path. With RESOLVE_BENEATH it answers EAGAIN when a rename or mount
// elsewhere raced with the walk (openat2(2)); it is asked again a limited number of times.
func openat2(dirfd int, path string, resolve uint64) (int, error) {
	const tries = 256
	how := unix.OpenHow{Flags: dirFlags, Resolve: resolve}
	for i := 0; ; i++ {
		fd, err := retryInt(func() (int, error) { return unix.Openat2(dirfd, path, &how) })
		if err != unix.EAGAIN || i == tries {
			return fd, err
		}
	}
}

func (d *osDir) OpenDir(name string) (Dir, error) {
	if err := checkSelf(name); err != nil {
		return nil, fail("open directory", name, err)
	}
	fd, err := d.openat(name, dirFlags, 0)
	if err != nil {
		return nil, fail("open directory", name, err)
	}
	return &osDir{fd: fd}, nil
}

func (d *osDir) OpenDirAt(p tree.Path, oneDev bool) (Dir, error) {
	resolve := uint64(unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS)
	if oneDev {
		resolve |= unix.RESOLVE_NO_XDEV
	}
	at := d.fd
	for _, part := range splitPath(p.String()) {
		fd, err := openat2(at, part, resolve)
		if at != d.fd {
			unix.Close(at) // opened below for reading only: nothing to lose
		}
		if err != nil {
			return nil, fail("open directory", p.String(), err)
		}
		at = fd
	}
	return &osDir{fd: at}, nil
}

// splitPath cuts path at slashes into as few parts as possible that are each shorter than
// PATH_MAX, the longest path one system call takes. A deeper tree is legal.
func splitPath(path string) []string {
	var parts []string
	for len(path) >= unix.PathMax {
		i := strings.LastIndexByte(path[:unix.PathMax-1], '/')
		if i < 0 {
			break // one name longer than any file system has: the kernel says so
		}
		parts, path = append(parts, path[:i]), path[i+1:]
	}
	return append(parts, path)
}

func (d *osDir) Fd() int { return d.fd }

func (d *osDir) Close() error {
	fd := d.fd
	d.fd = -1
	// close(2) has released the descriptor even when it says EINTR.
	if err := unix.Close(fd); err != nil && err != unix.EINTR {
		return fail("close directory", ".", err)
	}
	return nil
}

func (d *osDir) openat(name string, flags int, mode tree.Mode) (int, error) {
	return retryInt(func() (int, error) { return unix.Openat(d.fd, name, flags|unix.O_CLOEXEC, uint32(mode)) })
}

// procPath is a path whose last component is name in d, for system calls that have no *at form.
// Those that do not follow a link at the end of a path do not follow name.
func (d *osDir) procPath(name string) string { return fdPath(d.fd) + "/" + name }

// fdPath is a path that leads to what fd is open on, without any resolution by name.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
