package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"stage/test/testenv"
)

// mountedDir returns a directory of a new file system of the given type, that everybody may write to.
func mountedDir(t *testing.T, kind string) string {
	t.Helper()
	dir := t.TempDir()
	at := filepath.Join(dir, "mnt")
	args := []string{"-t", "tmpfs", "-o", "size=512m", "tmpfs", at}
	if kind != "tmpfs" {
		testenv.Need(t, testenv.Tool("mkfs."+kind))
		image := filepath.Join(dir, "image")
		if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 700<<20)); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("mkfs."+kind, image).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		args = []string{"-o", "loop", image, at}
	}
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Errorf("unmount %s: %v", at, err)
		}
	})
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.Chmod(at, 0o777)); err != nil {
		t.Fatal(err)
	}
	return at
}

// TestCopiesAreExact copies files up on several file systems: content, holes, times, attributes, and
// reflinks where there are some.
func TestCopiesAreExact(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Loop)
	for _, kind := range []string{"ext4", "xfs", "btrfs", "tmpfs"} {
		t.Run(kind, func(t *testing.T) {
			top := mountedDir(t, kind)
			testenv.Users(t, func(t *testing.T, u testenv.User) {
				u.Become(t)
				unix.Umask(0o022)
				j := &job{t: t, dir: filepath.Join(top, fmt.Sprint(u.UID))}
				j.must(os.Mkdir(j.dir, 0o755))
				for _, d := range []string{"lower", "upper", "orphans"} {
					j.must(os.Mkdir(filepath.Join(j.dir, d), 0o755))
				}
				j.exactFiles(kind)
				j.open()
				for name, file := range exactCases {
					file.check(j, name, kind)
				}
				j.close()
			})
		})
	}
}

type exactCase struct {
	size int64
	data map[int64]int // length of data by offset
}

var exactCases = map[string]exactCase{
	"empty":  {},
	"small":  {100, map[int64]int{0: 100}},
	"sparse": {12 << 20, map[int64]int{1 << 20: 1 << 20, 9 << 20: 70_000}},
	"large":  {maxPreimage + 4711, map[int64]int{0: maxPreimage + 4711}},
	"huge":   {1 << 40, map[int64]int{0: 4096, 1 << 39: 8192}},
}

var exactTime = time.Unix(1_234_567_890, 123_456_789)

func (j *job) exactFiles(kind string) {
	j.t.Helper()
	for name, c := range exactCases {
		f, err := os.OpenFile(j.low(name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
		j.must(err)
		for off, n := range c.data {
			_, err := f.WriteAt(bytes.Repeat([]byte("0123456789abcde\n"), n/16+1)[:n], off)
			j.must(err)
		}
		j.must(errors.Join(f.Truncate(c.size), f.Sync(), f.Close()))
		for attr, value := range j.exactXattrs(kind) {
			if err := unix.Setxattr(j.low(name), attr, value, 0); err != nil {
				j.t.Fatalf("set %s: %v", attr, err)
			}
		}
		j.must(os.Chtimes(j.low(name), exactTime, exactTime))
	}
}

// exactXattrs are the extended attributes of every file.
func (j *job) exactXattrs(kind string) map[string][]byte {
	acl := []byte{2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 105, 18, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255,
		16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255}
	x := map[string][]byte{"user.some": bytes.Repeat([]byte("x"), 500), "system.posix_acl_access": acl}
	if os.Geteuid() == 0 {
		x["trusted.some"] = []byte("t")
		x["security.capability"] = []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	}
	return x
}

// check copies name up by a change of its mode, which leaves the rest.
func (c exactCase) check(j *job, name, kind string) {
	j.t.Helper()
	t := j.t
	var lower, upper unix.Stat_t
	j.must(unix.Stat(j.low(name), &lower))
	ino := j.stat(name).Ino
	begin := time.Now()
	j.must(j.trySetattr(name, SetAttr{Set: SetTimes, Atime: unix.Timespec{Nsec: unix.UTIME_OMIT}, Mtime: unix.NsecToTimespec(exactTime.UnixNano())}))
	took := time.Since(begin)
	j.must(unix.Stat(j.up(name), &upper))
	if upper.Mtim != lower.Mtim || upper.Atim != lower.Atim || upper.Size != lower.Size || upper.Mode != lower.Mode || upper.Uid != lower.Uid || upper.Gid != lower.Gid {
		t.Errorf("%s: got %+v, want %+v", name, upper, lower)
	}
	if upper.Blocks > lower.Blocks+16 {
		t.Errorf("%s: %d blocks of %d", name, upper.Blocks, lower.Blocks)
	}
	if j.stat(name).Ino != ino {
		t.Errorf("%s: another inode number", name)
	}
	for attr, want := range j.exactXattrs(kind) {
		buf := make([]byte, 4096)
		n, err := unix.Getxattr(j.up(name), attr, buf)
		if err != nil || !bytes.Equal(buf[:n], want) {
			t.Errorf("%s: %s is %q, %v", name, attr, buf[:n], err)
		}
	}
	for off, n := range c.data {
		if !bytes.Equal(readAt(t, j.up(name), off, n), readAt(t, j.low(name), off, n)) {
			t.Errorf("%s: other content at %d", name, off)
		}
	}
	if reflinks := kind == "xfs" || kind == "btrfs"; reflinks && name == "large" && !sharesExtents(t, j.up(name)) {
		t.Errorf("%s: not reflinked", name)
	}
	b := j.fs.bases.Bases[path(name)].Node
	if c.size <= maxPreimage && b.Digest != digest(string(readAt(t, j.low(name), 0, int(c.size)))) {
		t.Errorf("%s: digest %q", name, b.Digest)
	}
	if name == "huge" {
		t.Logf("%d GiB sparse copied in %v", c.size>>30, took)
		if took > 5*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
	}
}

func readAt(t *testing.T, name string, off int64, n int) []byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, off); err != nil && n > 0 {
		t.Fatal(err)
	}
	return b
}

