package overlay

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/fs/hostfs"
	"stage/fs/tree"
	"stage/journal"
	"stage/test/testenv"
)

// job is an overlay over a temporary lower and upper, driven without FUSE. Paths are relative.
type job struct {
	t            *testing.T
	dir          string
	lower, upper hostfs.Dir
	orphans      hostfs.Dir
	pre          hostfs.Dir // nil keeps no preimages
	fs           *FS
	rules        Rules
	telling      sync.Mutex
	events       []Event // guarded by telling until close
	boot         string
	logs         hostfs.Dir // nil keeps the log from being written anew
}

// asUsers runs a test as root and as an ordinary user.
func asUsers(t *testing.T, test func(t *testing.T, j *job)) {
	t.Helper()
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		dir := u.TempDir(t)
		u.Become(t)
		unix.Umask(0o022)
		for _, d := range []string{"lower", "upper", "orphans"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		j := &job{t: t, dir: dir}
		t.Cleanup(func() {
			if j.fs != nil {
				j.close()
			}
		})
		test(t, j)
	})
}

func (j *job) must(err error) {
	j.t.Helper()
	if err != nil {
		j.t.Fatal(err)
	}
}

// put makes a file in the lower.
func (j *job) put(path, content string) {
	j.t.Helper()
	full := j.low(path)
	j.must(os.MkdirAll(filepath.Dir(full), 0o755))
	j.must(os.WriteFile(full, []byte(content), 0o644))
}

func (j *job) low(path string) string { return filepath.Join(j.dir, "lower", path) }
func (j *job) up(path string) string  { return filepath.Join(j.dir, "upper", path) }

func (j *job) open() {
	j.t.Helper()
	var err error
	j.lower, err = hostfs.OpenRoot(filepath.Join(j.dir, "lower"))
	j.must(err)
	j.upper, err = hostfs.OpenRoot(filepath.Join(j.dir, "upper"))
	j.must(err)
	j.orphans, err = hostfs.OpenRoot(filepath.Join(j.dir, "orphans"))
	j.must(err)
	log, err := os.OpenFile(filepath.Join(j.dir, "log"), os.O_RDWR|os.O_CREATE, 0o600)
	j.must(err)
	j.fs, err = Open(Config{
		Lower: j.lower, Upper: j.upper, Orphans: j.orphans, Preimages: j.pre, IDs: j.ids(), Rules: j.rules,
		LogFile: log, LogDir: j.logs, LogName: "log", Boot: j.boot,
		OnEvent: func(e Event) {
			j.telling.Lock()
			defer j.telling.Unlock()
			j.events = append(j.events, e)
		},
	})
	j.must(err)
}

func (j *job) ids() IDs {
	uid := uint32(unix.Geteuid())
	return IDs{Rootless: uid != 0, UID: uid, GID: uint32(unix.Getegid())}
}

func (j *job) close() {
	j.t.Helper()
	j.must(j.fs.Close())
	if left, err := os.ReadDir(filepath.Join(j.dir, "orphans")); err != nil || len(left) != 0 {
		j.t.Errorf("orphans after Close: %v, %v", left, err)
	}
	j.must(errors.Join(j.orphans.Close(), j.upper.Close(), j.lower.Close()))
	j.fs = nil
}

// reopen closes the overlay and opens it again, as the next session of the Job does.
func (j *job) reopen() {
	j.t.Helper()
	j.close()
	j.open()
}

// id looks a path up, and keeps the lookups, like a kernel that caches for an hour.
func (j *job) id(path string) (uint64, error) {
	id := uint64(RootID)
	if path == "." {
		return id, nil
	}
	for name := range strings.SplitSeq(path, "/") {
		var e Entry
		if err := j.fs.Lookup(id, name, &e); err != nil {
			return 0, err
		}
		id = e.ID
	}
	return id, nil
}

func (j *job) mustID(path string) uint64 {
	j.t.Helper()
	id, err := j.id(path)
	if err != nil {
		j.t.Fatalf("lookup %q: %v", path, err)
	}
	return id
}

