package hostfs

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
	"stage/test/testenv"
)

// asUsers runs a behaviour in a fresh directory, as root and as an ordinary user.
func asUsers(t *testing.T, f func(t *testing.T, u testenv.User, d Dir, path string)) {
	t.Helper()
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		path := u.TempDir(t)
		u.Become(t)
		f(t, u, openRoot(t, path), path)
	})
}

func openRoot(t *testing.T, path string) Dir {
	t.Helper()
	d, err := OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, d)
	return d
}

func closeAtEnd(t *testing.T, c interface{ Close() error }) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("got error %v, want %v", got, want)
	}
}

// create makes a file that holds text.
func create(t *testing.T, d Dir, name, text string) {
	t.Helper()
	f, err := d.Create(name, 0o644)
	must(t, err)
	_, err = f.Write([]byte(text))
	must(t, err, f.Close())
}

func stat(t *testing.T, d Dir, name string) tree.Node {
	t.Helper()
	n, err := d.Stat(name)
	must(t, err)
	return n
}

func TestOpenRootRefusesWhatIsNotAPlainDirectory(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/d", 0o755), os.Symlink("d", dir+"/l"), os.WriteFile(dir+"/f", nil, 0o644))
	for path, want := range map[string]error{
		"relative":       unix.EINVAL,
		dir + "/d/../d":  unix.EINVAL,
		dir + "/d/":      unix.EINVAL,
		dir + "/l":       unix.ENOTDIR, // O_NOFOLLOW|O_DIRECTORY
		dir + "/l/x":     unix.ELOOP,
		dir + "/f":       unix.ENOTDIR,
		dir + "/missing": fs.ErrNotExist,
	} {
		_, err := OpenRoot(path)
		if !errors.Is(err, want) && !errors.Is(err, unix.ELOOP) {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), `open root "`) {
			t.Errorf("%s: error %q names no act", path, err)
		}
	}
}

func TestErrorsNameActAndObjectAndKeepErrno(t *testing.T) {
	d := openRoot(t, t.TempDir())
	_, err := d.Stat("a\nb")
	if got, want := err.Error(), `stat "a\nb": no such file or directory`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	wantErr(t, err, unix.ENOENT)
	wantErr(t, err, fs.ErrNotExist)
	wantErr(t, d.Rename("a\x1b", d, "b", 0), unix.ENOENT)
	if err := d.Rename("a\x1b", d, "b", 0); strings.Contains(err.Error(), "\x1b") {
		t.Errorf("%q holds a control character", err)
	}
}

func TestNamesAreSingleComponents(t *testing.T) {
	path := t.TempDir()
	d := openRoot(t, path)
	must(t, d.Mkdir("d", 0o755))
	for _, name := range []string{"", "..", "d/x", "/etc", "a\x00b", "d/"} {
		_, e1 := d.Stat(name)
		_, e2 := d.Xattrs(name)
		_, e3 := d.Open(name)
		_, e4 := d.OpenDir(name)
		_, e5 := d.Create(name, 0o600)
		_, e6 := d.OpenWrite(name)
		for i, err := range []error{e1, e2, e3, e4, e5, e6,
			d.Mkdir(name, 0o700), d.Symlink("x", name), d.Mknod(name, tree.Node{Kind: tree.FIFO}), d.Link(name, d, "x"),
			d.Link("x", d, name), d.Unlink(name), d.Rmdir(name), d.Rename(name, d, "x", 0), d.Rename("x", d, name, 0),
			d.Chmod(name, 0), d.Chown(name, 0, 0), d.SetMtime(name, 0), d.Setxattr(name, "user.a", nil), d.Removexattr(name, "user.a"),
		} {
			if !errors.Is(err, unix.EINVAL) {
				t.Errorf("operation %d of %q: got %v, want EINVAL", i, name, err)
			}
		}
	}
}

func TestDotChangesTheDirectoryItself(t *testing.T) {
	asUsers(t, func(t *testing.T, u testenv.User, d Dir, path string) {
		must(t, d.Chmod(".", 0o2710), d.Chown(".", uint32(u.UID), uint32(u.GID)), d.SetMtime(".", 7), d.Setxattr(".", "user.a", []byte("v")))
		n := stat(t, d, ".")
		if n.Kind != tree.Dir || n.Mode != 0o2710 || n.Mtime != 7 || n.UID != uint32(u.UID) {
			t.Errorf("got %+v", n)
		}
		x, err := d.Xattrs(".")
		must(t, err, d.Removexattr(".", "user.a"))
		if string(x["user.a"]) != "v" {
			t.Errorf("got xattrs %q", x)
		}
		wantErr(t, d.Rmdir("."), unix.EINVAL)
		wantErr(t, d.Unlink("."), unix.EINVAL)
	})
}

