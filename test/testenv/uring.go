package testenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// uringParameter decides whether the kernel offers FUSE over io_uring to new mounts.
const uringParameter = "/sys/module/fuse/parameters/enable_uring"

// FUSEOverIOUring makes the kernel offer FUSE over io_uring until the test ends. Where the parameter is
// not set only root can: then tests that want it, in other processes too, take turns.
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
	t.Cleanup(func() {
		if err := lock.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if !offersUring(t) {
		setUring(t, "Y")
		t.Cleanup(func() { setUring(t, "N") })
	}
}

func offersUring(t testing.TB) bool {
	t.Helper()
	v, err := os.ReadFile(uringParameter)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(v)) == "Y"
}

func setUring(t testing.TB, v string) {
	t.Helper()
	if err := os.WriteFile(uringParameter, []byte(v), 0); err != nil {
		t.Error(err)
	}
}

func missingUring() string {
	v, err := os.ReadFile(uringParameter)
	switch {
	case err != nil:
		return err.Error() + "; Linux 6.14 has it"
	case strings.TrimSpace(string(v)) == "Y" || os.Geteuid() == 0:
		return ""
	}
	return "`echo Y > " + uringParameter + "` as root"
}
