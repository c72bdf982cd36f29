package jail_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"stage/jail"
	"stage/test/testenv"
)

// openFile makes a file and opens it.
func openFile(t *testing.T, text string, flags int) *os.File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func content(t *testing.T, f *os.File) string {
	t.Helper()
	text, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestStreamsThatOpenTheHostAreRefused(t *testing.T) {
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	fd, err := unix.Open("/etc/passwd", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	handle := os.NewFile(uintptr(fd), "handle")
	defer handle.Close()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for what, f := range map[string]*os.File{"directory": dir, "handle": handle, "listening socket": socket} {
		for i, name := range []string{"standard input", "standard output", "standard error"} {
			c := sh(t, "echo ran >&2; echo ran")
			*[]**os.File{&c.Stdin, &c.Stdout, &c.Stderr}[i] = f
			r, err := try(t, c)
			if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), what) || r.out != "" {
				t.Errorf("%s as %s: got %v, output %q", what, name, err, r.out)
			}
		}
	}
}

func TestInputFileCannotBeChanged(t *testing.T) {
	c := sh(t, `echo changed > /proc/self/fd/0; chmod 000 /proc/self/fd/0; chmod 000 /dev/stdin; cat`)
	c.Stdin = openFile(t, "kept", unix.O_RDONLY)
	before, err := c.Stdin.Stat()
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, c)
	after, err := c.Stdin.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, c.Stdin); got != "kept" || !strings.Contains(r.out, "kept") {
		t.Errorf("got file %q, output %q", got, r.out)
	}
	if b, a := before.Sys().(*syscall.Stat_t), after.Sys().(*syscall.Stat_t); b.Ctim != a.Ctim {
		t.Error("the file's change time is another")
	}
}

func TestOutputFileCannotBeOpenedAgain(t *testing.T) {
	c := sh(t, `timeout 0.2 cat /proc/self/fd/1 | head -c 3 >&2; : > /proc/self/fd/1; chmod 000 /dev/stdout; echo end`)
	c.Stdout = openFile(t, "old\n", unix.O_WRONLY|unix.O_APPEND)
	r := run(t, c)
	if got := content(t, c.Stdout); got != "old\nend\n" || strings.Contains(r.out, "old") {
		t.Errorf("got file %q, standard error %q", got, r.out)
	}
	info, err := os.Stat(c.Stdout.Name())
	if err != nil || info.Mode() != 0o644 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
}

func TestInputIsReadNoFurtherThanTheCommandDid(t *testing.T) {
	for _, c := range []struct {
		text, script, rest string
	}{
		{strings.Repeat("0123456789", 100000), "dd bs=10 count=3 status=none of=/dev/null", strings.Repeat("0123456789", 100000-3)},
		{"0123456789", "dd bs=4 count=1 status=none of=/dev/null", "456789"},
		{"0123456789", "cat >/dev/null", ""},
		{"0123456789", "true", "0123456789"},
		{"0123456789", "exec <&-; sleep 0.1", "0123456789"},
	} {
		cfg := sh(t, c.script)
		cfg.Stdin = openFile(t, c.text, unix.O_RDONLY)
		run(t, cfg)
		rest, err := io.ReadAll(cfg.Stdin)
		if err != nil || string(rest) != c.rest {
			t.Errorf("%s: %d bytes are left, %v, want %d", c.script, len(rest), err, len(c.rest))
		}
	}
}

func TestLargeFilesPassThrough(t *testing.T) {
	const size = 100 << 20
	c := base(t, "/bin/cat")
	c.Stdin = openFile(t, strings.Repeat("0123456789abcdef", size/16), unix.O_RDONLY)
	c.Stdout = openFile(t, "", unix.O_WRONLY)
	start := time.Now()
	run(t, c)
	t.Logf("%d MB in %v", size>>20, time.Since(start))
	if in, out := content(t, c.Stdin), content(t, c.Stdout); in != out {
		t.Errorf("got %d bytes, want the %d of the input", len(out), len(in))
	}
}

