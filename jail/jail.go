// Package jail runs one command in Linux namespaces of its own.
//
//	supervisor (the caller's namespaces)
//	  │  │ beat, abort ─▶           ◀─ mounted{devices} started{pidfd} gave up
//	  │  └─────────────── holder (user and mount namespace: mounts, root file system, watchdog)
//	  │                     └─ libcontainer init (pid, mount, ipc, uts, cgroup, net namespace)
//	  │ exec, signal ─▶         = shim (the same process after an exec, pid 1: inner user namespace,
//	  └────────────────────────        no capability, no_new_privs, seccomp, canaries)
//	    ◀─ installed{listeners, pty} exec exit    └─ command
//
// All of them are one program: Main tells a re-executed process which part it has. Both control sockets are
// lifelines: the end of the supervisor is the end of the holder and of the shim, and the shim's end is, by the
// pid namespace, that of every process of the jail.
//
// Prepare mounts, Start builds and proves, Exec lets the command run, Wait tells how it ended, Close leaves
// nothing behind.
package jail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stage/jail/seccomp"
)

// Exit is how the command ended.
type Exit struct {
	Code      int // the command's own code; 128+n when signal n ended it
	Signal    int // the signal that ended it, or 0
	Survivors int // processes still alive at the end of the command, all killed; -1: not counted
	Rusage    Rusage
}

// Rusage is what all processes of the jail used together, as far as they were waited for.
type Rusage struct {
	User, System time.Duration
	MaxRSS       int64 // bytes, of the largest process
}

// Jail is one confined command, from the first mount to the last process.
type Jail struct {
	cfg      Config
	holder   *child
	control  *packetConn // to the holder
	shim     *packetConn
	abstract net.Listener // what the net.unix canary must not reach; open until Start is done

	devices   []*os.File // nil once handed out
	listeners []net.Listener
	terminal  *terminal
	streams   *streams

	execed chan *ExecError // one answer to Exec
	ended  chan struct{}   // the shim is gone; then exit and failure are set
	exit   *Exit
	failed error

	closed    chan struct{} // closed by Close
	gone      chan struct{} // the last process of the jail is gone
	follow    sync.WaitGroup
	listening bool          // listenHolder was started
	heard     chan struct{} // closed when the holder has said its last

	mu     sync.Mutex
	first  *os.File      // guarded by mu: pidfd of the first process; nil before Start and after Close
	killed chan struct{} // closed, under mu, by Kill
	lost   error         // guarded by mu: why the holder gave the jail up

	closing  sync.Once
	closeErr error
}

// Prepare starts the holder. When it returns, the views are mounted and wait for their devices to be served; the
// container is being built meanwhile.
func Prepare(ctx context.Context, c Config) (*Jail, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	j := &Jail{cfg: c, execed: make(chan *ExecError, 1), ended: make(chan struct{}), gone: make(chan struct{}), killed: make(chan struct{}), closed: make(chan struct{}), heard: make(chan struct{})}
	j.step("prepare jail")
	if err := j.spawn(); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	m, devices, err := j.expect(ctx, j.control, kindMounted)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare jail: %w", err), j.Close())
	}
	j.devices = devices
	j.follow.Go(j.beat)
	j.pass(m.Steps)
	if len(devices) != len(c.Views) {
		return nil, errors.Join(fmt.Errorf("prepare jail: %d devices for %d views", len(devices), len(c.Views)), j.Close())
	}
	return j, nil
}

// Device hands out the /dev/fuse descriptor of a view, which the caller then owns. It must be served before Start.
func (j *Jail) Device(view int) *os.File {
	d := j.devices[view]
	j.devices[view] = nil
	return d
}

