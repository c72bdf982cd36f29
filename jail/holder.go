package jail

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"syscall"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"stage/jail/enter"
)

// holderFiles is how many descriptors come with kindHold.
const holderFiles = 5

// errUnused ends a holder whose supervisor went before it said what to hold.
var errUnused = errors.New("nothing to hold")

// holder is the process that keeps the mounts of a jail and starts its container. It never touches a view: a
// request that nobody answers would stop it for good.
type holder struct {
	control   *packetConn
	order     order
	umask     uint32
	root      rootfs
	shimFiles []*os.File
	trace     *tracer
	container *libcontainer.Container // set by runContainer, read when it has ended
	started   chan *os.File           // a pidfd of the jail's first process
	parent    *os.File                // a pidfd of the supervisor
}

// takeDownTime is how long a container may take to end after its supervisor.
const takeDownTime = 3 * time.Second

func runHolder() int {
	control, err := newPacketConn(os.NewFile(enter.ControlFD, "control socket"))
	if err != nil {
		return 1
	}
	h := &holder{control: control, umask: uint32(unix.Umask(0)), started: make(chan *os.File, 1)}
	err = h.run()
	if errors.Is(err, errUnused) {
		return 0
	}
	if err != nil {
		_ = control.send(message{Error: err.Error()})
		return 1
	}
	if steps := h.trace.take(); len(steps) > 0 {
		_ = control.send(message{Kind: kindEnded, Steps: steps}) // nobody may be there any more
	}
	return 0
}

func (h *holder) run() error {
	// The supervisor's death comes twice: as this signal and as the end of the control socket.
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGTERM)
	if err := h.adopt(); err != nil {
		return err
	}
	parent, err := unix.PidfdOpen(os.Getppid(), 0)
	if err != nil {
		return fmt.Errorf("open supervisor: %w", err)
	}
	h.parent = os.NewFile(uintptr(parent), "supervisor")
	h.trace.mark("order read")
	if err := h.prepare(); err != nil {
		return err
	}
	orders := make(chan message)
	go h.listen(orders)
	// At once, while the supervisor gets ready to serve the views: who touches one before that waits.
	ended := make(chan error, 1)
	go func() { ended <- h.runContainer() }()
	return h.watch(ended, orders, died)
}

// adopt takes over what the supervisor handed down.
func (h *holder) adopt() error {
	_, files, err := h.control.expect(kindHold)
	if errors.Is(err, io.EOF) {
		return errUnused
	}
	if err != nil {
		return err
	}
	if len(files) != holderFiles {
		return fmt.Errorf("%d descriptors from the supervisor, want %d", len(files), holderFiles)
	}
	o, err := readOrder(files[0])
	if err != nil {
		return err
	}
	h.order = o
	h.shimFiles = append([]*os.File{files[1], files[0]}, files[2:]...) // as runShim takes them
	h.trace = newTracer("holder", o.Trace)
	return nil
}

// prepare mounts the views, hands their devices out, and builds the root file system around them.
func (h *holder) prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// In this namespace only. A system without cgroups has nothing there.
	err := unix.MountSetattr(unix.AT_FDCWD, "/sys/fs/cgroup", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("make cgroups read-only: %w", err)
	}
	h.root.cfg = h.order.Config.config()
	if h.root.work, err = newWorkspace(h.root.cfg.WorkDir); err != nil {
		return err
	}
	if err := h.reopenTerminals(); err != nil {
		return err
	}
	var devices []*os.File
	defer func() { closeAll(devices) }()
	for i, v := range h.root.cfg.Views {
		d, err := h.mountView(i, v)
		if err != nil {
			return err
		}
		devices = append(devices, d)
	}
	h.trace.mark("views mounted")
	if err := h.control.send(message{Kind: kindMounted, Steps: h.trace.take()}, devices...); err != nil {
		return err
	}
	defer h.trace.mark("root file system built")
	return h.root.build()
}

// reopenTerminals replaces the streams that are terminals of the host's.
func (h *holder) reopenTerminals() error {
	for i, how := range h.order.Streams {
		if how.Terminal == "" {
			continue
		}
		given := &h.shimFiles[shimStreamFD-enter.ControlFD+i]
		f, err := reopenTerminal(string(how.Terminal), *given)
		if err != nil {
			return err
		}
		(*given).Close()
		*given = f
	}
	return nil
}

