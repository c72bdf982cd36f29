// Package conformance asks the kernel whether a mounted overlay behaves like a directory: every case
// first runs on a plain directory, then on the mount, and must give the same results.
//
// A process that serves a mount must not touch it, so the work is done by re-executions of the test
// binary:
//
//	test ── setup: fixtures, as the user
//	  └──── serve: overlay and FUSE server, in the user's own namespaces
//	          └── mount: own mount namespace (and user namespace), mounts, passes the device up,
//	                drops all capabilities and executes
//	                  TestInside: runs the cases on DIR/plain and on DIR/mnt
//
// A hung mount cannot hang the test: when time is up the server is killed, which closes the device,
// and everybody who waits for it gets ENOTCONN.
package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/fs/fusefs"
	"stage/fs/hostfs"
	"stage/fs/overlay"
	"stage/test/testenv"
)

// What the re-executions are told. They also get every other STAGE_ variable, so that a way of serving
// can be chosen for a whole run, and what steers the Go runtime.
const (
	roleEnv   = "STAGE_CONFORMANCE_ROLE"
	dirEnv    = "STAGE_CONFORMANCE_DIR"
	suiteEnv  = "STAGE_CONFORMANCE_SUITE"
	seedEnv   = "STAGE_CONFORMANCE_SEED"   // repeats a random run
	scriptEnv = "STAGE_CONFORMANCE_SCRIPT" // a saved script, for TestReplay
	workerEnv = "STAGE_CONFORMANCE_WORKER"
	soakEnv   = "STAGE_SOAK"

	modeEnv    = "STAGE_CONFORMANCE_MODE"
	watchesEnv = "STAGE_CONFORMANCE_WATCHES" // overlay.Config.Watches
)

// patience is how long one suite may take before its server is killed.
const patience = 4 * time.Minute

// soaking reports whether there is much time.
func soaking() bool { return os.Getenv(soakEnv) != "" }

// suite is something done inside the mount.
type suite struct {
	setup  func(top string) // fills DIR/lower, and DIR/plain alike; may be nil
	inside func(t *testing.T, dir string)
}

// suites are named "suite" or "suite:part"; parts work one after the other over the same trees, each
// with the overlay closed and opened again before it.
func suites() map[string]suite {
	all := map[string]suite{
		"posix":    {inside: insidePosix},
		"cases":    suiteOf(cases),
		"mounts":   suiteOf(mountCases),
		"inodes":   {setup: files("f=lower", "d/x=1", "moved=2"), inside: insideInodes},
		"full":     {setup: fullTree, inside: insideFull},
		"below":    {setup: files("in/"), inside: insideBelow},
		"group":    {setup: files("d/f=of the group"), inside: insideGroup},
		"around":   {setup: files("f=1"), inside: insideAround},
		"locks":    {setup: files("f=x"), inside: insideLocks},
		"stress":   {inside: insideStress},
		"fio":      {inside: insideFio},
		"killed":   {setup: killedTree, inside: insideKilled},
		"messages": {setup: setupMessages, inside: insideMessages},

		"coherence":        {inside: insideCoherence},
		"coherent-content": {inside: insideContent},
		"coherent-git":     {inside: insideGit},
		"overflow":         {inside: insideOverflow},
		"watchers":         {inside: insideWatchers},
		"storm":            {inside: insideStorm},
	}
	for name, k := range kinds() {
		all[name] = suite{setup: k.setupTrees, inside: k.inside}
	}
	return all
}

// suiteNamed returns the suite of a name, and the part that is meant.
func suiteNamed(name string) (s suite, part string, err error) {
	name, part, _ = strings.Cut(name, ":")
	s, ok := suites()[name]
	if !ok {
		return s, "", fmt.Errorf("unknown suite %q", name)
	}
	return s, part, nil
}

// part is the part of the suite this process is in.
func part() string {
	_, part, _ := strings.Cut(os.Getenv(suiteEnv), ":")
	return part
}

func TestMain(m *testing.M) {
	roles := map[string]func(dir string) error{"setup": setup, "serve": serve, "mount": mountAndExec}
	role, ok := roles[os.Getenv(roleEnv)]
	if !ok {
		os.Exit(m.Run())
	}
	if err := role(os.Getenv(dirEnv)); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Getenv(roleEnv), err)
		os.Exit(1)
	}
	os.Exit(0)
}

