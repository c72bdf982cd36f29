package e2e

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/test/testenv"
)

// freedIn is how long a process that was killed may wait for a server that does not answer: see jail/watchdog.go.
const freedIn = 40 * time.Second

// live is a run that goes on while a test looks at it.
type live struct {
	*world
	cmd  *exec.Cmd
	out  *bufio.Reader
	said bytes.Buffer // stderr, to be read after the end
	mark string       // an argument of all processes of the command
}

// start runs a shell script in a Job until it has printed "ready". The script finds mark in $0.
func (w *world) start(mark, script string, flags ...string) *live {
	w.t.Helper()
	l := &live{world: w, mark: mark, cmd: w.command(append(append([]string{"run"}, flags...), "--", "sh", "-c", script, mark)...)}
	l.cmd.Stderr = &l.said
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := l.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = l.cmd.Process.Kill(); _ = l.cmd.Wait() })
	l.out = bufio.NewReader(out)
	if line, err := l.out.ReadString('\n'); err != nil || line != "ready\n" {
		_ = l.cmd.Wait()
		w.t.Fatalf("the Job says %q, %v\n%s", line, err, l.said.String())
	}
	return l
}

// end waits for stage and returns its exit code.
func (l *live) end() int {
	l.t.Helper()
	_, _ = io.Copy(io.Discard, l.out)
	_ = l.cmd.Wait() // the exit code is looked at
	return l.cmd.ProcessState.ExitCode()
}

func (l *live) signal(sig syscall.Signal) {
	l.t.Helper()
	if err := l.cmd.Process.Signal(sig); err != nil {
		l.t.Fatal(err)
	}
}

// killCommand kills the processes of the command from outside.
func (l *live) killCommand() {
	l.t.Helper()
	pids := l.inside()
	if len(pids) == 0 {
		l.t.Fatal("the Job has no process")
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			l.t.Fatal(err)
		}
	}
}

// inside returns the processes of the command. Of one that waits in the kernel only what does not wait may be read.
func (l *live) inside() []int {
	var pids []int
	for _, p := range processesWith(l.mark) {
		pid, _ := strconv.Atoi(p)
		if text, err := os.ReadFile("/proc/" + p + "/comm"); err == nil && strings.TrimSpace(string(text)) == "sh" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// holder returns the run's holder.
func (l *live) holder() int {
	l.t.Helper()
	for _, p := range strings.Fields(children(l.cmd.Process.Pid)) {
		line, _ := os.ReadFile("/proc/" + p + "/cmdline")
		if bytes.HasPrefix(line, []byte("stage-holder\x00")) {
			pid, _ := strconv.Atoi(p)
			return pid
		}
	}
	l.t.Fatal("the run has no holder")
	return 0
}

// children returns the direct children of a process's main and other threads.
func children(pid int) string {
	var all []byte
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		all = append(all, text...)
	}
	return string(all)
}

// gone waits until nothing of the Job runs.
func (l *live) gone(limit time.Duration) {
	l.t.Helper()
	for end := time.Now().Add(limit); len(processesWith(l.mark)) > 1; { // stage itself has the mark as an argument
		if time.Now().After(end) {
			l.t.Fatalf("processes %v are still there after %v", processesWith(l.mark), limit)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// leftNothing wants no process, mount or cgroup of a Job that is over, and its changes to be applied.
func (l *live) leftNothing(outcome string) {
	l.t.Helper()
	if pids := processesWith(l.mark); len(pids) > 0 {
		l.t.Errorf("processes %v are left", pids)
	}
	for _, dir := range []string{filepath.Dir(l.ws), l.u.Home} {
		if m := testenv.Mounts(l.t, dir); len(m) > 0 {
			l.t.Errorf("mounts left: %v", m)
		}
	}
	if j := l.want(0, "status", "last"); !strings.Contains(j.out, outcome) {
		l.t.Errorf("status does not say %q:\n%s", outcome, j.out)
	}
	if j := l.want(0, "review", "last", "--name-status"); !strings.Contains(j.out, "A\tf\n") {
		l.t.Errorf("review: %q", j.out)
	}
	l.want(0, "apply", "last", "f")
	if got := l.sh(l.ws, "cat f"); got != "staged\n" {
		l.t.Errorf("applied file holds %q", got)
	}
}

// busy is a script that waits for its view most of the time.
const busy = `echo staged > f; echo ready; while :; do echo x >> g; done`

// hostSync wants sync(2) to return.
func hostSync(t *testing.T) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		unix.Sync()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("sync(2) hangs")
	}
}

// TestStoppedStageHoldsNoProcess: a process that waits for a stopped stage can be killed, and a stage that goes on afterwards ends
// the Job as it should.
func TestStoppedStageHoldsNoProcess(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		l := newWorld(t, u).start("stopped.stage", busy)
		l.signal(syscall.SIGSTOP)
		l.killCommand()
		l.gone(freedIn)
		hostSync(t)
		l.signal(syscall.SIGCONT)
		// A request that stage had not read yet does not hold a process that is killed.
		if code := l.end(); code != 125 && code != 137 {
			t.Errorf("exit code %d, want 125 or 137\n%s", code, l.said.String())
		}
		l.leftNothing("")
	})
}