// mountView returns the device. Without O_CLOEXEC the command would inherit it and could answer its own requests.
func (h *holder) mountView(i int, v View) (*os.File, error) {
	if err := unix.Mkdirat(h.root.work, viewPath(i), 0o700); err != nil {
		return nil, fmt.Errorf("make mount point of view %s: %w", v.Name, err)
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/fuse", Err: err}
	}
	options := fmt.Sprintf("fd=%d,%s", fd, v.Options)
	if err := unix.Mount("stage", h.viewPoint(i), "fuse.stage", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("mount view %s: %w", v.Name, err)
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

func (h *holder) viewPoint(i int) string { return path.Join(h.root.cfg.WorkDir, viewPath(i)) }

// listen passes orders on until the supervisor is gone.
func (h *holder) listen(orders chan<- message) {
	defer close(orders)
	for {
		m, files, err := h.control.receive()
		if err != nil {
			return
		}
		closeAll(files)
		orders <- m
	}
}

// runContainer starts the container, tells the supervisor how to reach its first process, and waits for its end.
// How the command ended is the shim's to say.
func (h *holder) runContainer() error {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/mnt", &st); err != nil {
		return fmt.Errorf("identify mount namespace: %w", err)
	}
	h.root.facts.MountNamespace = st.Ino
	facts, err := json.Marshal(h.root.facts)
	if err != nil {
		return fmt.Errorf("encode facts for the shim: %w", err)
	}
	process, err := h.startContainer(string(facts))
	if err != nil {
		return err
	}
	closeAll(h.shimFiles) // from here the supervisor sees the shim's end by itself
	if err := h.announce(process); err != nil {
		_ = process.Signal(unix.SIGKILL)
		_, _ = process.Wait()
		return err
	}
	_, _ = process.Wait()
	h.trace.mark("container ended")
	return nil
}

func (h *holder) announce(process *libcontainer.Process) error {
	pid, err := process.Pid()
	if err != nil {
		return fmt.Errorf("find the jail's first process: %w", err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open the jail's first process: %w", err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	h.started <- f
	h.trace.mark("container runs")
	return h.control.send(message{Kind: kindStarted, Steps: h.trace.take()}, f)
}

// watch stays until the container is gone. When the supervisor dies the jail ends by itself: the shim and every
// stage of libcontainer wait on sockets whose other ends are the supervisor's or this process's. What is left to
// do is to free those who wait for an answer of the supervisor's, also of one that lives and does not answer.
func (h *holder) watch(ended <-chan error, orders <-chan message, died <-chan os.Signal) error {
	var deadline <-chan time.Time
	var first *os.File
	var last []syscall.Signal // to the supervisor, if that does not help
	dog := watchdog{doomed: func() bool { return anyDoomed(os.Getpid()) }}
	pace := time.NewTicker(beatEvery)
	defer pace.Stop()
	for {
		select {
		case err := <-ended:
			return errors.Join(err, h.finish())
		case first = <-h.started:
			if deadline != nil {
				killByFD(first) // it was too late to start
			}
		case m, ok := <-orders:
			if !ok {
				orders, deadline = nil, h.takeDown()
				continue
			}
			h.obey(m, &dog)
		case <-died:
			deadline = h.takeDown()
		case <-pace.C:
			if deadline != nil {
				continue
			}
			if why := dog.look(); why != "" {
				h.tell(why)
				killByFD(first) // before the command can see that its view is gone
				deadline, last = h.takeDown(), lastResorts
			}
		case <-deadline:
			if len(last) > 0 {
				signalByFD(h.parent, last[0])
				deadline, last = time.After(takeDownTime), last[1:]
				continue
			}
			return errors.New("container does not end")
		}
	}
}

func (h *holder) obey(m message, dog *watchdog) {
	switch m.Kind {
	case kindBeat:
		dog.beat(m.Stuck)
	case kindPause:
		dog.pause()
	default:
		h.abortViews()
	}
}

// takeDown frees who waits, and returns when the container must have ended.
func (h *holder) takeDown() (deadline <-chan time.Time) {
	h.abortViews()
	return time.After(takeDownTime)
}

// tell lets the supervisor know, should it ever go on, why its jail is gone.
func (h *holder) tell(why string) {
	_ = h.control.c.SetWriteDeadline(time.Now().Add(time.Second))
	_ = h.control.send(message{Kind: kindGaveUp, Reason: why}) // it may not read any more
	_ = h.control.c.SetWriteDeadline(time.Time{})
}

// lastResorts make a supervisor give back what it holds. Over io_uring the kernel does not abort a request that is on its
// way to a thread until that thread runs (ent_w_req_queue, fs/fuse/dev_uring.c), and one that is stopped does not.
// Continued, it finds its views gone and records why; killed, it leaves that to the next stage.
var lastResorts = []syscall.Signal{unix.SIGCONT, unix.SIGKILL}

func killByFD(process *os.File) {
	if process != nil {
		signalByFD(process, unix.SIGKILL)
	}
}

func signalByFD(process *os.File, sig syscall.Signal) {
	_ = unix.PidfdSendSignal(int(process.Fd()), sig, nil, 0) // or it has ended just now
}

// abortViews answers every waiting request of the views with an error. Processes that wait for a server that is
// stuck or gone can be killed only then.
func (h *holder) abortViews() {
	for i := range h.root.cfg.Views {
		// By path and without looking: everything else on a dead mount waits. MNT_FORCE aborts the
		// connection whatever other mounts of it exist.
		_ = unix.Unmount(h.viewPoint(i), unix.MNT_FORCE|unix.MNT_DETACH)
	}
}

// finish releases what is left when the last process has ended. All data was written when its process ended.
func (h *holder) finish() error {
	h.abortViews() // ends the server's loop
	if h.container == nil {
		return nil
	}
	if err := h.container.Destroy(); err != nil {
		return fmt.Errorf("destroy container: %w", err)
	}
	h.trace.mark("container destroyed")
	return nil
}
