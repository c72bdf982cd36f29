package jail

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// message is one packet between the supervisor and the holder or the shim. Which fields count follows from Kind.
type message struct {
	Kind      kind           `json:"kind,omitempty"`
	Error     string         `json:"error,omitempty"` // any kind: the sender failed and ends
	Installed *Installed     `json:"installed,omitempty"`
	Failed    []InstallError `json:"failed,omitempty"`
	Exec      *ExecError     `json:"exec,omitempty"`
	Exit      *Exit          `json:"exit,omitempty"`
	Signal    syscall.Signal `json:"signal,omitempty"`
	Stuck     int            `json:"stuck,omitempty"`
	Reason    string         `json:"reason,omitempty"`
	Steps     []Step         `json:"steps,omitempty"`
}

type kind string

const (
	// supervisor → holder
	kindHold  kind = "hold"  // descriptors: order, the shim's end of its socket, the command's three streams
	kindAbort kind = "abort" // answer all waiting requests of the views with an error
	kindBeat  kind = "beat"  // the supervisor lives
	kindPause kind = "pause" // it does not answer until its next beat
	// holder → supervisor
	kindMounted kind = "mounted" // descriptors: the device of each view
	kindStarted kind = "started" // descriptor: a pidfd of the jail's first process
	kindGaveUp  kind = "gave up" // the views are aborted and the jail is killed, for Reason
	kindEnded   kind = "ended"   // everything is released; only if steps are wanted

	// shim → supervisor
	kindInstalled kind = "installed" // descriptors: listeners, then the pty
	kindExec      kind = "exec"      // both ways: let the command start; it started, or Exec says why not
	kindExit      kind = "exit"      // the command ended and nothing else runs
	// supervisor → shim
	kindSignal kind = "signal"
)

const (
	maxPacket      = 192 << 10 // below the default socket buffer, so that a packet never waits for room in parts
	maxDescriptors = 250       // SCM_MAX_FD is 253
)

// packetConn carries messages with descriptors over one end of a SEQPACKET socket pair.
// Its end of file says that the process at the other end is gone.
type packetConn struct {
	c   *net.UnixConn
	buf []byte
	oob []byte
}

// socketPair returns the supervisor's end and the file for the child.
func socketPair() (*packetConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	child := os.NewFile(uintptr(fds[1]), "control socket of the child")
	conn, err := newPacketConn(os.NewFile(uintptr(fds[0]), "control socket"))
	if err != nil {
		child.Close()
		return nil, nil, err
	}
	return conn, child, nil
}

// newPacketConn takes f over.
func newPacketConn(f *os.File) (*packetConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("open control socket: not a unix socket")
	}
	return &packetConn{c: u}, nil
}

// send may be called from several goroutines. The caller keeps the files.
func (p *packetConn) send(m message, files ...*os.File) error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %s message: %w", m.Kind, err)
	}
	if len(data) > maxPacket {
		return fmt.Errorf("send %s message: %d bytes are too many", m.Kind, len(data))
	}
	if len(files) > maxDescriptors {
		return fmt.Errorf("send %s message: %d descriptors are too many", m.Kind, len(files))
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := p.c.WriteMsgUnix(data, oob, nil); err != nil {
		return fmt.Errorf("send %s message: %w", m.Kind, err)
	}
	return nil
}

// receive returns io.EOF when the other end is gone. One goroutine at a time may receive.
func (p *packetConn) receive() (message, []*os.File, error) {
	if p.buf == nil {
		p.buf = make([]byte, maxPacket)
		p.oob = make([]byte, unix.CmsgSpace(4*maxDescriptors))
	}
	n, oobn, flags, _, err := p.c.ReadMsgUnix(p.buf, p.oob)
	if err != nil {
		if errors.Is(err, syscall.ECONNRESET) {
			err = io.EOF // it went with messages of ours unread
		}
		return message{}, nil, err
	}
	files, err := descriptors(p.oob[:oobn])
	if err != nil {
		return message{}, nil, err
	}
	var m message
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("message is cut")
	} else {
		err = json.Unmarshal(p.buf[:n], &m)
	}
	if err != nil {
		closeAll(files)
		return message{}, nil, fmt.Errorf("read control message: %w", err)
	}
	return m, files, nil
}

// expect receives a message of one kind and turns a failure of the sender into an error.
func (p *packetConn) expect(k kind) (message, []*os.File, error) {
	m, files, err := p.receive()
	if err != nil {
		return message{}, nil, err
	}
	if m.Error != "" {
		closeAll(files)
		return message{}, nil, errors.New(m.Error)
	}
	if m.Kind == kindGaveUp {
		closeAll(files)
		return message{}, nil, &AbandonedError{m.Reason}
	}
	if m.Kind != k {
		closeAll(files)
		return message{}, nil, fmt.Errorf("control message is %q, want %q", m.Kind, k)
	}
	return m, files, nil
}

func descriptors(oob []byte) ([]*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse descriptors: %w", err)
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("parse descriptors: %w", err)
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), fmt.Sprintf("received descriptor %d", fd)))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