// TestStoppedStageThatIsKilled: nobody ever goes on with it.
func TestStoppedStageThatIsKilled(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		l := newWorld(t, u).start("stopped.killed", busy)
		l.signal(syscall.SIGSTOP)
		<-time.After(200 * time.Millisecond) // so that the command waits
		l.signal(syscall.SIGKILL)
		l.end()
		eventually(t, "the Job's processes are gone", func() bool { return len(processesWith(l.mark)) == 0 })
		l.leftNothing("interrupted")
	})
}

// TestSuspendedStageGoesOn: ^Z suspends command and stage, for longer than silence is borne with, and fg goes on with both.
func TestSuspendedStageGoesOn(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		l := newWorld(t, u).start("suspended", `echo staged > f; echo ready; n=0; while [ $n -lt 20 ]; do echo x >> g; sleep 0.1; n=$((n+1)); done`)
		l.signal(syscall.SIGTSTP)
		eventually(t, "stage is stopped", func() bool { return stopped(l.cmd.Process.Pid) })
		eventually(t, "the command is stopped", func() bool {
			pids := l.inside()
			return len(pids) > 0 && !slices.ContainsFunc(pids, func(pid int) bool { return !stopped(pid) })
		})
		l.signal(syscall.SIGCONT)
		if code := l.end(); code != 0 {
			t.Errorf("exit code %d\n%s", code, l.said.String())
		}
		l.leftNothing("exited with 0")
	})
}

func stopped(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	i := bytes.LastIndexByte(stat, ')')
	return err == nil && i > 0 && stat[i+2] == 'T'
}

// TestKilledPartsOfARun: whatever part dies, the Job ends, says so, and leaves its changes.
func TestKilledPartsOfARun(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		for _, c := range []struct {
			name    string
			victim  func(*live) int
			outcome string
		}{
			{"stage", func(l *live) int { return l.cmd.Process.Pid }, "interrupted"},
			{"holder", (*live).holder, "killed by stage"},
			{"shim", func(l *live) int {
				pid, _ := strconv.Atoi(strings.Fields(children(l.holder()))[0])
				return pid
			}, "killed by stage"},
		} {
			t.Run(c.name, func(t *testing.T) {
				w := newWorld(t, u)
				w.t = t
				l := w.start("killed."+c.name, busy)
				if err := unix.Kill(c.victim(l), unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
				l.end()
				eventually(t, "the Job's processes are gone", func() bool { return len(processesWith(l.mark)) == 0 })
				l.leftNothing(c.outcome)
			})
		}
	})
}

// TestDeadWorkspaceHoldsNoProcess: below the view lies a file system that stops to answer, as a network mount may. Who waits for
// it can be killed, and so can the run.
func TestDeadWorkspaceHoldsNoProcess(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE, testenv.Tool("fuse-overlayfs"))
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		w.sh(w.ws, "mkdir ../low ../up ../work; seq 100000 > ../low/big")
		server := exec.Command("fuse-overlayfs", "-f", "-o", "allow_other,lowerdir=../low,upperdir=../up,workdir=../work", w.ws)
		server.Dir = w.ws
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = server.Process.Signal(syscall.SIGCONT)
			_ = unix.Unmount(w.ws, unix.MNT_FORCE|unix.MNT_DETACH)
			_ = server.Process.Kill()
			_ = server.Wait()
		}()
		eventually(t, "the workspace is mounted", func() bool { return len(testenv.Mounts(t, w.ws)) > 0 })
		l := w.start("dead.workspace", `trap go=1 USR1; echo staged > f; echo ready; while [ -z "$go" ]; do sleep 0.05; done; cat big; sleep 100`)
		if err := server.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		l.signal(syscall.SIGUSR1)
		var cat int
		eventually(t, "cat waits for the workspace", func() bool {
			for _, p := range strings.Fields(children(l.inside()[0])) {
				comm, _ := os.ReadFile("/proc/" + p + "/comm")
				in, _ := os.ReadFile("/proc/" + p + "/wchan")
				if string(comm) == "cat\n" && string(in) == "request_wait_answer" { // fs/fuse/dev.c
					cat, _ = strconv.Atoi(p)
				}
			}
			return cat != 0
		})
		outcome := "died by signal 9"
		if u.IsRoot() {
			outcome = "no progress"
			if err := unix.Kill(cat, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		} else {
			l.killCommand()
		}
		l.gone(time.Minute)
		if code := l.end(); code != 125 { // stage could not end as it should
			t.Errorf("exit code %d, want 125\n%s", code, l.said.String())
		}
		if err := server.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if j := w.want(0, "status", "last"); !strings.Contains(j.out, outcome) {
			t.Errorf("status does not say %q:\n%s", outcome, j.out)
		}
		if j := w.want(0, "review", "last", "--name-status"); j.out != "A\tf\n" {
			t.Errorf("review: %q", j.out)
		}
	})
}