func (j *job) parent(path string) (uint64, string) {
	j.t.Helper()
	return j.mustID(filepath.Dir(path)), filepath.Base(path)
}

func (j *job) stat(path string) Attr {
	j.t.Helper()
	var a Attr
	j.must(j.fs.Getattr(j.mustID(path), &a))
	return a
}

func (j *job) create(path, content string) uint64 {
	j.t.Helper()
	p, name := j.parent(path)
	var e Entry
	j.must(j.fs.Create(Caller{}, p, name, unix.O_EXCL, 0o644, &e))
	j.write(e.ID, content)
	return e.ID
}

func (j *job) write(id uint64, content string) {
	j.t.Helper()
	_, err := j.fs.Write(id, []byte(content), 0, true)
	j.must(err)
}

func (j *job) mkdir(path string) {
	j.t.Helper()
	p, name := j.parent(path)
	var e Entry
	j.must(j.fs.Mkdir(Caller{}, p, name, 0o755, &e))
}

func (j *job) unlink(path string) {
	j.t.Helper()
	p, name := j.parent(path)
	j.must(j.fs.Unlink(p, name))
}

func (j *job) rmdir(path string) {
	j.t.Helper()
	p, name := j.parent(path)
	j.must(j.fs.Rmdir(p, name))
}

func (j *job) rename(from, to string, flags uint32) error {
	j.t.Helper()
	p, name := j.parent(from)
	q, newName := j.parent(to)
	if _, err := j.id(to); err != nil && !errors.Is(err, unix.ENOENT) { // the kernel looks first
		return err
	}
	return j.fs.Rename(p, name, q, newName, flags)
}

func (j *job) read(path string) string {
	j.t.Helper()
	c, err := j.fs.Content(j.mustID(path))
	j.must(err)
	defer c.Done(0, false)
	b := make([]byte, 1<<20)
	n, err := unix.Pread(c.FD(), b, 0)
	j.must(err)
	return string(b[:n])
}

// ls lists a directory, sorted.
func (j *job) ls(path string) []string {
	j.t.Helper()
	var names []string
	j.must(j.fs.Readdir(j.mustID(path), 0, false, func(d *DirEntry) bool {
		if d.Name != "." && d.Name != ".." {
			names = append(names, d.Name)
		}
		return true
	}))
	slices.Sort(names)
	return names
}

func (j *job) wantLs(path string, want ...string) {
	j.t.Helper()
	if got := j.ls(path); !slices.Equal(got, want) {
		j.t.Errorf("ls %s: got %q, want %q", path, got, want)
	}
}

func (j *job) wantAbsent(path string) {
	j.t.Helper()
	if _, err := j.id(path); !errors.Is(err, unix.ENOENT) {
		j.t.Errorf("lookup %s: got %v, want ENOENT", path, err)
	}
}

func (j *job) wantRead(path, want string) {
	j.t.Helper()
	if got := j.read(path); got != want {
		j.t.Errorf("read %s: got %q, want %q", path, got, want)
	}
}

// records reads the change log.
func (j *job) records() []Record {
	j.t.Helper()
	f, err := os.Open(filepath.Join(j.dir, "log"))
	j.must(err)
	defer f.Close()
	var recs []Record
	j.must(journal.Read(f, LogKind, func(_ uint64, raw json.RawMessage) error {
		var r Record
		recs = append(recs, r)
		return json.Unmarshal(raw, &recs[len(recs)-1])
	}))
	return recs
}

func (j *job) state() *State {
	j.t.Helper()
	f, err := os.Open(filepath.Join(j.dir, "log"))
	j.must(err)
	defer f.Close()
	s, err := LoadState(f)
	j.must(err)
	return s
}

// ops returns the operations recorded since the n-th record, with their paths.
func (j *job) ops(since int) []string {
	j.t.Helper()
	var out []string
	for _, r := range j.records()[since:] {
		s := string(r.Op) + " " + r.Path.String()
		if r.To != nil {
			s += " " + r.To.String()
		}
		out = append(out, s)
	}
	return out
}

