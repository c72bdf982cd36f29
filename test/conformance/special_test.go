package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stage/test/testenv"
)

// What needs more than a directory: other file systems, owners, processes, or a second mount.

// TestInodesAcrossReopen: what stays where it was keeps its inode number in the next session too.
func TestInodesAcrossReopen(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) { runSuite(t, u, "inodes:0", "inodes:1") })
}

func insideInodes(t *testing.T, dir string) {
	w := &world{t: t, dir: filepath.Join(dir, "mnt")}
	if part() == "0" {
		before := fmt.Sprintln(w.ino("f"), w.ino("d"), w.ino("d/x"), w.ino("moved"))
		w.write("f", "changed")
		w.write("d/x", "changed")
		w.chmod("moved", 0o600)
		must(os.WriteFile(filepath.Join(dir, "inos"), []byte(before), 0o600))
		return
	}
	want, err := os.ReadFile(filepath.Join(dir, "inos"))
	must(err)
	if got := fmt.Sprintln(w.ino("f"), w.ino("d"), w.ino("d/x"), w.ino("moved")); got != string(want) {
		t.Errorf("inode numbers: got %s, want %s", got, want)
	}
	if !dirInos(w.dir, "f", w.ino("f"), "d", w.ino("d")) {
		t.Error("d_ino is not st_ino")
	}
}

// mountTmpfs mounts a tmpfs of u at dir until the test ends.
func mountTmpfs(t *testing.T, u testenv.User, dir, opts string) {
	t.Helper()
	opts = fmt.Sprintf("mode=0755,uid=%d,gid=%d,%s", u.UID, u.GID, opts)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, opts); err != nil {
		t.Fatalf("mount tmpfs %s: %v", opts, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
}

// TestFull lets the file system of the upper run out of space, and of quota, in the middle of writes.
func TestFull(t *testing.T) {
	testenv.Need(t, testenv.Root)
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		t.Run("space", func(t *testing.T) { runFull(t, u, "size=4m", unix.ENOSPC) })
		if !u.IsRoot() { // who has CAP_SYS_RESOURCE may exceed a quota
			t.Run("quota", func(t *testing.T) {
				needTmpfsQuota(t)
				runFull(t, u, "size=64m,usrquota_block_hardlimit=4m", unix.EDQUOT)
			})
		}
	})
}

// needTmpfsQuota skips where the kernel was built without quotas on tmpfs, which nothing installed can
// bring.
func needTmpfsQuota(t *testing.T) {
	t.Helper()
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetFlag(fs, "usrquota"); err != nil {
		t.Skipf("tmpfs has no quotas: %v", err)
	}
}

func runFull(t *testing.T, u testenv.User, opts string, want unix.Errno) {
	tr := newTrial(t, u, "full")
	store := filepath.Join(tr.dir, "store")
	mountTmpfs(t, u, store, opts)
	for _, d := range []string{"upper", "orphans"} {
		d = filepath.Join(store, d)
		if err := errors.Join(os.Mkdir(d, 0o755), os.Lchown(d, u.UID, u.GID)); err != nil {
			t.Fatal(err)
		}
	}
	tr.run("full:" + unix.ErrnoName(want))
	tr.check()
}

// fullTree has a file that fits in the upper and one that does not.
func fullTree(top string) {
	must(os.WriteFile(filepath.Join(top, "small"), []byte("small enough"), 0o644))
	must(os.WriteFile(filepath.Join(top, "large"), bytes.Repeat([]byte("too large"), 1<<20), 0o644))
}

