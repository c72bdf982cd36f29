package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// User is somebody a test acts as.
type User struct {
	Name     string
	UID, GID int
	// Home is the value of HOME for commands. Users makes a fresh one for each test.
	Home string
}

// IsRoot reports whether u is uid 0.
func (u User) IsRoot() bool { return u.UID == 0 }

// Users runs a behaviour once as root and once as an ordinary user, as subtests "root" and "user".
// A test process that is not root runs the second only, as itself.
func Users(t *testing.T, f func(t *testing.T, u User)) {
	t.Helper()
	t.Run("root", func(t *testing.T) {
		Need(t, Root)
		f(t, withHome(t, User{Name: "root"}))
	})
	t.Run("user", func(t *testing.T) {
		f(t, Ordinary(t))
	})
}

// Ordinary returns the ordinary user with a fresh home.
func Ordinary(t testing.TB) User {
	t.Helper()
	u, err := ordinary()
	if err != nil {
		t.Fatal(err)
	}
	return withHome(t, u)
}

func withHome(t testing.TB, u User) User {
	t.Helper()
	u.Home = u.TempDir(t)
	if err := os.Chmod(u.Home, 0o700); err != nil {
		t.Fatal(err)
	}
	return u
}

// ordinary returns this process's user when it is not root, else the user that STAGE_TEST_USER
// names, "tester", or a uid that nobody has.
func ordinary() (User, error) {
	if os.Geteuid() != 0 {
		return User{Name: strconv.Itoa(os.Geteuid()), UID: os.Geteuid(), GID: os.Getegid(), Home: os.Getenv("HOME")}, nil
	}
	name, named := os.LookupEnv("STAGE_TEST_USER")
	if !named {
		name = "tester"
	}
	e, err := user.Lookup(name)
	if _, unknown := errors.AsType[user.UnknownUserError](err); unknown && !named {
		return User{Name: "65533", UID: 65533, GID: 65533, Home: "/nonexistent"}, nil
	}
	if err != nil {
		return User{}, fmt.Errorf("look up test user: %w", err)
	}
	uid, uerr := strconv.Atoi(e.Uid)
	gid, gerr := strconv.Atoi(e.Gid)
	return User{Name: name, UID: uid, GID: gid, Home: e.HomeDir}, errors.Join(uerr, gerr)
}

// Command returns a command that runs as u, with u's groups, and an environment of HOME, USER,
// LOGNAME, PATH and LANG alone.
func (u User) Command(name string, arg ...string) *exec.Cmd {
	c := exec.Command(name, arg...)
	c.Env = u.Env()
	if os.Geteuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{
			Uid: uint32(u.UID), Gid: uint32(u.GID), Groups: []uint32{uint32(u.GID)}}}
	}
	return c
}

// RequireAsUser is the value of STAGE_REQUIRE for a test process that is started again as an
// ordinary user: what this one requires, but for root.
func RequireAsUser() string {
	if v := os.Getenv("STAGE_REQUIRE"); v != "all" {
		return v
	}
	return "user"
}

// Env is the environment of Command.
func (u User) Env() []string {
	return []string{"HOME=" + u.Home, "USER=" + u.Name, "LOGNAME=" + u.Name, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
}

// TempDir returns an empty directory of u that every user can reach and that is removed when the
// test ends. t.TempDir is closed to users other than the one the tests run as.
func (u User) TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(tempRoot(), "stage-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeAll(dir); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	if err := errors.Join(os.Chmod(dir, 0o755), os.Lchown(dir, u.UID, u.GID)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// tempRoot is where temporary trees are made. /var/tmp is on disk, where files have extended
// attributes and holes; /tmp may not be, and the jail has a /tmp of its own.
func tempRoot() string {
	if dir := os.Getenv("STAGE_TEST_DIR"); dir != "" {
		return dir
	}
	return "/var/tmp"
}

// removeAll removes dir with everything in it. It refuses to start while something is mounted
// there, and opens directories that an ordinary user closed to himself.
func removeAll(dir string) error {
	if err := checkNoMount(dir); err != nil {
		return err
	}
	err := os.RemoveAll(dir)
	if !errors.Is(err, os.ErrPermission) {
		return err
	}
	if err := openUp(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func openUp(dir string) error {
	return filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return os.Chmod(p, 0o700) // WalkDir reads it after this
	})
}

// Become makes the rest of the test, and what it starts from its own goroutine, run as u. It is for
// behaviours of packages that are called in the process itself; call it in a subtest, which ends
// with its goroutine. Credentials belong to threads (credentials(7)): other goroutines, such as a
// server's, stay root.
func (u User) Become(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 || u.IsRoot() {
		return
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	uid, gid, group := uintptr(u.UID), uintptr(u.GID), uint32(u.GID)
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&group)), 0)
	if errno == 0 {
		_, _, errno = unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid)
	}
	if errno == 0 {
		_, _, errno = unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid)
	}
	if errno != 0 {
		t.Fatalf("become uid %d: %v", u.UID, errno)
	}
}
