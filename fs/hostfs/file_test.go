package hostfs

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
	"stage/test/testenv"
)

func TestOpenRefusesWhatIsNotRegularAndNeverBlocks(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		create(t, d, "f", "")
		must(t, d.Mknod("fifo", tree.Node{Kind: tree.FIFO, Mode: 0o600}), d.Mkdir("dir", 0o755), d.Symlink("f", "link"))
		l, err := net.Listen("unix", path+"/sock")
		must(t, err)
		closeAtEnd(t, l)
		for _, name := range []string{"fifo", "dir", "link", "sock"} {
			_, err := d.Open(name)
			wantErr(t, err, ErrNotRegular)
			_, err = d.OpenWrite(name)
			wantErr(t, err, ErrNotRegular)
		}
		_, err = d.Open("missing")
		wantErr(t, err, unix.ENOENT)
		_, err = openRoot(t, "/dev").Open("null")
		wantErr(t, err, ErrNotRegular)
	})
}

func TestOpenKeepsPermissions(t *testing.T) {
	asUsers(t, func(t *testing.T, u testenv.User, d Dir, path string) {
		create(t, d, "f", "text")
		must(t, d.Chmod("f", 0o444))
		f, err := d.Open("f")
		must(t, err)
		closeAtEnd(t, f)
		if _, err := f.Write([]byte("x")); !errors.Is(err, unix.EBADF) {
			t.Errorf("write to a file open for reading: %v", err)
		}
		w, err := d.OpenWrite("f")
		if u.IsRoot() {
			must(t, err)
			closeAtEnd(t, w)
			return
		}
		wantErr(t, err, unix.EACCES)
	})
}

func TestFileReadsAndWrites(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		create(t, d, "f", "hello")
		f, err := d.OpenWrite("f")
		must(t, err)
		closeAtEnd(t, f)
		_, err = f.WriteAt([]byte("J"), 0)
		must(t, err, f.Truncate(4), f.Sync())
		b, err := io.ReadAll(f)
		if string(b) != "Jell" || err != nil {
			t.Errorf("got %q, %v", b, err)
		}
		_, err = f.ReadAt(make([]byte, 1), 9)
		if err != io.EOF {
			t.Errorf("got %v, want io.EOF itself", err)
		}
		if got := fcntlFlags(t, f.OSFile()); got&unix.O_NONBLOCK != 0 {
			t.Error("the descriptor is non-blocking")
		}
	})
}

func fcntlFlags(t *testing.T, f *os.File) int {
	t.Helper()
	n, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	must(t, err)
	return n
}

