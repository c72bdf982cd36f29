package fusefs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ErrStuck: requests are still in work that make no progress. What they use must not be closed.
var ErrStuck = errors.New("requests in work make no progress")

// turn counts what one thread does: it is odd while the thread works on a request. No clock is read for it.
type turn struct {
	tid int
	n   atomic.Uint64
}

func (t *turn) work() { t.n.Add(1) }
func (t *turn) rest() { t.n.Add(1) }

// turns are those of the threads that serve.
type turns struct {
	mu   sync.Mutex
	list map[int]*turn // by thread; guarded by mu
}

// enter makes the turn of the calling thread, to which its goroutine is locked.
func (ts *turns) enter() *turn {
	t := &turn{tid: unix.Gettid()}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.list == nil {
		ts.list = map[int]*turn{}
	}
	ts.list[t.tid] = t
	return t
}

func (ts *turns) leave(t *turn) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.list, t.tid)
}

// own returns the turn of the calling thread.
func (ts *turns) own() *turn {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.list[unix.Gettid()]
}

func (ts *turns) counts() map[int]uint64 {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	counts := make(map[int]uint64, len(ts.list))
	for tid, t := range ts.list {
		counts[tid] = t.n.Load()
	}
	return counts
}

// Watch finds requests that stay in work. Its zero value is not usable; one goroutine at a time may use it.
type Watch struct {
	s     *Server
	loops map[int]*observed // by thread
	moved bool              // the last look found that something went on
}

// observed is what was seen of one loop.
type observed struct {
	n     uint64
	looks int    // for how many looks it has been the same request
	io    uint64 // what its thread had read and written by then
}

// Watch returns a new Watch of s.
func (s *Server) Watch() *Watch { return &Watch{s: s, loops: map[int]*observed{}} }

// Look returns for how many looks in a row some request has been in work while none that was in work for so long moved any
// data: called at a steady pace, it tells a time. A copy-up that goes on is progress, also for who waits for it. It waits
// for nothing that a request may hold.
func (w *Watch) Look() int {
	turns := w.s.turns.counts()
	moved, most := false, 0
	w.moved = false
	for tid, n := range turns {
		o := w.loops[tid]
		if o == nil || o.n != n || n%2 == 0 {
			w.moved = w.moved || o != nil && o.n != n
			w.loops[tid] = &observed{n: n}
			continue
		}
		io := threadIO(tid)
		moved = moved || o.looks > 0 && io != o.io
		o.io = io
		o.looks++
		most = max(most, o.looks)
	}
	for tid, o := range w.loops {
		if _, ok := turns[tid]; !ok {
			delete(w.loops, tid)
		} else if moved {
			o.looks = min(o.looks, 1)
		}
	}
	if moved {
		w.moved = true
		return 0
	}
	return most
}

// Busy tells whether a request is in work.
func (s *Server) Busy() bool {
	for _, n := range s.turns.counts() {
		if n%2 == 1 {
			return true
		}
	}
	return false
}

// threadIO adds up what proc_pid_io(5) counts for a thread of this process: it grows as long as the thread moves data.
// Where the kernel does not count, it is 0.
func threadIO(tid int) uint64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/io", tid))
	if err != nil {
		return 0
	}
	sum := uint64(0)
	for _, line := range bytes.Split(text, []byte("\n")) {
		_, value, _ := bytes.Cut(line, []byte(": "))
		n, err := strconv.ParseUint(string(value), 10, 64)
		if err == nil {
			sum += n
		}
	}
	return sum
}

// How long Close waits for requests without progress.
const (
	closePace  = 500 * time.Millisecond
	closeLooks = 20
)

// await waits for the goroutines of wg, as long as requests make progress.
func (s *Server) await(wg *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	pace := time.NewTicker(closePace)
	defer pace.Stop()
	w := s.Watch()
	for quiet := 0; quiet < closeLooks; quiet++ {
		select {
		case <-done:
			return true
		case <-pace.C:
		}
		if w.Look(); w.moved {
			quiet = 0
		}
	}
	return false
}

// abandon takes the device away from loops that will not end. Whoever waits for them gets an error, as the kernel aborts a
// connection that nobody has open. The descriptor's number stays taken: what such a loop still writes goes nowhere.
func (s *Server) abandon() error {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return errors.Join(ErrStuck, fmt.Errorf("open /dev/null: %w", err))
	}
	defer unix.Close(null)
	if err := unix.Dup3(null, s.fd, unix.O_CLOEXEC); err != nil {
		return errors.Join(ErrStuck, fmt.Errorf("release device: %w", err))
	}
	return fmt.Errorf("serve %s: %w", s.name, ErrStuck)
}
