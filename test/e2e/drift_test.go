package e2e

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"stage/test/testenv"
)

// TestHostEditDuringARunIsNeverOverwritten: the Job works on what it was shown; what the host wrote
// in the meantime is a conflict at apply, never a mixture and never lost.
func TestHostEditDuringARunIsNeverOverwritten(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		for name, c := range map[string]struct{ look, host, work string }{
			"append after read":  {"cat f", "echo HOST >> f", "echo job >> f"},
			"append after stat":  {"ls -l f", "echo HOST >> f", "echo job >> f"},
			"append, host edits": {"cat f", "sed -i s/line1/HOSTLINE1/ f", "echo job >> f"},
			"write back":         {"x=$(cat f)", "echo HOST >> f", "echo \"$x\" > f; echo job >> f"},
			"replace":            {"cat f", "echo HOST > f", "echo job > g && mv g f"},
			"create":             {"ls new 2>/dev/null", "echo HOST > new", "echo job > new"},
			"remove":             {"cat f", "echo HOST >> f", "rm f"},
		} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, u)
				w.sh(w.ws, "printf 'line1\\nline2\\nline3\\n' > f")
				w.runAround(c.look, c.host, c.work)
				before := testenv.Snapshot(t, w.ws)
				w.want(3, "apply")
				if d := testenv.Untouched(before, testenv.Snapshot(t, w.ws)); d != "" {
					t.Errorf("apply changed the workspace:\n%s", d)
				}
				if j := w.want(0, "review", "--json"); !strings.Contains(j.out, `"drifted": true`) {
					t.Errorf("review does not tell the drift: %s", j.out)
				}
			})
		}
	})
}

// runAround runs a Job that looks, then lets the host do something, then works.
func (w *world) runAround(look, host, work string) {
	w.t.Helper()
	cmd := w.command("run", "--", "sh", "-c", "("+look+") >/dev/null; "+look+" >/dev/null; echo ready; read go; "+work)
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		w.t.Fatalf("the Job said %q, %v", line, err)
	}
	w.sh(w.ws, host)
	if _, err := io.WriteString(in, "go\n"); err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		w.t.Fatalf("the Job failed: %v", err)
	}
}
