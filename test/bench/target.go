package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"stage/fs/fusefs"
	"stage/fs/hostfs"
	"stage/fs/overlay"
)

// The file systems that are measured. The first is what the others are compared with.
const (
	native      = "native"
	viewLoop    = "stage"       // served over read(2) and write(2)
	viewUring   = "stage-uring" // served over io_uring
	overlayfs   = "overlayfs"
	fuseOverlay = "fuse-overlayfs"
)

// isView reports whether target is the view of a Job.
func isView(target string) bool { return target == viewLoop || target == viewUring }

// Environment of the processes below bench.
const (
	roleEnv = "STAGE_BENCH_ROLE"
	taskEnv = "STAGE_BENCH_TASK"
)

// socket is the descriptor that serve and mount, later work, have in common.
const socket = 3

// task is one workload on one target.
type task struct {
	Fixture  string // directory of the fixture
	Scale    int
	Scratch  string // empty directory for upper and work
	Target   string
	Workload string
	Profile  string // where serve puts its CPU profile, "" for none
}

func (t *task) mnt() string { return filepath.Join(t.Fixture, "mnt") }

// run runs the task in processes of its own and returns what was measured.
func (t *task) run() ([]sample, error) {
	for _, d := range []string{"upper", "work", "pre", "orphans"} {
		if err := os.MkdirAll(filepath.Join(t.Scratch, d), 0o755); err != nil {
			return nil, err
		}
	}
	role := "mount"
	if isView(t.Target) {
		role = "serve"
	}
	c, err := t.as(role)
	if err != nil {
		return nil, err
	}
	c.Stderr = os.Stderr
	if role == "mount" {
		unshare(c)
	}
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("%s on %s: %w", t.Workload, t.Target, err)
	}
	var got []sample
	if err := json.Unmarshal(out, &got); err != nil {
		return nil, fmt.Errorf("%s on %s: %w", t.Workload, t.Target, err)
	}
	return got, os.RemoveAll(t.Scratch)
}

// as returns the re-execution of this program in a role.
func (t *task) as(role string) (*exec.Cmd, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), roleEnv+"="+role, taskEnv+"="+string(text))
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if role != "serve" {
		return c, nil
	}
	c.Stdout = nil // the caller's to set
	return c, nil
}

// unshare gives c a mount namespace and, unless it is root's, a user namespace.
func unshare(c *exec.Cmd) {
	c.Stdout = nil
	c.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
}

// play is the part of a process below bench.
func play(role string) error {
	var t task
	if err := json.Unmarshal([]byte(os.Getenv(taskEnv)), &t); err != nil {
		return err
	}
	runtime.LockOSThread() // Pdeathsig goes with the thread
	switch role {
	case "serve":
		return t.serve()
	case "mount":
		return t.mount()
	case "drop":
		return dropAndExec()
	case "work":
		return t.work()
	}
	return fmt.Errorf("unknown role %q", role)
}

// serve serves the view as a Job is served, and has the rest of the task done in it.
func (t *task) serve() (err error) {
	debug.SetGCPercent(400) // as cmd/stage
	ov, closeAll, err := t.openOverlay()
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	c, err := t.as("mount")
	if err != nil {
		return err
	}
	unshare(c)
	c.Stdout = os.Stdout
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	c.ExtraFiles = []*os.File{theirs}
	if err := c.Start(); err != nil {
		return err
	}
	if err := theirs.Close(); err != nil {
		return err
	}
	dev, err := receive(pair[0])
	if err != nil {
		return errors.Join(err, c.Wait())
	}
	srv, err := fusefs.Serve(dev, ov, fusefs.Options{Name: "bench", Transport: t.transport()})
	if err != nil {
		return err
	}
	stop, err := t.profile()
	if err != nil {
		return err
	}
	var answers sync.WaitGroup
	answers.Go(func() { answer(pair[0], srv) })
	err = c.Wait()
	answers.Wait()
	stop()
	return errors.Join(err, srv.Close(), closeAll())
}

func (t *task) transport() fusefs.Transport {
	if t.Target == viewUring {
		return fusefs.Uring
	}
	return fusefs.Loop
}