func insideFull(t *testing.T, dir string) {
	w := &world{t: t, dir: filepath.Join(dir, "mnt")}
	fd, err := unix.Open(w.at("new"), unix.O_RDWR|unix.O_CREAT, 0o644)
	must(err)
	defer unix.Close(fd)
	block := bytes.Repeat([]byte("x"), 1<<16)
	size := 0
	for {
		n, err := unix.Write(fd, block)
		size += max(n, 0)
		if err != nil {
			if errName(err) != part() {
				t.Errorf("write: got %v, want %s", err, part())
			}
			break
		}
	}
	if b, err := os.ReadFile(w.at("new")); err != nil || len(b) != size || bytes.Count(b, []byte("x")) != size {
		t.Errorf("read what was written: %d bytes, %v, want %d", len(b), err, size)
	}
	if err := os.WriteFile(w.at("large"), []byte("changed"), 0o644); err == nil {
		t.Log("a truncation needs no space")
	}
	f, err := os.OpenFile(w.at("small"), os.O_RDWR, 0)
	must(err)
	defer f.Close()
	if _, err := f.WriteAt(block, 0); errName(errors.Unwrap(err)) != part() {
		t.Errorf("write to a lower file: got %v, want %s", err, part())
	}
	must(unix.Ftruncate(fd, 0))
	if _, err := f.WriteAt([]byte("SMALL"), 0); err != nil {
		t.Errorf("write once there is space again: %v", err)
	}
	if b, err := os.ReadFile(w.at("small")); err != nil || !bytes.HasPrefix(b, []byte("SMALL")) {
		t.Errorf("read: %.20q, %v", b, err)
	}
	must(os.Mkdir(w.at("d"), 0o755))
}

// TestMountBelow: another file system below the workspace is part of it.
func TestMountBelow(t *testing.T) {
	testenv.Need(t, testenv.Root)
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		tr := newTrial(t, u, "below")
		for _, top := range []string{"lower", "plain"} {
			in := filepath.Join(tr.dir, top, "in")
			mountTmpfs(t, u, in, "size=4m")
			cmd := u.Command("sh", "-c", "cd "+in+" && echo inside > f && mkdir -p d/e && echo deep > d/e/g && ln f l && ln -s f s")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("fill: %v %s", err, out)
			}
		}
		tr.before = testenv.Snapshot(t, tr.lower())
		tr.run("below")
		tr.check()
	})
}

func insideBelow(t *testing.T, dir string) {
	compare(t, below(t, filepath.Join(dir, "plain")), below(t, filepath.Join(dir, "mnt")))
}

func below(t *testing.T, top string) []string {
	w := &world{t: t, dir: top}
	defer w.close()
	for _, p := range []string{"in", "in/d", "in/d/e"} {
		w.ls(p)
	}
	w.cat("in/s")
	w.write("in/f", "changed")
	w.cat("in/l")
	w.stat("in/l")
	w.rename("in/d/e/g", "in/d/h", 0)
	w.mkdir("in/new")
	w.rename("in/d", "in/new/d", 0)
	w.cat("in/new/d/h")
	w.unlink("in/l")
	w.stat("in/f")
	w.note("inode numbers differ: %v", w.ino("in") != w.ino("in/f") && w.ino("in/f") != w.ino("in/s"))
	return w.log
}

// TestForeignGroup works in a setgid directory of a group that is not mapped inside (docker, say).
func TestForeignGroup(t *testing.T) {
	const group = 4242
	testenv.Need(t, testenv.Root)
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		tr := newTrial(t, u, "group")
		for _, top := range []string{"lower", "plain"} {
			for _, p := range []string{"d", "d/f"} {
				p = filepath.Join(tr.dir, top, p)
				if err := errors.Join(os.Lchown(p, u.UID, group), os.Chmod(p, os.ModeSetgid|0o775)); err != nil {
					t.Fatal(err)
				}
			}
		}
		tr.before = testenv.Snapshot(t, tr.lower())
		tr.run("group")
		tr.check()
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(tr.dir, "plain/d/new"), &st); err != nil || st.Gid != group {
			t.Fatalf("plain directory: group %d, %v", st.Gid, err)
		}
		if u.IsRoot() {
			if err := unix.Stat(filepath.Join(tr.dir, "store/upper/d/new"), &st); err != nil || st.Gid != group {
				t.Errorf("group of a new file: got %d, %v, want %d", st.Gid, err, group)
			}
			return
		}
		value := make([]byte, 100)
		n, err := unix.Getxattr(filepath.Join(tr.dir, "store/upper/d/new"), "user.stage.attr", value)
		if want := fmt.Sprintf(" %d %d", u.UID, group); err != nil || !strings.HasSuffix(string(value[:max(n, 0)]), want) {
			t.Errorf("owner of a new file: got %q, %v, want it to end in %q", value[:max(n, 0)], err, want)
		}
	})
}

func insideGroup(t *testing.T, dir string) {
	compare(t, inGroup(t, filepath.Join(dir, "plain")), inGroup(t, filepath.Join(dir, "mnt")))
}

