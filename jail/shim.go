package jail

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"stage/jail/enter"
)

// Descriptors the shim is started with, after enter.ControlFD: libcontainer puts the holder's shimFiles there.
const (
	shimOrderFD  = 4
	shimStreamFD = 5 // the command's three streams
)

// shim is the first process of the jail. It installs what is left to install, proves it, starts the command as its
// child, and ends when the command or the supervisor does; with it ends every process of the jail.
//
// The supervisor's end of the control socket is the jail's lifeline: libcontainer's own parent death signal is
// lost on the way (its stages are each other's parents).
type shim struct {
	control *packetConn
	order   order
	cfg     Config
	facts   holderFacts
	streams [3]*os.File
	trace   *tracer
	master  *os.File // of the command's pty, until it is handed out

	mu      sync.Mutex
	command int // its pid while it may be signalled, else 0

	exited sync.Once
}

func runShim() int {
	control, err := newPacketConn(os.NewFile(enter.ControlFD, "control socket"))
	if err != nil {
		return 1
	}
	s := &shim{control: control}
	if err := s.run(); err != nil {
		_ = control.send(message{Error: err.Error()})
		return 1
	}
	return 0
}

func (s *shim) run() error {
	if err := s.adopt(); err != nil {
		return err
	}
	s.trace.mark("order read")
	if err := s.install(); err != nil {
		return err
	}
	if err := dropSignals(); err != nil {
		return err
	}
	for {
		m, files, err := s.control.receive()
		if err != nil {
			return err // the supervisor is gone
		}
		closeAll(files)
		if m.Kind == kindExec {
			break
		}
	}
	pid, failure := s.start()
	if failure != nil {
		return s.control.send(message{Kind: kindExec, Exec: failure})
	}
	s.trace.mark("command started")
	if err := s.control.send(message{Kind: kindExec, Steps: s.trace.take()}); err != nil {
		return err
	}
	go s.listen()
	return s.reap(pid)
}

// dropSignals keeps the command from ending its own jail. The kernel drops a signal whose disposition is the default
// for the first process of a pid namespace (sig_task_ignored, kernel/signal.c); the handlers of the Go runtime
// would end the process on some, which anybody can forge with rt_sigqueueinfo(2). A real fault still ends it.
// Signals that are ignored stay so: the command inherits that from the caller.
func dropSignals() error {
	for _, n := range []syscall.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE,
		unix.SIGSEGV, unix.SIGTERM, unix.SIGSTKFLT, unix.SIGXCPU, unix.SIGXFSZ, unix.SIGSYS,
	} {
		if signal.Ignored(n) {
			continue
		}
		var byDefault [4]uint64 // struct sigaction of the kernel: handler, flags, restorer, mask
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0); errno != 0 {
			return fmt.Errorf("drop signal %d: %w", n, errno)
		}
	}
	return nil
}

// adopt takes over what libcontainer handed down, so that nothing of it reaches the command.
func (s *shim) adopt() error {
	if err := unix.CloseRange(enter.ControlFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("keep descriptors from the command: %w", err)
	}
	f := os.NewFile(shimOrderFD, "jail order")
	defer f.Close()
	o, err := readOrder(f)
	if err != nil {
		return err
	}
	s.order, s.cfg = o, o.Config.config()
	s.trace = newTracer("shim", o.Trace)
	for i := range s.streams {
		s.streams[i] = os.NewFile(uintptr(shimStreamFD+i), "stream "+strconv.Itoa(i))
	}
	if err := s.openDevices(); err != nil {
		return err
	}
	if len(os.Args) != 2 {
		return errors.New("shim: no facts from the holder")
	}
	if err := json.Unmarshal([]byte(os.Args[1]), &s.facts); err != nil {
		return fmt.Errorf("decode facts of the holder: %w", err)
	}
	return nil
}

// openDevices opens the streams that are devices of the jail's own.
func (s *shim) openDevices() error {
	for i, how := range s.order.Streams {
		if how.Device == "" {
			continue
		}
		name := "/dev/" + how.Device
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", streamNames[i], &os.PathError{Op: "open", Path: name, Err: err})
		}
		s.streams[i].Close()
		s.streams[i] = os.NewFile(uintptr(fd), name)
	}
	return nil
}

// openListeners opens the mediator's ends inside the network namespace.
func (s *shim) openListeners() ([]*os.File, error) {
	if s.cfg.Net != NetMediated {
		return nil, nil
	}
	var files []*os.File
	for _, addr := range s.cfg.Listeners {
		f, err := openListener(addr)
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func openListener(addr string) (*os.File, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen in the jail: %w", err)
	}
	defer l.Close()
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("listen in the jail on %s: not a TCP address", addr)
	}
	return tcp.File()
}

