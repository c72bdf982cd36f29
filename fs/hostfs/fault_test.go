package hostfs

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// every does each operation that asks a fault point once, and returns each one's error. The
// operations need no result of one another.
func every(d Dir, sub Dir) []error {
	f, err := d.Create("new", 0o644)
	errs := []error{err}
	if f == nil {
		f, err = d.OpenWrite("empty")
		errs = append(errs, err)
	}
	src, err := d.Open("file")
	errs = append(errs, err)
	errs = append(errs, f.CopyFrom(src, nil))
	_, werr := f.Write([]byte("text"))
	_, aerr := f.WriteAt([]byte("text"), 0)
	errs = append(errs, werr, aerr, f.Truncate(0), f.Sync())
	return append(errs, f.Close(), src.Close(),
		d.Mkdir("newdir", 0o755), d.Symlink("x", "newlink"), d.Mknod("newfifo", tree.Node{Kind: tree.FIFO}),
		d.Link("file", sub, "hard"), d.Unlink("gone"), d.Rmdir("gonedir"), d.Rename("old", sub, "moved", 0),
		d.Chmod("file", 0o600), d.Chown("file", uint32(os.Geteuid()), uint32(os.Getegid())), d.SetMtime("file", 1),
		d.Setxattr("file", "user.a", nil), d.Removexattr("file", "user.b"), d.Sync(), d.Syncfs())
}

func faultTree(t *testing.T) (Dir, Dir) {
	d := openRoot(t, t.TempDir())
	for _, name := range []string{"file", "gone", "old"} {
		create(t, d, name, "text")
	}
	create(t, d, "empty", "")
	must(t, d.Mkdir("gonedir", 0o755), d.Mkdir("sub", 0o755), d.Setxattr("file", "user.b", nil))
	sub, err := d.OpenDir("sub")
	must(t, err)
	closeAtEnd(t, sub)
	return d, sub
}

func TestFaultStandsInFrontOfEveryChange(t *testing.T) {
	want := []string{
		"create new", "copy into new", "write new", "write new", "truncate new", "sync new", "mkdir newdir", "symlink newlink",
		"mknod newfifo", "link file", "unlink gone", "rmdir gonedir", "rename old", "chmod file", "chown file", "setmtime file",
		"setxattr file", "removexattr file", "sync .", "syncfs .",
	}
	d, sub := faultTree(t)
	var got []string
	must(t, every(NewFault(d, func(op string) error { got = append(got, op); return nil }), sub)...)
	if !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
}

func TestFaultFailsTheNthOperation(t *testing.T) {
	for n := 0; ; n++ {
		d, sub := faultTree(t)
		asked, name := 0, ""
		errs := every(NewFault(d, func(op string) error {
			asked++
			if asked-1 == n {
				name = op
				return unix.ENOSPC
			}
			return nil
		}), sub)
		if asked <= n {
			if n < 20 {
				t.Errorf("only %d operations asked", n)
			}
			return
		}
		failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
		if len(failed) != 1 {
			t.Errorf("%s: got errors %v, want one", name, failed)
			continue
		}
		wantErr(t, failed[0], unix.ENOSPC)
	}
}

func TestFaultKeepsTheOperationFromHappening(t *testing.T) {
	d, _ := faultTree(t)
	f := NewFault(d, func(string) error { return unix.EIO })
	wantErr(t, f.Unlink("gone"), unix.EIO)
	stat(t, d, "gone")
	_, err := f.Create("new", 0o644)
	wantErr(t, err, unix.EIO)
	_, err = d.Stat("new")
	wantErr(t, err, unix.ENOENT)
}

func TestFaultReachesSubdirectories(t *testing.T) {
	d, _ := faultTree(t)
	f := NewFault(d, func(string) error { return unix.EIO })
	sub, err := f.OpenDir("sub")
	must(t, err)
	closeAtEnd(t, sub)
	wantErr(t, sub.Mkdir("x", 0o755), unix.EIO)
	at, err := f.OpenDirAt(tree.MustParsePath("sub"), true)
	must(t, err)
	closeAtEnd(t, at)
	wantErr(t, at.Mkdir("x", 0o755), unix.EIO)
	self, err := f.OpenDir(".")
	must(t, err)
	closeAtEnd(t, self)
	wantErr(t, self.Mkdir("x", 0o755), unix.EIO)
}

func TestReadFaultAsksAboutReads(t *testing.T) {
	d, _ := faultTree(t)
	var on bool
	var got []string
	f := NewReadFault(d, func(op string) error {
		got = append(got, op)
		if on {
			return unix.EIO
		}
		return nil
	})
	file, err := f.Open("file")
	must(t, err)
	closeAtEnd(t, file)
	on = true
	_, e1 := f.Stat("file")
	_, e2 := f.Xattrs("file")
	_, e3 := f.Open("file")
	_, e4 := f.OpenWrite("file")
	_, e5 := f.OpenDir("sub")
	_, e6 := f.OpenDirAt(tree.MustParsePath("sub"), true)
	_, e7 := f.ReadDir()
	_, e8 := file.Read(make([]byte, 1))
	_, e9 := file.ReadAt(make([]byte, 1), 0)
	_, e10 := file.Stat()
	for i, err := range []error{e1, e2, e3, e4, e5, e6, e7, e8, e9, e10} {
		if err == nil {
			t.Errorf("read %d was not asked about", i)
		}
	}
	want := "open file,stat file,xattrs file,open file,openwrite file,opendir sub,opendir sub,readdir .,read file,read file,stat file"
	if s := strings.Join(got, ","); s != want {
		t.Errorf("asked %s, want %s", s, want)
	}
}

func TestShortWriteWritesHalf(t *testing.T) {
	path := t.TempDir()
	d := NewFault(openRoot(t, path), func(op string) error {
		if strings.HasPrefix(op, "write ") || strings.HasPrefix(op, "copy into ") {
			return Short(unix.ENOSPC)
		}
		return nil
	})
	f, err := d.Create("f", 0o644)
	must(t, err)
	n, err := f.Write([]byte("12345678"))
	wantErr(t, err, unix.ENOSPC)
	if n != 4 {
		t.Errorf("wrote %d bytes, want 4", n)
	}
	g, err := d.Create("g", 0o644)
	must(t, err)
	src, err := d.Open("f")
	must(t, err)
	wantErr(t, g.CopyFrom(src, nil), unix.ENOSPC)
	must(t, f.Close(), g.Close(), src.Close())
	for name, want := range map[string]string{"f": "1234", "g": "12"} {
		if got, _ := os.ReadFile(path + "/" + name); string(got) != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
}

func TestShortFaultOfOtherOperationsIsPlain(t *testing.T) {
	d := NewFault(openRoot(t, t.TempDir()), func(string) error { return Short(fmt.Errorf("disk: %w", unix.EIO)) })
	wantErr(t, d.Mkdir("x", 0o755), unix.EIO)
}