func inGroup(t *testing.T, top string) []string {
	w := &world{t: t, dir: top}
	w.stat("d")
	w.write("d/new", "1")
	w.mkdir("d/sub")
	w.write("d/sub/x", "2")
	w.write("d/f", "changed")
	for _, p := range []string{"d/new", "d/sub", "d/sub/x", "d/f"} {
		w.stat(p)
	}
	w.rename("d/new", "d/sub/new", 0)
	w.rename("d/sub/new", "d/new", 0)
	w.ls("d")
	return w.log
}

// TestAround looks at the mount from outside and above.
func TestAround(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) { runSuite(t, u, "around") })
}

func insideAround(t *testing.T, dir string) {
	if got := list(dir, "mnt"); !strings.HasPrefix(got, `ok, "mnt" `) {
		t.Errorf("list of the parent: %s", got)
	}
	out, err := exec.Command("sh", "-c", `ls -la "$1" && cd "$1/mnt" && pwd -P && ls -la .. && find . -xdev -name f && cat ../mnt/f`, "sh", dir).CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "./f\n1") {
		t.Errorf("%v: %s", err, out)
	}
	for _, top := range []string{"plain", "mnt"} {
		var st unix.Statfs_t
		if err := unix.Statfs(filepath.Join(dir, top), &st); err != nil || st.Namelen != 255 || st.Blocks == 0 {
			t.Errorf("statfs of %s: %+v, %v", top, st, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "mnt")); !errors.Is(err, unix.EBUSY) {
		t.Errorf("remove the mount point: %v, want EBUSY", err)
	}
}

// TestLocks has several processes lock a file: locks conflict, waiting ends with a signal or with the
// holder, and with its death.
func TestLocks(t *testing.T) {
	testenv.Need(t, testenv.Tool("python3"))
	testenv.Users(t, func(t *testing.T, u testenv.User) { runSuite(t, u, "locks") })
}

// lockScript takes a lock of kind flock, posix or ofd, says so, and keeps it until its input ends;
// with a time limit waiting for it is interrupted.
const lockScript = `
import fcntl, os, signal, struct, sys
path, kind, wait = sys.argv[1], sys.argv[2], float(sys.argv[3])
fd = os.open(path, os.O_RDWR)
def interrupted(*_): raise InterruptedError
signal.signal(signal.SIGALRM, interrupted)
if wait: signal.setitimer(signal.ITIMER_REAL, wait)
print("wait", flush=True)
try:
    if kind == "flock": fcntl.flock(fd, fcntl.LOCK_EX)
    elif kind == "posix": fcntl.lockf(fd, fcntl.LOCK_EX, 10)
    else: fcntl.fcntl(fd, 38, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 10, 0))
except InterruptedError:
    print("interrupted", flush=True); sys.exit()
signal.setitimer(signal.ITIMER_REAL, 0)
print("locked", flush=True)
sys.stdin.read()
`

func insideLocks(t *testing.T, dir string) {
	for _, kind := range []string{"flock", "posix", "ofd"} {
		t.Run(kind, func(t *testing.T) {
			path := filepath.Join(dir, "mnt/f")
			holder := startLocker(t, path, kind, "0")
			holder.want("wait", "locked")
			other := startLocker(t, path, kind, "0.2")
			other.want("wait", "interrupted")
			next := startLocker(t, path, kind, "0")
			next.want("wait")
			holder.end()
			next.want("locked")
			last := startLocker(t, path, kind, "0")
			last.want("wait")
			must(next.cmd.Process.Kill())
			last.want("locked")
			last.end()
		})
	}
}

type locker struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Closer
	out io.Reader
}

func startLocker(t *testing.T, path, kind, wait string) *locker {
	c := exec.Command("python3", "-c", lockScript, path, kind, wait)
	in, err := c.StdinPipe()
	must(err)
	out, err := c.StdoutPipe()
	must(err)
	c.Stderr = os.Stderr
	must(c.Start())
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	return &locker{t, c, in, out}
}

func (l *locker) want(lines ...string) {
	l.t.Helper()
	for _, want := range lines {
		b := make([]byte, len(want)+1)
		if _, err := io.ReadFull(l.out, b); string(b) != want+"\n" {
			l.t.Fatalf("locker says %q, %v, want %q", b, err, want)
		}
	}
}

func (l *locker) end() { must(l.in.Close()) }

