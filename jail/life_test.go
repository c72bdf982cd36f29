package jail_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"stage/jail"
)

func clearCloexec(t *testing.T, f *os.File) {
	t.Helper()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
}

func TestBackgroundProcessesDieAndAreCounted(t *testing.T) {
	r := run(t, sh(t, `setsid sleep 1000 & nohup sleep 1001 >/dev/null 2>&1 & (sleep 1002 &) ; exit 5`))
	if r.exit.Code != 5 || r.exit.Survivors != 3 {
		t.Errorf("got code %d and %d survivors, want 5 and 3", r.exit.Code, r.exit.Survivors)
	}
	if left := processesWith(t, "sleep\x001000", "sleep\x001001", "sleep\x001002"); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
}

// processesWith finds processes by what their command line contains.
func processesWith(t *testing.T, parts ...string) []int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, d := range dirs {
		line, err := os.ReadFile(d + "/cmdline")
		if err != nil {
			continue
		}
		if slices.ContainsFunc(parts, func(p string) bool { return bytes.Contains(line, []byte(p)) }) {
			pid, _ := strconv.Atoi(filepath.Base(d))
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestResourceUseIsCounted(t *testing.T) {
	r := run(t, sh(t, `i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done`))
	if r.exit.Rusage.User < 10*time.Millisecond || r.exit.Rusage.MaxRSS < 1<<18 {
		t.Errorf("got %+v", r.exit.Rusage)
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	for _, c := range []struct {
		script string
		sig    syscall.Signal
		code   int
	}{
		{`echo ready; sleep 100`, unix.SIGTERM, 143},
		{`trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done`, unix.SIGTERM, 9},
		{`echo ready; sleep 100; echo survived`, unix.SIGINT, 130}, // the sleep must get it too
		{`trap 'exit 3' USR1; echo ready; while :; do sleep 0.05; done`, unix.SIGUSR1, 3},
	} {
		r, err := tryWith(t, sh(t, c.script), nil, func(j *jail.Jail, out *recorder) {
			out.await(t, "ready\n")
			if err := j.Signal(c.sig); err != nil {
				t.Error(err)
			}
		})
		if err != nil || r.exit.Code != c.code {
			t.Errorf("%s with %v: got code %d, %v, want %d", c.script, c.sig, r.exit.Code, err, c.code)
		}
	}
}

func TestKillEndsEverything(t *testing.T) {
	r, err := tryWith(t, sh(t, `trap '' TERM INT; sleep 1003 & echo ready; wait; sleep 1003`), nil, func(j *jail.Jail, out *recorder) {
		out.await(t, "ready\n")
		if err := j.Kill(); err != nil {
			t.Error(err)
		}
	})
	if err != nil || r.exit.Code != 137 || r.exit.Signal != 9 {
		t.Errorf("got %+v, %v", r.exit, err)
	}
	if left := processesWith(t, "sleep\x001003"); len(left) > 0 {
		t.Errorf("still running after Wait: %v", left)
	}
}

func TestCloseWithoutStartAndTwice(t *testing.T) {
	j, err := jail.Prepare(t.Context(), sh(t, "true"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
	if left := processesWith(t, "stage-holder"); childOfMine(left) {
		t.Errorf("holders are left: %v", left)
	}
}

func childOfMine(pids []int) bool {
	return slices.ContainsFunc(pids, func(pid int) bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return false
		}
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
		return f[1] == strconv.Itoa(os.Getpid())
	})
}

func TestPrepareStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if j, err := jail.Prepare(ctx, sh(t, "true")); err == nil {
		j.Close()
		t.Error("got a jail for a cancelled context")
	}
}

func TestPipesStayPipes(t *testing.T) {
	const size = 100 << 20
	in, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		block := bytes.Repeat([]byte("0123456789abcdef"), 1<<12)
		for n := 0; n < size; n += len(block) {
			if _, err := inW.Write(block); err != nil {
				break
			}
		}
		inW.Close()
	}()
	count := make(chan int64)
	go func() {
		n, _ := io.Copy(io.Discard, outR)
		count <- n
	}()
	c := base(t, "/bin/cat")
	c.Stdin, c.Stdout = in, out
	r := run(t, c)
	in.Close()
	out.Close()
	if n := <-count; n != size || r.exit.Code != 0 {
		t.Errorf("got %d bytes and code %d, want %d and 0", n, r.exit.Code, size)
	}
}

func TestClosedPipeEndsTheWriter(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := base(t, "/usr/bin/yes")
	c.Stdout = w
	read := func(*jail.Jail, *recorder) {
		if _, err := r.Read(make([]byte, 10)); err != nil {
			t.Error(err)
		}
		w.Close()
		r.Close()
	}
	if got, err := tryWith(t, c, nil, read); err != nil || got.exit.Code != 141 {
		t.Errorf("got %+v, %v, want 141 (SIGPIPE)", got.exit, err)
	}
}

func TestOwnerOfStandardInputStays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(file, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(file, 1234, 1234); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	c := base(t, "/bin/cat")
	if c.Stdin, err = os.Open(file); err != nil {
		t.Fatal(err)
	}
	defer c.Stdin.Close()
	if r := run(t, c); r.out != "text" {
		t.Errorf("got %q", r.out)
	}
	after, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if b, a := before.Sys().(*syscall.Stat_t), after.Sys().(*syscall.Stat_t); b.Uid != a.Uid || b.Ctim != a.Ctim {
		t.Errorf("the file was changed: %+v, then %+v", b, a)
	}
}

func TestTerminal(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := pty.Setsize(master, &pty.Winsize{Rows: 33, Cols: 99}); err != nil {
		t.Fatal(err)
	}
	before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	c := sh(t, `trap 'stty size; echo resized' WINCH
		tty; stty size; ps -o sid= -p $$ | tr -d ' ' | grep -qx $$ && echo leader; echo ready
		read line; echo "got $line"; while :; do sleep 0.05; done`)
	c.Stdin, c.Stdout, c.Stderr, c.TTY = slave, slave, slave, true
	screen := newScreen(master)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	j, err := jail.Prepare(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if _, err := j.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := j.Exec(); err != nil {
		t.Fatal(err)
	}
	screen.expect(t, "/dev/pts/0\r\n33 99\r\nleader\r\nready\r\n")
	fmt.Fprint(master, "hello\r")
	screen.expect(t, "got hello\r\n")
	if err := pty.Setsize(master, &pty.Winsize{Rows: 40, Cols: 120}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(os.Getpid(), unix.SIGWINCH); err != nil { // this pty is nobody's controlling terminal
		t.Fatal(err)
	}
	screen.expect(t, "40 120\r\nresized\r\n")
	fmt.Fprint(master, "\x03")
	exit, err := j.Wait()
	if err != nil || exit.Code != 130 {
		t.Errorf("after ^C: got %+v, %v", exit, err)
	}
	after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is not as it was: %+v, %v", after, err)
	}
}

func TestTerminalIsGivenBackWhenTheCommandCannotStart(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	c := base(t, "/no/such/command")
	c.Stdin, c.Stdout, c.Stderr, c.TTY = slave, slave, slave, true
	j, err := jail.Prepare(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if _, err := j.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var failure *jail.ExecError
	if err := j.Exec(); !errors.As(err, &failure) || failure.Code != 127 {
		t.Errorf("got %v", err)
	}
	after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is not as it was: %+v, %v", after, err)
	}
}

// screen collects what comes out of a terminal.
type screen struct {
	text chan string
	seen string
}

func newScreen(f *os.File) *screen {
	s := &screen{text: make(chan string, 1000)}
	go func() {
		buf := make([]byte, 1<<12)
		for {
			n, err := f.Read(buf)
			if err != nil {
				close(s.text)
				return
			}
			s.text <- string(buf[:n])
		}
	}()
	return s
}

func (s *screen) expect(t *testing.T, want string) {
	t.Helper()
	late := time.After(10 * time.Second)
	for !strings.Contains(s.seen, want) {
		select {
		case text := <-s.text:
			s.seen += text
		case <-late:
			t.Fatalf("no %q in %q", want, s.seen)
		}
	}
	_, s.seen, _ = strings.Cut(s.seen, want)
}

// The supervisor of the crash tests: the test binary again, so that it can be killed alone.

const supervisorEnv = "JAIL_TEST_SUPERVISOR"

func runSupervisor() {
	signal.Ignore(unix.SIGTERM)
	var c jail.Config
	if err := json.Unmarshal([]byte(os.Getenv(supervisorEnv)), &c); err != nil {
		panic(err)
	}
	c.Stdout = os.Stdout
	j, err := jail.Prepare(context.Background(), c)
	if err != nil {
		panic(err)
	}
	if _, err := j.Start(context.Background()); err != nil {
		panic(err)
	}
	if err := j.Exec(); err != nil {
		panic(err)
	}
	_, _ = j.Wait()
}

func TestKilledSupervisorTakesEverythingAlong(t *testing.T) {
	const mark = "1004.25"
	c := sh(t, `trap '' HUP TERM INT; setsid sleep `+mark+` & nohup sleep `+mark+` 2>/dev/null & echo ready; sleep `+mark)
	order, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	mounts := hostMounts(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), supervisorEnv+"="+string(order))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	holder := children(t, cmd.Process.Pid)
	if len(holder) != 1 {
		t.Fatalf("got children %v of the supervisor, want the holder", holder)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	// The pipe ends when its last writer, the last process of the jail, is gone.
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, holder[0], start.Add(time.Second))
	if took := time.Since(start); took > time.Second {
		t.Errorf("the jail lived for %v after its supervisor", took)
	}
	if left := processesWith(t, "sleep\x00"+mark); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
	_ = cmd.Wait()
	if after := hostMounts(t); after != mounts {
		t.Errorf("mounts changed:\n%s\nthen\n%s", mounts, after)
	}
	if left, err := os.ReadDir(c.WorkDir); err != nil || len(left) > 0 {
		t.Errorf("work directory: %v %v", left, err)
	}
	if groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + jail.CgroupName(c.WorkDir)); len(groups) > 0 {
		t.Errorf("cgroups are left: %v", groups)
	}
}

