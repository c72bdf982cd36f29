package apply_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/apply"
	"stage/fs/hostfs"
	"stage/fs/staged"
	"stage/fs/staged/stagedtest"
	"stage/fs/tree"
	"stage/test/testenv"
)

var _ apply.Source = (*staged.Reader)(nil)

// world is a workspace, a copy of it, and a Job over it.
type world struct {
	t     *testing.T
	dir   string
	store string
	work  stagedtest.Plain // the workspace
	twin  stagedtest.Plain // what the same operations make of a plain copy
	job   *stagedtest.Job
	batch int
	lost  []testenv.Field // what an undo cannot bring back
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	store := filepath.Join(dir, "store")
	if err := os.Mkdir(store, 0o755); err != nil {
		t.Fatal(err)
	}
	return newWorldAt(t, dir, store)
}

// newWorldAt makes a workspace below dir, and a Job in store.
func newWorldAt(t *testing.T, dir, store string) *world {
	t.Helper()
	w := &world{t: t, dir: dir, store: store}
	t.Cleanup(func() {
		openAll(dir)
		openAll(store)
	})
	for _, d := range []string{"work", "twin"} {
		if err := os.Mkdir(filepath.Join(w.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.work = stagedtest.Plain{T: t, Dir: filepath.Join(w.dir, "work")}
	w.twin = stagedtest.Plain{T: t, Dir: filepath.Join(w.dir, "twin")}
	stagedtest.Sample(w.work)
	stagedtest.Sample(w.twin)
	nextTick(t)
	w.job = stagedtest.NewJob(t, w.work.Dir, store)
	return w
}

// nextTick waits until the clock that a Job on another file system tells time by has passed all
// that was written before.
func nextTick(t *testing.T) {
	t.Helper()
	var coarse unix.Timespec
	for began := time.Now(); coarse.Nano() <= began.UnixNano(); {
		if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &coarse); err != nil {
			t.Fatal(err)
		}
	}
}

// openAll makes everything below dir removable.
func openAll(dir string) {
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(p, 0o700)
		}
		return err
	})
}

// newBatch makes the directory of the next batch.
func (w *world) newBatch() string {
	w.t.Helper()
	w.batch++
	dir := filepath.Join(w.store, "apply", fmt.Sprint(w.batch))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	return dir
}

func (w *world) options(batch string, rebased map[tree.Path]tree.Node) apply.Options {
	w.t.Helper()
	return apply.Options{
		Job: "job", Source: w.job.Reader(rebased), Target: stagedtest.OpenRoot(w.t, w.work.Dir),
		Batch: stagedtest.OpenRoot(w.t, batch), Allow: map[apply.Class]bool{apply.All: true},
	}
}

func (w *world) snapshot() testenv.Tree { return snapshot(w.t, w.work.Dir) }

// snapshot is testenv.Snapshot that knows only links within the tree: the originals that apply keeps
// for undo are further names of their inodes.
func snapshot(t *testing.T, dir string) testenv.Tree {
	t.Helper()
	s := testenv.Snapshot(t, dir)
	names := map[string]int{}
	for _, e := range s {
		names[e.Links]++
	}
	for p, e := range s {
		if names[e.Links] == 1 {
			e.Links = ""
			s[p] = e
		}
	}
	return s
}

// published returns the new bases of a batch.
func (w *world) published(batch string) (apply.State, map[tree.Path]tree.Node) {
	w.t.Helper()
	s, err := apply.Read(stagedtest.OpenRoot(w.t, batch))
	if err != nil {
		w.t.Fatal(err)
	}
	return s.State, s.Base
}

// seeds returns the seeds of the random runs: STAGE_SEED alone, or STAGE_SEEDS new ones.
func seeds(t *testing.T) []uint64 {
	t.Helper()
	if n, ok := envNumber(t, "STAGE_SEED"); ok {
		return []uint64{n}
	}
	count, ok := envNumber(t, "STAGE_SEEDS")
	if !ok {
		count = 30
	}
	base := uint64(time.Now().UnixNano())
	var out []uint64
	for i := range count {
		out = append(out, base+i)
	}
	return out
}

