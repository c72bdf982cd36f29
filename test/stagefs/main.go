// Stagefs mounts an overlay the way mount(8) asks for it, so that test suites for overlay file systems
// can be run against the packages that serve a Job's view:
//
//	stagefs SOURCE MNT -o lowerdir=DIR,upperdir=DIR,workdir=DIR
//
// Installed as /sbin/mount.fuse.stagefs and /sbin/umount.fuse it is what mount(8) and umount(8) call.
// It has one lower layer, which may be another's MNT. The same upper and workdir show the same tree
// again. With redirect_dir=off a directory of the lower cannot be renamed, as in overlayfs.
//
//	mount(8) ──► stagefs ──► stagefs as server: overlay, mount, FUSE ──► "serving" or an error on a pipe
//	                └── waits for that, looks at MNT, and leaves the server behind until umount
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// serving is what the server says when it serves; anything else is an error.
const serving = "serving"

// serverEnv marks the process that serves.
const serverEnv = "STAGEFS_SERVER"

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "stagefs: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	if strings.HasPrefix(filepath.Base(os.Args[0]), "umount.") {
		return unmount(os.Args[1:])
	}
	o, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	if os.Getenv(serverEnv) != "" {
		return serve(o)
	}
	return start(o)
}

// start starts the server and returns when it serves.
func start(o *options) error {
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), serverEnv+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	told, say, err := os.Pipe()
	if err != nil {
		return err
	}
	defer told.Close()
	c.ExtraFiles = []*os.File{say}
	err = c.Start()
	if err := errors.Join(err, say.Close()); err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	text, err := io.ReadAll(told)
	if err != nil {
		return fmt.Errorf("wait for server: %w", err)
	}
	if string(text) != serving {
		return fmt.Errorf("%s: %w", text, c.Wait())
	}
	var st unix.Statfs_t
	if err := unix.Statfs(o.mnt, &st); err != nil {
		return fmt.Errorf("look at %s: %w", o.mnt, err)
	}
	return nil
}

// serve mounts o, tells descriptor 3 how that went, and serves until the mount is gone.
func serve(o *options) error {
	say := os.NewFile(3, "pipe")
	unix.CloseOnExec(3)
	s, err := newServer(o)
	if err != nil {
		_, werr := fmt.Fprint(say, err)
		return errors.Join(err, werr)
	}
	_, err = fmt.Fprint(say, serving)
	if err := errors.Join(err, say.Close()); err != nil {
		return errors.Join(err, s.close())
	}
	s.fuse.Wait()
	return s.close()
}
