package mockmodel_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"stage/test/mockmodel"
	"stage/test/testenv"
)

// job is a Codex run outside of any sandbox, in a throw-away git repository of an ordinary user.
type job struct {
	user   testenv.User
	dir    string // the repository
	server *mockmodel.Server
}

func newJob(t *testing.T, script string, vars map[string]string) job {
	t.Helper()
	testenv.Need(t, testenv.Codex, testenv.Tool("git"))
	u := testenv.Ordinary(t)
	j := job{u, filepath.Join(u.Home, "work"), mockmodel.Start(t, mockmodel.Config{Vars: vars})}
	scripts, err := mockmodel.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	codexHome := filepath.Join(u.Home, ".codex")
	for _, err := range []error{
		os.Mkdir(codexHome, 0o700), os.Mkdir(j.dir, 0o755), os.Mkdir(filepath.Join(u.Home, "outside"), 0o755),
		os.WriteFile(filepath.Join(codexHome, "config.toml"), []byte(j.server.CodexConfig(script)), 0o600),
		os.WriteFile(filepath.Join(u.Home, "key"), []byte("fixture key\n"), 0o600),
		scripts[script].WriteSetup(j.dir),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	j.own(t)
	j.sh(t, "git init -q && git add . && git -c user.name=T -c user.email=t@example.org commit -q --allow-empty -m start")
	return j
}

// own gives everything below the home to the user: root wrote it.
func (j job) own(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(j.user.Home, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, j.user.UID, j.user.GID)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (j job) sh(t *testing.T, command string) string {
	t.Helper()
	c := j.user.Command("sh", "-c", command)
	c.Dir = j.dir
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// codex runs Codex to its end and returns its exit code and the last message.
func (j job) codex(t *testing.T, extra ...string) (int, string) {
	t.Helper()
	args := append([]string{"exec", "--json", "--dangerously-bypass-approvals-and-sandbox"}, extra...)
	cmd := j.user.Command(testenv.CodexBinary(t), append(args, "go")...)
	cmd.Dir = j.dir
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	done := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer done()
	out, err := cmd.Output()
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
		t.Logf("stderr: %s", exit.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	return code, lastMessage(t, string(out))
}

func lastMessage(t *testing.T, events string) string {
	t.Helper()
	last := ""
	for line := range strings.Lines(events) {
		var e struct {
			Item struct{ Type, Text string }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("event %s: %v", line, err)
		}
		if e.Item.Type == "agent_message" {
			last = e.Item.Text
		}
	}
	return last
}

func TestCodexPlaysTheScripts(t *testing.T) {
	for script, c := range map[string]struct{ status, says string }{
		"edit":          {" M hello.txt\n?? docs/notes.md\n?? made.txt\n", "Done: changed hello.txt"},
		"shell-only":    {" M hello.txt\n D old.txt\n?? docs/notes.md\n", "Done"},
		"delete-rename": {" D a.txt\nRD b.txt -> b2.txt\n D c.txt\n D run.sh\n?? c2.txt\n?? link\n?? sub/b3.txt\n", "Done"},
		"parallel-edit": {"?? p1.txt\n?? p2.txt\n", "Three calls made."},
		"reasoning":     {" M n.txt\n", "n.txt says 2"},
		"check-pass":    {" M answer.txt\n", "The check passes."},
		"long-run":      {"?? ticks.txt\n", "waited"},
	} {
		t.Run(script, func(t *testing.T) {
			j := newJob(t, script, map[string]string{"pause": "0", "linger": "0"})
			code, says := j.codex(t)
			if code != 0 || !strings.Contains(says, c.says) {
				t.Errorf("got exit %d, %q, want it to say %q", code, says, c.says)
			}
			if got := j.sh(t, "git status --short --untracked-files=all"); got != c.status {
				t.Errorf("git status: got %q, want %q", got, c.status)
			}
			for _, r := range j.server.Requests() {
				if r.Script != script || r.Thread == "" || r.Error != "" && !strings.Contains(r.Error, "websocket") {
					t.Errorf("unforeseen request %s %s: %s", r.Method, r.Path, r.Error)
				}
			}
		})
	}
}

func TestCodexPlaysManyFiles(t *testing.T) {
	j := newJob(t, "many-files", nil)
	if code, says := j.codex(t); code != 0 || !strings.Contains(says, "1100") {
		t.Errorf("got exit %d, %q, want 1100 files", code, says)
	}
}

func TestCodexReportsAFailingModel(t *testing.T) {
	j := newJob(t, "model-fail", nil)
	if code, _ := j.codex(t); code != 1 {
		t.Errorf("got exit %d, want 1", code)
	}
	if got := j.sh(t, "cat before.txt"); got != "before\n" {
		t.Errorf("got %q", got)
	}
}

// TestExfiltrateSucceedsWithoutASandbox makes sure that a test which sees nothing exfiltrated means
// something.
func TestExfiltrateSucceedsWithoutASandbox(t *testing.T) {
	testenv.Need(t, testenv.Tool("curl"))
	reached := make(chan string, 16)
	hostPort := listenFor(t, "tcp", "127.0.0.1:0", reached)
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		t.Fatal(err)
	}
	u := testenv.Ordinary(t)
	fixtures := u.TempDir(t)
	vars := map[string]string{
		"key": filepath.Join(fixtures, "key"), "outside": fixtures, "tmp": filepath.Join(fixtures, "tmp"), "host": host, "port": port,
		"socket": listenFor(t, "unix", filepath.Join(fixtures, "sock"), reached),
	}
	if err := errors.Join(os.WriteFile(vars["key"], []byte("fixture key\n"), 0o644), os.Chmod(vars["socket"], 0o777)); err != nil {
		t.Fatal(err)
	}
	j := newJob(t, "exfiltrate", vars)
	j.codex(t)
	said := strings.Join(j.server.Outputs("exfiltrate"), "\n")
	for _, want := range []string{"fixture key", "key rc=0", "direct rc=0", "unix rc=0", "outside rc=0", "home rc=0", "hook rc=0", "tmp rc=0"} {
		if !strings.Contains(said, want) {
			t.Errorf("the script did not get %q:\n%s", want, said)
		}
	}
	if len(reached) < 3 {
		t.Errorf("%d connections, want direct, /dev/tcp and the socket", len(reached))
	}
}

// listenFor answers every connection with an empty HTTP response and notes it in reached.
func listenFor(t *testing.T, network, addr string, reached chan<- string) string {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			reached <- network
			_ = c.SetDeadline(time.Now().Add(time.Second))
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte("HTTP/1.0 204 No Content\r\n\r\n"))
			c.Close()
		}
	}()
	return l.Addr().String()
}
