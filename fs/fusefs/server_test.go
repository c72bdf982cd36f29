package fusefs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"stage/fs/hostfs"
	"stage/fs/overlay"
	"stage/test/testenv"
)

// mounted is a served mount. The test process serves it, so only other processes may touch it.
type mounted struct {
	t   *testing.T
	dir string
	fs  *overlay.FS
	srv *Server
	log *gate
}

// gate is a change log whose syncs can be made to wait.
type gate struct {
	*os.File
	mu sync.Mutex
}

func (g *gate) block() { g.mu.Lock() }
func (g *gate) free()  { g.mu.Unlock() }

func (g *gate) Sync() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.File.Sync()
}

func (m *mounted) mnt() string { return filepath.Join(m.dir, "mnt") }

// onTransports runs a behaviour over each transport.
func onTransports(t *testing.T, f func(t *testing.T, m *mounted)) {
	t.Helper()
	for _, tr := range []Transport{Loop, Uring} {
		t.Run(tr.String(), func(t *testing.T) { f(t, mountOverlay(t, tr)) })
	}
}

func mountOverlay(t *testing.T, tr Transport) *mounted {
	t.Helper()
	return mountWith(t, Options{Name: "test", Transport: tr})
}

func mountWith(t *testing.T, o Options) *mounted {
	t.Helper()
	if o.Transport == Uring {
		testenv.FUSEOverIOUring(t)
	}
	m := newMounted(t)
	m.mount(o)
	return m
}

// newMounted makes the directories.
func newMounted(t *testing.T) *mounted {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.FUSE)
	m := &mounted{t: t, dir: testenv.User{}.TempDir(t)}
	for _, d := range []string{"lower", "upper", "orphans", "mnt"} {
		m.must(os.Mkdir(filepath.Join(m.dir, d), 0o755))
	}
	m.must(os.WriteFile(filepath.Join(m.dir, "lower", "f"), []byte("content"), 0o644))
	return m
}

func (m *mounted) mount(o Options) {
	m.t.Helper()
	m.openOverlay()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	m.must(err)
	opts := "fd=" + strconv.Itoa(fd) + "," + MountOptions(0, 0)
	m.must(unix.Mount("stage", m.mnt(), "fuse.stage", unix.MS_NOSUID|unix.MS_NODEV, opts))
	m.t.Cleanup(func() { unix.Unmount(m.mnt(), unix.MNT_FORCE|unix.MNT_DETACH) })
	m.srv, err = Serve(os.NewFile(uintptr(fd), "/dev/fuse"), m.fs, o)
	m.must(err)
}

func (m *mounted) openOverlay() {
	m.t.Helper()
	lower, err := hostfs.OpenRoot(filepath.Join(m.dir, "lower"))
	m.must(err)
	upper, err := hostfs.OpenRoot(filepath.Join(m.dir, "upper"))
	m.must(err)
	orphans, err := hostfs.OpenRoot(filepath.Join(m.dir, "orphans"))
	m.must(err)
	log, err := os.OpenFile(filepath.Join(m.dir, "log"), os.O_RDWR|os.O_CREATE, 0o600)
	m.must(err)
	m.log = &gate{File: log}
	m.fs, err = overlay.Open(overlay.Config{Lower: lower, Upper: upper, Orphans: orphans, LogFile: m.log})
	m.must(err)
	m.t.Cleanup(func() {
		if err := errors.Join(m.fs.Close(), orphans.Close(), upper.Close(), lower.Close()); err != nil {
			m.t.Error(err)
		}
	})
}

func (m *mounted) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// close closes the server, and fails the test when that hangs.
func (m *mounted) close() error {
	m.t.Helper()
	done := make(chan error, 1)
	go func() { done <- m.srv.Close() }()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		m.t.Fatal("Close hangs")
		return nil
	}
}

// sh runs a shell command in another process.
func (m *mounted) sh(script string) (string, error) {
	c := exec.CommandContext(m.t.Context(), "sh", "-c", script)
	c.Dir = m.dir
	out, err := c.CombinedOutput()
	return string(out), err
}

func TestNegotiation(t *testing.T) {
	onTransports(t, func(t *testing.T, m *mounted) {
		if out, err := m.sh("cat mnt/f"); out != "content" || err != nil {
			t.Fatalf("cat: got %q, %v", out, err)
		}
		p := m.srv.Protocol()
		for _, want := range []string{"fuse 7.", "no_open", "no_opendir", "explicit_inval_data", "readdirplus", "handle_killpriv_v2", "max_write 1048576"} {
			if !strings.Contains(p, want) {
				t.Errorf("protocol %q lacks %s", p, want)
			}
		}
		for _, never := range []string{"atomic_o_trunc", "writeback_cache", "posix_locks", "flock_locks"} {
			if strings.Contains(p, never) {
				t.Errorf("protocol %q has %s", p, never)
			}
		}
		m.must(unix.Unmount(m.mnt(), 0))
		m.must(m.close())
	})
}

