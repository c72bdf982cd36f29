package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"stage/test/testenv"
)

func TestExitCodes(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		w.sh(w.ws, "echo 'not a program' > plain; printf '#!/no/such/interpreter\n' > script; chmod +x script")
		for _, c := range []struct {
			name string
			args []string
			want int
		}{
			{"own code", []string{"run", "--", "sh", "-c", "exit 42"}, 42},
			{"own TERM", []string{"run", "--", "sh", "-c", "kill -TERM $$"}, 143},
			{"own KILL", []string{"run", "--", "sh", "-c", "kill -KILL $$"}, 137},
			{"segmentation fault", []string{"run", "--", "sh", "-c", "kill -SEGV $$"}, 139},
			{"not found", []string{"run", "--", "no-such-command"}, 127},
			{"path not found", []string{"run", "--", "./no-such-command"}, 127},
			{"not executable", []string{"run", "--", "./plain"}, 126},
			{"directory", []string{"run", "--", "/usr"}, 126},
			{"interpreter missing", []string{"run", "--", "./script"}, 126},
			{"wall-time limit", []string{"run", "--timeout", "1s", "--", "sleep", "9"}, 124},
			{"wall-time limit ignored by the command", []string{"run", "--timeout", "1s", "--", "sh", "-c", "trap '' TERM; sleep 30"}, 124},
			{"no command", []string{"run"}, 125},
			{"unknown flag", []string{"run", "--frobnicate", "--", "true"}, 125},
			{"no such workspace", []string{"run", "--workspace", "/no/such/dir", "--", "true"}, 125},
			{"unknown verb", []string{"frobnicate"}, 2},
			{"no such job", []string{"status", "zzzzzz"}, 5},
		} {
			t.Run(c.name, func(t *testing.T) {
				if got := w.stage(c.args...); got.code != c.want {
					t.Errorf("exit code %d, want %d\n%s", got.code, c.want, got.err)
				}
			})
		}
	})
}

func TestSignalsAreForwarded(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		for _, c := range []struct {
			sig    syscall.Signal
			script string
			want   int
		}{
			{syscall.SIGTERM, "echo ready; exec sleep 30", 143},
			{syscall.SIGINT, "echo ready; exec sleep 30", 130},
			{syscall.SIGTERM, "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done", 7},
			{syscall.SIGUSR1, "trap 'exit 9' USR1; echo ready; while :; do sleep 0.1; done", 9},
		} {
			w := newWorld(t, u)
			cmd := w.command("run", "--", "sh", "-c", c.script)
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
			if err := cmd.Process.Signal(c.sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // the exit code is looked at
			if got := cmd.ProcessState.ExitCode(); got != c.want {
				t.Errorf("%v to stage while %q ran: exit code %d, want %d", c.sig, c.script, got, c.want)
			}
		}
	})
}

func TestPipesStayPipes(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		if j := w.stageIn(strings.NewReader("from a pipe\n"), "run", "--", "cat"); j.out != "from a pipe\n" {
			t.Errorf("cat of a pipe gave %q", j.out)
		}
		w.sh(w.ws, "echo from a file > ../in")
		in, err := os.Open(filepath.Join(filepath.Dir(w.ws), "in"))
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if j := w.stageIn(in, "run", "--", "cat"); j.out != "from a file\n" {
			t.Errorf("cat of a file gave %q", j.out)
		}
	})
}

func TestLargePipe(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		const size = 100 << 20
		want := sha256.New()
		in := io.TeeReader(io.LimitReader(&counter{}, size), want)
		got := sha256.New()
		cmd := w.command("run", "--", "cat")
		var errOut bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, got, &errOut
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, errOut.String())
		}
		if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
			t.Error("100 MiB came back changed")
		}
	})
}

// counter is an endless stream that does not repeat soon.
type counter struct{ n byte }

func (c *counter) Read(p []byte) (int, error) {
	for i := range p {
		c.n = c.n*7 + 13
		p[i] = c.n ^ byte(i>>8)
	}
	return len(p), nil
}

func TestClosedOutputEndsTheCommand(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		out := w.sh(w.ws, fmt.Sprintf("timeout 20 %s run -- yes 2>../err | head -n 2; grep -c outcome ../err", w.bin))
		if out != "y\ny\n1\n" {
			t.Errorf("yes | head gave %q", out)
		}
	})
}

func TestBackgroundChildDoesNotOutliveTheJob(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		w.want(0, "run", "--", "sh", "-c", "setsid sleep 12345.678 >/dev/null 2>&1 & exit 0")
		if pids := processesWith("12345.678"); len(pids) > 0 {
			t.Errorf("processes %v outlived the Job", pids)
		}
		if j := w.stage("status", "--json"); !strings.Contains(j.out, "survivors_killed") {
			t.Errorf("the bundle does not count survivors: %s", j.out)
		}
	})
}

