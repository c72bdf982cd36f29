// Package opener opens files that belong to the caller but may not be read by him: as their owner he
// could let himself, and what the Job does to such a file, as a rename, needs its content.
//
// A process in a user namespace of its own (and, as a holder of jail/enter, a mount namespace), into which the caller's user and group are mapped, may
// read what both own whatever its mode says (CAP_DAC_OVERRIDE, privileged_wrt_inode_uidgid in the
// kernel's kernel/capability.c). It is started when it is first needed, and ends with its Opener.
//
//	Opener ──1 byte, O_PATH descriptor──► process ──open("/proc/self/fd/N", O_RDONLY)
//	       ◄─errno, descriptor if it is 0─
package opener

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"

	"stage/jail/enter"
)

// role is the environment variable that makes a re-executed program the process of an Opener.
const role = "_STAGE_OPENER"

// Main serves an Opener and does not return, in a process that is one's. Elsewhere it returns at once.
// A program that uses this package calls it before anything else.
func Main() {
	if os.Getenv(role) == "" {
		return
	}
	// jail/enter asks for SIGTERM at the end of the thread that started it, which need not be that of its
	// process: the end of the socket is.
	signal.Ignore(unix.SIGTERM)
	serve(enter.ControlFD)
	os.Exit(0)
}

// serve answers until the other end of the socket is closed.
func serve(socket int) {
	for {
		fd, err := receive(socket)
		if err != nil || fd < 0 {
			return
		}
		opened, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOATIME|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		if err := reply(socket, opened, err); err != nil {
			return
		}
	}
}

// receive returns the descriptor that came with a message, -1 at the end.
func receive(socket int) (int, error) {
	var data [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, err := receiveMessage(socket, data[:], oob)
	if err != nil || n == 0 {
		return -1, err
	}
	return descriptorIn(oob[:oobn])
}

func receiveMessage(socket int, data, oob []byte) (n, oobn int, err error) {
	for {
		n, oobn, _, _, err = unix.Recvmsg(socket, data, oob, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			return n, oobn, err
		}
	}
}

func descriptorIn(oob []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return -1, errors.Join(errors.New("a message without a descriptor"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, errors.Join(errors.New("a message without a descriptor"), err)
	}
	return fds[0], nil
}

// reply sends errno, and what was opened if that is 0.
func reply(socket, opened int, err error) error {
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		errno = unix.EIO
	}
	if errno != 0 {
		return unix.Sendmsg(socket, []byte{byte(errno)}, nil, nil, 0)
	}
	defer unix.Close(opened)
	return unix.Sendmsg(socket, []byte{0}, unix.UnixRights(opened), nil, 0)
}

// Opener opens files through its process. The zero Opener is ready to be used.
type Opener struct {
	mu      sync.Mutex // guards all below
	socket  *os.File
	process *exec.Cmd
	broken  error
}

// Open opens the regular file that path, an O_PATH descriptor, refers to, for reading. An errno of
// open(2) is returned as it is.
func (o *Opener) Open(path int) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken == nil && o.socket == nil {
		o.broken = o.start()
	}
	if o.broken != nil {
		return -1, o.broken
	}
	fd, err := o.ask(path)
	if err != nil && !errors.As(err, new(unix.Errno)) {
		o.broken = fmt.Errorf("open as owner: %w", err)
		return -1, o.broken
	}
	return fd, err
}

func (o *Opener) ask(path int) (int, error) {
	socket := int(o.socket.Fd())
	if err := unix.Sendmsg(socket, []byte{0}, unix.UnixRights(path), nil, 0); err != nil {
		return -1, fmt.Errorf("send: %v", err)
	}
	data, oob := make([]byte, 512), make([]byte, unix.CmsgSpace(4))
	n, oobn, err := receiveMessage(socket, data, oob)
	switch {
	case err != nil:
		return -1, fmt.Errorf("receive: %v", err)
	case n == 0:
		return -1, errors.New("its process ended")
	case n > 1: // the constructor of jail/enter
		return -1, fmt.Errorf("its process says %s", data[:n])
	case data[0] != 0:
		return -1, unix.Errno(data[0])
	}
	return descriptorIn(oob[:oobn])
}

// start starts the process.
func (o *Opener) start() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("start opener: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "opener")
	defer theirs.Close()
	ours := os.NewFile(uintptr(pair[0]), "opener")
	c := exec.Command("/proc/self/exe")
	ns := enter.Role{Name: enter.Holder, Rootless: true, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	c.Env = []string{role + "=1", ns.Environ()}
	c.ExtraFiles = []*os.File{theirs}
	if err := c.Start(); err != nil {
		return errors.Join(fmt.Errorf("start opener: %w", err), ours.Close())
	}
	o.socket, o.process = ours, c
	return nil
}

// Close ends the process, if there is one.
func (o *Opener) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.socket == nil {
		return nil
	}
	err := o.socket.Close()
	o.socket, o.broken = nil, os.ErrClosed
	return errors.Join(err, o.process.Wait())
}
