// Package e2e tests the built binary from outside, each behaviour as root and as an ordinary user.
package e2e

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"stage/test/testenv"
)

// asUserEnv marks the test process that runs the scripts as the ordinary user.
const asUserEnv = "STAGE_E2E_AS_USER"

// TestScripts runs every script of testdata: as whoever runs the tests, and when that is root once
// more as the ordinary user, in a process of its own.
func TestScripts(t *testing.T) {
	testenv.Need(t, testenv.FUSE, testenv.Tool("git"))
	testscript.Run(t, testscript.Params{
		Dir:         "testdata",
		WorkdirRoot: scriptDir(t),
		Setup:       func(e *testscript.Env) error { return setup(t, e) },
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Getuid() == 0, nil
			}
			return false, errors.New("unknown condition " + cond)
		},
	})
}

// scriptDir is a directory that this process's user owns, outside /tmp, which every Job has its own of.
func scriptDir(t *testing.T) string {
	if dir := os.Getenv(asUserEnv); dir != "" {
		return dir
	}
	u := testenv.User{Name: "me", UID: os.Getuid(), GID: os.Getgid()}
	return u.TempDir(t)
}

func setup(t *testing.T, e *testscript.Env) error {
	e.Setenv("HOME", filepath.Join(e.WorkDir, "home"))
	e.Setenv("PATH", filepath.Dir(testenv.Binary(t))+":"+os.Getenv("PATH"))
	e.Setenv("GIT_CONFIG_GLOBAL", filepath.Join(e.WorkDir, "home", ".gitconfig"))
	if err := os.Mkdir(filepath.Join(e.WorkDir, "home"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(e.WorkDir, "home", ".gitconfig"), []byte("[user]\nname = T\nemail = t@example.org\n[init]\ndefaultBranch = main\n"), 0o644)
}

func TestScriptsAsUser(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE, testenv.Userns)
	u := testenv.Ordinary(t)
	self := copyExecutable(t, u, os.Args[0])
	cmd := u.Command(self, "-test.run=^TestScripts$", "-test.v="+verbose(), "-test.timeout=15m")
	cmd.Env = append(cmd.Env, asUserEnv+"="+u.TempDir(t), "STAGE_BINARY="+testenv.Binary(t), "STAGE_REQUIRE="+os.Getenv("STAGE_REQUIRE"))
	cmd.Dir = "."
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("scripts as %s: %v", u.Name, err)
	}
}

func verbose() string {
	if testing.Verbose() {
		return "true"
	}
	return "false"
}

// copyExecutable copies a program to where u may execute it.
func copyExecutable(t *testing.T, u testenv.User, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(u.TempDir(t), filepath.Base(path))
	if err := os.WriteFile(to, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

// job is one stage command line and what came of it.
type job struct {
	out, err string
	code     int
}

// world is one user's fresh home and workspace.
type world struct {
	t   *testing.T
	u   testenv.User
	bin string
	ws  string
	env []string // besides those of testenv.User.Env
}

func newWorld(t *testing.T, u testenv.User) *world {
	t.Helper()
	testenv.Need(t, testenv.FUSE)
	w := &world{t: t, u: u, bin: testenv.Binary(t), ws: filepath.Join(u.TempDir(t), "ws")}
	w.must(nil, "/", "mkdir", w.ws)
	return w
}

// command is `stage args…` in the workspace.
func (w *world) command(args ...string) *exec.Cmd {
	cmd := w.u.Command(w.bin, args...)
	cmd.Dir = w.ws
	cmd.Env = append(cmd.Env, w.env...)
	return cmd
}

// stage runs `stage args…` and returns what came of it, whatever the exit code.
func (w *world) stage(args ...string) job {
	w.t.Helper()
	return w.stageIn(nil, args...)
}

func (w *world) stageIn(in io.Reader, args ...string) job {
	w.t.Helper()
	var out, errOut bytes.Buffer
	cmd := w.command(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errOut
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		w.t.Fatalf("stage %q: %v", args, err)
	}
	return job{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
}

// want runs stage and fails the test on another exit code.
func (w *world) want(code int, args ...string) job {
	w.t.Helper()
	j := w.stage(args...)
	if j.code != code {
		w.t.Fatalf("stage %q: exit code %d, want %d\nstdout: %s\nstderr: %s", args, j.code, code, j.out, j.err)
	}
	return j
}

// must runs a program of the host in dir as the user and returns its output.
func (w *world) must(in io.Reader, dir string, argv ...string) string {
	w.t.Helper()
	cmd := w.u.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdin = dir, in
	cmd.Env = append(cmd.Env, w.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%q in %s: %v\n%s", argv, dir, err, out)
	}
	return string(out)
}

// sh runs a shell script of the host in dir as the user.
func (w *world) sh(dir, script string) string {
	w.t.Helper()
	return w.must(strings.NewReader(script), dir, "sh", "-eu")
}

// eventually waits until cond holds; it polls, for states that send no event.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("never happened: %s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}
