// Package testenv is what tests of stage stand on: declared needs, the users a behaviour is run as,
// the built binaries, and snapshots of trees to compare.
//
// These environment variables steer it:
//
//	STAGE_REQUIRE=all   a missing need fails the test instead of skipping it (CI)
//	STAGE_REQUIRE=user  the same, but for Root: tests that run themselves again as an ordinary user
//	STAGE_BINARY=FILE   the stage binary to test, else it is built
//	STAGE_CODEX=FILE    the Codex binary, or a node_modules folder that holds it
//	STAGE_TEST_USER=U   the ordinary user that root runs tests as, else tester, else uid 65533
//	STAGE_SOAK=1        random tests run for long (make soak)
//	STAGE_TEST_DIR=DIR  where temporary trees are made, else /var/tmp
package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"testing"
)

// Requirement is something a test cannot do without.
type Requirement struct {
	name    string
	missing func() string // why it is not there and what brings it; "" when it is
}

// The requirements tests declare with Need.
var (
	// Root: the test process is uid 0 and may mount.
	Root = Requirement{"root", missingRoot}
	// FUSE: /dev/fuse can be opened by everybody a test is run as.
	FUSE = Requirement{"FUSE", missingFUSE}
	// Userns: the ordinary user can make user namespaces.
	Userns = Requirement{"user namespaces", missingUserns}
	// Loop: a file can be mounted as a file system.
	Loop = Requirement{"loop devices", missingLoop}
	// Account: the ordinary user has an entry in /etc/passwd.
	Account = Requirement{"an account of the ordinary user", missingAccount}
	// Codex: the real Codex CLI is installed.
	Codex = Requirement{"Codex", missingCodex}
)

// Tool is the program name on PATH.
func Tool(name string) Requirement {
	return Requirement{"tool " + name, func() string {
		if _, err := exec.LookPath(name); err != nil {
			return "not on PATH; `make deps` installs it"
		}
		return ""
	}}
}

// Need skips the test when one of needs is missing, or fails it when STAGE_REQUIRE says so.
func Need(t testing.TB, needs ...Requirement) {
	t.Helper()
	for _, n := range needs {
		why := n.missing()
		if why == "" {
			continue
		}
		if required(t, n) {
			t.Fatalf("needs %s: %s", n.name, why)
		}
		t.Skipf("needs %s: %s", n.name, why)
	}
}

func required(t testing.TB, n Requirement) bool {
	t.Helper()
	switch v := os.Getenv("STAGE_REQUIRE"); v {
	case "":
		return false
	case "all":
		return true
	case "user":
		return n.name != Root.name
	default:
		t.Fatalf("STAGE_REQUIRE=%q: want \"all\", \"user\" or nothing", v)
		return true
	}
}

func missingRoot() string {
	if os.Geteuid() != 0 {
		return "run the tests as root"
	}
	return ""
}

func missingFUSE() string {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err.Error() + "; `modprobe fuse`, `chmod 0666 /dev/fuse`"
	}
	defer f.Close()
	s, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	if os.Geteuid() == 0 && s.Mode().Perm()&0o006 != 0o006 {
		return fmt.Sprintf("/dev/fuse has mode %04o, closed to ordinary users; `chmod 0666 /dev/fuse`", s.Mode().Perm())
	}
	return ""
}

func missingUserns() string {
	u, err := ordinary()
	if err != nil {
		return err.Error()
	}
	out, err := u.Command("unshare", "--user", "--map-root-user", "true").CombinedOutput()
	if err != nil {
		return fmt.Sprintf("unshare as uid %d: %v: %s", u.UID, err, strings.TrimSpace(string(out)))
	}
	return ""
}

func missingLoop() string {
	f, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err.Error() + "; as root, `modprobe loop`"
	}
	defer f.Close()
	return ""
}

func missingAccount() string {
	u, err := ordinary()
	if err != nil {
		return err.Error()
	}
	if _, err := user.LookupId(strconv.Itoa(u.UID)); err != nil {
		return err.Error() + "; make the user tester, or name one by STAGE_TEST_USER"
	}
	return ""
}

func missingCodex() string {
	_, err := findCodex()
	if err != nil {
		return err.Error()
	}
	return ""
}
