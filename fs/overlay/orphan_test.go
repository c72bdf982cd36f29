package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func (j *job) wantOrphans(want int) {
	j.t.Helper()
	list, err := os.ReadDir(filepath.Join(j.dir, "orphans"))
	j.must(err)
	if len(list) != want {
		j.t.Errorf("%d orphans, want %d: %v", len(list), want, list)
	}
}

// plantKinds makes one of each kind in the lower.
func (j *job) plantKinds() {
	j.put("file", "lower")
	j.must(os.Symlink("file", j.low("link")))
	j.must(unix.Mkfifo(j.low("fifo"), 0o640))
	j.must(os.Mkdir(j.low("dir"), 0o750))
}

func (j *job) makeKinds() {
	j.create("upfile", "upper")
	j.mkdir("updir")
	root := uint64(RootID)
	var e Entry
	j.must(j.fs.Symlink(Caller{}, root, "uplink", "file", &e))
	j.must(j.fs.Mknod(Caller{}, root, "upfifo", unix.S_IFIFO|0o640, 0, &e))
}

// TestEachKindOutlivesItsName takes the last name from a node in use and looks whether it is what it
// was, without a name, until it is forgotten.
func TestEachKindOutlivesItsName(t *testing.T) {
	for _, how := range []string{"unlink", "replace"} {
		for _, kind := range []string{"file", "link", "fifo", "dir", "upfile", "uplink", "upfifo", "updir"} {
			t.Run(how+"/"+kind, func(t *testing.T) {
				asUsers(t, func(t *testing.T, j *job) {
					j.plantKinds()
					j.open()
					j.makeKinds()
					j.losesName(how, kind)
				})
			})
		}
	}
}

func (j *job) losesName(how, kind string) {
	t := j.t
	before := j.stat(kind)
	id := j.mustID(kind)
	isDir := before.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case how == "replace" && isDir:
		j.mkdir("other")
		j.must(j.rename("other", kind, 0))
	case how == "replace":
		j.create("other", "other")
		j.must(j.rename("other", kind, 0))
	case isDir:
		j.rmdir(kind)
	default:
		j.unlink(kind)
	}
	var a Attr
	j.must(j.fs.Getattr(id, &a))
	if a.Nlink != 0 || a.Ino != before.Ino || a.Mode != before.Mode || a.Mtime != before.Mtime && !isDir {
		t.Errorf("got nlink %d, ino %d, mode %o, want 0, %d, %o", a.Nlink, a.Ino, a.Mode, before.Ino, before.Mode)
	}
	lowerDir := kind == "dir"
	if before.Mode&unix.S_IFMT != unix.S_IFLNK && !lowerDir {
		j.must(j.fs.Setattr(id, &SetAttr{Set: SetMode, Mode: 0o710}, &a))
		j.must(j.fs.Getattr(id, &a))
		if a.Mode&0o7777 != 0o710 || a.Ino != before.Ino || a.Nlink != 0 {
			t.Errorf("after chmod: mode %o, ino %d, nlink %d", a.Mode, a.Ino, a.Nlink)
		}
	}
	if before.Mode&unix.S_IFMT == unix.S_IFREG {
		j.write(id, "WR")
		j.must(j.fs.Setattr(id, &SetAttr{Set: SetSize, Size: 4}, &a))
		c, err := j.fs.Content(id)
		j.must(err)
		b := make([]byte, 10)
		n, err := unix.Pread(c.FD(), b, 0)
		c.Done(0, false)
		if err != nil || n != 4 || string(b[:2]) != "WR" {
			t.Errorf("content: got %q, %v", b[:n], err)
		}
	}
	if before.Mode&unix.S_IFMT == unix.S_IFLNK {
		if target, err := j.fs.Readlink(id); string(target) != "file" || err != nil {
			t.Errorf("target: got %q, %v", target, err)
		}
	}
	j.fs.Forget(id, 1<<20)
	j.wantOrphans(0)
	if err := j.fs.Getattr(id, &a); err != unix.ESTALE {
		t.Errorf("after forget: got %v, want ESTALE", err)
	}
}

func TestDescriptorsDoNotGrowWithUnlinkedFiles(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		const n = 500
		for i := range n {
			j.put(fmt.Sprintf("low%d", i), "lower")
		}
		j.open()
		before := descriptors(t)
		var ids []uint64
		for i := range n {
			ids = append(ids, j.create(fmt.Sprintf("up%d", i), "upper"), j.mustID(fmt.Sprintf("low%d", i)))
			j.unlink(fmt.Sprintf("up%d", i))
			j.unlink(fmt.Sprintf("low%d", i))
			var e Entry
			j.must(j.fs.Tmpfile(Caller{}, RootID, 0o600, &e))
			ids = append(ids, e.ID)
		}
		j.fs.fds.mu.Lock()
		j.fs.fds.shrinkLocked(0)
		j.fs.fds.mu.Unlock()
		if now := descriptors(t); now > before {
			t.Errorf("%d descriptors for %d files without a name", now-before, len(ids))
		}
		j.wantOrphans(2 * n)
		for _, id := range ids {
			j.fs.Forget(id, 10)
		}
		j.wantOrphans(0)
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestTmpfileGetsAName(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.open()
		var e, linked Entry
		j.must(j.fs.Tmpfile(Caller{}, RootID, 0o640, &e))
		if e.Nlink != 0 || e.Mode != unix.S_IFREG|0o640 {
			t.Errorf("got nlink %d, mode %o", e.Nlink, e.Mode)
		}
		j.write(e.ID, "content")
		j.must(j.fs.Link(e.ID, RootID, "named", &linked))
		if linked.ID != e.ID || linked.Nlink != 1 || linked.Ino != e.Ino {
			t.Errorf("got node %d, nlink %d, ino %d, want %d, 1, %d", linked.ID, linked.Nlink, linked.Ino, e.ID, e.Ino)
		}
		j.wantOrphans(0)
		j.reopen()
		if got := j.read("named"); got != "content" {
			t.Errorf("content: got %q", got)
		}
		if a := j.stat("named"); a.Nlink != 1 {
			t.Errorf("nlink: got %d, want 1", a.Nlink)
		}
	})
}

