package testenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// sample is a small tree with everything that Diff compares.
func sample(t *testing.T) string {
	dir := t.TempDir()
	write(t, dir+"/f", "text")
	write(t, dir+"/g", "text")
	for _, err := range []error{
		os.Mkdir(dir+"/d", 0o755),
		os.Symlink("f", dir+"/l"),
		os.Link(dir+"/f", dir+"/h"),
		unix.Mkfifo(dir+"/p", 0o600),
		unix.Lsetxattr(dir+"/g", "user.a", []byte{0, 1}, 0),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestDiffNamesWhatChanged(t *testing.T) {
	at := func(dir, name string) string { return filepath.Join(dir, name) }
	cases := []struct {
		name   string
		change func(dir string) error
		want   string
	}{
		{"nothing", func(string) error { return nil }, ""},
		{"content", func(d string) error { return os.WriteFile(at(d, "g"), []byte("TEXT"), 0o644) }, `"g" content`},
		{"size", func(d string) error { return os.Truncate(at(d, "g"), 9) }, `"g" size`},
		{"mode", func(d string) error { return os.Chmod(at(d, "d"), 0o700) }, `"d" mode: 0755 → 0700`},
		{"mtime", func(d string) error { return os.Chtimes(at(d, "g"), time.Time{}, time.Unix(9, 0)) }, `"g" mtime`},
		{"xattr", func(d string) error { return unix.Lremovexattr(at(d, "g"), "user.a") }, `"g" xattrs: user.a="\x00\x01"`},
		{"removed", func(d string) error { return os.Remove(at(d, "l")) }, `- "l" symlink`},
		{"target", func(d string) error {
			if err := os.Remove(at(d, "l")); err != nil {
				return err
			}
			return os.Symlink("g", at(d, "l"))
		}, `"l" content: f → g`},
		{"added", func(d string) error { return unix.Mkfifo(at(d, "q"), 0o600) }, `+ "q" fifo`},
		{"kind", func(d string) error {
			if err := os.Remove(at(d, "p")); err != nil {
				return err
			}
			return os.Mkdir(at(d, "p"), 0o600)
		}, `"p" kind: fifo → dir`},
		{"hard link cut", func(d string) error {
			if err := os.Remove(at(d, "h")); err != nil {
				return err
			}
			return os.WriteFile(at(d, "h"), []byte("text"), 0o644)
		}, `"h" links: f →`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := sample(t)
			before := Snapshot(t, dir)
			if err := c.change(dir); err != nil {
				t.Fatal(err)
			}
			got := Diff(before, Snapshot(t, dir))
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want it to say %q", got, c.want)
			}
		})
	}
}

func TestDiffIgnoresFields(t *testing.T) {
	dir := sample(t)
	before := Snapshot(t, dir)
	if err := os.Chtimes(dir+"/g", time.Time{}, time.Unix(9, 0)); err != nil {
		t.Fatal(err)
	}
	if got := Diff(before, Snapshot(t, dir), Mtime); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}

func TestUntouchedSeesAChangeTakenBack(t *testing.T) {
	dir := sample(t)
	before := Snapshot(t, dir)
	if got := Untouched(before, Snapshot(t, dir)); got != "" {
		t.Fatalf("reading counts as a touch: %s", got)
	}
	if err := os.Chmod(dir+"/g", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir+"/g", 0o644); err != nil {
		t.Fatal(err)
	}
	after := Snapshot(t, dir)
	if got := Diff(before, after); got != "" {
		t.Errorf("Diff: got %q, want nothing", got)
	}
	if got := Untouched(before, after); !strings.Contains(got, `"g" inode`) {
		t.Errorf("Untouched: got %q, want g's inode", got)
	}
}

func TestSnapshotSeesHoles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/f", "")
	if err := os.Truncate(dir+"/f", 1<<20); err != nil {
		t.Fatal(err)
	}
	before := Snapshot(t, dir)
	write(t, dir+"/f", string(make([]byte, 1<<20)))
	after := Snapshot(t, dir)
	if got := Diff(before, after, Mtime); !strings.Contains(got, "holes: end →") {
		t.Errorf("got %q, want a filled hole", got)
	}
	if got := Diff(before, after, Mtime, Holes); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}

