package hostfs

import (
	"bytes"
	"math"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
	"stage/test/testenv"
)

// setUmask sets the umask of the process for one test.
func setUmask(t *testing.T, mask int) {
	old := unix.Umask(mask)
	t.Cleanup(func() { unix.Umask(old) })
}

func TestModesAreExact(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		setUmask(t, 0o027)
		for _, mode := range []tree.Mode{0o000, 0o200, 0o444, 0o666, 0o777, 0o4755, 0o2755, 0o1777} {
			f, err := d.Create("f", mode)
			must(t, err)
			must(t, d.Mkdir("d", mode), d.Mknod("p", tree.Node{Kind: tree.FIFO, Mode: mode}), d.Mknod("s", tree.Node{Kind: tree.Socket, Mode: mode}))
			for _, name := range []string{"f", "d", "p", "s"} {
				if got := stat(t, d, name).Mode; got != mode {
					t.Errorf("%s: got mode %04o, want %04o", name, got, mode)
				}
			}
			must(t, f.Close(), d.Unlink("f"), d.Rmdir("d"), d.Unlink("p"), d.Unlink("s"))
		}
	})
}

func TestModeInASetgidDirectoryIsExact(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		must(t, d.Chmod(".", 0o2755), d.Mkdir("plain", 0o755), d.Mkdir("setgid", 0o2755))
		if got := stat(t, d, "plain").Mode; got != 0o755 {
			t.Errorf("got %04o, want 0755", got)
		}
		if got := stat(t, d, "setgid").Mode; got != 0o2755 {
			t.Errorf("got %04o, want 2755", got)
		}
	})
}

func TestCreateWantsANewName(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		create(t, d, "f", "old")
		must(t, d.Symlink("elsewhere", "dangling"))
		for _, name := range []string{"f", "dangling"} {
			_, err := d.Create(name, 0o644)
			wantErr(t, err, unix.EEXIST)
		}
		if _, err := os.Lstat(path + "/elsewhere"); err == nil {
			t.Error("a dangling link was followed")
		}
	})
}

func TestStatIsThatOfTheKernel(t *testing.T) {
	asUsers(t, func(t *testing.T, u testenv.User, d Dir, path string) {
		create(t, d, "f", "12345")
		must(t, d.Link("f", d, "g"), d.SetMtime("f", 1_234_567_890_123_456_789))
		var st unix.Stat_t
		must(t, unix.Lstat(path+"/f", &st))
		want := tree.Node{
			Kind: tree.File, Mode: 0o644, UID: uint32(u.UID), GID: uint32(u.GID), Size: 5, Mtime: 1_234_567_890_123_456_789,
			Ctime: tree.Time(st.Ctim.Nano()), Dev: st.Dev, Ino: st.Ino, Nlink: 2,
		}
		got := stat(t, d, "f")
		if !got.SameIdentity(want) || !got.SameMeta(want) || got.Nlink != 2 {
			t.Errorf("got %+v, want %+v", got, want)
		}
		f, err := d.Open("f")
		must(t, err)
		closeAtEnd(t, f)
		if n, err := f.Stat(); err != nil || !n.SameIdentity(got) {
			t.Errorf("File.Stat: %+v, %v, want %+v", n, err, got)
		}
	})
}

func TestStatReadsLinkTargetsOfAnyLength(t *testing.T) {
	d := openRoot(t, t.TempDir())
	for _, target := range []string{"x", "/a/../b//", strings.Repeat("t", 127), strings.Repeat("t", 128), strings.Repeat("t", 4095), "\xff\n"} {
		must(t, d.Symlink(target, "l"))
		n := stat(t, d, "l")
		if n.Kind != tree.Symlink || n.Target != target || n.Size != int64(len(target)) {
			t.Errorf("got %v %q, want %q", n.Kind, n.Target, target)
		}
		must(t, d.Unlink("l"))
	}
}

func TestStatReadsLinksWithoutASize(t *testing.T) {
	d := openRoot(t, "/proc")
	n := stat(t, d, "self") // st_size is 0
	if n.Kind != tree.Symlink || n.Target == "" {
		t.Errorf("got %v %q", n.Kind, n.Target)
	}
}