// TestOrphanOfSeveralNames unlinks the only name the kernel knows of a file with two.
func TestOrphanOfSeveralNames(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.open()
		j.create("a", "both")
		var e Entry
		j.must(j.fs.Link(j.mustID("a"), RootID, "b", &e))
		j.reopen() // which forgets the names
		id := j.mustID("a")
		j.unlink("a")
		var a Attr
		j.must(j.fs.Getattr(id, &a))
		if a.Nlink != 1 {
			t.Errorf("nlink: got %d, want 1", a.Nlink)
		}
		j.write(id, "BOTH")
		if got := j.read("b"); got != "BOTH" {
			t.Errorf("b: got %q", got)
		}
		if b := j.stat("b"); b.Nlink != 1 || b.Ino != a.Ino {
			t.Errorf("b: got nlink %d, ino %d, want 1, %d", b.Nlink, b.Ino, a.Ino)
		}
		if other := j.mustID("b"); other != id {
			t.Errorf("b is node %d, want %d", other, id)
		}
		j.unlink("b")
		j.must(j.fs.Getattr(id, &a))
		if a.Nlink != 0 {
			t.Errorf("without names: got nlink %d, want 0", a.Nlink)
		}
		j.fs.Forget(id, 100)
		j.wantOrphans(0)
	})
}

func TestLowerFileWithoutANameIsTheSameOrStale(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("f", "lower")
		j.put("g", "lower")
		j.open()
		f, g := j.mustID("f"), j.mustID("g")
		j.unlink("f")
		j.unlink("g")
		j.must(errors.Join(os.Remove(j.low("f")), os.Rename(j.low("g"), j.low("g.old"))))
		j.put("g", "another")
		j.fs.fds.closeAll()
		for _, id := range []uint64{f, g} {
			if _, err := j.fs.Content(id); !errors.Is(err, unix.ESTALE) {
				t.Errorf("content: got %v, want ESTALE", err)
			}
			if _, err := j.fs.Write(id, []byte("x"), 0, true); !errors.Is(err, unix.ESTALE) {
				t.Errorf("write: got %v, want ESTALE", err)
			}
		}
	})
}

func TestOrphansOfACrashAreRemoved(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		for _, name := range []string{"1", "2"} {
			j.must(os.WriteFile(filepath.Join(j.dir, "orphans", name), nil, 0o600))
		}
		j.must(os.Mkdir(filepath.Join(j.dir, "orphans", "3"), 0o700))
		j.open()
		j.wantOrphans(0)
		j.create("f", "")
		j.unlink("f") // known under 1 perhaps
		j.wantOrphans(1)
		j.reopen()
		j.wantOrphans(0)
	})
}

// TestReplacedDirectoryKeepsItsAttributes replaces a directory somebody is in: another one stands in
// for it, and the number of the one that is gone may be given to anything.
func TestReplacedDirectoryKeepsItsAttributes(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.open()
		j.mkdir("d")
		id := j.mustID("d")
		var a Attr
		j.must(j.fs.Setattr(id, &SetAttr{Set: SetMode, Mode: 0o1500}, &a))
		j.must(j.fs.Setxattr(id, "user.x", []byte("value"), 0))
		j.mkdir("new")
		j.must(j.rename("new", "d", 0))
		j.must(j.fs.Getattr(id, &a))
		if a.Mode != unix.S_IFDIR|0o1500 || a.Nlink != 0 {
			t.Errorf("got mode %o, nlink %d", a.Mode, a.Nlink)
		}
		buf := make([]byte, 10)
		if n, err := j.fs.Getxattr(id, "user.x", buf); err != nil || string(buf[:n]) != "value" {
			t.Errorf("xattr: got %q, %v", buf[:n], err)
		}
		names := 0
		j.must(j.fs.Readdir(id, 0, false, func(*DirEntry) bool { names++; return true }))
		if names != 2 {
			t.Errorf("%d entries, want . and .. alone", names)
		}
		var e Entry
		if err := j.fs.Create(Caller{}, id, "x", 0, 0o600, &e); err != unix.ENOENT {
			t.Errorf("create in it: got %v, want ENOENT", err)
		}
		j.wantOrphans(1)
		j.fs.Forget(id, 100)
		j.wantOrphans(0)
		for ino := range j.fs.tab.attrs {
			t.Errorf("inode %d is gone and still has attributes", ino)
		}
	})
}