// neverAgain is what issue after issue of other overlays was about, and what holds it here: cases of
// this package by their names, and tests of any package.
var neverAgain = map[string][]string{
	"removed and re-created directories resurrect old entries": {"removed-and-recreated-directory", "whole-tree-removed"},
	"opaque inside opaque":                  {"opaque-inside-opaque"},
	"RENAME_NOREPLACE onto a whiteout":      {"rename-noreplace-over-whiteout"},
	"EXCHANGE of lower and upper":           {"exchange-lower-and-upper", "exchange-two-lower-directories"},
	"rename of a lower-only directory":      {"rename-directory", "rename-into-new-directory", "TestDirectoryRenameIsOneMove"},
	"whiteouts left by temporary names":     {"temporary-names-leave-nothing", "TestRemovalForgetsMarks"},
	"0444 and 0000 files":                   {"read-only-files", "read-only-lower-files", "closed-lower-files", "no-access-lower"},
	"mkdir 0555":                            {"read-only-files"},
	"setuid, setgid and capability bits":    {"setuid-goes-on-write", "map-keeps-setuid", "capabilities-go-on-write", "chown-of-a-fifo-drops-setuid"},
	"O_APPEND from several processes":       {"append-by-several-processes", "TestRandomProcesses"},
	"truncation lost with no_open":          {"shorter-rewrite", "open-trunc", "truncate-grow-and-shrink"},
	"O_TMPFILE and linkat":                  {"o-tmpfile", "unnamed-files-leave-nothing"},
	"unlinked-but-open":                     {"unlinked-but-open-lower", "unlinked-but-open-upper", "replaced-but-open", "TestUnlinkedFileLivesUntilForgotten"},
	"mmap":                                  {"mmap-shared-write-after-copy-up", "map-made-before-copy-up", "mmap-private-of-lower"},
	"hard links":                            {"hard-links-of-lower", "hard-link-of-lower-unseen-names", "hard-link-in-moved-directory", "new-hard-links", "TestLinksBelowMovedDirectoryAfterReopen"},
	"st_ino and d_ino":                      {"stable-inode-numbers", "TestInodesAcrossReopen"},
	"telldir and seekdir":                   {"telldir-and-seekdir", "remove-while-listing", "TestOffsetsOutlastChanges"},
	"names and paths":                       {"names-of-all-kinds", "path-max", "depth-1000"},
	"FIFO and socket in lower":              {"lower-fifo-and-socket", "TestLowerFifoNeverBlocks"},
	"symlink loops":                         {"symlink-loops", "symlinks"},
	"locks":                                 {"locks", "TestLocks"},
	"fsync family":                          {"fsync", "sync-family"},
	"fallocate and holes":                   {"fallocate-and-punch", "fallocate-modes", "seek-hole-of-lower", "sparse-file-copied-up"},
	"O_DIRECT":                              {"o-direct"},
	"sparse 1 TB":                           {"sparse-terabyte"},
	"ENOSPC and EDQUOT":                     {"TestFull"},
	"EINTR":                                 {"signals-while-writing", "TestLocks"},
	"utimensat":                             {"utimensat", "times", "copy-up-keeps-times"},
	"extended attributes":                   {"xattrs", "xattr-sizes", "xattrs-survive-copy-up-and-rename"},
	"setgid directories":                    {"setgid-directory", "TestForeignGroup"},
	"a mount point below the workspace":     {"TestMountBelow"},
	"workspace of an unmapped group":        {"TestForeignGroup"},
	"the mount's parent listed from inside": {"TestAround"},
	"inotify, tail -f":                      {"inotify", "tail-f"},
}

// TestNeverAgain: what the list names is there.
func TestNeverAgain(t *testing.T) {
	var tests strings.Builder
	for _, pattern := range []string{"*_test.go", "../../fs/*/*_test.go"} {
		names, err := filepath.Glob(pattern)
		must(err)
		for _, name := range names {
			b, err := os.ReadFile(name)
			must(err)
			tests.Write(b)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(neverAgain)) {
		for _, name := range neverAgain[what] {
			isCase := slices.ContainsFunc(cases, func(c testCase) bool { return c.name == name })
			if !isCase && !strings.Contains(tests.String(), "func "+name+"(t ") {
				t.Errorf("%s: no case or test %s", what, name)
			}
		}
	}
}
