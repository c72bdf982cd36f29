package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// Binary returns the stage binary, which every user may execute: that of STAGE_BINARY, else one
// built once for this test process.
func Binary(t testing.TB) string {
	t.Helper()
	if b := os.Getenv("STAGE_BINARY"); b != "" {
		return b
	}
	b, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var buildOnce = sync.OnceValues(func() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	dir, err := binDir()
	if err != nil {
		return "", err
	}
	// Test processes of other packages may build at the same time: the last rename wins, and what
	// already runs keeps its inode.
	tmp := filepath.Join(dir, "stage."+strconv.Itoa(os.Getpid()))
	// As the Makefile builds it.
	cmd := exec.Command("go", "build", "-tags", "seccomp,netgo,osusergo", "-ldflags", "-linkmode external -extldflags -static", "-o", tmp, "./cmd/stage")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build stage: %w\n%s", err, out)
	}
	bin := filepath.Join(dir, "stage")
	return bin, os.Rename(tmp, bin)
})

// binDir is one directory for each uid, kept, so that test runs do not pile up binaries.
func binDir() (string, error) {
	dir := filepath.Join(tempRoot(), "stage-test-bin-"+strconv.Itoa(os.Geteuid()))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	s, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if !s.IsDir() || s.Mode().Perm()&0o022 != 0 || int(s.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return "", fmt.Errorf("%s is not a directory of this user alone", dir)
	}
	return dir, os.Chmod(dir, 0o755)
}

// moduleRoot returns the folder of go.mod at or above the current directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("no go.mod at or above the current directory")
		}
		dir = filepath.Dir(dir)
	}
}
