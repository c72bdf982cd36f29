package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stage/fs/fusefs"
	"stage/fs/hostfs"
	"stage/fs/overlay"
)

// patience is how long to wait for a server to end: the mount is gone before it is.
const patience = 10 * time.Second

// server is one served mount. undo ends what was begun, the last first.
type server struct {
	fuse *fusefs.Server
	undo []func() error
}

func (s *server) close() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	return errors.Join(errs...)
}

// newServer opens the overlay, mounts it and serves it.
func newServer(o *options) (*server, error) {
	unix.Umask(0) // modes come with the caller's umask applied
	if err := os.Chdir("/"); err != nil {
		return nil, err
	}
	s := &server{}
	if err := s.open(o); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *server) open(o *options) error {
	below, err := s.dir(o.mnt)
	if err != nil {
		return err
	}
	if err := lock(below); err != nil {
		return fmt.Errorf("mount point %s: %w", o.mnt, err)
	}
	fs, err := s.overlay(o)
	if err != nil {
		return err
	}
	s.undo = append(s.undo, fs.Close)
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	opts := "fd=" + strconv.Itoa(int(dev.Fd())) + "," + fusefs.MountOptions(uint32(os.Geteuid()), uint32(os.Getegid())) + ",allow_other"
	if err := unix.Mount(o.source, o.mnt, "fuse.stagefs", o.flags, opts); err != nil {
		return errors.Join(fmt.Errorf("mount %s: %w", o.mnt, err), dev.Close())
	}
	s.fuse, err = fusefs.Serve(dev, fs, fusefs.Options{Name: o.mnt})
	if err != nil {
		return errors.Join(err, unix.Unmount(o.mnt, unix.MNT_DETACH), dev.Close())
	}
	s.undo = append(s.undo, s.fuse.Close)
	return nil
}

// overlay opens the overlay of o, with change log, preimages and a list of events in its workdir.
func (s *server) overlay(o *options) (*overlay.FS, error) {
	work, err := s.dir(o.work)
	if err != nil {
		return nil, err
	}
	if err := lock(work); err != nil {
		return nil, fmt.Errorf("workdir %s: %w", o.work, err)
	}
	c := overlay.Config{Devices: true, FixedDirs: o.fixed}
	if c.Preimages, err = s.subdir(o.work, "preimages"); err != nil {
		return nil, err
	}
	if c.Orphans, err = s.subdir(o.work, "orphans"); err != nil {
		return nil, err
	}
	if c.Lower, err = s.dir(o.lower); err != nil {
		return nil, err
	}
	if c.Upper, err = s.dir(o.upper); err != nil {
		return nil, err
	}
	if c.IDs, err = ids(); err != nil {
		return nil, err
	}
	events, err := os.OpenFile(filepath.Join(o.work, "events"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	s.undo = append(s.undo, events.Close)
	c.OnEvent = func(e overlay.Event) { fmt.Fprintf(events, "%d %q: %v\n", e.Kind, e.Path, e.Err) }
	log, err := os.OpenFile(filepath.Join(o.work, "log"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	c.LogFile = log
	return overlay.Open(c)
}

func (s *server) dir(path string) (hostfs.Dir, error) {
	d, err := hostfs.OpenRoot(path)
	if err == nil {
		s.undo = append(s.undo, d.Close)
	}
	return d, err
}

func (s *server) subdir(dir, name string) (hostfs.Dir, error) {
	path := filepath.Join(dir, name)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return s.dir(path)
}

func lock(work hostfs.Dir) error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		err := hostfs.Lock(work)
		if !errors.Is(err, hostfs.ErrLocked) || time.Now().After(end) {
			return err
		}
	}
}

// unmount is umount(8)'s helper: it unmounts mnt and waits until the server has let go of all
// directories, as who unmounts those next expects. Until then it holds the lock of what mnt covers.
func unmount(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: umount.fuse MNT [-l]")
	}
	if slices.Contains(args[1:], "-l") {
		return unix.Unmount(args[0], unix.MNT_DETACH)
	}
	if err := unix.Unmount(args[0], 0); err != nil {
		return fmt.Errorf("unmount %s: %w", args[0], err)
	}
	path, err := filepath.Abs(args[0])
	if err != nil {
		return err
	}
	below, err := hostfs.OpenRoot(path)
	if err != nil {
		return err
	}
	return errors.Join(lock(below), below.Close())
}

// ids returns who is served: root in the initial user namespace, else the one user there is.
func ids() (overlay.IDs, error) {
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return overlay.IDs{}, err
	}
	if strings.Join(strings.Fields(string(text)), " ") == "0 0 4294967295" {
		return overlay.IDs{}, nil
	}
	return overlay.IDs{Rootless: true, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, nil
}
