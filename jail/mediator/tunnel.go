package mediator

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Dial opens a connection.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

const (
	defaultMaxConns = 1024
	dialTimeout     = 15 * time.Second
	tunnelIdle      = time.Hour
	tunnelBuffer    = 32 << 10
)

func dialer(d Dial) Dial {
	if d != nil {
		return d
	}
	return (&net.Dialer{Timeout: dialTimeout}).DialContext
}

// errClosed is what happens to connections of a mediator that was closed.
var errClosed = errors.New("mediator closed")

// connSet holds the open connections of a mediator, so that closing it ends them, and counts them
// and the goroutines at work on them.
type connSet struct {
	wg sync.WaitGroup

	mu     sync.Mutex
	closed bool                      // mu
	conns  map[*trackedConn]struct{} // mu
}

// enter counts a goroutine in, or says that the set is closed. leave is its counterpart.
func (s *connSet) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.wg.Add(1)
	}
	return !s.closed
}

func (s *connSet) leave() { s.wg.Done() }

// close closes what is in the set and refuses what comes. It does not wait.
func (s *connSet) close() {
	s.mu.Lock()
	s.closed = true
	open := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range open {
		_ = c.Conn.Close() // whoever uses it sees the error and takes it out
	}
}

// trackedConn is a connection in a connSet. Closing it takes it out.
type trackedConn struct {
	net.Conn
	set     *connSet
	in, out *atomic.Uint64 // bytes read and written; nil is not counted
	release func()
	once    sync.Once
}

// track puts c into the set. release is called once, when the connection is closed, also when the
// set is closed already and refuses it.
func (s *connSet) track(c net.Conn, in, out *atomic.Uint64, release func()) (*trackedConn, error) {
	if !s.enter() {
		release()
		return nil, errors.Join(errClosed, c.Close())
	}
	t := &trackedConn{Conn: c, set: s, in: in, out: out, release: release}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		s.conns = map[*trackedConn]struct{}{}
	}
	s.conns[t] = struct{}{}
	if s.closed { // since enter
		_ = c.Close()
	}
	return t, nil
}

// Close closes the connection and takes it out of its set.
func (t *trackedConn) Close() error {
	err := t.Conn.Close()
	t.once.Do(func() {
		t.set.mu.Lock()
		delete(t.set.conns, t)
		t.set.mu.Unlock()
		t.release()
		t.set.leave()
	})
	return err
}

// Read reads and counts.
func (t *trackedConn) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	if t.in != nil {
		t.in.Add(uint64(n))
	}
	return n, err
}

// Write writes and counts.
func (t *trackedConn) Write(b []byte) (int, error) {
	n, err := t.Conn.Write(b)
	if t.out != nil {
		t.out.Add(uint64(n))
	}
	return n, err
}

// CloseWrite shuts down the writing side, where the connection has one.
func (t *trackedConn) CloseWrite() error {
	if c, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return t.Conn.Close()
}

type halfCloser interface {
	net.Conn
	CloseWrite() error
}

var buffers = sync.Pool{New: func() any { b := make([]byte, tunnelBuffer); return &b }}

// tunnel copies both ways until both sides have ended or nothing has moved for idle. early is what
// was read from a already. It closes both connections.
func tunnel(a halfCloser, early []byte, b halfCloser, idle time.Duration) {
	stop := func() { _, _ = a.Close(), b.Close() } // ends the copies; their errors say no more
	defer stop()
	timer := time.AfterFunc(idle, stop)
	defer timer.Stop()
	alive := func() { timer.Reset(idle) }
	done := make(chan struct{})
	go func() {
		defer close(done)
		copyHalf(a, b, alive, stop)
	}()
	if _, err := b.Write(early); err != nil {
		stop()
	}
	copyHalf(b, a, alive, stop)
	<-done
}

// copyHalf copies src to dst and passes the end on; a broken side ends both.
func copyHalf(dst, src halfCloser, alive, stop func()) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		n, err := src.Read(*buf)
		alive()
		if n > 0 {
			if _, werr := dst.Write((*buf)[:n]); werr != nil {
				stop()
				return
			}
			alive()
		}
		switch {
		case errors.Is(err, io.EOF):
			if dst.CloseWrite() != nil {
				stop()
			}
			return
		case err != nil:
			stop()
			return
		}
	}
}