func (t *task) profile() (stop func(), err error) {
	if t.Profile == "" {
		return func() {}, nil
	}
	f, err := os.OpenFile(t.Profile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { pprof.StopCPUProfile(); f.Close() }, nil
}

func (t *task) openOverlay() (*overlay.FS, func() error, error) {
	var dirs [5]hostfs.Dir
	for i, name := range []string{filepath.Join(t.Fixture, "tree"), filepath.Join(t.Scratch, "upper"), filepath.Join(t.Scratch, "pre"), filepath.Join(t.Scratch, "orphans"), t.Scratch} {
		var err error
		if dirs[i], err = hostfs.OpenRoot(name); err != nil {
			return nil, nil, err
		}
	}
	log, err := os.OpenFile(filepath.Join(t.Scratch, "log"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	groups, err := os.Getgroups()
	if err != nil {
		return nil, nil, err
	}
	ids := overlay.IDs{Rootless: os.Geteuid() != 0, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	for _, g := range groups {
		ids.Groups = append(ids.Groups, uint32(g))
	}
	ov, err := overlay.Open(overlay.Config{
		Lower: dirs[0], Upper: dirs[1], Preimages: dirs[2], Orphans: dirs[3], LogFile: log, LogDir: dirs[4], LogName: "log", IDs: ids,
		OnEvent: func(e overlay.Event) { fmt.Fprintf(os.Stderr, "event %d %q: %v\n", e.Kind, e.Path, e.Err) },
	})
	return ov, func() error {
		err := ov.Close()
		for _, d := range dirs {
			err = errors.Join(err, d.Close())
		}
		return err
	}, err
}

// answer answers ask until whoever may ask is gone.
func answer(sock int, srv *fusefs.Server) {
	buf := make([]byte, 1)
	for {
		n, err := unix.Read(sock, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		text, err := json.Marshal(srv.Messages())
		if err != nil {
			return
		}
		if _, err := unix.Write(sock, text); err != nil {
			return
		}
	}
}

// ask returns how many messages the server of the view received so far.
func ask() (map[string]uint64, error) {
	if _, err := unix.Write(socket, []byte{0}); err != nil {
		return nil, fmt.Errorf("ask server: %w", err)
	}
	buf := make([]byte, 1<<14)
	n, err := unix.Read(socket, buf)
	if err != nil {
		return nil, fmt.Errorf("ask server: %w", err)
	}
	var got map[string]uint64
	return got, json.Unmarshal(buf[:n], &got)
}

// mount mounts the target at DIR/mnt, has the work done there and unmounts it.
func (t *task) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	var daemon *exec.Cmd
	var err error
	switch t.Target {
	case native:
		err = unix.Mount(filepath.Join(t.Fixture, "native"), t.mnt(), "", unix.MS_BIND, "")
	case viewLoop, viewUring:
		err = t.mountView()
	case overlayfs:
		err = unix.Mount("overlay", t.mnt(), "overlay", unix.MS_NOSUID|unix.MS_NODEV, t.layers())
	case fuseOverlay:
		daemon, err = t.startFuseOverlay()
	default:
		err = errors.New("unknown")
	}
	if err != nil {
		return fmt.Errorf("mount %s: %w", t.Target, err)
	}
	c, err := t.as("drop")
	if err != nil {
		return err
	}
	if isView(t.Target) {
		c.ExtraFiles = []*os.File{os.NewFile(socket, "socket")}
	}
	if err := c.Run(); err != nil {
		return err
	}
	if daemon == nil {
		return nil // the mount goes with its namespace
	}
	return errors.Join(unix.Unmount(t.mnt(), 0), daemon.Wait())
}

func (t *task) layers() string {
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", filepath.Join(t.Fixture, "tree"), filepath.Join(t.Scratch, "upper"), filepath.Join(t.Scratch, "work"))
	if os.Getuid() == 0 && t.Target == overlayfs && inUserns() {
		opts += ",userxattr"
	}
	return opts
}

// inUserns reports whether the process is in a user namespace that maps one id alone.
func inUserns() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	var inside, outside, size uint64
	if err != nil {
		return false
	}
	n, err := fmt.Sscan(string(text), &inside, &outside, &size)
	return err == nil && n == 3 && size == 1
}

// mountView mounts the view and passes the device to whoever serves it.
func (t *task) mountView() error {
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/fuse: %w", err)
	}
	opts := "fd=" + strconv.Itoa(dev) + "," + fusefs.MountOptions(0, 0)
	if err := unix.Mount("stage", t.mnt(), "fuse.stage", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return err
	}
	if err := unix.Sendmsg(socket, []byte{0}, unix.UnixRights(dev), nil, 0); err != nil {
		return fmt.Errorf("pass device: %w", err)
	}
	return unix.Close(dev)
}

func receive(sock int) (*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(sock, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return nil, fmt.Errorf("receive device: %d messages: %w", len(msgs), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("receive device: %d descriptors: %w", len(fds), err)
	}
	return os.NewFile(uintptr(fds[0]), "/dev/fuse"), nil
}

// startFuseOverlay starts fuse-overlayfs and waits until it is mounted: it tells nobody.
func (t *task) startFuseOverlay() (*exec.Cmd, error) {
	c := exec.Command("fuse-overlayfs", "-f", "-o", t.layers(), t.mnt())
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	before, err := device(t.mnt())
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	for range 1000 {
		unix.Nanosleep(&unix.Timespec{Nsec: 5e6}, nil)
		if now, err := device(t.mnt()); err == nil && now != before {
			return c, nil
		}
	}
	return nil, errors.New("does not come up")
}

func device(path string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return uint64(st.Dev), err
}

// dropAndExec gives up all capabilities, as a Job has none, and becomes the role work.
func dropAndExec() error {
	for c := range unix.CAP_LAST_CAP + 1 {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	// Go's preemption signals would interrupt requests: two messages more, for no work.
	if err := errors.Join(os.Setenv(roleEnv, "work"), os.Setenv("GODEBUG", "asyncpreemptoff=1")); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", []string{"bench"}, os.Environ())
}