func path(s string) tree.Path { return tree.MustParsePath(s) }

func digest(s string) tree.Digest {
	return tree.Digest(fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(s))))
}

func TestMergedDirectoryShowsBothLayers(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("d/lower", "1")
		j.put("d/both", "2")
		j.put("d/gone", "3")
		j.open()
		j.create("d/upper", "4")
		j.write(j.mustID("d/both"), "changed")
		j.unlink("d/gone")
		check := func() {
			t.Helper()
			j.wantLs("d", "both", "lower", "upper")
			j.wantRead("d/both", "changed")
			j.wantRead("d/lower", "1")
			j.wantAbsent("d/gone")
		}
		check()
		j.reopen()
		check()
	})
}

func TestUntouchedTreeRecordsNothing(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("a/b/c", "x")
		j.open()
		j.ls("a/b")
		j.read("a/b/c")
		j.stat("a")
		j.must(j.fs.Fsync(j.mustID("a/b/c"), true))
		if recs := j.records(); len(recs) != 0 {
			t.Errorf("got records %v", recs)
		}
		if list, err := os.ReadDir(j.up(".")); err != nil || len(list) != 0 {
			t.Errorf("upper holds %v, %v", list, err)
		}
	})
}

func TestWhiteoutIsRecordedAndNotInTheUpper(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("f", "x")
		j.open()
		j.unlink("f")
		j.wantAbsent("f")
		if list, err := os.ReadDir(j.up(".")); err != nil || len(list) != 0 {
			t.Errorf("upper holds %v, %v", list, err)
		}
		s := j.state()
		if !s.Root.White["f"] {
			t.Error("f is not white")
		}
		if b := s.Bases[path("f")]; b.Node.Kind != tree.File || b.Node.Size != 1 || b.Node.Digest != "" {
			t.Errorf("base of f: got %+v", b.Node)
		}
	})
}

func TestBaseHoldsDigestOfWhatWasCopied(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("d/f", "content before")
		old := time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC)
		j.must(os.Chtimes(j.low("d/f"), old, old))
		j.must(unix.Setxattr(j.low("d/f"), "user.k", []byte("v"), 0))
		j.open()
		j.write(j.mustID("d/f"), "new")
		b, ok := j.state().Bases[path("d/f")]
		if !ok {
			t.Fatal("no base of d/f")
		}
		if b.Node.Digest != digest("content before") {
			t.Errorf("digest: got %s, want %s", b.Node.Digest, digest("content before"))
		}
		if b.Node.Mtime != tree.Time(old.UnixNano()) || string(b.Node.Xattrs["user.k"]) != "v" {
			t.Errorf("base: got %+v", b.Node)
		}
		if d, ok := j.state().Bases[path("d")]; !ok || d.Node.Kind != tree.Dir {
			t.Errorf("base of d: got %+v, %v", d, ok)
		}
	})
}

func TestFirstBaseStays(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("f", "one")
		j.open()
		j.write(j.mustID("f"), "1")
		n := len(j.records())
		j.write(j.mustID("f"), "2")
		j.unlink("f")
		j.create("f", "3")
		for _, op := range j.ops(n) {
			if strings.HasPrefix(op, "base") {
				t.Errorf("another %s", op)
			}
		}
		if b := j.state().Bases[path("f")]; b.Node.Digest != digest("one") {
			t.Errorf("base: got %+v", b.Node)
		}
	})
}

func TestNewFilesBelowANewDirectoryNeedNoRecord(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.open()
		j.mkdir("d")
		n := len(j.records())
		j.mkdir("d/sub")
		id := j.create("d/sub/f", "x")
		var a Attr
		j.must(j.fs.Setattr(id, &SetAttr{Set: SetTimes, Mtime: unix.Timespec{Sec: 1}, Atime: unix.Timespec{Sec: 1}}, &a))
		j.unlink("d/sub/f")
		if ops := j.ops(n); len(ops) != 0 {
			t.Errorf("got records %q", ops)
		}
	})
}

