package apply_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/apply"
	"stage/fs/hostfs"
	"stage/fs/staged/stagedtest"
	"stage/test/testenv"
)

// everyKind makes changes of every kind that apply treats in a way of its own.
func everyKind(trees ...stagedtest.Tree) {
	for _, x := range trees {
		x.Write("f", "replaced\n")
		x.Remove("g")
		x.Chmod("d/f", 0o600)
		x.SetMtime("d/e/g", time.Unix(1_200_000_000, 1))
		x.Setxattr("d/e/f", "user.x", "y")
		x.Mkdir("new")
		x.Mkdir("new/sub")
		x.Write("new/sub/file", "new\n")
		x.Symlink("sub/file", "new/link")
		x.Mkfifo("new/fifo")
		x.Link("new/sub/file", "new/hard")
		x.Rename("a/b", "new/moved") // a directory as a whole, into a new one
		x.Write("new/moved/f", "changed below a move\n")
		x.Remove("new/moved/c/g")
		x.Write("new/moved/c/added", "added below a move\n")
		x.Remove("empty")
		x.Write("empty", "a file now\n")
		x.Remove("a/f")
		x.Mkdir("a/f")
		x.Write("a/f/x", "a folder now\n")
		x.Write("h", "all three names\n")
		x.Remove("l")
		x.Symlink("elsewhere", "l")
		x.Chmod("d/e", 0o555)
		x.Chmod("new/moved/c", 0o500)
	}
}

// crashWorld is a world with a sealed Job of everyKind of change, and one of a removed directory.
func crashWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	for _, x := range []stagedtest.Tree{w.work, w.twin} {
		x.Mkdir("gone")
		x.Mkdir("gone/sub")
		x.Write("gone/sub/f", "gone\n")
	}
	everyKind(w.twin, w.job)
	for _, x := range []stagedtest.Tree{w.twin, w.job} {
		stagedtest.RemoveAll(x, []string{"gone", "gone/sub", "gone/sub/f"}, "gone")
	}
	w.job.Seal()
	return w
}

// judgeTree makes sure that the workspace is exactly the old or the new tree and says which.
func (w *world) judgeTree(before, after testenv.Tree) string {
	w.t.Helper()
	now := w.snapshot()
	old := testenv.Diff(before, now)
	if old == "" {
		return "old"
	}
	if d := testenv.Diff(after, now, testenv.Mtime, testenv.Holes); d != "" {
		w.t.Fatalf("neither the old tree:\n%s\nnor the new one:\n%s", old, d)
	}
	return "new"
}

func (w *world) recover(batch string) apply.RecoverResult {
	w.t.Helper()
	res, err := apply.Recover(w.t.Context(), stagedtest.OpenRoot(w.t, w.work.Dir), stagedtest.OpenRoot(w.t, batch))
	if err != nil {
		w.t.Fatalf("recover: %v", err)
	}
	again, err := apply.Recover(w.t.Context(), stagedtest.OpenRoot(w.t, w.work.Dir), stagedtest.OpenRoot(w.t, batch))
	if err != nil || again != apply.RecoveredNothing {
		w.t.Fatalf("recover a second time: %q, %v", again, err)
	}
	return res
}

// TestFaultAtEveryOperation fails the n-th operation on the target or the batch, for every n.
func TestFaultAtEveryOperation(t *testing.T) {
	faults := []error{unix.EIO, hostfs.Short(unix.ENOSPC)}
	for n := 0; ; n++ {
		w := crashWorld(t)
		before, after := w.snapshot(), snapshot(t, w.twin.Dir)
		batch := w.newBatch()
		o := w.options(batch, nil)
		count, hit := 0, ""
		fault := func(op string) error {
			count++
			if count-1 != n {
				return nil
			}
			hit = op
			return faults[n%len(faults)]
		}
		o.Target, o.Batch = hostfs.NewFault(o.Target, fault), hostfs.NewFault(o.Batch, fault)
		res, err := apply.Apply(t.Context(), o)
		if errors.As(err, new(*apply.UnfinishedError)) {
			if state, _ := w.published(batch); state != apply.BatchPublished || res.Outcome != apply.Published {
				t.Fatalf("operation %d (%s) failed after the commit: state %v, %v", n, hit, state, res.Outcome)
			}
		}
		w.recover(batch)
		state := w.judgeTree(before, after)
		if err == nil && state != "new" {
			t.Fatalf("apply with operation %d (%s) failing said nothing and left the %s tree", n, hit, state)
		}
		if hit == "" {
			t.Logf("%d operations", n)
			break
		}
		if state == "new" {
			w.undoQuietly(batch)
			if d := testenv.Diff(before, w.snapshot()); d != "" {
				t.Fatalf("operation %d (%s) failed; undo did not give the original:\n%s", n, hit, d)
			}
		}
		if t.Failed() {
			t.Fatalf("operation %d (%s), apply: %v", n, hit, err)
		}
	}
}

