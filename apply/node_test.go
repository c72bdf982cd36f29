package apply

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"stage/fs/hostfs"
	"stage/test/testenv"
)

// TestRemovalStopsAtAMount runs itself in a mount namespace of its own, in which another file system lies in a tree that
// is to be removed.
func TestRemovalStopsAtAMount(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Tool("unshare"))
	const inside = "APPLY_TEST_TREE"
	dir := os.Getenv(inside)
	if dir == "" {
		dir = t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "tree", "sub", "mnt"), 0o755); err != nil {
			t.Fatal(err)
		}
		const script = `mount -t tmpfs none "$1/tree/sub/mnt" && mkdir "$1/tree/sub/mnt/dir" && touch "$1/tree/sub/mnt/dir/precious" &&
			exec "$2" -test.run '^TestRemovalStopsAtAMount$' -test.v`
		c := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", dir, os.Args[0])
		c.Env = append(os.Environ(), inside+"="+dir)
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestRemovalStopsAtAMount") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	d, err := hostfs.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := removeTree(d, "tree"); !errors.Is(err, syscall.EXDEV) && !errors.Is(err, syscall.EBUSY) {
		t.Errorf("got %v, want EXDEV or EBUSY", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "tree", "sub", "mnt", "dir", "precious")); err != nil {
		t.Error(err)
	}
}
