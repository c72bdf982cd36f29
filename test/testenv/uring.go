package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// uringParameter decides whether the kernel offers FUSE over io_uring to new mounts.
const uringParameter = "/sys/module/fuse/parameters/enable_uring"

// FUSEOverIOUring makes the kernel offer FUSE over io_uring until the test ends. Where the parameter is
// not set only root can, and the last of the tests that want it, in other processes too, takes it back:
// each holds a shared lock on a file, which says whether it was set by them.
func FUSEOverIOUring(t testing.TB) {
	t.Helper()
	Need(t, Requirement{"FUSE over io_uring", missingUring})
	if os.Geteuid() != 0 {
		return
	}
	lock, err := os.OpenFile(filepath.Join(tempRoot(), "stage-test-uring.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(takeUringBack(lock), lock.Close()); err != nil {
			t.Error(err)
		}
	})
	if uringOffered() {
		return
	}
	if err := errors.Join(lock.Truncate(1), os.WriteFile(uringParameter, []byte("Y"), 0)); err != nil {
		t.Fatal(err)
	}
}

// takeUringBack resets the parameter if tests set it and no other holds the lock.
func takeUringBack(lock *os.File) error {
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil
	}
	s, err := lock.Stat()
	if err != nil || s.Size() == 0 {
		return err
	}
	return errors.Join(os.WriteFile(uringParameter, []byte("N"), 0), lock.Truncate(0))
}

func uringOffered() bool {
	v, err := os.ReadFile(uringParameter)
	return err == nil && strings.TrimSpace(string(v)) == "Y"
}

func missingUring() string {
	if _, err := os.Stat(uringParameter); err != nil {
		return err.Error() + "; Linux 6.14 has it"
	}
	if os.Geteuid() != 0 && !uringOffered() {
		return "`echo Y > " + uringParameter + "` as root"
	}
	return ""
}