func TestDirectoryRenameIsOneMove(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		for i := range 50 {
			j.put(fmt.Sprintf("d/s%d/f", i), "x")
		}
		j.open()
		n := len(j.records())
		j.must(j.rename("d", "e", 0))
		want := []string{"open .", "base .", "copy .", "copy d", "base d", "dir d", "base d", "base e", "lower d", "white d", "move d e"}
		if ops := j.ops(n); !slices.Equal(ops, want) {
			t.Errorf("got %q, want %q", ops, want)
		}
		if b := j.state().Bases[path("d")]; !b.Subtree || b.Time == 0 {
			t.Errorf("base of d: got %+v", b)
		}
		m := j.state().Lookup(path("e"))
		if m == nil || m.Lower == nil || *m.Lower != path("d") {
			t.Errorf("mark of e: got %+v", m)
		}
		j.write(j.mustID("e/s3/f"), "changed")
		j.must(j.rename("e", "g", 0))
		j.reopen()
		j.wantAbsent("d")
		j.wantAbsent("e")
		j.wantRead("g/s3/f", "changed")
		j.wantRead("g/s4/f", "x")
		if len(j.ls("g")) != 50 {
			t.Errorf("g shows %q", j.ls("g"))
		}
	})
}

func TestRecreatedDirectoryIsOpaque(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("d/old", "1")
		j.open()
		j.unlink("d/old")
		j.rmdir("d")
		j.mkdir("d")
		j.wantLs("d")
		j.create("d/old", "new")
		j.reopen()
		j.wantLs("d", "old")
		j.wantRead("d/old", "new")
		if m := j.state().Lookup(path("d")); m == nil || !m.Opaque {
			t.Errorf("mark of d: got %+v", m)
		}
	})
}

func TestRemovalForgetsMarks(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("d/sub/x", "1")
		j.open()
		j.must(j.rename("d/sub", "moved", 0))
		j.unlink("moved/x")
		j.rmdir("moved")
		if m := j.state().Lookup(path("moved")); m != nil && !m.trace() {
			t.Errorf("mark of moved: got %+v", m)
		}
		j.mkdir("moved")
		j.wantLs("moved")
		j.reopen()
		j.wantLs("moved")
	})
}

func TestCopyUpIsExact(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		old := time.Date(1999, 1, 2, 3, 4, 5, 123456789, time.UTC)
		j.put("a/b/f", "")
		f, err := os.OpenFile(j.low("a/b/f"), os.O_RDWR, 0)
		j.must(err)
		_, err = f.WriteAt([]byte("far"), 1<<20)
		j.must(err)
		j.must(errors.Join(f.Truncate(3<<20), f.Chmod(0o640), f.Close()))
		j.must(unix.Setxattr(j.low("a/b/f"), "user.bin", []byte{0, 1, 255}, 0))
		j.must(os.Chmod(j.low("a/b"), 0o750))
		for _, p := range []string{"a/b/f", "a/b", "a"} {
			j.must(os.Chtimes(j.low(p), old, old))
		}
		before := testenv.Snapshot(t, j.low("."))
		j.open()
		before2 := j.stat("a/b/f")
		j.must(j.fs.Setxattr(j.mustID("a/b/f"), "user.x", nil, 0))
		j.must(j.fs.Removexattr(j.mustID("a/b/f"), "user.x"))
		if after := j.stat("a/b/f"); after.Ino != before2.Ino || after.Mtime != before2.Mtime || after.Mode != before2.Mode {
			t.Errorf("attributes: got %+v, want %+v", after, before2)
		}
		if d := testenv.Untouched(before, testenv.Snapshot(t, j.low("."))); d != "" {
			t.Errorf("the lower was touched:\n%s", d)
		}
		if d := testenv.Diff(before.Without("."), testenv.Snapshot(t, j.up(".")).Without(".")); d != "" {
			t.Errorf("the copy differs:\n%s", d)
		}
	})
}