func (w *world) undoQuietly(batch string) {
	w.t.Helper()
	res, err := apply.Undo(w.t.Context(), apply.UndoOptions{Job: "job", Target: stagedtest.OpenRoot(w.t, w.work.Dir), Batch: stagedtest.OpenRoot(w.t, batch)})
	if err != nil {
		w.t.Fatalf("undo: %v\n%s", err, conflicts(res))
	}
}

// TestFaultAtEveryOperationOfUndo is TestFaultAtEveryOperation for undo.
func TestFaultAtEveryOperationOfUndo(t *testing.T) {
	for n := 0; ; n++ {
		w := crashWorld(t)
		before := w.snapshot()
		batch := w.newBatch()
		if _, err := apply.Apply(t.Context(), w.options(batch, nil)); err != nil {
			t.Fatal(err)
		}
		after := w.snapshot()
		count, hit := 0, ""
		fault := func(op string) error {
			if count++; count-1 != n {
				return nil
			}
			hit = op
			return unix.EIO
		}
		_, err := apply.Undo(t.Context(), apply.UndoOptions{
			Job: "job", Target: hostfs.NewFault(stagedtest.OpenRoot(t, w.work.Dir), fault), Batch: hostfs.NewFault(stagedtest.OpenRoot(t, batch), fault),
		})
		w.recover(batch)
		state := w.judgeTree(before, after)
		if err == nil && state != "old" {
			t.Fatalf("undo with operation %d (%s) failing said nothing and left the applied tree", n, hit)
		}
		if hit == "" {
			t.Logf("%d operations", n)
			break
		}
		if state == "new" {
			t.Logf("operation %d (%s)", n, hit)
			w.undoQuietly(batch)
			if d := testenv.Diff(before, w.snapshot()); d != "" {
				t.Fatalf("operation %d (%s) failed; undo again did not give the original:\n%s", n, hit, d)
			}
		}
	}
}

