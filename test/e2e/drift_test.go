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
			"append after read":                {"cat f", "echo HOST >> f", "echo job >> f"},
			"write back over a replaced file":  {"x=$(cat f)", "sed -i s/line1/HOSTLINE1/ f; sleep 0.1", "echo \"$x\" > f; echo job >> f"},
			"write back over a file made anew": {"x=$(cat f)", "rm f; sleep 0.1; echo HOST > f; sleep 0.1", "echo \"$x\" > f; echo job >> f"},
			"append, host edits":               {"cat f", "sed -i s/line1/HOSTLINE1/ f", "echo job >> f"},
			"write back":                       {"x=$(cat f)", "echo HOST >> f", "echo \"$x\" > f; echo job >> f"},
			"replace":                          {"cat f", "echo HOST > f", "echo job > g && mv g f"},
			"remove":                           {"cat f", "echo HOST >> f", "rm f"},
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

// TestJobWorksOnWhatItSees: the host's edit shows before the Job works on the file for the first time,
// so it is what the Job's change is made of.
func TestJobWorksOnWhatItSees(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		w.sh(w.ws, "echo line > f")
		w.runAround("{ ls -l f; ls new; } 2>/dev/null", "echo HOST >> f; echo HOST > new", "until grep -q HOST f && test -e new; do sleep 0.05; done; echo job >> f; echo job >> new")
		w.want(0, "apply")
		w.sh(w.ws, "test \"$(cat f new | tr '\\n' ' ')\" = 'line HOST job HOST job '")
	})
}

// TestReviewTellsWhichReadFilesChanged: of what the Job read and did not change, and of that alone.
func TestReviewTellsWhichReadFilesChanged(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		w.sh(w.ws, "mkdir d; for f in read same other d/mine; do echo text > $f; done")
		w.runAround("cat read same d/mine", "echo HOST >> read; echo HOST >> other; echo HOST >> d/mine", "echo job > d/mine; cat read")
		j := w.want(0, "review", "--json")
		if !strings.Contains(strings.Join(strings.Fields(j.out), ""), `"read_drift":[{"path":"read"}]`) {
			t.Errorf("review --json: %s", j.out)
		}
		if l := w.want(0, "review"); !strings.Contains(l.out, "files that the Job read changed in the workspace since: 1 (read)") {
			t.Errorf("review: %s", l.out)
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