// openTerminal gives the command a pty of the jail's own devpts in place of the caller's terminal.
func (s *shim) openTerminal() error {
	if !s.cfg.TTY {
		return nil
	}
	master, slave, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open terminal in the jail: %w", err)
	}
	size := &pty.Winsize{Rows: s.order.Size.Rows, Cols: s.order.Size.Cols}
	if err := pty.Setsize(master, size); err != nil {
		return fmt.Errorf("set size of terminal: %w", err)
	}
	for i := range s.streams {
		if i == 2 && s.order.KeepStderr {
			continue
		}
		s.streams[i].Close()
		s.streams[i] = slave
	}
	s.master = master
	return nil
}

// start runs the command in the working directory that install left the shim in.
func (s *shim) start() (int, *ExecError) {
	file, failure := lookCommand(s.cfg.Argv[0], s.cfg.Env)
	if failure != nil {
		return 0, failure
	}
	attr := &syscall.ProcAttr{Env: s.cfg.Env, Sys: &syscall.SysProcAttr{}}
	for _, f := range s.streams {
		attr.Files = append(attr.Files, f.Fd())
	}
	if s.cfg.TTY {
		attr.Sys.Setsid, attr.Sys.Setctty = true, true
	} else {
		attr.Sys.Setpgid = true // so that ^C reaches all of a pipeline
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, err := syscall.ForkExec(file, s.cfg.Argv, attr)
	if err != nil {
		errno := syscall.EIO
		errors.As(err, &errno)
		return 0, execError(file, errno)
	}
	s.command = pid
	for _, f := range s.streams {
		f.Close() // so that the reader of a pipe sees the command close it
	}
	_ = unix.Chdir("/")
	return pid, nil
}

// listen passes signals on and ends the jail when the supervisor is gone.
func (s *shim) listen() {
	for {
		m, files, err := s.control.receive()
		if err != nil {
			unix.Exit(1)
		}
		closeAll(files)
		if m.Kind == kindSignal {
			s.signal(m.Signal)
		}
	}
}

// signal reaches the command's process group with what a terminal sends to one, and the command alone with what
// kill(1) sends.
func (s *shim) signal(n syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.command == 0 {
		return
	}
	target := s.command
	switch n {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGTSTP, unix.SIGCONT:
		target = -s.command
	}
	_ = unix.Kill(target, n) // it may have ended just now
}

// reap waits for the command, then kills and counts what it left behind.
func (s *shim) reap(command int) error {
	status, err := s.waitFor(command)
	if err != nil {
		return err
	}
	s.trace.mark("command ended")
	exit := Exit{Survivors: countProcesses()}
	switch {
	case status.Signaled():
		exit.Signal = int(status.Signal())
		exit.Code = 128 + exit.Signal
	default:
		exit.Code = status.ExitStatus()
	}
	if os.Getpid() != 1 {
		return errors.New("not the first process of a pid namespace") // -1 would be everybody else on the host
	}
	_ = unix.Kill(-1, unix.SIGKILL) // ESRCH: nobody is left
	// A survivor may wait for a server that is stuck; the holder frees it once this process ends.
	late := time.AfterFunc(2*time.Second, func() {
		s.report(exit)
		unix.Exit(0)
	})
	defer late.Stop()
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); errors.Is(err, unix.ECHILD) {
			break
		}
	}
	return s.report(exit)
}

// waitFor reaps orphans until the command ends. The kernel gives pids out in a circle, so none is used again
// between the wait and the lock.
func (s *shim) waitFor(command int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait for the command: %w", err)
		}
		if !status.Exited() && !status.Signaled() {
			continue // a child that asked to be traced by its parent (PTRACE_TRACEME) has stopped
		}
		if pid == command {
			s.mu.Lock()
			s.command = 0
			s.mu.Unlock()
			return status, nil
		}
	}
}

func (s *shim) report(e Exit) (err error) {
	s.exited.Do(func() {
		var used unix.Rusage
		if err = unix.Getrusage(unix.RUSAGE_CHILDREN, &used); err != nil {
			return
		}
		e.Rusage = Rusage{
			User:   time.Duration(used.Utime.Nano()),
			System: time.Duration(used.Stime.Nano()),
			MaxRSS: used.Maxrss << 10,
		}
		s.trace.mark("all reaped")
		err = s.control.send(message{Kind: kindExit, Exit: &e, Steps: s.trace.take()})
	})
	return err
}

// countProcesses counts the living processes of the jail but the shim.
func countProcesses() int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return -1
	}
	n := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != 1 && alive(pid) {
			n++
		}
	}
	return n
}