// Variables that make the test binary a process that is killed at a point.
const (
	crashDir   = "STAGE_TEST_CRASH_DIR"
	crashPoint = "STAGE_TEST_CRASH_POINT"
	crashUndo  = "STAGE_TEST_CRASH_UNDO"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		if err := crash(dir, os.Getenv(crashPoint), os.Getenv(crashUndo) != ""); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// crash applies the Job in dir, or undoes its batch, and kills itself at the point. With the point
// "list" it prints all points instead.
func crash(dir, point string, undo bool) error {
	var dirs []hostfs.Dir
	for _, name := range []string{"work", "store/upper", "store/apply/1"} {
		d, err := hostfs.OpenRoot(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		dirs = append(dirs, d)
	}
	at := func(name string) {
		switch point {
		case "list":
			fmt.Println(name)
		case name:
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	if undo {
		_, err := apply.Undo(context.Background(), apply.UndoOptions{Job: "job", Target: dirs[0], Batch: dirs[2], Point: at})
		return err
	}
	r, err := stagedtest.OpenReader(dirs[0], dirs[1], filepath.Join(dir, "store/log"), nil)
	if err != nil {
		return err
	}
	_, err = apply.Apply(context.Background(), apply.Options{
		Job: "job", Source: r, Target: dirs[0], Batch: dirs[2], Allow: map[apply.Class]bool{apply.All: true}, Point: at,
	})
	return err
}

// runCrash runs crash in a process of its own and reports whether it was killed.
func (w *world) runCrash(point string, undo bool) (out string, killed bool) {
	w.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashDir+"="+w.dir, crashPoint+"="+point)
	if undo {
		cmd.Env = append(cmd.Env, crashUndo+"=1")
	}
	text, err := cmd.CombinedOutput()
	exit := new(exec.ExitError)
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return string(text), true
	}
	if err != nil {
		w.t.Fatalf("%v\n%s", err, text)
	}
	return string(text), false
}

// TestKilledAtEveryPoint kills an apply at every named point: recovery gives the old tree or the
// new one, and applying again gives the new one.
func TestKilledAtEveryPoint(t *testing.T) {
	w := crashWorld(t)
	w.newBatch()
	out, _ := w.runCrash("list", false)
	points := strings.Split(strings.TrimSpace(out), "\n")
	if len(points) < 20 {
		t.Fatalf("%d points, want 20 or more: %q", len(points), points)
	}
	seen := map[string]int{}
	for _, point := range points {
		w := crashWorld(t)
		before, after := w.snapshot(), snapshot(t, w.twin.Dir)
		batch := w.newBatch()
		if _, killed := w.runCrash(point, false); !killed {
			t.Fatalf("not killed at %q", point)
		}
		w.recover(batch)
		state := w.judgeTree(before, after)
		seen[state]++
		if state == "new" {
			w.undoQuietly(batch)
			if d := testenv.Diff(before, w.snapshot()); d != "" {
				t.Fatalf("killed %s; undo did not give the original:\n%s", point, d)
			}
		}
		_, rebased := w.published(batch)
		if _, err := apply.Apply(t.Context(), w.options(w.newBatch(), rebased)); err != nil {
			t.Fatalf("killed %s; apply again: %v", point, err)
		}
		if state := w.judgeTree(before, after); state != "new" {
			t.Fatalf("killed %s; apply again gave the %s tree", point, state)
		}
	}
	if seen["old"] == 0 || seen["new"] == 0 {
		t.Fatalf("recovery never went both ways: %v", seen)
	}
	t.Logf("%d points: %v", len(points), seen)
}

// TestUndoKilledAtEveryPoint is TestKilledAtEveryPoint for undo.
func TestUndoKilledAtEveryPoint(t *testing.T) {
	var points []string
	for n := 0; n == 0 || n < len(points); n++ {
		w := crashWorld(t)
		before, after := w.snapshot(), snapshot(t, w.twin.Dir)
		batch := w.newBatch()
		if _, err := apply.Apply(t.Context(), w.options(batch, nil)); err != nil {
			t.Fatal(err)
		}
		if points == nil {
			out, _ := w.runCrash("list", true)
			points = strings.Split(strings.TrimSpace(out), "\n")
			continue
		}
		if _, killed := w.runCrash(points[n], true); !killed {
			t.Fatalf("not killed at %q", points[n])
		}
		w.recover(batch)
		if w.judgeTree(before, after) == "new" {
			w.undoQuietly(batch)
		}
		if d := testenv.Diff(before, w.snapshot()); d != "" {
			t.Fatalf("killed %s; undo did not give the original:\n%s", points[n], d)
		}
	}
}

func conflicts(r *apply.Result) string {
	var b strings.Builder
	for _, p := range r.Paths {
		if p.Why != "" {
			fmt.Fprintf(&b, "%q %s: %s\n", p.Path, p.Verdict, p.Why)
		}
	}
	return b.String()
}

// TestFaultAtEveryOperationOfRecovery fails the n-th operation of a recovery, which then is done
// again.
func TestFaultAtEveryOperationOfRecovery(t *testing.T) {
	for _, point := range []string{"after temp 3", "after swap 2", "before sync steps", "after committed", "after displace 4"} {
		for n := 0; ; n++ {
			w := crashWorld(t)
			before, after := w.snapshot(), snapshot(t, w.twin.Dir)
			batch := w.newBatch()
			if out, killed := w.runCrash(point, false); !killed {
				t.Fatalf("not killed at %q: %s", point, out)
			}
			count, hit := 0, ""
			fault := func(op string) error {
				if count++; count-1 != n {
					return nil
				}
				hit = op
				return unix.EIO
			}
			_, err := apply.Recover(t.Context(), hostfs.NewFault(stagedtest.OpenRoot(t, w.work.Dir), fault), hostfs.NewFault(stagedtest.OpenRoot(t, batch), fault))
			if err != nil {
				w.recover(batch)
			}
			w.judgeTree(before, after)
			if hit == "" {
				t.Logf("killed %s: %d operations", point, n)
				break
			}
			if err == nil {
				t.Fatalf("recovery with operation %d (%s) failing said nothing", n, hit)
			}
		}
	}
}
