package mediator

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"
)

// Forwarder copies connections to one service of the host. It is made for loopback services that
// the policy names: it asks nobody.
type Forwarder struct {
	listener net.Listener
	target   target
	addr     string
	dial     Dial
	count    counter
	conns    connSet
	slots    chan struct{}
	ctx      context.Context // ends with the Forwarder, not with a caller
	cancel   context.CancelFunc
	loop     sync.WaitGroup
}

// Forward connects each connection of l to addr by dial; nil dial is net.Dialer. It returns at
// once; the Forwarder owns l.
func Forward(l net.Listener, addr string, dial Dial) *Forwarder {
	ctx, cancel := context.WithCancel(context.Background())
	f := &Forwarder{listener: l, addr: addr, dial: dialer(dial), slots: make(chan struct{}, defaultMaxConns), ctx: ctx, cancel: cancel}
	f.target.host = addr
	if host, port, err := net.SplitHostPort(addr); err == nil {
		n, _ := strconv.ParseUint(port, 10, 16)
		f.target = target{host, uint16(n)}
	}
	f.loop.Go(f.accept)
	return f
}

// accept serves connections until the listener is closed. A slot is taken before a connection is:
// what is too much waits in the kernel's backlog.
func (f *Forwarder) accept() {
	for {
		select {
		case f.slots <- struct{}{}:
		case <-f.ctx.Done():
			return
		}
		release := func() { <-f.slots }
		c, err := f.listener.Accept()
		if err != nil {
			release()
			if errors.Is(err, net.ErrClosed) || !f.pause() {
				return
			}
			continue
		}
		if t, err := f.conns.track(c, nil, nil, release); err == nil {
			f.loop.Go(func() { f.serve(t) })
		}
	}
}

// pause waits before the next Accept after one that failed for want of descriptors or the like.
func (f *Forwarder) pause() bool {
	t := time.NewTimer(100 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-f.ctx.Done():
		return false
	}
}

func (f *Forwarder) serve(client *trackedConn) {
	ctx, cancel := context.WithTimeout(f.ctx, dialTimeout)
	defer cancel()
	c, err := f.dial(ctx, "tcp", f.addr)
	if err != nil {
		f.count.failed.Add(1)
		reset(client)
		return
	}
	host, err := f.conns.track(c, &f.count.in, &f.count.out, func() {})
	if err != nil {
		_ = client.Close()
		return
	}
	f.count.connections.Add(1)
	tunnel(client, nil, host, tunnelIdle)
}

// reset ends a connection so that the peer sees a failure and not an empty answer.
func reset(c *trackedConn) {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // without it the peer sees an orderly end, which is all that is lost
	}
	_ = c.Close()
}

// Close stops the forwarder, ends its connections and waits for its goroutines.
func (f *Forwarder) Close() error {
	f.cancel()
	err := f.listener.Close()
	f.conns.close()
	f.loop.Wait()
	f.conns.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Stats returns what the service saw.
func (f *Forwarder) Stats() HostStats { return f.count.stats(f.target) }