func TestCloseAbortsALiveMount(t *testing.T) {
	onTransports(t, func(t *testing.T, m *mounted) {
		if out, err := m.sh("cat mnt/f"); err != nil {
			t.Fatalf("cat: %q, %v", out, err)
		}
		m.must(m.close())
		if out, err := m.sh("cat mnt/other"); err == nil || !aborted(out) {
			t.Errorf("cat after close: got %q, %v, want an aborted connection", out, err)
		}
		if err := m.srv.Close(); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("second Close: got %v, want ErrClosed", err)
		}
	})
}

// aborted reports whether out says that the connection is gone: ENOTCONN, or ECONNABORTED for what was
// asked before the kernel had taken it down.
func aborted(out string) bool {
	out = strings.ToLower(out)
	return strings.Contains(out, unix.ENOTCONN.Error()) || strings.Contains(out, unix.ECONNABORTED.Error())
}

func TestCloseBeforeAnybodyLooked(t *testing.T) {
	onTransports(t, func(t *testing.T, m *mounted) {
		m.must(m.close())
	})
}

func TestUnmountEndsServing(t *testing.T) {
	onTransports(t, func(t *testing.T, m *mounted) {
		if out, err := m.sh("echo new > mnt/g && mv mnt/g mnt/h && cat mnt/h"); out != "new\n" || err != nil {
			t.Fatalf("got %q, %v", out, err)
		}
		m.must(unix.Unmount(m.mnt(), 0))
		m.srv.wg.Wait() // without Close
		if u := m.srv.uring; u != nil {
			u.wg.Wait()
		}
		m.must(m.close())
	})
}

// TestNameOfGoFuse uses the name that go-fuse answers for itself in the root.
func TestNameOfGoFuse(t *testing.T) {
	onTransports(t, func(t *testing.T, m *mounted) {
		script := "n=mnt/.go-fuse-epoll-hack; test ! -e $n && echo mine > $n && cat $n && rm $n && test ! -e $n"
		if out, err := m.sh(script); out != "mine\n" || err != nil {
			t.Errorf("got %q, %v", out, err)
		}
		m.must(unix.Unmount(m.mnt(), 0))
		m.must(m.close())
	})
}

func TestSlowOperationsLeaveALoopFree(t *testing.T) {
	onTransports(t, func(t *testing.T, m *mounted) {
		var script strings.Builder
		for i := range 30 {
			fmt.Fprintf(&script, "(echo %d > mnt/n%d; sync mnt/n%d; cat mnt/f > /dev/null) & ", i, i, i)
		}
		script.WriteString("wait; ls mnt | wc -l")
		out, err := m.sh(script.String())
		if strings.TrimSpace(out) != "31" || err != nil {
			t.Errorf("got %q, %v", out, err)
		}
		m.must(unix.Unmount(m.mnt(), 0))
		m.must(m.close())
	})
}

func TestStatus(t *testing.T) {
	var reported []error
	dir := t.TempDir()
	m := &mount{fs: eventsOnly(t, dir, func(e overlay.Event) { reported = append(reported, e.Err) })}
	plain := errors.New("no errno in here")
	for _, c := range []struct {
		err    error
		want   fuse.Status
		events int
	}{
		{nil, fuse.OK, 0},
		{unix.ENOENT, fuse.ENOENT, 0},
		{fmt.Errorf("copy up: %w", unix.EDQUOT), fuse.Status(unix.EDQUOT), 0},
		{plain, fuse.EIO, 1},
		{unix.ENOSYS, fuse.EIO, 1},
	} {
		reported = nil
		if got := m.status(c.err); got != c.want || len(reported) != c.events {
			t.Errorf("%v: got %v and %d events, want %v and %d", c.err, got, len(reported), c.want, c.events)
		}
	}
}

func eventsOnly(t testing.TB, dir string, on func(overlay.Event)) *overlay.FS {
	t.Helper()
	root, err := hostfs.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	orphans, err := hostfs.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f, err := overlay.Open(overlay.Config{Lower: root, Upper: root, Orphans: orphans, LogFile: log, OnEvent: on})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(f.Close(), orphans.Close(), root.Close()); err != nil {
			t.Error(err)
		}
	})
	return f
}