func envNumber(t *testing.T, name string) (n uint64, ok bool) {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n, true
}

// TestApplyEqualsRunningDirectly: run + apply everything = the same operations on the directory.
func TestApplyEqualsRunningDirectly(t *testing.T) {
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			checkLaw(newWorld(t), seed)
		})
	}
}

// TestStoreOnAnotherFileSystem is TestApplyEqualsRunningDirectly where originals cannot be renamed
// into the store.
func TestStoreOnAnotherFileSystem(t *testing.T) {
	const shm = "/dev/shm"
	for _, seed := range seeds(t)[:1+len(seeds(t))/4] {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dir := t.TempDir()
			store, err := os.MkdirTemp(shm, "stage-test-")
			if err != nil {
				t.Skipf("needs a second file system: %v", err)
			}
			t.Cleanup(func() { os.RemoveAll(store) })
			if sameDevice(t, dir, store) {
				t.Skip("needs a second file system: /dev/shm is on the same")
			}
			w := newWorldAt(t, dir, store)
			w.lost = []testenv.Field{testenv.Links} // between what was copied away and what stayed
			checkLaw(w, seed)
		})
	}
}

func sameDevice(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := stagedtest.OpenRoot(t, a).Stat(".")
	if err != nil {
		t.Fatal(err)
	}
	y, err := stagedtest.OpenRoot(t, b).Stat(".")
	if err != nil {
		t.Fatal(err)
	}
	return x.Dev == y.Dev
}

// checkLaw runs random operations and checks that they, applied, are what they are without stage.
func checkLaw(w *world, seed uint64) {
	t := w.t
	rnd := rand.New(rand.NewPCG(seed, 1))
	before := w.snapshot()
	ops := stagedtest.Random(rnd, 1+rnd.IntN(30), w.twin, w.job)
	w.job.Seal()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("STAGE_SEED=%d\n%s", seed, strings.Join(ops, "\n"))
		}
	})
	if d := testenv.Untouched(before, w.snapshot()); d != "" {
		t.Fatalf("the run changed the workspace:\n%s", d)
	}
	if os.Getenv("STAGE_SEED") != "" {
		t.Log(w.changesOf(nil))
	}
	batch := w.newBatch()
	res, err := apply.Apply(t.Context(), w.options(batch, nil))
	if err != nil {
		t.Fatalf("apply: %v", err)
	}
	after := w.snapshot()
	if d := testenv.Diff(snapshot(t, w.twin.Dir), after, testenv.Mtime, testenv.Holes); d != "" {
		t.Fatalf("apply differs from running directly:\n%s", d)
	}
	if res.Outcome == apply.Nothing {
		return
	}
	w.applyAgain(batch, after)
	w.undo(batch, before)
	if len(w.lost) == 0 {
		w.redo(batch, after)
	}
}

