package jail_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"stage/jail"
	"stage/test/testenv"
)

func TestMain(m *testing.M) {
	if jail.Main() {
		return
	}
	if os.Getenv(supervisorEnv) != "" {
		runSupervisor()
		return
	}
	os.Exit(m.Run())
}

// TestAsOrdinaryUser runs every other test of this package again, without root's rights.
func TestAsOrdinaryUser(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Userns)
	u := testenv.Ordinary(t)
	binary := filepath.Join(u.TempDir(t), "jail.test")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", self, binary).CombinedOutput(); err != nil {
		t.Fatalf("copy test binary: %v %s", err, out)
	}
	args := []string{"-test.count=1", "-test.skip=^TestAsOrdinaryUser$"}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	runtime.LockOSThread() // the parent death signal follows the thread
	defer runtime.UnlockOSThread()
	cmd := u.Command(binary, args...)
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.Dir = "/"
	cmd.Env = append(cmd.Env, "STAGE_REQUIRE="+testenv.RequireAsUser())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as %s: %v\n%s", u.Name, err, out)
	}
	t.Logf("as %s:\n%s", u.Name, out)
}

// base is a jail that shows what a Job sees by default.
func base(t testing.TB, argv ...string) jail.Config {
	t.Helper()
	mode := jail.Rootless
	if os.Geteuid() == 0 {
		mode = jail.Root
	}
	c := jail.Config{
		Mode: mode, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
		Hostname: "jail",
		Argv:     argv,
		Env:      []string{"PATH=/usr/bin:/bin", "HOME=" + os.Getenv("HOME"), "LANG=C"},
		Cwd:      "/",
		WorkDir:  t.TempDir(),
	}
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt"} {
		c.Mounts = append(c.Mounts, jail.Mount{Kind: jail.Bind, Source: dir, Dest: dir, ReadOnly: true, Optional: true})
	}
	c.Mounts = append(c.Mounts, jail.Mount{Kind: jail.Empty, Dest: os.Getenv("HOME")})
	return c
}

// sh is base with a shell script.
func sh(t testing.TB, script string) jail.Config { return base(t, "/bin/sh", "-c", script) }

// result is what a finished jail left.
type result struct {
	exit      jail.Exit
	out       string
	installed *jail.Installed
}

// run runs c to its end and fails the test on anything but an end of the command.
func run(t testing.TB, c jail.Config) result {
	t.Helper()
	r, err := try(t, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func try(t testing.TB, c jail.Config) (result, error) {
	t.Helper()
	return tryWith(t, c, nil, nil)
}

// tryWith runs c; started is called before the command runs, running while it does.
func tryWith(t testing.TB, c jail.Config, started func(*jail.Jail), running func(*jail.Jail, *recorder)) (r result, err error) {
	t.Helper()
	out, err := newRecorder()
	if err != nil {
		return r, err
	}
	defer func() { r.out = out.finish() }()
	if c.Stdout == nil {
		c.Stdout = out.w
	}
	if c.Stderr == nil {
		c.Stderr = out.w
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	j, err := jail.Prepare(ctx, c)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	if r.installed, err = j.Start(ctx); err != nil {
		return r, err
	}
	if started != nil {
		started(j)
	}
	if err = j.Exec(); err != nil {
		return r, err
	}
	if running != nil {
		running(j, out)
	}
	r.exit, err = j.Wait()
	return r, err
}

// recorder keeps what is written to a pipe.
type recorder struct {
	w    *os.File
	done chan struct{}

	mu   sync.Mutex
	grew sync.Cond
	text []byte
	over bool
}

func newRecorder() (*recorder, error) {
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	rec := &recorder{w: pw, done: make(chan struct{})}
	rec.grew.L = &rec.mu
	go func() {
		defer close(rec.done)
		defer pr.Close()
		_, _ = io.Copy(rec, pr)
		rec.mu.Lock()
		rec.over = true
		rec.mu.Unlock()
		rec.grew.Broadcast()
	}()
	return rec, nil
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = append(r.text, p...)
	r.grew.Broadcast()
	return len(p), nil
}

// await returns when want was written.
func (r *recorder) await(t testing.TB, want string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !bytes.Contains(r.text, []byte(want)) {
		if r.over {
			t.Fatalf("no %q in %q", want, r.text)
		}
		r.grew.Wait()
	}
}

// finish returns all that was written.
func (r *recorder) finish() string {
	r.w.Close()
	<-r.done
	return string(r.text)
}

func output(t testing.TB, script string) string {
	t.Helper()
	r := run(t, sh(t, script))
	return strings.TrimSpace(r.out)
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		script string
		code   int
		signal int
	}{
		{"exit 0", 0, 0},
		{"exit 42", 42, 0},
		{"kill -TERM $$", 143, 15},
		{"kill -KILL $$", 137, 9},
		{"kill -SEGV $$", 139, 11},
	} {
		r := run(t, sh(t, c.script))
		if r.exit.Code != c.code || r.exit.Signal != c.signal {
			t.Errorf("%s: got code %d signal %d, want %d and %d", c.script, r.exit.Code, r.exit.Signal, c.code, c.signal)
		}
	}
}

func TestCommandThatCannotStart(t *testing.T) {
	share := t.TempDir()
	for name, text := range map[string]string{"plain": "x", "orphan": "#!/nowhere/interpreter\n"} {
		if err := os.WriteFile(filepath.Join(share, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(share, "data"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		code int
	}{
		{"no-such-command", 127},
		{"/no/such/command", 127},
		{"/usr/bin", 126},
		{share + "/data", 126},
		{share + "/plain", 126},
		{share + "/orphan", 126},
		{"data", 126}, // in PATH, not executable
	} {
		cfg := base(t, c.name)
		cfg.Env = append(cfg.Env, "PATH=/usr/bin:"+share)
		cfg.Mounts = append(cfg.Mounts, jail.Mount{Kind: jail.Bind, Source: share, Dest: share, ReadOnly: true})
		_, err := try(t, cfg)
		var failure *jail.ExecError
		if !errors.As(err, &failure) || failure.Code != c.code {
			t.Errorf("%s: got %v, want code %d", c.name, err, c.code)
		}
		if failure != nil && failure.Interpreter != (c.name == share+"/orphan") {
			t.Errorf("%s: got %v", c.name, failure)
		}
	}
}

func TestMissingWorkingDirectoryIsAnErrorBeforeTheCommand(t *testing.T) {
	c := sh(t, "echo ran")
	c.Cwd = "/no/such/dir"
	r, err := try(t, c)
	if err == nil || !strings.Contains(err.Error(), `working directory "/no/such/dir"`) {
		t.Errorf("got %v", err)
	}
	if r.out != "" {
		t.Errorf("the command ran: %s", r.out)
	}
}

func TestIdentityInside(t *testing.T) {
	got := output(t, `id -u; id -g; hostname; echo $$; readlink /proc/self/ns/pid; umask; pwd`)
	lines := strings.Split(got, "\n")
	host, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{fmt.Sprint(os.Getuid()), fmt.Sprint(os.Getgid()), "jail"}
	for i, w := range want {
		if lines[i] != w {
			t.Errorf("line %d: got %q, want %q in:\n%s", i, lines[i], w, got)
		}
	}
	if lines[3] == "1" {
		t.Error("the command is the first process")
	}
	if lines[4] == host {
		t.Error("the command is in the host's pid namespace")
	}
}

func TestCredentialsAreEmpty(t *testing.T) {
	got := output(t, `grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status`)
	for _, want := range []string{"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000",
		"CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in:\n%s", want, got)
		}
	}
}