func TestOutputOfOneFileStaysInOrder(t *testing.T) {
	c := sh(t, `i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done`)
	var want strings.Builder
	for i := range 500 {
		fmt.Fprintf(&want, "out %d\nerr %d\n", i, i)
	}
	c.Stdout = openFile(t, "", unix.O_WRONLY)
	fd, err := unix.FcntlInt(c.Stdout.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = os.NewFile(uintptr(fd), "same file")
	defer c.Stderr.Close()
	run(t, c)
	if got := content(t, c.Stdout); got != want.String() {
		t.Errorf("got %q", got)
	}
}

func TestOutputIsCompleteWhenTheCommandIsKilled(t *testing.T) {
	c := sh(t, `(while :; do echo background; done) & head -c 50000 /dev/zero; echo ready >&2; sleep 1006`)
	c.Stdout = openFile(t, "", unix.O_WRONLY)
	_, err := tryWith(t, c, nil, func(j *jail.Jail, out *recorder) {
		out.await(t, "ready\n")
		if err := j.Kill(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, c.Stdout); strings.Count(got, "\x00") != 50000 {
		t.Errorf("got %d of 50000 bytes", strings.Count(got, "\x00"))
	}
}

func TestFullOutputIsAnError(t *testing.T) {
	c := sh(t, `i=0; while [ $i -lt 200000 ]; do echo 0123456789; i=$((i+1)); done`)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if c.Stdout, err = os.OpenFile(pipe, os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	}
	defer c.Stdout.Close()
	reader.Close()
	if r := run(t, c); r.exit.Code != 141 {
		t.Errorf("without a reader: got code %d, want 141 (SIGPIPE)", r.exit.Code)
	}
	c = sh(t, "echo x; echo x")
	c.Stdout = openFile(t, "", unix.O_RDONLY)
	if _, err := try(t, c); err == nil || !strings.Contains(err.Error(), "standard output") {
		t.Errorf("a file that cannot be written: got %v", err)
	}
}

func TestNamedPipesAndSocketsPassAsPipes(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "mine"), os.NewFile(uintptr(fds[1]), "theirs")
	defer mine.Close()
	defer theirs.Close()
	c := sh(t, `test -p /dev/stdin && test -p /dev/stdout && cat`)
	c.Stdin, c.Stdout = theirs, theirs
	if _, err := mine.WriteString("through a socket"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Shutdown(int(mine.Fd()), unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	run(t, c)
	buf := make([]byte, 100)
	if n, err := mine.Read(buf); err != nil || string(buf[:n]) != "through a socket" {
		t.Errorf("got %q, %v", buf[:n], err)
	}
}

func TestStreamsCanBeOpenedByName(t *testing.T) {
	c := sh(t, `cat /dev/stdin > /dev/stdout; echo more >> /dev/stdout; echo err > /dev/stderr`)
	c.Stdin, c.Stdout, c.Stderr = openFile(t, "text\n", unix.O_RDONLY), openFile(t, "", unix.O_WRONLY), openFile(t, "", unix.O_WRONLY)
	run(t, c)
	if out, err := content(t, c.Stdout), content(t, c.Stderr); out != "text\nmore\n" || err != "err\n" {
		t.Errorf("got %q and %q", out, err)
	}
}

func TestInputOfACommandThatCannotStartIsNotRead(t *testing.T) {
	c := base(t, "/no/such/command")
	c.Stdin = openFile(t, "text", unix.O_RDONLY)
	if _, err := try(t, c); err == nil {
		t.Error("got no error")
	}
	if rest, err := io.ReadAll(c.Stdin); err != nil || string(rest) != "text" {
		t.Errorf("got %q, %v", rest, err)
	}
}

func TestInputThatNeverComesDoesNotHoldTheJail(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	c := sh(t, "exit 3")
	if c.Stdin, err = os.OpenFile(pipe, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	defer c.Stdin.Close()
	if r := run(t, c); r.exit.Code != 3 {
		t.Errorf("got %+v", r.exit)
	}
}

func TestDevicesOfTheHostCannotBeChanged(t *testing.T) {
	c := sh(t, `for f in /dev/stdin /dev/null /dev/full /dev/tty /dev/random; do chmod 777 $f; touch $f; done 2>&1; echo x > /dev/null && echo written; echo x > /dev/full || echo full`)
	var before [3]unix.Stat_t
	devices := []string{"/dev/null", "/dev/full", "/dev/random"}
	for i, d := range devices {
		if err := unix.Stat(d, &before[i]); err != nil {
			t.Fatal(err)
		}
	}
	r := run(t, c)
	if strings.Count(r.out, "Read-only file system") != 9 || !strings.Contains(r.out, "written") || !strings.Contains(r.out, "full") {
		t.Errorf("got %s", r.out)
	}
	for i, d := range devices {
		var after unix.Stat_t
		if err := unix.Stat(d, &after); err != nil || after.Mode != before[i].Mode || after.Ctim != before[i].Ctim {
			t.Errorf("%s was changed: %v", d, err)
			_ = unix.Chmod(d, before[i].Mode&0o7777)
		}
	}
}

func TestInheritedTerminalCannotBeChanged(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	c := sh(t, `test -t 0 && echo terminal; chmod 777 /dev/stdin; chown 0 /dev/stdin; echo by name > /dev/stdin; read line; echo "got $line"`)
	c.Stdin = slave
	if _, err := master.WriteString("a line\n"); err != nil {
		t.Fatal(err)
	}
	r := run(t, c)
	if !strings.HasPrefix(r.out, "terminal\n") || strings.Count(r.out, "Read-only file system") != 2 || !strings.HasSuffix(r.out, "got a line\n") {
		t.Errorf("got %q", r.out)
	}
}

func TestStreamsAreReadBack(t *testing.T) {
	c := sh(t, "true")
	c.Stdin = openFile(t, "text", unix.O_RDONLY)
	report, _ := run(t, c).installed.Control("mount.shares")
	var got []string
	for _, r := range report.ReadBack[1:] {
		got = append(got, r.Source+": "+r.Got)
	}
	text := strings.Join(got, "\n")
	if want := "standard input: pipe\nstandard output: pipe\nstandard error: pipe"; text != want {
		t.Errorf("got %s", text)
	}
	c.Stdin = nil
	report, _ = run(t, c).installed.Control("mount.shares")
	for _, r := range report.ReadBack {
		if r.Want != r.Got {
			t.Errorf("%s: want %s, got %s in an enforced control", r.Source, r.Want, r.Got)
		}
	}
	c = sh(t, "echo ran")
	c.Stdin = openFile(t, "text", unix.O_RDONLY)
	c.Skip = "streams"
	if r, err := try(t, c); err == nil || !namesControl(err, "mount.shares") || r.out != "" {
		t.Errorf("a file of the host as a stream: got %v, output %q", err, r.out)
	}
}

func TestSocketsInSharesAreReported(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, m := range []jail.Mount{
		{Kind: jail.Bind, Source: dir, Dest: dir},
		{Kind: jail.Bind, Source: dir + "/s", Dest: dir + "/s", ReadOnly: true},
	} {
		c := sh(t, "true")
		c.Mounts = append(c.Mounts, m)
		report, _ := run(t, c).installed.Control("net.unix")
		if report.Level != jail.Cooperative || !strings.Contains(report.Reason, dir) {
			t.Errorf("%+v: got %+v", m, report)
		}
		if report.Canary == nil || !report.Canary.Passed || strings.Contains(report.Canary.Act, dir) {
			t.Errorf("%+v: got canary %+v", m, report.Canary)
		}
		if got := fmt.Sprint(report.ReadBack); !strings.Contains(got, dir+"/s") {
			t.Errorf("%+v: got %s", m, got)
		}
	}
}

func TestForgedSignalsDoNotEndTheJail(t *testing.T) {
	testenv.Need(t, testenv.Tool("python3"))
	c := base(t, "/usr/bin/python3", "-c", `
import ctypes, os, struct, time
libc = ctypes.CDLL(None)
for n in list(range(1, 9)) + [11, 13, 15, 16, 24, 25, 27, 31, 33, 34, 64]:
    for code in (-1, -60, -6):
        for tid in range(1, os.getpid()):
            info = ctypes.create_string_buffer(struct.pack("iii", n, 0, code) + bytes(116))
            libc.syscall(129, tid, n, info)
            libc.syscall(297, 1, tid, n, info)
time.sleep(0.1)
print("alive")
`)
	r := run(t, c)
	if r.out != "alive\n" || r.exit.Code != 0 {
		t.Errorf("got %+v, %q", r.exit, r.out)
	}
}

func TestKernelTablesAreMasked(t *testing.T) {
	testenv.Need(t, testenv.Root)
	got := output(t, `cat /proc/slabinfo /proc/vmallocinfo /proc/key-users /proc/kallsyms /proc/keys /proc/timer_list 2>/dev/null | head -c 100`)
	if got != "" {
		t.Errorf("got %s", got)
	}
}

func TestCloseEndsAlthoughNobodyTakesTheOutput(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := base(t, "/usr/bin/yes")
	c.Stdout = out
	j, err := jail.Prepare(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := j.Exec(); err != nil {
		t.Fatal(err)
	}
	// The pipe is full when a poll finds no room.
	for room := true; room; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(out.Fd()), Events: unix.POLLOUT}}, 0)
		room = err != nil || n > 0
	}
	start := time.Now()
	if err := j.Close(); err == nil || !strings.Contains(err.Error(), "output") {
		t.Errorf("got %v, want that output is lost", err)
	}
	if took := time.Since(start); took > 11*time.Second {
		t.Errorf("took %v", took)
	}
	if _, err := out.Read(bytes.Repeat([]byte{0}, 1<<20)); err != nil { // lets the stuck write end
		t.Error(err)
	}
}