func TestForeignModesAreLogical(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("f", "x")
		j.must(os.Chmod(j.low("f"), 0o444))
		j.open()
		var a Attr
		j.must(j.fs.Setattr(j.mustID("f"), &SetAttr{Set: SetMode, Mode: 0o000}, &a))
		if a.Mode&0o7777 != 0 {
			t.Errorf("mode: got %o, want 0", a.Mode)
		}
		j.write(j.mustID("f"), "y") // through a descriptor opened before
		j.reopen()
		if a := j.stat("f"); a.Mode&0o7777 != 0 {
			t.Errorf("mode after reopen: got %o, want 0", a.Mode)
		}
		buf := make([]byte, 100)
		if n, err := j.fs.Listxattr(j.mustID("f"), buf); n != 0 || err != nil {
			t.Errorf("list shows %q, %v", buf[:n], err)
		}
		if err := j.fs.Setxattr(j.mustID("f"), AttrXattr, []byte("x"), 0); err != unix.EPERM {
			t.Errorf("set %s: got %v, want EPERM", AttrXattr, err)
		}
	})
}

func TestAttrEncoding(t *testing.T) {
	mode, uid, gid, err := DecodeAttr(EncodeAttr(0o4750, 1000, 4294967295))
	if mode != 0o4750 || uid != 1000 || gid != 4294967295 || err != nil {
		t.Errorf("got %o %d %d %v", mode, uid, gid, err)
	}
	for _, bad := range []string{"", "v2 0644 1 2", "v1 0644 1", "v1 10000 1 2", "v1 0644 1 2 3", "v1 0844 1 2", "v1 0644 -1 2"} {
		if _, _, _, err := DecodeAttr([]byte(bad)); !errors.Is(err, ErrAttr) {
			t.Errorf("decode %q: got %v, want ErrAttr", bad, err)
		}
	}
}

// TestOwnersShown is the table of the one function that translates ids.
func TestOwnersShown(t *testing.T) {
	rootless := IDs{Rootless: true, UID: 1000, GID: 100, Groups: []uint32{100, 7}}
	for _, c := range []struct {
		name    string
		ids     IDs
		o, want owner
	}{
		{"root sees what is", IDs{}, owner{0o640, 5, 6}, owner{0o640, 5, 6}},
		{"own file", rootless, owner{0o640, 1000, 100}, owner{0o640, 0, 0}},
		{"own file of a foreign group", rootless, owner{0o040, 1000, 55}, owner{0o040, 0, 0}},
		{"foreign, world-readable", rootless, owner{0o644, 0, 0}, owner{0o444, 0, 0}},
		{"foreign, own group may write", rootless, owner{0o664, 0, 7}, owner{0o664, 0, 0}},
		{"foreign, own primary group may read", rootless, owner{0o640, 0, 100}, owner{0o440, 0, 0}},
		{"foreign, closed", rootless, owner{0o700, 0, 0}, owner{0o000, 0, 0}},
		{"foreign, group has less than others", rootless, owner{0o707, 0, 7}, owner{0o007, 0, 0}},
	} {
		if got := c.ids.show(c.o); got != c.want {
			t.Errorf("%s: got %o %d %d, want %o %d %d", c.name, got.mode, got.uid, got.gid, c.want.mode, c.want.uid, c.want.gid)
		}
	}
}

func TestForeignOwnerIsChecked(t *testing.T) {
	testenv.Need(t, testenv.Root)
	asUsers(t, func(t *testing.T, j *job) {
		if unix.Geteuid() == 0 {
			t.Skip("root sees owners as they are")
		}
		// Only root could make files of another owner here; the ids are shifted instead.
		j.put("f", "x")
		j.open()
		j.fs.ids.UID += 5
		a := j.stat("f")
		if a.Mode&0o700 != 0o400 {
			t.Errorf("mode: got %o, want owner bits of others", a.Mode)
		}
		for name, s := range map[string]*SetAttr{
			"chmod":  {Set: SetMode, Mode: 0o777},
			"utimes": {Set: SetTimes, Mtime: unix.Timespec{Sec: 1}, Atime: unix.Timespec{Sec: 1}},
			"chown":  {Set: SetUID},
		} {
			if err := j.fs.Setattr(j.mustID("f"), s, &a); err != unix.EPERM {
				t.Errorf("%s: got %v, want EPERM", name, err)
			}
		}
		now := unix.Timespec{Nsec: unix.UTIME_NOW}
		if err := j.fs.Setattr(j.mustID("f"), &SetAttr{Set: SetTimes, Mtime: now, Atime: now}, &a); err != unix.EACCES {
			t.Errorf("touch: got %v, want EACCES", err)
		}
		j.fs.ids.UID -= 5
	})
}

