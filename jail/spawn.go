package jail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// check refuses what cannot work, before anything is started.
func (c *Config) check() error {
	if c.Exe == "" {
		c.Exe = "/proc/self/exe"
	}
	if len(c.Argv) == 0 {
		return errors.New("prepare jail: no command")
	}
	for _, s := range slices.Concat(c.Argv, c.Env, []string{c.Cwd, c.WorkDir}) {
		if strings.Contains(s, "\x00") {
			return fmt.Errorf("prepare jail: %q contains a zero byte", s)
		}
	}
	if int(c.UID) != os.Geteuid() || (c.Mode == Root) != (c.UID == 0) {
		return fmt.Errorf("prepare jail: uid %d does not fit the mode and the caller's uid %d", c.UID, os.Geteuid())
	}
	if len(c.Listeners) > 0 && c.Net != NetMediated {
		return errors.New("prepare jail: listeners need a mediated network")
	}
	if c.TTY && (c.Stdin == nil || c.Stdout == nil) {
		return errors.New("prepare jail: a terminal needs standard input and output")
	}
	if !utf8.ValidString(c.WorkDir) {
		return fmt.Errorf("prepare jail: work directory %q is not UTF-8", c.WorkDir)
	}
	return c.checkPaths()
}

func (c *Config) checkPaths() error {
	paths := []string{c.WorkDir, c.Cwd}
	for _, m := range c.Mounts {
		paths = append(paths, m.Dest)
		if m.Kind == Bind || m.Kind == Kept {
			paths = append(paths, m.Source)
		}
		if m.Kind == Mask && belowView(c.Views, m.Dest) {
			return fmt.Errorf("prepare jail: mask at %q lies in a view, which hides by rules", m.Dest)
		}
		if m.Dest == "/" {
			return errors.New("prepare jail: the root itself cannot be mounted over")
		}
	}
	for _, v := range c.Views {
		paths = append(paths, v.Dest)
	}
	for _, p := range paths {
		if !path.IsAbs(p) || path.Clean(p) != p {
			return fmt.Errorf("prepare jail: path %q is not absolute and clean", p)
		}
	}
	return nil
}

// child is a started process with one goroutine that waits for it.
type child struct {
	cmd    *exec.Cmd
	done   chan struct{}
	err    error
	stderr bytes.Buffer // to be read after done
}

// startChild starts cmd on a thread that stays until the process ends: the parent death signal follows the thread.
func startChild(cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, done: make(chan struct{})}
	cmd.Stderr = &c.stderr
	cmd.WaitDelay = time.Second // a process of the jail that cannot be killed may hold it open
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread goes with the goroutine
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.done)
		}
	}()
	return c, <-started
}

// spawn starts the holder, unless it was launched before, and gives it everything it will need.
func (j *Jail) spawn() (err error) {
	l := j.cfg.Holder
	if l == nil {
		if l, err = Launch(j.cfg.Exe, j.cfg.Mode, j.cfg.UID, j.cfg.GID); err != nil {
			return fmt.Errorf("prepare jail: %w", err)
		}
	}
	if err := l.takeOver(j); err != nil {
		return err
	}
	host, err := j.hostFacts()
	if err != nil {
		return fmt.Errorf("prepare jail: %w", err)
	}
	o := order{Config: j.cfg.wire(), Host: host, Trace: j.cfg.OnStep != nil}
	if j.cfg.TTY {
		o.Size = sizeOf(j.cfg.Stdin)
		o.KeepStderr = j.cfg.Stderr != nil && !term.IsTerminal(int(j.cfg.Stderr.Fd()))
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("prepare jail: %w", err)
	}
	defer null.Close()
	if j.streams, err = openStreams(j.cfg, null); err != nil {
		return fmt.Errorf("prepare jail: %w", err)
	}
	defer j.streams.handedOver()
	o.Streams = j.streams.how
	orderFile, err := o.file()
	if err != nil {
		return fmt.Errorf("prepare jail: %w", err)
	}
	defer orderFile.Close()
	var shimEnd *os.File
	if j.shim, shimEnd, err = socketPair(); err != nil {
		return fmt.Errorf("prepare jail: %w", err)
	}
	defer shimEnd.Close()
	files := append([]*os.File{orderFile, shimEnd}, j.streams.files[:]...)
	if err := j.control.send(message{Kind: kindHold}, files...); err != nil {
		return errors.Join(fmt.Errorf("prepare jail: %w", err), j.whyGone(j.control))
	}
	return nil
}