func TestFileErrorsNameTheFile(t *testing.T) {
	d := openRoot(t, t.TempDir())
	create(t, d, "a b", "")
	f, err := d.Open("a b")
	must(t, err)
	closeAtEnd(t, f)
	_, err = f.Write([]byte("x"))
	if got, want := err.Error(), `write "a b": bad file descriptor`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// sparse makes a file of data and holes and returns its content: 64 KiB of holes around 64 KiB of
// data, twice, with a hole at the end if it is to have one.
func sparse(t *testing.T, d Dir, name string, end bool) []byte {
	t.Helper()
	const k = 64 << 10
	want := make([]byte, 4*k)
	f, err := d.Create(name, 0o644)
	must(t, err)
	for _, at := range []int{k, 3 * k} {
		copy(want[at:at+k], bytes.Repeat([]byte{byte('a' + at/k)}, k))
		_, err := f.WriteAt(want[at:at+k], int64(at))
		must(t, err)
	}
	if end {
		want = append(want, make([]byte, k)...)
		must(t, f.Truncate(int64(len(want))))
	}
	must(t, f.Close())
	return want
}

func copyFile(t *testing.T, d Dir, from, to string, sum io.Writer) {
	t.Helper()
	src, err := d.Open(from)
	must(t, err)
	dst, err := d.Create(to, 0o644)
	must(t, err)
	must(t, dst.CopyFrom(src, sum), dst.Close(), src.Close())
}

func TestCopyKeepsHolesAndContent(t *testing.T) {
	asUsers(t, func(t *testing.T, _ testenv.User, d Dir, path string) {
		create(t, d, "empty", "")
		contents := map[string][]byte{"empty": nil, "data at the end": sparse(t, d, "data at the end", false), "hole at the end": sparse(t, d, "hole at the end", true)}
		for name, want := range contents {
			h := tree.NewHash()
			copyFile(t, d, name, name+" summed", h)
			copyFile(t, d, name, name+" copied", nil)
			if got := tree.SumDigest(h); got != tree.DigestBytes(want) {
				t.Errorf("%s: sum is %s", name, got)
			}
			for _, to := range []string{name + " summed", name + " copied"} {
				got, err := os.ReadFile(path + "/" + to)
				must(t, err)
				if !bytes.Equal(got, want) {
					t.Errorf("%s: content differs", to)
				}
			}
		}
		s := testenv.Snapshot(t, path)
		for name := range contents {
			if got, want := s[name+" summed"].Holes, s[name].Holes; got != want {
				t.Errorf("%s summed: data at %q, want %q", name, got, want)
			}
			if got, want := s[name+" copied"].Holes, s[name].Holes; got != want {
				t.Errorf("%s copied: data at %q, want %q", name, got, want)
			}
		}
	})
}

func TestCopyAcrossFileSystems(t *testing.T) {
	testenv.Need(t, testenv.Root)
	path := t.TempDir()
	must(t, unix.Mount("none", path, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(path, unix.MNT_DETACH)) })
	here, there := openRoot(t, testenv.User{}.TempDir(t)), openRoot(t, path)
	want := sparse(t, here, "f", true)
	src, err := here.Open("f")
	must(t, err)
	dst, err := there.Create("f", 0o644)
	must(t, err)
	must(t, dst.CopyFrom(src, nil), dst.Close(), src.Close())
	got, err := os.ReadFile(path + "/f")
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("content differs")
	}
	var st unix.Stat_t
	must(t, unix.Stat(path+"/f", &st))
	if st.Blocks*512 > 2*64<<10 {
		t.Errorf("%d blocks: the holes are filled", st.Blocks)
	}
}

func TestCopyIntoAFileWithContentIsRefused(t *testing.T) {
	d := openRoot(t, t.TempDir())
	create(t, d, "a", "AAA")
	create(t, d, "b", "BBBB")
	src, err := d.Open("a")
	must(t, err)
	dst, err := d.OpenWrite("b")
	must(t, err)
	closeAtEnd(t, src)
	closeAtEnd(t, dst)
	if err := dst.CopyFrom(src, nil); err == nil {
		t.Error("copied over content")
	}
}

// shrinking cuts its file when it is first written to.
type shrinking struct{ path string }

func (s shrinking) Write(b []byte) (int, error) { return len(b), os.Truncate(s.path, 1) }

func TestCopyOfAShrinkingFileFails(t *testing.T) {
	path := t.TempDir()
	d := openRoot(t, path)
	create(t, d, "a", string(bytes.Repeat([]byte("x"), 3*copyChunk)))
	src, err := d.Open("a")
	must(t, err)
	dst, err := d.Create("b", 0o644)
	must(t, err)
	closeAtEnd(t, src)
	closeAtEnd(t, dst)
	err = dst.CopyFrom(src, shrinking{path + "/a"})
	if unix.IoctlFileClone(int(dst.OSFile().Fd()), int(src.OSFile().Fd())) == nil {
		t.Skip("this file system clones: the copy is of one instant")
	}
	wantErr(t, err, io.ErrUnexpectedEOF)
}

// failing fails the write to a sum.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestCopyReportsAFailingSum(t *testing.T) {
	d := openRoot(t, t.TempDir())
	sparse(t, d, "a", true)
	src, err := d.Open("a")
	must(t, err)
	dst, err := d.Create("b", 0o644)
	must(t, err)
	closeAtEnd(t, src)
	closeAtEnd(t, dst)
	wantErr(t, dst.CopyFrom(src, failing{}), io.ErrClosedPipe)
}