func TestMovingLowerFileFailsTheWrite(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("f", strings.Repeat("x", 100))
		j.open()
		src, err := unix.Open(j.low("f"), unix.O_RDWR, 0)
		j.must(err)
		defer unix.Close(src)
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := int64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
					_ = unix.Ftruncate(src, 100+i%50)
				}
			}
		}()
		var failed error
		for range 200 {
			var c *copied
			if c, failed = j.fs.copyFile(src, toChange); failed != nil {
				break
			}
			closeFD(c.fd)
		}
		close(stop)
		<-done
		if failed != nil && !errors.Is(failed, errMoving) {
			t.Errorf("got %v, want errMoving or success", failed)
		}
		if _, err := j.fs.copyFile(src, toChange); err != nil {
			t.Errorf("copy of a file at rest: %v", err)
		}
	})
}

func TestDescriptorsAreBounded(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		for i := range 200 {
			j.put(fmt.Sprintf("d%d/f", i), "x")
		}
		j.open()
		j.fs.fds.max = 20
		for i := range 200 {
			p := fmt.Sprintf("d%d/f", i)
			j.wantRead(p, "x")
			j.write(j.mustID(p), "y")
		}
		if n := j.fs.fds.n; n > 20 {
			t.Errorf("%d descriptors in the cache, want at most 20", n)
		}
		for i := range 200 {
			j.wantRead(fmt.Sprintf("d%d/f", i), "y")
		}
	})
}

func TestForgetFreesNodes(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		for i := range 3000 {
			j.put(fmt.Sprintf("d/f%d", i), "x")
		}
		j.open()
		var ids []uint64
		walk := func() {
			d := j.mustID("d")
			ids = append(ids, d)
			j.must(j.fs.Readdir(d, 0, true, func(e *DirEntry) bool {
				if e.Entry != nil {
					ids = append(ids, e.Entry.ID)
				}
				return true
			}))
		}
		walk()
		first := slices.Clone(ids)
		// Parents may go first.
		for _, id := range ids {
			j.fs.Forget(id, 1)
		}
		if n := j.fs.nodes(); n != 1 {
			t.Errorf("%d nodes left, want the root", n)
		}
		ids = nil
		walk()
		for _, id := range first {
			if slices.Contains(ids, id) {
				t.Fatalf("number %#x was given again", id)
			}
		}
		var a Attr
		if err := j.fs.Getattr(first[1], &a); err != unix.ESTALE {
			t.Errorf("getattr of a forgotten number: got %v, want ESTALE", err)
		}
		for _, id := range ids {
			j.fs.Forget(id, 1)
		}
	})
}

// nodes counts the nodes in the table.
func (f *FS) nodes() int {
	n := 0
	f.tab.each(func(*node) { n++ })
	return n
}

func TestUnlinkedFileLivesUntilForgotten(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("f", "lower")
		j.open()
		id := j.mustID("f")
		j.unlink("f")
		var a Attr
		j.must(j.fs.Getattr(id, &a))
		if a.Nlink != 0 {
			t.Errorf("nlink: got %d, want 0", a.Nlink)
		}
		j.write(id, "LO")
		j.must(j.fs.Setattr(id, &SetAttr{Set: SetSize, Size: 4}, &a))
		if a.Size != 4 || a.Nlink != 0 {
			t.Errorf("got size %d, nlink %d", a.Size, a.Nlink)
		}
		j.fs.Forget(id, 1)
		if err := j.fs.Getattr(id, &a); err != unix.ESTALE {
			t.Errorf("after forget: got %v, want ESTALE", err)
		}
		if list, _ := os.ReadDir(j.up(".")); len(list) != 0 {
			t.Errorf("upper holds %v", list)
		}
	})
}