// expect receives one message, or tells why none can come.
func (j *Jail) expect(ctx context.Context, from *packetConn, k kind) (message, []*os.File, error) {
	stop := context.AfterFunc(ctx, func() { _ = from.c.SetReadDeadline(time.Unix(1, 0)) })
	m, files, err := from.expect(k)
	if !stop() {
		closeAll(files)
		return message{}, nil, ctx.Err()
	}
	if errors.Is(err, io.EOF) {
		return message{}, nil, j.whyGone(from)
	}
	return m, files, err
}

// whyGone explains the end of a control socket.
func (j *Jail) whyGone(from *packetConn) error {
	if from == j.shim {
		if err := j.abandoned(); err != nil {
			return err
		}
		return errors.New("the jail's first process ended")
	}
	select {
	case <-j.holder.done:
		return fmt.Errorf("holder ended: %v: %s", j.holder.err, bytes.TrimSpace(j.holder.stderr.Bytes()))
	case <-time.After(takeDownTime):
		return errors.New("holder closed its control socket")
	}
}

// awaitProcesses waits until no process of the jail is left. If that takes long, one of them waits for an answer
// from a view; aborting the views frees it.
func (j *Jail) awaitProcesses() error {
	select {
	case <-j.gone:
		return nil
	case <-time.After(time.Second):
		_ = j.control.send(message{Kind: kindAbort})
	}
	select {
	case <-j.gone:
		return nil
	case <-time.After(takeDownTime):
		return errors.New("end jail: its processes do not end")
	}
}

// awaitHolder waits for the holder to release what it has. It ends with the jail or with its control socket.
func (j *Jail) awaitHolder() error {
	if j.holder == nil {
		return nil
	}
	for limit := takeDownTime + time.Second; ; limit = time.Second { // it gives up by itself after takeDownTime
		select {
		case <-j.holder.done:
			return nil
		case <-time.After(limit):
		}
		if !j.holderExits() {
			break
		}
	}
	err := j.holder.cmd.Process.Kill()
	<-j.holder.done
	return errors.Join(errors.New("end jail: the holder had to be killed"), err)
}

// holderExits reports whether the holder is on its way out: with it goes the last of the mounts, and of a view
// with a million names known that takes the kernel seconds.
func (j *Jail) holderExits() bool {
	if j.holder == nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", j.holder.cmd.Process.Pid))
	if err != nil {
		return false
	}
	t, ok := parseStat(stat)
	return ok && t.flags&exiting != 0
}

func (j *Jail) close() error {
	var errs []error
	if j.started() {
		errs = append(errs, j.Kill(), j.awaitProcesses())
	}
	// Where nothing was started yet, this is the holder's and the shim's order to end.
	if j.control != nil {
		_ = j.control.c.CloseWrite() // it may be gone; what it says last is still heard
	}
	if j.shim != nil {
		j.shim.c.Close()
	}
	errs = append(errs, j.awaitHolder())
	if j.control != nil {
		_ = j.control.c.SetReadDeadline(time.Now().Add(time.Second)) // a child that cannot be killed may keep it open
		if j.listening {
			<-j.heard
		}
		j.control.c.Close()
	}
	j.follow.Wait()
	if j.streams != nil {
		errs = append(errs, j.streams.finish(j.killed))
	}
	if j.terminal != nil {
		errs = append(errs, j.terminal.finish())
	}
	j.release()
	return errors.Join(errs...)
}

func (j *Jail) started() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.first != nil
}

// release closes what was not handed out.
func (j *Jail) release() {
	for _, l := range j.listeners {
		l.Close()
	}
	if j.abstract != nil {
		j.abstract.Close()
	}
	for _, d := range j.devices {
		if d != nil {
			d.Close()
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case <-j.gone:
		j.first.Close()
	default: // never started, or followFirst still looks at it
	}
	j.first = nil
}

func sizeOf(tty *os.File) windowSize {
	ws, err := unix.IoctlGetWinsize(int(tty.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return windowSize{Rows: 24, Cols: 80}
	}
	return windowSize{Rows: ws.Row, Cols: ws.Col}
}
