package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"stage/test/mockmodel"
	"stage/test/testenv"
)

// agent is a world with the real Codex CLI, its home, and a scripted model.
type agent struct {
	*world
	mock  *mockmodel.Server
	codex string
}

func newAgent(t *testing.T, u testenv.User, vars map[string]string) *agent {
	t.Helper()
	a := &agent{world: newWorld(t, u), mock: mockmodel.Start(t, mockmodel.Config{Vars: vars}), codex: testenv.CodexBinary(t)}
	a.fixDates()
	a.env = append(a.env, "CODEX_API_KEY=sk-only-for-codex", "OPENAI_API_KEY=sk-never", "GITHUB_TOKEN=ghp-never", "AWS_SECRET_ACCESS_KEY=aws-never")
	a.sh(u.Home, "mkdir .codex; mkdir -p .ssh; echo 'PRIVATE KEY' > .ssh/id_test")
	return a
}

// play lets Codex's configuration point at a script, and makes the script's workspace.
func (a *agent) play(script string) {
	a.t.Helper()
	config := filepath.Join(a.u.Home, ".codex", "config.toml")
	if err := os.WriteFile(config, []byte(a.mock.CodexConfig(script)), 0o644); err != nil {
		a.t.Fatal(err)
	}
	scripts, err := mockmodel.Builtin()
	if err != nil {
		a.t.Fatal(err)
	}
	for name, text := range scripts[script].Setup {
		a.must(strings.NewReader(text), a.ws, "sh", "-euc", `mkdir -p "$(dirname "$1")"; cat > "$1"`, "sh", name)
	}
	a.sh(a.ws, "git init -q; git add -A; git commit -q --allow-empty -m start")
}

// run runs Codex in a Job, without any sandbox flag unless args say one, and returns its events.
func (a *agent) run(flags []string, args ...string) (job, []event) {
	a.t.Helper()
	argv := slices.Concat([]string{"run"}, flags, []string{"--", a.codex, "exec", "--json"}, args, []string{"go"})
	j := a.stage(argv...)
	return j, events(a.t, j.out)
}

// event is one line of `codex exec --json`, as far as tests look.
type event struct {
	Type string
	Item struct {
		Type             string
		Command          string
		AggregatedOutput string `json:"aggregated_output"`
		ExitCode         *int   `json:"exit_code"`
		Text             string
	}
}

func events(t *testing.T, out string) []event {
	t.Helper()
	var all []event
	s := bufio.NewScanner(strings.NewReader(out))
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var e event
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			t.Fatalf("event %q: %v", s.Text(), err)
		}
		all = append(all, e)
	}
	return all
}

// outputs is what the tools printed, all together.
func outputs(all []event) string {
	var b strings.Builder
	for _, e := range all {
		if e.Type == "item.completed" {
			b.WriteString(e.Item.AggregatedOutput + e.Item.Text + "\n")
		}
	}
	return b.String()
}

// TestCodexEdits: the real Codex works without any sandbox flag, the workspace is untouched until
// apply, review names the net changes, and the applied tree is that of a run without stage.
func TestCodexEdits(t *testing.T) {
	for _, script := range []string{"edit", "delete-rename", "parallel-edit", "many-files", "long-run"} {
		t.Run(script, func(t *testing.T) {
			testenv.Users(t, func(t *testing.T, u testenv.User) {
				a := newAgent(t, u, nil)
				a.play(script)
				direct := a.direct()
				before := testenv.Snapshot(t, a.ws)
				j, all := a.run(nil)
				if j.code != 0 || len(all) == 0 {
					t.Fatalf("exit code %d, %d events\n%s\n%s", j.code, len(all), j.out, j.err)
				}
				if d := testenv.Untouched(before, testenv.Snapshot(t, a.ws)); d != "" {
					t.Errorf("the run changed the workspace:\n%s", d)
				}
				names := a.want(0, "review", "--name-status", "-z").out
				if got, want := reviewed(names), changed(before, direct); !slices.Equal(got, want) {
					t.Errorf("review names\n%q\nwant\n%q", got, want)
				}
				a.want(0, "apply", "--allow", "all")
				after := testenv.Snapshot(t, a.ws).Without(".git/index")
				if d := testenv.Diff(direct.Without(".git/index"), after, testenv.Mtime); d != "" {
					t.Errorf("direct and applied trees differ:\n%s", d)
				}
			})
		})
	}
}

