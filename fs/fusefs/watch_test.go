package fusefs

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// workLoop registers a thread as a loop of s and returns how to let it do something.
func workLoop(t *testing.T, s *Server) (do func(func(b *buffers))) {
	t.Helper()
	work, done := make(chan func(*buffers)), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		b := &buffers{turn: s.turns.enter()}
		defer s.turns.leave(b.turn)
		for f := range work {
			f(b)
			done <- struct{}{}
		}
	}()
	t.Cleanup(func() { close(work) })
	do = func(f func(*buffers)) {
		work <- f
		<-done
	}
	do(func(*buffers) {}) // it is registered
	return do
}

func looks(t *testing.T, w *Watch, want ...int) {
	t.Helper()
	for i, n := range want {
		if got := w.Look(); got != n {
			t.Errorf("look %d: got %d, want %d", i, got, n)
		}
	}
}

func TestWatchCountsLooksWithoutProgress(t *testing.T) {
	s := &Server{}
	w := s.Watch()
	looks(t, w, 0)
	one, other := workLoop(t, s), workLoop(t, s)
	looks(t, w, 0, 0, 0) // nobody works
	one(func(b *buffers) { b.turn.work() })
	looks(t, w, 0, 1, 2, 3)
	other(func(b *buffers) { b.turn.work(); b.turn.rest(); b.turn.work() })
	looks(t, w, 4, 5) // other requests come and go
	one(func(b *buffers) { b.turn.rest(); b.turn.work() })
	looks(t, w, 2) // of the other loop, which is at the same request still
	other(func(b *buffers) { b.turn.rest() })
	looks(t, w, 1, 2)
	one(func(b *buffers) { b.turn.rest() })
	looks(t, w, 0, 0)
}

func TestDataThatMovesIsProgressForAll(t *testing.T) {
	if threadIO(unix.Gettid()) == 0 {
		t.Skip("this kernel does not count the I/O of threads")
	}
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	move := func(*buffers) { unix.Read(int(zero.Fd()), make([]byte, 1<<16)) }
	s := &Server{}
	w := s.Watch()
	copies, waits := workLoop(t, s), workLoop(t, s)
	copies(func(b *buffers) { b.turn.work() })
	waits(func(b *buffers) { b.turn.work() })
	looks(t, w, 0, 1, 2)
	for range 5 {
		copies(move)
		looks(t, w, 0)
	}
	looks(t, w, 2, 3, 4)
}

// stuckReads is a file system whose READs wait for release.
type stuckReads struct {
	fuse.RawFileSystem
	release chan struct{}
}

func (s *stuckReads) Read(<-chan struct{}, *fuse.ReadIn, []byte) (fuse.ReadResult, fuse.Status) {
	<-s.release
	return fuse.ReadResultData([]byte("late")), fuse.OK
}

// TestCloseDoesNotWaitForARequestWithoutProgress: who waits for it gets an error, and its late answer goes nowhere.
func TestCloseDoesNotWaitForARequestWithoutProgress(t *testing.T) {
	for _, tr := range []Transport{Loop, Uring} {
		t.Run(tr.String(), func(t *testing.T) { closeWhileStuck(t, tr) })
	}
}

func closeWhileStuck(t *testing.T, tr Transport) {
	release := make(chan struct{})
	m := mountWith(t, Options{Name: "test", Transport: tr, around: func(raw fuse.RawFileSystem) fuse.RawFileSystem {
		return &stuckReads{raw, release}
	}})
	read := make(chan error, 1)
	go func() {
		_, err := m.sh("cat mnt/f")
		read <- err
	}()
	for w := m.srv.Watch(); w.Look() < 2; {
		unix.Nanosleep(&unix.Timespec{Nsec: 10e6}, nil)
	}
	m.must(unix.Unmount(m.mnt(), unix.MNT_FORCE|unix.MNT_DETACH)) // as the holder does
	if err := m.close(); !errors.Is(err, ErrStuck) {
		t.Errorf("Close: got %v, want ErrStuck", err)
	}
	if err := <-read; err == nil {
		t.Error("the read that nobody answered succeeded")
	}
	close(release)
	m.srv.wg.Wait()
	if name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(m.srv.fd)); err != nil || name != "/dev/null" {
		t.Errorf("the device's descriptor is now %q, %v; want /dev/null", name, err)
	}
}