// Start waits for the container to be built up to the point where only the command is missing. A control that was asked for and
// is not in force is an *InstallError; the report is returned beside it.
func (j *Jail) Start(ctx context.Context) (*Installed, error) {
	defer j.abstract.Close()
	planned, err := seccomp.Digest(seccomp.Profile(j.cfg.AllowUserns))
	if err != nil {
		return nil, fmt.Errorf("start jail: %w", err)
	}
	if err := j.awaitContainer(ctx); err != nil {
		return nil, fmt.Errorf("start jail: %w", err)
	}
	j.listening = true
	go j.listenHolder()
	m, files, err := j.expect(ctx, j.shim, kindInstalled)
	if err != nil {
		return nil, fmt.Errorf("start jail: %w", err)
	}
	j.pass(m.Steps)
	if err := j.take(files); err != nil {
		return nil, fmt.Errorf("start jail: %w", err)
	}
	j.follow.Go(j.listen)
	j.follow.Go(j.followHolder)
	failed := compareFilter(m.Installed, m.Failed, planned)
	var errs []error
	for i := range failed {
		errs = append(errs, &failed[i])
	}
	return m.Installed, errors.Join(errs...)
}

func (j *Jail) awaitContainer(ctx context.Context) error {
	m, files, err := j.expect(ctx, j.control, kindStarted)
	if err != nil {
		return err
	}
	j.pass(m.Steps)
	if len(files) != 1 {
		closeAll(files)
		return fmt.Errorf("%d descriptors of the first process, want 1", len(files))
	}
	j.mu.Lock()
	j.first = files[0]
	j.mu.Unlock()
	go j.followFirst(int(files[0].Fd()))
	return nil
}

// compareFilter completes the read-back of the filter's digest.
func compareFilter(in *Installed, failed []InstallError, planned string) []InstallError {
	for i := range in.Controls {
		c := &in.Controls[i]
		for k := range c.ReadBack {
			r := &c.ReadBack[k]
			if c.ID != "seccomp.filter" || r.Source != seccompProgram {
				continue
			}
			r.Want = planned
			if r.Got != planned {
				c.Level = Unenforced
				c.Reason = "not in force: another program is loaded"
				failed = append(failed, InstallError{Control: c.ID, Detail: []string{c.Reason}})
			}
		}
	}
	return failed
}

// take adopts the listeners and the terminal of the jail.
func (j *Jail) take(files []*os.File) error {
	want := 0
	if j.cfg.Net == NetMediated {
		want = len(j.cfg.Listeners)
	}
	if j.cfg.TTY {
		want++
	}
	if len(files) != want {
		closeAll(files)
		return fmt.Errorf("%d descriptors from the shim, want %d", len(files), want)
	}
	if j.cfg.TTY {
		j.terminal = newTerminal(j.cfg.Stdin, j.cfg.Stdout, files[want-1])
		files = files[:want-1]
	}
	defer closeAll(files)
	for _, f := range files {
		l, err := net.FileListener(f)
		if err != nil {
			return fmt.Errorf("open listener: %w", err)
		}
		j.listeners = append(j.listeners, l)
	}
	return nil
}

// Listeners returns the listeners inside the jail's network namespace, in the order of Config.Listeners.
func (j *Jail) Listeners() []net.Listener { return j.listeners }

// Exec lets the command start. *ExecError says that it cannot.
func (j *Jail) Exec() error {
	if j.terminal != nil {
		if err := j.terminal.start(); err != nil {
			return err
		}
	}
	err := j.exec()
	if err == nil {
		j.streams.start()
	}
	if err != nil && j.terminal != nil {
		err = errors.Join(err, j.Kill(), j.terminal.finish()) // who prints the error wants the terminal as it was
	}
	return err
}

func (j *Jail) exec() error {
	if err := j.shim.send(message{Kind: kindExec}); err != nil {
		return fmt.Errorf("execute command: %w", err)
	}
	select {
	case failure := <-j.execed:
		return failure.orNil()
	case <-j.ended:
	}
	select {
	case failure := <-j.execed: // both were ready
		return failure.orNil()
	default:
		return errors.Join(errors.New("execute command: the jail ended"), j.failed)
	}
}

// listen receives what the shim says until it is gone.
func (j *Jail) listen() {
	defer close(j.ended)
	for {
		m, files, err := j.shim.receive()
		if err != nil {
			if !errors.Is(err, io.EOF) && j.exit == nil {
				j.failed = err
			}
			return
		}
		closeAll(files)
		j.pass(m.Steps)
		switch {
		case m.Error != "":
			j.failed = errors.New(m.Error)
		case m.Kind == kindExec:
			j.execed <- m.Exec
		case m.Kind == kindExit:
			j.exit = m.Exit
		}
	}
}