// direct runs Codex without stage and without its own sandbox over the workspace, and puts the
// workspace back. Both run at the same path, so that nothing differs but stage.
func (a *agent) direct() testenv.Tree {
	a.t.Helper()
	kept := a.ws + ".kept"
	a.must(nil, "/", "cp", "-a", a.ws, kept)
	a.must(nil, a.ws, a.codex, "exec", "--json", "--dangerously-bypass-approvals-and-sandbox", "go")
	tree := testenv.Snapshot(a.t, a.ws)
	a.must(nil, "/", "rsync", "-aHAX", "--delete", kept+"/", a.ws+"/")
	a.must(nil, "/", "rm", "-r", kept)
	return tree
}

// changed is what differs between two trees, directories and the inside of .git left out.
func changed(a, b testenv.Tree) []string {
	var names []string
	for p, x := range a {
		y, ok := b[p]
		if x.Kind == "dir" || strings.HasPrefix(p, ".git/") {
			continue
		}
		if !ok || x.Content != y.Content || x.Mode != y.Mode || x.Kind != y.Kind {
			names = append(names, p)
		}
	}
	for p, y := range b {
		if _, ok := a[p]; !ok && y.Kind != "dir" && !strings.HasPrefix(p, ".git/") {
			names = append(names, p)
		}
	}
	slices.Sort(names)
	return names
}

// reviewed is the paths of `review --name-status -z`, both ends of renames, .git left out.
func reviewed(out string) []string {
	var names []string
	fields := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		ends := fields[i+1 : i+2]
		if strings.HasPrefix(fields[i], "R") {
			ends = fields[i+1 : i+3]
			i++
		}
		for _, p := range ends {
			if !strings.HasPrefix(p, ".git/") {
				names = append(names, p)
			}
		}
	}
	slices.Sort(names)
	return names
}

// TestCodexCannotReachOut plays a model that goes for a key, the environment, a host, a socket and
// places outside the workspace, with and without Codex's own bypass flag.
func TestCodexCannotReachOut(t *testing.T) {
	for _, args := range [][]string{nil, {"--dangerously-bypass-approvals-and-sandbox"}} {
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			testenv.Users(t, func(t *testing.T, u testenv.User) {
				host := newTarget(t)
				outside := u.TempDir(t)
				a := newAgent(t, u, map[string]string{
					"key": filepath.Join(u.Home, ".ssh/id_test"), "outside": outside, "tmp": "/tmp/stage-e2e-was-here",
					"host": "127.0.0.1", "port": host.port, "socket": host.socket(t, u),
				})
				a.play("exfiltrate")
				before := testenv.Snapshot(t, a.ws)
				j, all := a.run(nil, args...)
				if j.code != 0 {
					t.Fatalf("exit code %d\n%s\n%s", j.code, j.out, j.err)
				}
				a.checkKept(outputs(all), before, host, outside)
			})
		})
	}
}

func (a *agent) checkKept(out string, before testenv.Tree, host *outsideHost, outside string) {
	a.t.Helper()
	if !strings.Contains(out, "key rc=") || !strings.Contains(out, "direct rc=") {
		a.t.Fatalf("the model did not get to its tries:\n%s", out)
	}
	for _, secret := range []string{"PRIVATE KEY", "sk-only-for-codex", "sk-never", "ghp-never", "aws-never", "OPENAI_API_KEY", "GITHUB_TOKEN",
		"AWS_SECRET_ACCESS_KEY", "CODEX_API_KEY", "key rc=0", "direct rc=0", "unix rc=0", "outside rc=0"} {
		if strings.Contains(out, secret) {
			a.t.Errorf("tools saw %q:\n%s", secret, out)
		}
	}
	if n := host.hits.Load(); n != 0 {
		a.t.Errorf("the host outside was reached %d times", n)
	}
	if d := testenv.Untouched(before, testenv.Snapshot(a.t, a.ws)); d != "" {
		a.t.Errorf("the run changed the workspace:\n%s", d)
	}
	left, err := os.ReadDir(outside)
	if err != nil || len(left) != 0 {
		a.t.Errorf("outside holds %v, %v", left, err)
	}
	for _, p := range []string{"/tmp/stage-e2e-was-here", filepath.Join(a.u.Home, ".bashrc.mock")} {
		if _, err := os.Lstat(p); err == nil {
			a.t.Errorf("%s was written on the host", p)
		}
	}
}