func TestDeviceNumbers(t *testing.T) {
	n := stat(t, openRoot(t, "/dev"), "null")
	if n.Kind != tree.Char || n.Rdev != unix.Mkdev(1, 3) {
		t.Errorf("got %v %d, want char 1:3", n.Kind, n.Rdev)
	}
}

func TestMknodMakesDevicesForRootAlone(t *testing.T) {
	asUsers(t, func(t *testing.T, u testenv.User, d Dir, path string) {
		want := tree.Node{Kind: tree.Block, Mode: 0o640, Rdev: unix.Mkdev(7, 300)}
		err := d.Mknod("b", want)
		if !u.IsRoot() {
			wantErr(t, err, unix.EPERM)
			return
		}
		must(t, err)
		if got := stat(t, d, "b"); got.Kind != want.Kind || got.Mode != want.Mode || got.Rdev != want.Rdev {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

func TestMknodRefusesOtherKinds(t *testing.T) {
	d := openRoot(t, t.TempDir())
	for _, k := range []tree.Kind{tree.Absent, tree.File, tree.Dir, tree.Symlink, 99} {
		wantErr(t, d.Mknod("x", tree.Node{Kind: k}), unix.EINVAL)
	}
}

func TestTimesBeyondTheRangeAreCut(t *testing.T) {
	for _, c := range []struct {
		sec  int64
		nsec uint32
		want tree.Time
	}{
		{0, 1, 1}, {-1, 999_999_999, -1}, {-2, 0, -2_000_000_000}, {1 << 40, 5, math.MaxInt64}, {-1 << 40, 5, math.MinInt64},
	} {
		if got := timeOf(unix.StatxTimestamp{Sec: c.sec, Nsec: c.nsec}); got != c.want {
			t.Errorf("%d s %d ns: got %d, want %d", c.sec, c.nsec, got, c.want)
		}
	}
}

func TestSetMtimeLeavesAtimeAndFollowsNoLink(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		create(t, d, "f", "")
		must(t, d.Symlink("f", "l"), unix.UtimesNanoAt(unix.AT_FDCWD, path+"/f", []unix.Timespec{{Sec: 11}, {Sec: 22}}, 0))
		must(t, d.SetMtime("l", 33), d.SetMtime("f", -1_500_000_000))
		var st unix.Stat_t
		must(t, unix.Lstat(path+"/f", &st))
		if st.Atim.Sec != 11 || st.Mtim.Sec != -2 || st.Mtim.Nsec != 500_000_000 {
			t.Errorf("got atime %v mtime %v, want 11 and -1.5", st.Atim, st.Mtim)
		}
		if got := stat(t, d, "l").Mtime; got != 33 {
			t.Errorf("link: got mtime %d, want 33", got)
		}
	})
}

func TestChmodFollowsNoLink(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		create(t, d, "f", "")
		must(t, d.Symlink("f", "l"))
		wantErr(t, d.Chmod("l", 0o777), unix.EOPNOTSUPP)
		if got := stat(t, d, "f").Mode; got != 0o644 {
			t.Errorf("the target has mode %04o", got)
		}
		wantErr(t, d.Chmod("missing", 0), unix.ENOENT)
		must(t, d.Chmod("f", 0o000))
		must(t, d.Chmod("f", 0o640)) // even of a file nobody may open
		if got := stat(t, d, "f").Mode; got != 0o640 {
			t.Errorf("got %04o, want 0640", got)
		}
	})
}

func TestChownFollowsNoLink(t *testing.T) {
	asUsers(t, func(t *testing.T, u testenv.User, d Dir, path string) {
		create(t, d, "f", "")
		must(t, d.Symlink("f", "l"))
		err := d.Chown("l", 12345, 54321)
		if !u.IsRoot() {
			wantErr(t, err, unix.EPERM)
			return
		}
		must(t, err)
		if n := stat(t, d, "l"); n.UID != 12345 || n.GID != 54321 {
			t.Errorf("link belongs to %d:%d", n.UID, n.GID)
		}
		if n := stat(t, d, "f"); n.UID != 0 {
			t.Errorf("the target belongs to %d", n.UID)
		}
	})
}