func TestLowerFifoNeverBlocks(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.must(unix.Mkfifo(j.low("p"), 0o644))
		j.open()
		id := j.mustID("p")
		if _, err := j.fs.Content(id); err != unix.EINVAL {
			t.Errorf("content: got %v, want EINVAL", err)
		}
		if _, err := j.fs.Write(id, []byte("x"), 0, false); err != unix.EINVAL {
			t.Errorf("write: got %v, want EINVAL", err)
		}
		// The host puts a FIFO where a file was known.
		j.put("f", "x")
		f := j.mustID("f")
		j.must(errors.Join(os.Remove(j.low("f")), unix.Mkfifo(j.low("f"), 0o644)))
		j.fs.fds.closeAll()
		if _, err := j.fs.Content(f); err != unix.ESTALE {
			t.Errorf("content of what became a FIFO: got %v, want ESTALE", err)
		}
		j.must(j.rename("p", "q", 0))
	})
}

func TestOffsetsOutlastChanges(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		for i := range 20 {
			j.put(fmt.Sprintf("d/f%02d", i), "")
		}
		j.open()
		d := j.mustID("d")
		var order []DirEntry
		j.must(j.fs.Readdir(d, 0, false, func(e *DirEntry) bool {
			order = append(order, *e)
			return len(order) < 10
		}))
		for _, e := range order[3:6] {
			j.unlink("d/" + e.Name)
		}
		j.create("d/a-new", "")
		j.ls("d") // another reader lists anew
		seen := map[string]bool{}
		j.must(j.fs.Readdir(d, order[8].Off, false, func(e *DirEntry) bool {
			seen[e.Name] = true
			return true
		}))
		for _, e := range order[:9] {
			if seen[e.Name] {
				t.Errorf("%s came twice", e.Name)
			}
		}
		if want := 20 - 7; len(seen) != want+1 && len(seen) != want {
			t.Errorf("%d entries behind the offset, want %d and perhaps the new one", len(seen), want)
		}
	})
}

func TestUpperWithoutUnnamedFilesIsRefused(t *testing.T) {
	if _, err := probeUpper(procDir(t), false); err == nil {
		t.Error("got no error for /proc")
	}
}

func procDir(t *testing.T) int {
	fd, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func TestCopyUpKeepsHolesAndHashesThem(t *testing.T) {
	dir := t.TempDir()
	src, err := os.OpenFile(filepath.Join(dir, "src"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.OpenFile(filepath.Join(dir, "dst"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	if _, err := src.WriteAt(bytes.Repeat([]byte("d"), 5000), 100000); err != nil {
		t.Fatal(err)
	}
	if err := src.Truncate(300000); err != nil {
		t.Fatal(err)
	}
	got, err := new(FS).copyContent(int(dst.Fd()), int(src.Fd()), 300000)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "dst"))
	if err != nil {
		t.Fatal(err)
	}
	if want := digest(string(b)); got != "" && got != want || len(b) != 300000 {
		t.Errorf("digest: got %s, want %s of %d bytes", got, want, len(b))
	}
}

// TestListingNeedsNoSearch: a directory without x can be listed, as on any file system.
func TestListingNeedsNoSearch(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("d/f", "x")
		j.open()
		d := j.mustID("d")
		j.must(os.Chmod(j.low("d"), 0o600))
		var names []string
		j.must(j.fs.Readdir(d, 0, true, func(e *DirEntry) bool { names = append(names, e.Name); return true }))
		if got := strings.Join(names, " "); got != ". .. f" {
			t.Errorf("got %q", got)
		}
		j.must(os.Chmod(j.low("d"), 0o700))
	})
}