// applyAgain: apply twice = once.
func (w *world) applyAgain(batch string, after testenv.Tree) {
	w.t.Helper()
	_, rebased := w.published(batch)
	for _, m := range []map[tree.Path]tree.Node{rebased} {
		r := w.job.Reader(m)
		left, err := r.Changes(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		if len(left) > 0 {
			w.t.Fatalf("after apply of everything changes are left: %v", describe(left))
		}
	}
	if d := testenv.Untouched(after, w.snapshot()); d != "" {
		w.t.Fatalf("reading changed the workspace:\n%s", d)
	}
}

// undo: apply + undo = the original.
func (w *world) undo(batch string, before testenv.Tree) {
	w.t.Helper()
	res, err := apply.Undo(w.t.Context(), apply.UndoOptions{Job: "job", Target: stagedtest.OpenRoot(w.t, w.work.Dir), Batch: stagedtest.OpenRoot(w.t, batch)})
	if err != nil {
		w.t.Fatalf("undo: %v", err)
	}
	if res.Outcome != apply.Published {
		w.t.Fatalf("undo: %v", res.Outcome)
	}
	if d := testenv.Diff(before, w.snapshot(), w.lost...); d != "" {
		w.t.Fatalf("apply + undo differs from the original:\n%s", d)
	}
}

// redo: what was undone can be applied again.
func (w *world) redo(batch string, after testenv.Tree) {
	w.t.Helper()
	state, rebased := w.published(batch)
	if state != apply.BatchUndone {
		w.t.Fatalf("state after undo: %v", state)
	}
	if os.Getenv("STAGE_SEED") != "" {
		w.t.Log(w.changesOf(rebased))
	}
	again := w.newBatch()
	if _, err := apply.Apply(w.t.Context(), w.options(again, rebased)); err != nil {
		w.t.Fatalf("apply after undo: %v", err)
	}
	if d := testenv.Diff(after, w.snapshot(), append(w.lost, testenv.Mtime)...); d != "" {
		w.t.Fatalf("apply after undo differs from the first:\n%s", d)
	}
}

func describe(list []tree.Change) string {
	var b strings.Builder
	for _, c := range list {
		fmt.Fprintf(&b, "\n  %q %v → %v", c.Path, c.Base.Kind, c.New.Kind)
		if c.RenameFrom != nil {
			fmt.Fprintf(&b, " from %q", c.RenameFrom)
		}
		fmt.Fprintf(&b, " moved=%v subtree=%v unknown=%v group=%d times=%v", c.Moved, c.Subtree, c.UnknownBase, c.LinkGroup, c.TimesSet)
	}
	return b.String()
}

// TestTwoBatchesEqualOne: some changes first, then the rest = all at once; and undone in turn they
// give the original.
func TestTwoBatchesEqualOne(t *testing.T) {
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t)
			rnd := rand.New(rand.NewPCG(seed, 2))
			before := w.snapshot()
			ops := stagedtest.Random(rnd, 1+rnd.IntN(30), w.twin, w.job)
			w.job.Seal()
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("STAGE_SEED=%d\n%s", seed, strings.Join(ops, "\n"))
				}
			})
			rebased := map[tree.Path]tree.Node{}
			var batches []string
			for _, part := range w.halves(rnd) {
				batch := w.newBatch()
				o := w.options(batch, rebased)
				o.Paths = part
				if os.Getenv("STAGE_SEED") != "" {
					t.Log(part, w.changesOf(rebased))
				}
				res, err := apply.Apply(t.Context(), o)
				if err != nil && !(part != nil && errors.As(err, new(*apply.NoMatchError))) {
					t.Fatalf("apply %v: %v\n%s", part, err, w.changesOf(rebased))
				}
				if res.Outcome == apply.Published {
					batches = append(batches, batch)
					_, m := w.published(batch)
					maps.Copy(rebased, m)
				}
			}
			if d := testenv.Diff(snapshot(t, w.twin.Dir), w.snapshot(), testenv.Mtime, testenv.Holes); d != "" {
				t.Fatalf("two batches differ from running directly:\n%s", d)
			}
			if left := w.changesOf(rebased); left != "" {
				t.Fatalf("after both batches changes are left: %s", left)
			}
			var later []hostfs.Reader
			for _, b := range slices.Backward(batches) {
				batch := stagedtest.OpenRoot(t, b)
				res, err := apply.Undo(t.Context(), apply.UndoOptions{Job: "job", Target: stagedtest.OpenRoot(t, w.work.Dir), Batch: batch, Later: later})
				if err != nil {
					t.Fatalf("undo: %v\n%v", err, res.Paths)
				}
				later = append(later, batch)
			}
			if d := testenv.Diff(before, w.snapshot()); d != "" {
				t.Fatalf("both batches undone differ from the original:\n%s", d)
			}
		})
	}
}

// halves returns some of the changed paths, then everything.
func (w *world) halves(rnd *rand.Rand) [][]tree.Path {
	w.t.Helper()
	all, err := w.job.Reader(nil).Changes(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	var some []tree.Path
	for _, c := range all {
		if rnd.IntN(3) == 0 {
			some = append(some, c.Path)
		}
	}
	if some == nil {
		return [][]tree.Path{nil}
	}
	return [][]tree.Path{some, nil}
}

func (w *world) changesOf(rebased map[tree.Path]tree.Node) string {
	w.t.Helper()
	all, err := w.job.Reader(rebased).Changes(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return describe(all)
}
