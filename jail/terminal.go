package jail

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal copies between the caller's terminal and the command's pty.
type terminal struct {
	in, out, master *os.File

	old     *term.State
	stop    *os.File // its closing ends the input goroutine
	resized chan os.Signal
	input   sync.WaitGroup
	output  sync.WaitGroup
	once    sync.Once
	err     error
}

func newTerminal(in, out, master *os.File) *terminal {
	return &terminal{in: in, out: out, master: master}
}

// start puts the caller's terminal into raw mode: from here the pty gives keys their meaning.
func (t *terminal) start() error {
	old, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return fmt.Errorf("set terminal raw: %w", err)
	}
	stopped, stop, err := os.Pipe()
	if err != nil {
		_ = term.Restore(int(t.in.Fd()), old)
		return fmt.Errorf("make pipe: %w", err)
	}
	t.old, t.stop = old, stop
	t.resized = make(chan os.Signal, 1)
	signal.Notify(t.resized, syscall.SIGWINCH)
	t.input.Add(2)
	go t.copyIn(stopped)
	go t.followSize()
	t.output.Add(1)
	go t.copyOut()
	t.resize() // it may have changed since the pty was made
	return nil
}

func (t *terminal) copyIn(stopped *os.File) {
	defer t.input.Done()
	defer stopped.Close()
	buf := make([]byte, 4<<10)
	for {
		fds := []unix.PollFd{
			{Fd: int32(t.in.Fd()), Events: unix.POLLIN},
			{Fd: int32(stopped.Fd()), Events: unix.POLLIN},
		}
		if _, err := unix.Poll(fds, -1); err == unix.EINTR {
			continue
		} else if err != nil || fds[1].Revents != 0 {
			return
		}
		n, err := unix.Read(int(t.in.Fd()), buf)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		if _, err := t.master.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (t *terminal) copyOut() {
	defer t.output.Done()
	// Ends with EIO when no process has the pty open any more.
	if _, err := io.Copy(t.out, t.master); err != nil {
		_, _ = io.Copy(io.Discard, t.master) // the reader is gone; the command must not block
	}
}

func (t *terminal) followSize() {
	defer t.input.Done()
	for range t.resized {
		t.resize()
	}
}

func (t *terminal) resize() {
	size := sizeOf(t.in)
	_ = unix.IoctlSetWinsize(int(t.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
}

// finish copies the rest of the output and gives the caller's terminal back as it was.
//
// Preconditions:
//   - no process of the jail is left, else it waits for it.
func (t *terminal) finish() error {
	t.once.Do(func() {
		defer t.master.Close()
		if t.old == nil {
			return
		}
		t.output.Wait()
		signal.Stop(t.resized)
		close(t.resized)
		t.stop.Close()
		t.input.Wait()
		if err := term.Restore(int(t.in.Fd()), t.old); err != nil {
			t.err = fmt.Errorf("restore terminal: %w", err)
		}
	})
	return t.err
}