func TestKilledHolderEndsTheJail(t *testing.T) {
	r, err := tryWith(t, sh(t, `echo ready; sleep 1005`), nil, func(_ *jail.Jail, out *recorder) {
		out.await(t, "ready\n")
		for _, pid := range children(t, os.Getpid()) {
			if err := syscall.Kill(pid, unix.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	})
	if err == nil || r.exit.Code != 137 {
		t.Errorf("got %+v, %v; want an error", r.exit, err)
	}
	if left := processesWith(t, "sleep\x001005"); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
}

func TestCloseEndsAlthoughTheHolderDoesNot(t *testing.T) {
	j, err := jail.Prepare(t.Context(), sh(t, "sleep 1007"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := j.Exec(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range children(t, os.Getpid()) {
		if err := syscall.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	if err := j.Close(); err == nil || !strings.Contains(err.Error(), "holder had to be killed") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if left := processesWith(t, "sleep\x001007"); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
}

// children finds the holders that a process has started.
func children(t *testing.T, pid int) []int {
	t.Helper()
	var found []int
	for _, p := range processesWith(t, "stage-holder") {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		if err != nil {
			continue
		}
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
		if f[1] == strconv.Itoa(pid) {
			found = append(found, p)
		}
	}
	return found
}

// awaitEnd waits for a process that is not ours to wait for.
func awaitEnd(t *testing.T, pid int, deadline time.Time) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // gone
	}
	defer unix.Close(fd)
	ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(0, int(time.Until(deadline).Milliseconds())))
	if err != nil || ready == 0 {
		t.Errorf("process %d still runs: %v", pid, err)
	}
}

func hostMounts(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var own []string
	for _, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "stage ") {
			own = append(own, line)
		}
	}
	return strings.Join(own, "\n")
}

func TestNothingIsLeftAfterTheEnd(t *testing.T) {
	mounts := hostMounts(t)
	c := sh(t, "sleep 1006 & true")
	run(t, c)
	if after := hostMounts(t); after != mounts {
		t.Errorf("mounts changed:\n%s\nthen\n%s", mounts, after)
	}
	if err := os.Remove(c.WorkDir); err != nil {
		t.Errorf("work directory: %v", err)
	}
	if left := children(t, os.Getpid()); len(left) > 0 {
		t.Errorf("holders are left: %v", left)
	}
}