// self returns the re-execution of this binary in a role.
func self(ctx context.Context, u testenv.User, role, dir, suite string) *exec.Cmd {
	c := u.Command("/proc/self/exe")
	withCtx := exec.CommandContext(ctx, c.Path)
	withCtx.Env = slices.Concat(c.Env, passed(os.Environ()), []string{roleEnv + "=" + role, dirEnv + "=" + dir, suiteEnv + "=" + suite})
	withCtx.SysProcAttr = c.SysProcAttr
	// A server that hangs says where before it is killed.
	withCtx.Cancel = func() error { return withCtx.Process.Signal(unix.SIGQUIT) }
	withCtx.WaitDelay = 5 * time.Second
	return withCtx
}

// passthrough is the mode in which the kernel reads and writes files itself; the others are transports.
const passthrough = "passthrough"

func serverOptions(mode string) (fusefs.Options, error) {
	o := fusefs.Options{Name: "conformance", Passthrough: mode == passthrough}
	if o.Passthrough {
		return o, nil
	}
	var err error
	o.Transport, err = fusefs.ParseTransport(mode)
	return o, err
}

// modes returns the modes that u can have.
func modes(u testenv.User) []string {
	m := []string{fusefs.Loop.String(), fusefs.Uring.String()}
	if u.IsRoot() {
		m = append(m, passthrough)
	}
	return m
}

// inModes runs suites as u in each mode.
func inModes(t *testing.T, u testenv.User, suites ...string) {
	t.Helper()
	for _, mode := range modes(u) {
		t.Run(mode, func(t *testing.T) { inMode(t, mode, u, suites...) })
	}
}

// inMode runs suites as u in one mode.
func inMode(t *testing.T, mode string, u testenv.User, suites ...string) {
	t.Helper()
	if mode == fusefs.Uring.String() {
		testenv.FUSEOverIOUring(t)
	}
	t.Setenv(modeEnv, mode)
	runSuite(t, u, suites...)
}

// passed returns the variables of env that a re-execution gets as well.
func passed(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return !strings.HasPrefix(name, "STAGE_") && !slices.Contains([]string{"GOMAXPROCS", "GODEBUG", "GORACE"}, name)
	})
}

// runSuite makes the fixtures of the first suite, runs suites as u, each inside a mount of its own
// over the same lower and upper, and checks that the lower tree was not touched and that the change
// log can be replayed.
func runSuite(t *testing.T, u testenv.User, suites ...string) {
	t.Helper()
	tr := newTrial(t, u, suites[0])
	for _, suite := range suites {
		tr.run(suite)
	}
	tr.check()
}

// trial is a lower and a plain tree, made alike, and the upper over the lower.
type trial struct {
	t      *testing.T
	u      testenv.User
	dir    string
	before testenv.Tree // the lower
}

// newTrial makes the fixtures of suite.
func newTrial(t *testing.T, u testenv.User, suite string) *trial {
	t.Helper()
	testenv.Need(t, testenv.FUSE)
	if !u.IsRoot() {
		testenv.Need(t, testenv.Userns)
	}
	return newTrialIn(t, u, u.TempDir(t), suite)
}

// newTrialIn is newTrial in a directory of u, where lower and plain may be already.
func newTrialIn(t *testing.T, u testenv.User, dir, suite string) *trial {
	t.Helper()
	tr := &trial{t: t, u: u, dir: dir}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if out, err := self(ctx, u, "setup", tr.dir, suite).CombinedOutput(); err != nil {
		t.Fatalf("setup: %v\n%s", err, out)
	}
	tr.before = testenv.Snapshot(t, tr.lower())
	return tr
}

func (tr *trial) lower() string { return filepath.Join(tr.dir, "lower") }

// run runs a suite in a mount of its own.
func (tr *trial) run(suite string) {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(tr.t.Context(), patience)
	defer cancel()
	out, err := self(ctx, tr.u, "serve", tr.dir, suite).CombinedOutput()
	if err != nil || testing.Verbose() {
		tr.t.Logf("%s", out)
	}
	if err != nil {
		tr.keepScript()
		tr.t.Fatalf("suite %s: %v", suite, err)
	}
}

// check is what must hold when everything is over.
func (tr *trial) check() {
	tr.t.Helper()
	if d := testenv.Untouched(tr.before, testenv.Snapshot(tr.t, tr.lower())); d != "" {
		tr.t.Errorf("the lower tree was touched:\n%s", d)
	}
	checkLog(tr.t, filepath.Join(tr.dir, "log"))
}