// processesWith returns the processes with an argument.
func processesWith(arg string) []string {
	var pids []string
	dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, d := range dirs {
		text, err := os.ReadFile(d)
		if err == nil && bytes.Contains(text, []byte("\x00"+arg+"\x00")) {
			pids = append(pids, filepath.Base(filepath.Dir(d)))
		}
	}
	return pids
}

func TestTerminal(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		cmd := w.command("run", "--", "sh", "-c", "tty; stty size; echo ready; sleep 30")
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		master, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 99})
		if err != nil {
			t.Fatal(err)
		}
		defer master.Close()
		seen := readUntil(t, master, "ready")
		for _, want := range []string{"/dev/pts/0", "33 99"} {
			if !strings.Contains(seen, want) {
				t.Errorf("terminal shows %q, want %q in it", seen, want)
			}
		}
		if _, err := master.Write([]byte{3}); err != nil { // ^C
			t.Fatal(err)
		}
		readUntil(t, master, "controls:")
		_ = cmd.Wait() // the exit code is looked at
		if got := cmd.ProcessState.ExitCode(); got != 130 {
			t.Errorf("exit code after ^C %d, want 130", got)
		}
	})
}

func readUntil(t *testing.T, f *os.File, want string) string {
	t.Helper()
	if err := f.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var all []byte
	buf := make([]byte, 4096)
	for !bytes.Contains(all, []byte(want)) {
		n, err := f.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil {
			t.Fatalf("terminal ended with %v after %q, want %q in it", err, all, want)
		}
	}
	return string(all)
}

func TestSIGKILLOfStageEndsTheJob(t *testing.T) {
	testenv.Users(t, killStage)
}

// TestSIGKILLOfStageOverIOUring: threads and rings of the server go with it, however busy they are.
func TestSIGKILLOfStageOverIOUring(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		testenv.FUSEOverIOUring(t)
		killStage(t, u)
	})
}

// killStage kills stage while its Job works in the view.
func killStage(t *testing.T, u testenv.User) {
	w := newWorld(t, u)
	cmd := w.command("run", "--", "sh", "-c", `echo staged > f
			for i in 1 2 3 4; do (while :; do cat f absent$i; ls; done > /dev/null 2>&1) & done
			echo ready; exec sleep 54321.5`)
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
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	_ = cmd.Wait() // killed
	eventually(t, "the Job's processes are gone", func() bool { return len(processesWith("54321.5")) == 0 })
	if d := time.Since(killed); d > time.Second {
		t.Errorf("the Job lived %v longer than stage, want less than a second", d)
	}
	if m := testenv.Mounts(t, filepath.Dir(w.ws)); len(m) > 0 {
		t.Errorf("mounts left: %v", m)
	}
	if m := testenv.Mounts(t, u.Home); len(m) > 0 {
		t.Errorf("mounts left: %v", m)
	}
	if j := w.want(0, "status", "last"); !strings.Contains(j.out, "interrupted") {
		t.Errorf("status does not say interrupted:\n%s", j.out)
	}
	if j := w.want(0, "review", "last", "--name-status"); j.out != "A\tf\n" {
		t.Errorf("review of the interrupted Job: %q", j.out)
	}
	w.want(0, "apply", "last")
	if got := w.sh(w.ws, "cat f"); got != "staged\n" {
		t.Errorf("applied file holds %q", got)
	}
}

func TestNoDescriptorReachesTheCommand(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		j := w.want(0, "run", "--no-tty", "--", "sh", "-c", "for f in /proc/$$/fd/*; do echo ${f##*/}; done")
		for _, fd := range strings.Fields(j.out) {
			// dash may hold 10 and more for itself
			if fd != "0" && fd != "1" && fd != "2" && fd < "10" {
				t.Errorf("descriptor %s reached the command", fd)
			}
		}
	})
}

// TestRootActsAsAnotherUser: --as-user and sudo make stage that user for good.
func TestRootActsAsAnotherUser(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE, testenv.Userns, testenv.Account)
	u := testenv.Ordinary(t)
	w := newWorld(t, u)
	id := fmt.Sprintf("%d %d\n", u.UID, u.GID)
	for name, run := range map[string]func() *exec.Cmd{
		"--as-user": func() *exec.Cmd {
			return exec.Command(w.bin, "run", "--as-user", u.Name, "--rm", "--", "sh", "-c", "echo $(id -u) $(id -g)")
		},
		"sudo": func() *exec.Cmd {
			cmd := exec.Command(w.bin, "run", "--rm", "--", "sh", "-c", "echo $(id -u) $(id -g)")
			cmd.Env = append(os.Environ(), fmt.Sprintf("SUDO_UID=%d", u.UID))
			return cmd
		},
	} {
		cmd := run()
		cmd.Dir = w.ws
		var errOut bytes.Buffer
		cmd.Stderr = &errOut
		out, err := cmd.Output()
		if err != nil || string(out) != id {
			t.Errorf("%s: %q, %v; want %q\n%s", name, out, err, id, errOut.String())
		}
	}
}
