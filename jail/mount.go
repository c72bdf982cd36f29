package jail

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The file descriptor based mount calls are used throughout: a mount is complete, with its flags, before it is
// visible anywhere, and no path is resolved twice. mount_setattr needs Linux 5.12.

const (
	attrPrivate  = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	attrReadOnly = attrPrivate | unix.MOUNT_ATTR_RDONLY
	// attrDevice lets a device be written to and its node not be changed.
	attrDevice = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_RDONLY
)

// cloneTree returns a detached copy of the mounts at file, with attr set on all of them.
func cloneTree(file int, recursive bool, attr uint64) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH)
	set := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
		set |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(file, "", flags)
	if err != nil {
		return -1, fmt.Errorf("clone mount: %w", err)
	}
	if attr == 0 {
		return fd, nil
	}
	if err := unix.MountSetattr(fd, "", set, &unix.MountAttr{Attr_set: attr}); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("set mount attributes: %w", err)
	}
	return fd, nil
}

// newFilesystem returns a detached mount of a new file system.
func newFilesystem(kind string, attr int, options ...string) (int, error) {
	ctx, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open file system %s: %w", kind, err)
	}
	defer unix.Close(ctx)
	for _, o := range options {
		key, value, valued := strings.Cut(o, "=")
		if valued {
			err = unix.FsconfigSetString(ctx, key, value)
		} else {
			err = unix.FsconfigSetFlag(ctx, key)
		}
		if err != nil {
			return -1, fmt.Errorf("set option %s of %s: %w", o, kind, err)
		}
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return -1, fmt.Errorf("create file system %s: %w", kind, err)
	}
	fd, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return -1, fmt.Errorf("mount file system %s: %w", kind, err)
	}
	return fd, nil
}

// sealed returns a read-only view of directory through which unix sockets and FIFOs are other objects than on
// the host: connect(2) finds nobody. An overlay without an upper layer needs two layers; the second is empty.
// It does not descend into other mounts.
func sealed(directory, empty int) (int, error) {
	layers := fmt.Sprintf("lowerdir=%s:%s", fdPath(directory), fdPath(empty))
	return newFilesystem("overlay", attrReadOnly, "source=stage", layers, "xino=off", "userxattr", "ro")
}

// fdPath names an open file. The kernel takes at most 256 bytes per mount option, paths can be longer.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// attach puts a detached mount at the file target and closes both.
func attach(mount, target int) error {
	defer unix.Close(mount)
	defer unix.Close(target)
	if err := unix.MoveMount(mount, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach mount: %w", err)
	}
	return nil
}

// tree is a directory that will be the root of the jail. Paths in it are resolved as the jail will resolve them.
type tree struct{ root int }

// open returns a handle of name, following links inside the tree.
func (t tree) open(name string) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(t.root, "."+name, how)
	if err != nil {
		return -1, &os.PathError{Op: "open mount point", Path: name, Err: err}
	}
	return fd, nil
}

// mkdir returns a handle of the directory name and makes what is missing of it.
func (t tree) mkdir(name string, mode uint32) (int, error) {
	fd, err := t.open(name)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	parent, err := t.mkdir(path.Dir(name), 0o755)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if err := unix.Mkdirat(parent, path.Base(name), mode); err != nil {
		return -1, &os.PathError{Op: "make mount point", Path: name, Err: err}
	}
	return t.open(name)
}

// create returns a handle of the file name; a missing one is made as an empty file.
func (t tree) create(name string) (int, error) {
	fd, err := t.open(name)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	parent, err := t.mkdir(path.Dir(name), 0o755)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if err := unix.Mknodat(parent, path.Base(name), unix.S_IFREG|0o444, 0); err != nil {
		return -1, &os.PathError{Op: "make mount point", Path: name, Err: err}
	}
	return t.open(name)
}

// symlink makes name point to target, verbatim. What exists already stays.
func (t tree) symlink(target, name string) error {
	parent, err := t.mkdir(path.Dir(name), 0o755)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if err := unix.Symlinkat(target, parent, path.Base(name)); err != nil && !errors.Is(err, unix.EEXIST) {
		return &os.PathError{Op: "make link", Path: name, Err: err}
	}
	return nil
}

// place attaches a detached mount of a directory at name.
func (t tree) place(mount int, name string, mode uint32) error {
	target, err := t.mkdir(name, mode)
	if err != nil {
		unix.Close(mount)
		return err
	}
	if err := attach(mount, target); err != nil {
		return fmt.Errorf("mount at %q: %w", name, err)
	}
	return nil
}

// placeFile attaches a detached mount of a file at name.
func (t tree) placeFile(mount int, name string) error {
	target, err := t.create(name)
	if err != nil {
		unix.Close(mount)
		return err
	}
	if err := attach(mount, target); err != nil {
		return fmt.Errorf("mount at %q: %w", name, err)
	}
	return nil
}
