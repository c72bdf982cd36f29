package opener

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"stage/test/testenv"
)

// triesEnv makes the test binary, as the user, open the files in a directory and say what came of it.
const triesEnv = "STAGE_TEST_OPEN_BELOW"

func TestMain(m *testing.M) {
	Main()
	dir := os.Getenv(triesEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	if err := try(dir); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func try(dir string) error {
	var o Opener
	for _, name := range []string{"mine", "others", "other-group", "mine"} {
		path, err := unix.Open(filepath.Join(dir, name), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		fd, err := o.Open(path)
		if err != nil {
			fmt.Printf("%s: %v\n", name, err)
			continue
		}
		b := make([]byte, 64)
		n, err := unix.Read(fd, b)
		fmt.Printf("%s: %q %v\n", name, b[:max(n, 0)], err)
	}
	return errors.Join(o.Close())
}

// TestOwnFilesOfAnyMode: what the user and his group own is opened whatever its mode says, and nothing else.
func TestOwnFilesOfAnyMode(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Userns)
	u := testenv.Ordinary(t)
	dir := u.TempDir(t)
	for name, owner := range map[string][2]int{"mine": {u.UID, u.GID}, "others": {0, 0}, "other-group": {u.UID, 0}} {
		p := filepath.Join(dir, name)
		err := errors.Join(os.WriteFile(p, []byte(name), 0o600), os.Chown(p, owner[0], owner[1]), os.Chmod(p, 0))
		if err != nil {
			t.Fatal(err)
		}
	}
	c := u.Command("/proc/self/exe")
	c.Env = append(c.Env, triesEnv+"="+dir)
	out, err := c.CombinedOutput()
	want := "mine: \"mine\" <nil>\nothers: permission denied\nother-group: permission denied\nmine: \"mine\" <nil>\n"
	if string(out) != want || err != nil {
		t.Errorf("got %v\n%swant\n%s", err, out, want)
	}
}

func TestUnusedOpenerHasNoProcess(t *testing.T) {
	var o Opener
	if err := o.Close(); err != nil || o.process != nil {
		t.Errorf("got %v, %v", err, o.process)
	}
}
