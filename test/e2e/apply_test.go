package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"stage/test/testenv"
)

// applyFixture is a workspace, and what a Job does to it, in which every kind of step of an apply occurs.
const (
	applyTree = `
mkdir -p keep/sub gone/sub moved swap
for i in 1 2 3; do echo old $i > keep/$i; echo old $i > gone/sub/$i; echo old $i > moved/$i; done
echo old > meta; echo old > del; ln -s old link; echo twin > h1; ln h1 h2; echo x > swap/x
touch -d 2001-02-03T04:05:06 keep/* gone/sub/* moved/* meta del h1 keep gone moved swap`
	applyWork = `
echo new > keep/1; echo new > keep/sub/added; rm -r gone; mv moved renamed; echo more > renamed/more
chmod 600 meta; rm del; ln -sf new link; mkdir -p fresh/deep; echo f > fresh/deep/f; ln fresh/deep/f fresh/deep/g
rm -r swap; echo now a file > swap`
)

// points matches the names of durable steps that _STAGE_LOG_POINTS lists.
var points = regexp.MustCompile(`(?m)^point: (.*)$`)

// TestSIGKILLAtEveryPointOfApply kills apply before and after each durable step. The next verb must
// find the old tree or the new one, and nothing of apply's own beside it.
func TestSIGKILLAtEveryPointOfApply(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		w.sh(w.ws, applyTree)
		w.want(0, "run", "--", "sh", "-euc", applyWork)
		before := testenv.Snapshot(t, w.ws)
		names := w.applyPoints()
		if len(names) < 20 {
			t.Fatalf("apply has %d named points, want 20 at least", len(names))
		}
		after := testenv.Snapshot(t, w.ws)
		w.want(0, "undo")
		if d := testenv.Diff(before, testenv.Snapshot(t, w.ws)); d != "" {
			t.Fatalf("undo did not give the old tree back:\n%s", d)
		}
		olds, news := 0, 0
		for _, name := range names {
			w.killApplyAt(name)
			// Any verb that writes recovers first; a Job that does nothing changes nothing.
			w.want(0, "run", "--rm", "--", "true")
			now := testenv.Snapshot(t, w.ws)
			old, new := testenv.Diff(before, now), testenv.Diff(after, now)
			switch {
			case old == "":
				olds++
			case new == "":
				news++
				w.want(0, "undo", w.job(t))
			default:
				t.Fatalf("killed at %q, recovery gave a mix; against the old tree:\n%s\nagainst the new tree:\n%s", name, old, new)
			}
		}
		t.Logf("%d points: %d recovered to the old tree, %d to the new one", len(names), olds, news)
		if olds == 0 || news == 0 {
			t.Errorf("%d old, %d new: want some of both", olds, news)
		}
		w.want(0, "apply", w.job(t))
		if d := testenv.Diff(after, testenv.Snapshot(t, w.ws)); d != "" {
			t.Errorf("the Job applied after all this differs:\n%s", d)
		}
	})
}

// job is the one Job of the store that has changes.
func (w *world) job(t *testing.T) string {
	t.Helper()
	ids, err := filepath.Glob(filepath.Join(w.u.Home, ".local/state/stage/jobs/[0-9a-z]*"))
	if err != nil || len(ids) == 0 {
		t.Fatalf("jobs: %v, %v", ids, err)
	}
	return filepath.Base(ids[0])
}

// applyPoints applies the last Job and returns the names of the points it passed, each once.
func (w *world) applyPoints() []string {
	w.t.Helper()
	cmd := w.command("apply", w.job(w.t))
	cmd.Env = append(cmd.Env, "_STAGE_LOG_POINTS=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("apply: %v\n%s", err, out)
	}
	var names []string
	for _, m := range points.FindAllStringSubmatch(string(out), -1) {
		names = append(names, m[1])
	}
	return names
}

func (w *world) killApplyAt(name string) {
	w.t.Helper()
	cmd := w.command("apply", w.job(w.t))
	cmd.Env = append(cmd.Env, "_STAGE_KILL_AT="+name)
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != -1 {
		w.t.Fatalf("apply was not killed at %q: %v\n%s", name, err, out)
	}
}

// TestApplyLeavesHostEditsAlone: exit 3, the host's bytes are kept, nothing else is written.
func TestApplyLeavesHostEditsAlone(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		for _, edit := range []string{
			"echo host > keep/1", "rm keep/1", "chmod 400 meta", "echo host > fresh", "echo host > gone/sub/added",
			"rm -r moved", "echo host > moved/added", "mkdir renamed; echo host > renamed/x", "ln -sf host link", "rm meta",
		} {
			w := newWorld(t, u)
			w.sh(w.ws, applyTree)
			w.want(0, "run", "--", "sh", "-euc", applyWork)
			w.sh(w.ws, edit)
			before := testenv.Snapshot(t, w.ws)
			j := w.stage("apply")
			if j.code != 3 {
				t.Errorf("after %q: exit code %d, want 3\n%s%s", edit, j.code, j.out, j.err)
				continue
			}
			if !strings.Contains(j.err, "hint") {
				t.Errorf("after %q: no hint in %q", edit, j.err)
			}
			if d := testenv.Untouched(before, testenv.Snapshot(t, w.ws)); d != "" {
				t.Errorf("after %q apply changed the workspace:\n%s", edit, d)
			}
		}
	})
}

func TestGatedChangesNeedAllow(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		w.sh(w.ws, "git init -q; echo a > a; git add a; git -c user.name=t -c user.email=t@e commit -qm a")
		w.want(0, "run", "--", "sh", "-c", "echo 'exec evil' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; echo b > a")
		j := w.want(6, "apply")
		if !strings.Contains(j.err, "git-hook") || !strings.Contains(j.err, "--allow") {
			t.Errorf("refusal names no class or no way on: %q", j.err)
		}
		if _, err := os.Lstat(filepath.Join(w.ws, ".git/hooks/pre-commit")); err == nil {
			t.Error("the hook was written")
		}
		w.want(0, "apply", "last", "a")
		w.want(0, "apply", "--allow", "git-hook")
		if got := w.sh(w.ws, "cat a; cat .git/hooks/pre-commit"); got != "b\nexec evil\n" {
			t.Errorf("applied %q", got)
		}
	})
}

// TestStagePathJob: a Job kept elsewhere is named by path or id, and is neither last nor listed.
func TestStagePathJob(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		w := newWorld(t, u)
		dir := filepath.Join(filepath.Dir(w.ws), "elsewhere")
		j := w.want(0, "run", "--stage", dir, "--", "sh", "-c", "echo x > f")
		id := regexp.MustCompile(`stage: job ([0-9a-z]{26})`).FindStringSubmatch(j.err)
		if id == nil {
			t.Fatalf("no id on stderr: %q", j.err)
		}
		w.want(5, "review", "last")
		if j := w.want(0, "jobs"); strings.Contains(j.out, id[1]) {
			t.Error("the Job is listed")
		}
		for _, ref := range []string{dir, id[1]} {
			if j := w.want(0, "review", ref, "--name-status"); j.out != "A\tf\n" {
				t.Errorf("review %s: %q", ref, j.out)
			}
		}
		w.want(0, "apply", dir)
		inside := fmt.Sprintf("%s/inside", w.ws)
		w.want(125, "run", "--stage", inside, "--", "true")
	})
}