func TestSeveralGoroutinesReadOneDirectory(t *testing.T) {
	d := openRoot(t, t.TempDir())
	for _, name := range []string{"a", "b", "c"} {
		create(t, d, name, "")
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if ents, err := d.ReadDir(); err != nil || len(ents) != 3 {
					t.Errorf("got %v, %v", ents, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestReadDirTellsKindsAndAllNames(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		create(t, d, "f", "")
		must(t, d.Mkdir("d", 0o700), d.Symlink("f", "l"), d.Mknod("p", tree.Node{Kind: tree.FIFO}), d.Mknod("s", tree.Node{Kind: tree.Socket}))
		long, raw := strings.Repeat("n", tree.NameMax), "\xff\x01"
		create(t, d, long, "")
		create(t, d, raw, "")
		want := map[string]tree.Kind{"f": tree.File, "d": tree.Dir, "l": tree.Symlink, "p": tree.FIFO, "s": tree.Socket, long: tree.File, raw: tree.File}
		ents, err := d.ReadDir()
		must(t, err)
		if len(ents) != len(want) {
			t.Errorf("got %d entries, want %d", len(ents), len(want))
		}
		for _, e := range ents {
			if k, ok := want[e.Name]; !ok || e.Kind != k {
				t.Errorf("%q: got %v, want %v", e.Name, e.Kind, k)
			}
			if n := stat(t, d, e.Name); n.Ino != e.Ino {
				t.Errorf("%q: entry says inode %d, stat %d", e.Name, e.Ino, n.Ino)
			}
		}
	})
}

func TestReadDirOfManyEntries(t *testing.T) {
	d := openRoot(t, t.TempDir())
	const n = 3000 // several buffers
	for i := range n {
		must(t, d.Symlink("x", strings.Repeat("long", 10)+string(rune('a'+i%26))+strings.Repeat("x", i/26)))
	}
	ents, err := d.ReadDir()
	must(t, err)
	names := make([]string, 0, n)
	for _, e := range ents {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	if got := len(slices.Compact(names)); got != n {
		t.Errorf("got %d names, want %d", got, n)
	}
}

func FuzzDirents(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 24, 0, 8, 'a', 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		ents, err := appendDirents(nil, b)
		if err == nil && len(ents)*int(direntName) > len(b) {
			t.Errorf("%d entries out of %d bytes", len(ents), len(b))
		}
	})
}

func TestOpenDirAtFollowsNoLink(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		must(t, os.MkdirAll(path+"/a/b", 0o755), os.Symlink("a", path+"/l"), os.Symlink("/etc", path+"/a/etc"), os.Symlink("../a", path+"/a/up"))
		for p, want := range map[string]error{"a/b": nil, ".": nil, "l": unix.ENOTDIR, "l/b": unix.ELOOP, "a/etc": unix.ENOTDIR, "a/up/b": unix.ELOOP, "a/c": unix.ENOENT} {
			sub, err := d.OpenDirAt(tree.MustParsePath(p), true)
			if want != nil {
				if !errors.Is(err, want) && !errors.Is(err, unix.ELOOP) {
					t.Errorf("%s: got %v, want %v", p, err, want)
				}
				continue
			}
			must(t, err)
			must(t, sub.Close())
		}
	})
}

func TestOpenDirAtDeeperThanPathMax(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		name := strings.Repeat("n", 200)
		at, p := d, tree.Path{}
		for range 50 { // 10 000 bytes
			must(t, at.Mkdir(name, 0o755))
			next, err := at.OpenDir(name)
			must(t, err)
			closeAtEnd(t, next)
			at = next
			p, err = p.Child(name)
			must(t, err)
		}
		deep, err := d.OpenDirAt(p, true)
		must(t, err)
		closeAtEnd(t, deep)
		if got, want := stat(t, deep, "."), stat(t, at, "."); got.Ino != want.Ino {
			t.Errorf("got inode %d, want %d", got.Ino, want.Ino)
		}
		_, err = d.OpenDirAt(tree.MustParsePath(strings.Repeat("n", 5000)), false)
		wantErr(t, err, unix.ENAMETOOLONG)
	})
}

func TestOpenDirAtStopsAtMounts(t *testing.T) {
	testenv.Need(t, testenv.Root)
	path := t.TempDir()
	d := openRoot(t, path)
	must(t, d.Mkdir("m", 0o755), unix.Mount("none", path+"/m", "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(path+"/m", unix.MNT_DETACH)) })
	_, err := d.OpenDirAt(tree.MustParsePath("m"), true)
	wantErr(t, err, unix.EXDEV)
	sub, err := d.OpenDirAt(tree.MustParsePath("m"), false)
	must(t, err)
	must(t, sub.Close())
}

func TestOrdinaryUserIsKeptOutOfClosedDirectories(t *testing.T) {
	asUsers(t, func(t *testing.T, u testenv.User, d Dir, path string) {
		must(t, d.Mkdir("shut", 0o000))
		sub, err := d.OpenDir("shut")
		if u.IsRoot() {
			must(t, err)
			must(t, sub.Close())
			return
		}
		wantErr(t, err, unix.EACCES)
		_, err = d.OpenDirAt(tree.MustParsePath("shut"), false)
		wantErr(t, err, unix.EACCES)
	})
}

func TestOpenDirWhileNamesAreSwapped(t *testing.T) {
	// A racing process that swaps a directory for a link never leads the walk out of the tree.
	path, outside := t.TempDir(), t.TempDir()
	d := openRoot(t, path)
	must(t, os.MkdirAll(path+"/a/b", 0o755), os.Symlink(outside, path+"/l"), os.Mkdir(outside+"/b", 0o755))
	out := stat(t, openRoot(t, outside), ".")
	in := stat(t, d, "a")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := d.Rename("a", d, "l", Exchange); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for range 2000 {
		sub, err := d.OpenDirAt(tree.MustParsePath("a"), true)
		if err != nil {
			continue
		}
		if n := stat(t, sub, "."); n.Ino == out.Ino || n.Ino != in.Ino {
			t.Errorf("opened inode %d, want %d", n.Ino, in.Ino)
		}
		must(t, sub.Close())
	}
	close(stop)
	wg.Wait()
}