func checkLog(t *testing.T, path string) {
	t.Helper()
	log, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := overlay.LoadState(log); err != nil {
		t.Errorf("replay change log: %v", err)
	}
}

// setup makes DIR/lower and DIR/plain alike, and an empty upper.
func setup(dir string) error {
	unix.Umask(0o022)
	for _, d := range []string{"lower", "plain", "store", "store/upper", "store/orphans", "mnt"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	s, _, err := suiteNamed(os.Getenv(suiteEnv))
	if err != nil || s.setup == nil {
		return err
	}
	for _, top := range []string{"lower", "plain"} {
		s.setup(filepath.Join(dir, top))
	}
	return nil
}

// serve runs the overlay and, below it, the process that mounts it and works inside.
func serve(dir string) error {
	ov, closeAll, err := openOverlay(dir)
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	sock := os.NewFile(uintptr(pair[1]), "socket")
	child := mounter(sock)
	runtime.LockOSThread() // Pdeathsig goes with the thread
	if err := child.Start(); err != nil {
		return err
	}
	if err := sock.Close(); err != nil {
		return err
	}
	dev, err := receive(pair[0])
	if err != nil {
		return errors.Join(err, child.Wait())
	}
	opts, err := serverOptions(os.Getenv(modeEnv))
	if err != nil {
		return err
	}
	srv, err := fusefs.Serve(dev, ov, opts)
	if err != nil {
		return err
	}
	var answers sync.WaitGroup
	answers.Go(func() { answerMessages(pair[0], srv) })
	err = child.Wait()
	answers.Wait()
	fmt.Printf("%s\n%+v\n%v\n", srv.Protocol(), ov.Stats(), srv.Messages())
	return errors.Join(err, srv.Close(), closeAll())
}

func openOverlay(dir string) (*overlay.FS, func() error, error) {
	lower, err := hostfs.OpenRoot(filepath.Join(dir, "lower"))
	if err != nil {
		return nil, nil, err
	}
	upper, err := hostfs.OpenRoot(filepath.Join(dir, "store/upper"))
	if err != nil {
		return nil, nil, err
	}
	orphans, err := hostfs.OpenRoot(filepath.Join(dir, "store/orphans"))
	if err != nil {
		return nil, nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR|os.O_CREATE, 0o600)
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
	watches, err := strconv.Atoi(cmp.Or(os.Getenv(watchesEnv), "0"))
	if err != nil {
		return nil, nil, err
	}
	ov, err := overlay.Open(overlay.Config{
		Watches: watches,
		Lower:   lower, Upper: upper, Orphans: orphans, LogFile: log, IDs: ids,
		OnEvent: func(e overlay.Event) { fmt.Printf("EVENT %d %q: %v\n", e.Kind, e.Path, e.Err) },
	})
	if err != nil {
		return nil, nil, err
	}
	return ov, func() error { return errors.Join(ov.Close(), orphans.Close(), upper.Close(), lower.Close()) }, nil
}

func mounter(sock *os.File) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), roleEnv+"=mount")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.ExtraFiles = []*os.File{sock}
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return c
}

// mountAndExec mounts DIR/mnt, passes the device to descriptor 3 and becomes TestInside, without
// capabilities, as a Job is.
func mountAndExec(dir string) error {
	runtime.LockOSThread()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/fuse: %w", err)
	}
	opts := "fd=" + strconv.Itoa(dev) + "," + fusefs.MountOptions(0, 0)
	if err := unix.Mount("stage", filepath.Join(dir, "mnt"), "fuse.stage", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	if err := unix.Sendmsg(3, []byte{0}, unix.UnixRights(dev), nil, 0); err != nil {
		return fmt.Errorf("pass device: %w", err)
	}
	if err := unix.Close(dev); err != nil { // descriptor 3 stays, to ask the server through
		return err
	}
	for c := range unix.CAP_LAST_CAP + 1 {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := os.Setenv(roleEnv, "inside"); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", []string{"conformance.test", "-test.run=^TestInside$", "-test.v", "-test.parallel=32"}, os.Environ())
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

// TestInside runs the suite in the mount; only the re-execution of this binary does.
func TestInside(t *testing.T) {
	if os.Getenv(roleEnv) != "inside" {
		return
	}
	unix.Umask(0o022)
	s, _, err := suiteNamed(os.Getenv(suiteEnv))
	if err != nil {
		t.Fatal(err)
	}
	s.inside(t, os.Getenv(dirEnv))
}