// listenHolder receives what the holder says until it is gone.
func (j *Jail) listenHolder() {
	defer close(j.heard)
	for {
		m, files, err := j.control.receive()
		if err != nil {
			return
		}
		closeAll(files)
		j.pass(m.Steps)
		if m.Kind == kindGaveUp {
			j.mu.Lock()
			j.lost = &AbandonedError{m.Reason}
			j.mu.Unlock()
		}
	}
}

// followFirst sees the jail's first process end, which the kernel lets happen after all others have. Close waits
// for it, unless it gives up on a process that cannot be killed.
func (j *Jail) followFirst(pidfd int) {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	close(j.gone)
}

// followHolder ends the jail when its holder is gone: nobody could free it from a view that does not answer.
func (j *Jail) followHolder() {
	select {
	case <-j.ended:
	case <-j.holder.done:
		j.mu.Lock()
		defer j.mu.Unlock()
		_ = j.killLocked() // or has ended just now
	}
}

// Signal sends a signal to the command: what a terminal sends goes to its process group, the rest to it alone.
func (j *Jail) Signal(sig syscall.Signal) error {
	return j.shim.send(message{Kind: kindSignal, Signal: sig})
}

// Wait returns when the command has ended and no process of the jail is left.
func (j *Jail) Wait() (Exit, error) {
	<-j.ended
	errs := []error{j.awaitProcesses()} // some may be left that the shim could not wait for
	errs = append(errs, j.streams.finish(j.killed))
	if j.terminal != nil {
		errs = append(errs, j.terminal.finish())
	}
	if j.exit != nil {
		return *j.exit, errors.Join(errs...)
	}
	if err := j.abandoned(); err != nil {
		return unknownEnd, errors.Join(append(errs, err)...)
	}
	if !j.wasKilled() {
		errs = append(errs, errors.New("wait for command: the jail's first process was killed before it could tell how the command ended"), j.failed)
	}
	return unknownEnd, errors.Join(errs...)
}

// unknownEnd is the end of a command whose jail was killed with it.
var unknownEnd = Exit{Code: 128 + int(unix.SIGKILL), Signal: int(unix.SIGKILL), Survivors: -1}

// abandoned returns why the holder ended the jail, nil if it did not. What it said before its end is heard first.
func (j *Jail) abandoned() error {
	if j.wasKilled() {
		return nil
	}
	select {
	case <-j.heard:
	case <-time.After(takeDownTime): // it does not end either
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lost
}

func (j *Jail) wasKilled() bool {
	select {
	case <-j.killed:
		return true
	default:
		return false
	}
}

// Gone tells whether no process of the jail is left: then nobody asks for anything in its views any more.
func (j *Jail) Gone() bool {
	select {
	case <-j.gone:
		return true
	default:
		return false
	}
}

// Kill ends every process of the jail at once.
func (j *Jail) Kill() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.wasKilled() {
		close(j.killed)
	}
	return j.killLocked()
}

func (j *Jail) killLocked() error {
	if j.first == nil {
		return nil
	}
	err := unix.PidfdSendSignal(int(j.first.Fd()), unix.SIGKILL, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill jail: %w", err)
	}
	return nil
}

// Close ends what still runs and releases everything. It leaves no process, no mount and no cgroup. After
// closeTime it gives up with an error, unless the holder is on its way out: a process that waits in the kernel
// cannot be ended.
func (j *Jail) Close() error {
	j.closing.Do(func() {
		close(j.closed)
		closed := make(chan error, 1)
		go func() { closed <- j.close() }()
		for start := time.Now(); ; {
			select {
			case j.closeErr = <-closed:
				return
			case <-time.After(closeTime):
			}
			if took := time.Since(start); !j.holderExits() || took > maxCloseTime {
				j.closeErr = fmt.Errorf("close jail: not done after %v", took)
				return
			}
		}
	})
	return j.closeErr
}

const (
	closeTime    = 10 * time.Second
	maxCloseTime = 2 * time.Minute // where the kernel still works on it
)
