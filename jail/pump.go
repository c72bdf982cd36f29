package jail

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

const pumpSize = 64 << 10 // what a pipe holds

// inPump copies what the caller gives as standard input into the command's pipe. It reads ahead by what the pipe
// holds; of a file it gives back what the command did not read.
type inPump struct {
	from   int  // the caller's; it stays open
	to     int  // does not block
	counts bool // from is a file, whose position the caller may go on from
}

// run ends with the input, with its last reader, or when wake can be read.
func (p *inPump) run(wake int) {
	buf := make([]byte, pumpSize)
	for p.await(p.from, unix.POLLIN, wake) {
		n, err := unix.Read(p.from, buf)
		if again(err) {
			continue
		}
		if err != nil || n <= 0 {
			p.end(wake)
			return
		}
		if left := p.write(buf[:n], wake); left > 0 {
			p.giveBack(left)
			break
		}
	}
	p.giveBack(unread(p.to))
	unix.Close(p.to)
}

// write returns how many bytes nobody wanted.
func (p *inPump) write(data []byte, wake int) (left int) {
	for len(data) > 0 {
		n, err := unix.Write(p.to, data)
		if n > 0 {
			data = data[n:]
			continue
		}
		if !again(err) || !p.await(p.to, unix.POLLOUT, wake) {
			return len(data)
		}
	}
	return 0
}

// end lets the command see the end of its input, and waits until it has read all it will.
func (p *inPump) end(wake int) {
	if !p.counts {
		unix.Close(p.to)
		return
	}
	// Only a read end can count the rest and does not keep the pipe open for the command.
	rest, err := unix.Open(fdPath(p.to), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	unix.Close(p.to)
	if err != nil {
		return
	}
	defer unix.Close(rest)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(wake), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p.giveBack(unread(rest))
}

func (p *inPump) giveBack(n int) {
	if p.counts && n > 0 {
		_, _ = unix.Seek(p.from, -int64(n), unix.SEEK_CUR) // a file that was read can be sought
	}
}

// await returns false when the pump shall end: by wake, or because the pipe has no reader left.
func (p *inPump) await(fd int, events int16, wake int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}, {Fd: int32(wake), Events: unix.POLLIN}, {Fd: int32(p.to)}}
	for {
		_, err := unix.Poll(fds, -1)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && fds[1].Revents == 0 && fds[2].Revents&unix.POLLERR == 0
		}
	}
}

// unread returns how many bytes wait in a pipe.
func unread(pipe int) int {
	n, err := unix.IoctlGetInt(pipe, unix.TIOCINQ) // FIONREAD by its other name
	if err != nil {
		return 0
	}
	return n
}

func again(err error) bool { return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) }

// outPump copies what the command writes to where the caller wants it. Where that cannot be written any more, the
// command gets SIGPIPE, and an error that is not the absence of a reader is kept.
type outPump struct {
	name string
	from int // does not block
	to   int // the caller's; it stays open
	err  error
}

// run ends with the last writer, or with the last byte in the pipe once wake can be read.
func (p *outPump) run(wake int) {
	defer unix.Close(p.from)
	buf := make([]byte, pumpSize)
	for last := false; ; {
		n, err := unix.Read(p.from, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if last {
				return
			}
			last = p.await(wake)
			continue
		case err != nil || n <= 0:
			return
		}
		if err := p.write(buf[:n]); err != nil {
			if !errors.Is(err, unix.EPIPE) {
				p.err = fmt.Errorf("write %s: %w", p.name, err)
			}
			return
		}
	}
}

// await returns true when nothing more will be written.
func (p *outPump) await(wake int) (last bool) {
	fds := []unix.PollFd{{Fd: int32(p.from), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		if !errors.Is(err, unix.EINTR) {
			return err != nil || fds[1].Revents != 0
		}
	}
}

// write does not use os.File: a broken standard output would end this process.
func (p *outPump) write(data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(p.to, data)
		if n > 0 {
			data = data[n:]
			continue
		}
		if errors.Is(err, unix.EAGAIN) { // the caller's file does not block
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(p.to), Events: unix.POLLOUT}}, -1)
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return nil
}