func TestWithoutTakesPatternsOut(t *testing.T) {
	s := Tree{".": {}, "a": {}, "d": {}, "d/x": {}, "d/y/z": {}}.Without("d/**", "d")
	if len(s) != 2 {
		t.Errorf("got %v, want . and a", s)
	}
}

func TestUsersActAsThemselves(t *testing.T) {
	Users(t, func(t *testing.T, u User) {
		dir := u.TempDir(t)
		out, err := u.Command("sh", "-c", "id -u; id -G; echo $HOME; touch "+dir+"/f").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var st unix.Stat_t
		if err := unix.Stat(dir+"/f", &st); err != nil {
			t.Fatal(err)
		}
		if int(st.Uid) != u.UID {
			t.Errorf("a command's file belongs to %d, want %d", st.Uid, u.UID)
		}
		if !strings.Contains(string(out), u.Home) {
			t.Errorf("got %q, want home %s", out, u.Home)
		}
	})
}

// elsewhere calls f in another goroutine, and so on another thread than a locked one.
func elsewhere(f func() int) int {
	c := make(chan int)
	go func() { c <- f() }()
	return <-c
}

func TestBecomeChangesThisThreadOnly(t *testing.T) {
	process := os.Geteuid()
	Users(t, func(t *testing.T, u User) {
		dir := u.TempDir(t)
		u.Become(t)
		if err := os.Mkdir(dir+"/shut", 0o000); err != nil {
			t.Fatal(err)
		}
		err := os.WriteFile(dir+"/own", nil, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(dir+"/own", &st); err != nil {
			t.Fatal(err)
		}
		if int(st.Uid) != u.UID {
			t.Errorf("file belongs to %d, want %d", st.Uid, u.UID)
		}
		if _, err := os.ReadDir(dir + "/shut"); u.IsRoot() != (err == nil) {
			t.Errorf("closed directory: %v", err)
		}
		if other := elsewhere(unix.Geteuid); other != process {
			t.Errorf("another goroutine runs as %d, want %d", other, process)
		}
	})
}

func TestRemoveAllRefusesMounts(t *testing.T) {
	Need(t, Root)
	dir := t.TempDir()
	write(t, dir+"/keep", "")
	if err := os.Mkdir(dir+"/m m", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", dir+"/m m", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir+"/m m", 0); err != nil {
			t.Error(err)
		}
	})
	if err := removeAll(dir); err == nil || !strings.Contains(err.Error(), "still mounted") {
		t.Errorf("got %v, want a refusal", err)
	}
	if _, err := os.Stat(dir + "/keep"); err != nil {
		t.Errorf("removed all the same: %v", err)
	}
}

// recorder stands in for a test that a need ends.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Helper()               {}
func (r *recorder) Skipf(string, ...any)  { r.said = "skip"; panic(r) }
func (r *recorder) Fatalf(string, ...any) { r.said = "fail"; panic(r) }

func TestMissingNeedSkipsOrFails(t *testing.T) {
	noRoot := Requirement{Root.name, func() string { return "not here" }}
	for _, c := range []struct {
		require string
		need    Requirement
		want    string
	}{
		{"", Tool("no-such-tool"), "skip"}, {"all", Tool("no-such-tool"), "fail"}, {"user", Tool("no-such-tool"), "fail"},
		{"some", Tool("no-such-tool"), "fail"}, {"", noRoot, "skip"}, {"all", noRoot, "fail"}, {"user", noRoot, "skip"},
	} {
		t.Setenv("STAGE_REQUIRE", c.require)
		r := &recorder{}
		func() {
			defer func() { _ = recover() }()
			Need(r, c.need)
		}()
		if r.said != c.want {
			t.Errorf("STAGE_REQUIRE=%q, %s missing: got %q, want %q", c.require, c.need.name, r.said, c.want)
		}
	}
}

func TestPresentNeedPasses(t *testing.T) {
	Need(t, Tool("sh"))
}

func TestDepsInstallTheCodexThatTestsExpect(t *testing.T) {
	text, err := os.ReadFile("../../packaging/deps.sh")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\ncodex_version="+CodexVersion+"\n") {
		t.Errorf("packaging/deps.sh installs another version than %s", CodexVersion)
	}
}