// sharesExtents reports whether the first extent of a file is another's too (FS_IOC_FIEMAP).
func sharesExtents(t *testing.T, name string) bool {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var m struct { // struct fiemap with one struct fiemap_extent (linux/fiemap.h)
		start, length                  uint64
		flags, mapped, count, reserved uint32
		logical, physical, size        uint64
		_                              [2]uint64
		extentFlags                    uint32
		_                              [3]uint32
	}
	m.length, m.flags, m.count = 1<<20, 1, 1
	const fsIocFiemap, shared = 0xC020660B, 0x2000
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsIocFiemap, uintptr(unsafe.Pointer(&m))); errno != 0 {
		t.Fatal(errno)
	}
	return m.mapped == 1 && m.extentFlags&shared != 0
}

// TestFileThatKeepsMovingIsNotCopied has somebody write to the workspace as fast as he can: every copy
// is of one state, or there is none.
func TestFileThatKeepsMovingIsNotCopied(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		const size = 1 << 20
		j.put("f", string(make([]byte, size)))
		var stop atomic.Bool
		done := make(chan error)
		go func() {
			f, err := os.OpenFile(j.low("f"), os.O_RDWR, 0)
			for n := byte(1); err == nil && !stop.Load(); n++ {
				_, err = f.WriteAt(bytes.Repeat([]byte{n}, size), 0)
			}
			done <- errors.Join(err, f.Close())
		}()
		j.open()
		refused, copied := 0, 0
		for i := range 8 {
			err := j.trySetattr("f", SetAttr{Set: SetMode, Mode: 0o600 + uint32(i%2)*0o40})
			switch {
			case err == nil:
				copied++
				if b := readAt(t, j.up("f"), 0, size); !bytes.Equal(b, bytes.Repeat(b[:1], size)) {
					t.Error("the copy is of several states")
				}
			case errors.Is(err, unix.EIO):
				refused++
			default:
				t.Fatal(err)
			}
			if copied > 0 {
				break
			}
		}
		stop.Store(true)
		j.must(<-done)
		j.close() // no event comes any more
		moving := 0
		for _, e := range j.events {
			if e.Kind == EventMoving {
				moving++
			}
		}
		if moving != refused || refused+copied == 0 {
			t.Errorf("refused %d times, told %d times, copied %d", refused, moving, copied)
		}
		t.Logf("refused %d, copied %d", refused, copied)
	})
}

// TestUnreadableFiles: without a right to read a file of the workspace it can be removed and replaced;
// what would need its content is refused and told.
func TestUnreadableFiles(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		for _, name := range []string{"gone", "replaced", "kept"} {
			j.put(name, "secret")
			j.must(os.Chmod(j.low(name), 0))
		}
		j.open()
		j.unlink("gone")
		j.create("new", "content")
		j.must(j.rename("new", "replaced", 0))
		j.wantRead("replaced", "content")
		err := j.trySetattr("kept", SetAttr{Set: SetMode, Mode: 0o600})
		if os.Geteuid() == 0 {
			j.must(err)
			j.wantRead("kept", "secret")
			return
		}
		j.close() // no event comes any more
		if !errors.Is(err, unix.EACCES) || len(j.events) != 1 || !errors.Is(j.events[0].Err, errUnreadable) {
			t.Errorf("got %v, events %v", err, j.events)
		}
		j.must(os.Chmod(j.low("kept"), 0o600)) // for the clean-up
	})
}