func TestXattrsOfAnyNumberAndSize(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		create(t, d, "f", "")
		if x, err := d.Xattrs("f"); err != nil || x != nil {
			t.Errorf("got %q, %v, want none", x, err)
		}
		want := tree.Xattrs{"user.empty": {}, "user.nul": {0, 1, 0}, "user.big": bytes.Repeat([]byte("v"), 2*xattrBuf)}
		for i := range 8 { // names longer than the first buffer
			want["user."+strings.Repeat(string(rune('a'+i)), 100)] = []byte{byte(i)}
		}
		for attr, v := range want {
			must(t, d.Setxattr("f", attr, v))
		}
		got, err := d.Xattrs("f")
		must(t, err)
		if !got.Equal(want) {
			t.Errorf("got %q, want %q", got, want)
		}
		must(t, d.Removexattr("f", "user.nul"))
		wantErr(t, d.Removexattr("f", "user.nul"), unix.ENODATA)
		_, err = d.Xattrs("missing")
		wantErr(t, err, unix.ENOENT)
	})
}

func TestXattrsFollowNoLink(t *testing.T) {
	testenv.Need(t, testenv.Root)
	d := openRoot(t, testenv.User{}.TempDir(t))
	create(t, d, "f", "")
	must(t, d.Symlink("f", "l"), d.Setxattr("l", "trusted.a", []byte("link")), d.Setxattr("f", "trusted.a", []byte("file")))
	x, err := d.Xattrs("l")
	must(t, err)
	if string(x["trusted.a"]) != "link" {
		t.Errorf("got %q", x)
	}
	must(t, d.Removexattr("l", "trusted.a"))
	if x, err = d.Xattrs("f"); err != nil || string(x["trusted.a"]) != "file" {
		t.Errorf("got %q, %v", x, err)
	}
}

func TestXattrsOfOthersAreLeftOut(t *testing.T) {
	testenv.Need(t, testenv.Root)
	t.Run("user", func(t *testing.T) {
		u := testenv.Ordinary(t)
		path := u.TempDir(t)
		d := openRoot(t, path)
		create(t, d, "f", "")
		must(t, d.Setxattr("f", "user.secret", []byte("v")), d.Chmod("f", 0o600))
		u.Become(t)
		if x, err := d.Xattrs("f"); err != nil || x != nil {
			t.Errorf("got %q, %v, want none", x, err)
		}
	})
}

func TestXattrsOfAFileSystemWithout(t *testing.T) {
	x, err := openRoot(t, "/proc").Xattrs("version")
	if err != nil || len(x) != 0 {
		t.Errorf("got %q, %v, want none", x, err)
	}
}

func TestRenameFlags(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		must(t, d.Mkdir("sub", 0o755))
		sub, err := d.OpenDir("sub")
		must(t, err)
		closeAtEnd(t, sub)
		create(t, d, "a", "A")
		create(t, sub, "b", "B")
		wantErr(t, d.Rename("a", sub, "b", NoReplace), unix.EEXIST)
		must(t, d.Rename("a", sub, "b", Exchange))
		if got, _ := os.ReadFile(path + "/sub/b"); string(got) != "A" {
			t.Errorf("after exchange: %q", got)
		}
		must(t, d.Rename("a", sub, "b", 0))
		if got, _ := os.ReadFile(path + "/sub/b"); string(got) != "B" {
			t.Errorf("after replace: %q", got)
		}
		wantErr(t, sub.Rename("b", d, "c", Exchange), unix.ENOENT)
		wantErr(t, sub.Rename("b", d, "c", 4), unix.EINVAL)
	})
}

func TestLinkDoesNotFollow(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		create(t, d, "f", "")
		must(t, d.Symlink("f", "l"), d.Link("l", d, "m"))
		if n := stat(t, d, "m"); n.Kind != tree.Symlink || n.Nlink != 2 {
			t.Errorf("got %v with %d links, want the link itself", n.Kind, n.Nlink)
		}
	})
}

func TestSyncOfDirectories(t *testing.T) {
	d := openRoot(t, t.TempDir())
	must(t, d.Sync(), d.Syncfs())
}