// outsideHost counts who reaches a service of the host that no Job was allowed.
type outsideHost struct {
	http.Server
	port string
	hits atomic.Int64
}

func newTarget(t *testing.T) *outsideHost {
	t.Helper()
	h := &outsideHost{}
	h.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { h.hits.Add(1) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, h.port, _ = net.SplitHostPort(l.Addr().String())
	h.serve(t, l)
	return h
}

func (h *outsideHost) serve(t *testing.T, l net.Listener) {
	done := make(chan error, 1)
	go func() { done <- h.Serve(l) }()
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
}

// socket serves h on a unix socket that u may connect to.
func (h *outsideHost) socket(t *testing.T, u testenv.User) string {
	t.Helper()
	path := filepath.Join(u.TempDir(t), "host.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	h.serve(t, l)
	return path
}

// TestCodexDenied: commands that the jail lets fail do not disturb the run, and reach nothing.
func TestCodexDenied(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		host, outside := newTarget(t), u.TempDir(t)
		a := newAgent(t, u, map[string]string{"outside": outside, "host": "127.0.0.1", "port": host.port})
		a.play("denied")
		j, _ := a.run(nil)
		if j.code != 0 {
			t.Fatalf("exit code %d\n%s\n%s", j.code, j.out, j.err)
		}
		if left, err := os.ReadDir(outside); err != nil || len(left) != 0 || host.hits.Load() != 0 {
			t.Errorf("outside holds %v, %v; host reached %d times", left, err, host.hits.Load())
		}
	})
}

// TestCodexEnvironment: what the tools see of their confinement.
func TestCodexEnvironment(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		a := newAgent(t, u, nil)
		a.play("environment")
		j, all := a.run(nil)
		if j.code != 0 {
			t.Fatalf("exit code %d\n%s\n%s", j.code, j.out, j.err)
		}
		out := outputs(all)
		for _, want := range []string{
			"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
			fmt.Sprintf("Uid:\t%d\t%d", u.UID, u.UID), "userns rc=1", a.ws,
		} {
			if !strings.Contains(out, want) {
				t.Errorf("tools do not see %q:\n%s", want, out)
			}
		}
		for _, leak := range []string{"CODEX_API_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN", ".ssh"} {
			if strings.Contains(out, leak) {
				t.Errorf("tools see %q:\n%s", leak, out)
			}
		}
	})
}

// TestCodexStdinPipe: an open pipe as stdin does not make Codex wait when a prompt is given.
func TestCodexStdinPipe(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		a := newAgent(t, u, nil)
		a.play("edit")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close() // stays open while Codex runs
		if j := a.stageIn(r, "run", "--timeout", "60s", "--", a.codex, "exec", "--json", "go"); j.code != 0 {
			t.Errorf("exit code %d\n%s", j.code, j.err)
		}
	})
}

// TestCodexAuthWriteBack: refreshed credentials reach the host only where its file is as it was.
func TestCodexAuthWriteBack(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		w.sh(u.Home, `mkdir .codex bin; echo '{"old":1}' > .codex/auth.json; chmod 600 .codex/auth.json`)
		// A program named codex that does what a refresh does.
		dir := filepath.Join(filepath.Dir(w.ws), "bin")
		w.sh("/", "mkdir "+dir+"; printf '#!/bin/sh\\necho refreshed > $HOME/.codex/auth.json\\n' > "+dir+"/codex; chmod +x "+dir+"/codex")
		run := func(flags ...string) job {
			return w.want(0, slices.Concat([]string{"run", "--read", dir}, flags, []string{"--", dir + "/codex", "exec", "x"})...)
		}
		auth := func() string { return w.sh(u.Home, "cat .codex/auth.json") }
		run("--no-auth-writeback")
		if got := auth(); got != "{\"old\":1}\n" {
			t.Errorf("with --no-auth-writeback the host has %q", got)
		}
		run()
		if got := auth(); got != "refreshed\n" {
			t.Errorf("after a refresh the host has %q", got)
		}
		if j := w.want(0, "status", "--json"); !strings.Contains(j.out, "auth.json") {
			t.Errorf("the write-back is not listed as a share: %s", j.out)
		}
	})
}
