package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"stage/bundle"
	"stage/fs/hostfs"
	"stage/test/testenv"
)

func sealLost(j *Job) (*bundle.Bundle, error) {
	return endedBundle(j.Run(), bundle.SealedByRecovery), nil
}

func TestJobOfAnotherProcessIsLiveUntilItDies(t *testing.T) {
	w := newWorld(t)
	c := startChild(t, "hold", w.store.Path(), w.workspace.Path.String())
	j := w.find(t, string(c.id))
	wantStatus(t, j, Live)
	if err := j.Lock(); !errors.Is(err, ErrBusy) {
		t.Errorf("lock: got %v, want ErrBusy", err)
	}
	if err := j.Recover(sealLost); !errors.Is(err, ErrBusy) {
		t.Errorf("recover: got %v, want ErrBusy", err)
	}
	c.kill()
	wantStatus(t, j, Stale)
	if j.Run().State != bundle.Running {
		t.Errorf("asking changed the state to %s", j.Run().State)
	}
	if err := j.Recover(sealLost); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, j, Over)
	b, err := j.Bundle()
	if err != nil || b.SealedBy != bundle.SealedByRecovery || b.Outcome.Kind != bundle.OutcomeInterrupted {
		t.Errorf("bundle %+v, %v", b, err)
	}
	if r := j.Run(); r.State != bundle.Interrupted || r.EndedAt != nil {
		t.Errorf("run.json says %s, ended %v", r.State, r.EndedAt)
	}
}

func TestJobSealedBeforeItsSupervisorDiedIsEnded(t *testing.T) {
	w := newWorld(t)
	c := startChild(t, "seal", w.store.Path(), w.workspace.Path.String())
	c.kill()
	j := w.find(t, string(c.id))
	err := j.Recover(func(*Job) (*bundle.Bundle, error) { return nil, errors.New("it has a seal") })
	if err != nil {
		t.Fatal(err)
	}
	if j.Run().State != bundle.Ended {
		t.Errorf("state is %s, want ended", j.Run().State)
	}
}

func TestZombieSupervisorIsDead(t *testing.T) {
	w := newWorld(t)
	c := startChild(t, "hold", w.store.Path(), w.workspace.Path.String())
	j := w.find(t, string(c.id))
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Wait for its death and leave it a zombie.
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, c.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, j, Stale)
}

func TestSupervisorWhoseLockFileIsGoneIsAlive(t *testing.T) {
	w := newWorld(t)
	c := startChild(t, "hold", w.store.Path(), w.workspace.Path.String())
	j := w.find(t, string(c.id))
	if err := os.Remove(filepath.Join(j.Path(), lockName)); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, j, Live)
	c.kill()
	wantStatus(t, j, Stale)
	if err := j.Recover(sealLost); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyOneProcessRecovers(t *testing.T) {
	w := newWorld(t)
	c := startChild(t, "hold", w.store.Path(), w.workspace.Path.String())
	c.kill()
	var mu sync.Mutex
	seals := 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			j, err := w.store.Find(string(c.id), w.workspace)
			if err != nil {
				t.Error(err)
				return
			}
			defer j.Close()
			err = j.Recover(func(j *Job) (*bundle.Bundle, error) {
				mu.Lock()
				seals++
				mu.Unlock()
				return sealLost(j)
			})
			if err != nil && !errors.Is(err, ErrBusy) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if seals != 1 {
		t.Errorf("sealed %d times", seals)
	}
	if j := w.find(t, string(c.id)); j.Run().State != bundle.Interrupted {
		t.Errorf("state is %s", j.Run().State)
	}
}

func TestRecoverOfAJobThatIsOverDoesNothing(t *testing.T) {
	w := newWorld(t)
	j := w.ended(t)
	closeJob(t, j)
	again := w.find(t, Last)
	err := again.Recover(func(*Job) (*bundle.Bundle, error) { return nil, errors.New("must not be asked") })
	if err != nil || again.Run().State != bundle.Ended {
		t.Errorf("state %s, %v", again.Run().State, err)
	}
}

func TestParseStat(t *testing.T) {
	p, err := parseStat([]byte("42 (a) b (c) Z) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 10 20 300"))
	if err != nil || p != (process{state: 'S', start: 123456}) {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, bad := range []string{"", "42 (a) S 1", "42 (a) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 x 10"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}

// plant fills a Job's upper with what makes removal hard: closed directories, links out of it, names
// that look like those of removal itself, and depth.
func plant(t *testing.T, j *Job, outside string) {
	t.Helper()
	upper, log, err := j.MakeRoot("workspace")
	if err != nil {
		t.Fatal(err)
	}
	defer upper.Close()
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	top := j.Upper("workspace")
	var errs []error
	for _, dir := range []string{"a/b/c", ".removing-0/x", ".removing-1/.removing-0/y", "closed/in/side", "e"} {
		errs = append(errs, os.MkdirAll(filepath.Join(top, dir), 0o700))
		errs = append(errs, os.WriteFile(filepath.Join(top, dir, "f\xff"), nil, 0o000))
	}
	errs = append(errs, os.Symlink(outside, filepath.Join(top, "a", "link")), unix.Mkfifo(filepath.Join(top, "fifo"), 0))
	for _, dir := range []string{"closed/in/side", "closed/in", "closed", "e"} {
		errs = append(errs, os.Chmod(filepath.Join(top, dir), 0))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	deep(t, upper)
}

// deep makes a chain of directories longer than PATH_MAX and than the descriptors of a process.
func deep(t *testing.T, d hostfs.Dir) {
	t.Helper()
	const depth = 1200
	at, err := d.OpenDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := at.Mkdir("deep", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := at.OpenDir("deep")
		if err != nil {
			t.Fatal(err)
		}
		at.Close()
		at = next
	}
	if err := at.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestDropKeepsRecordsAndNothingElse(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		dir := u.TempDir(t)
		u.Become(t)
		w := worldIn(t, dir)
		outside := filepath.Join(dir, "outside")
		if err := os.MkdirAll(filepath.Join(outside, "precious"), 0o700); err != nil {
			t.Fatal(err)
		}
		j := w.ended(t)
		plant(t, j, outside)
		if err := os.MkdirAll(filepath.Join(j.Pre("workspace"), "p"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := j.Drop(); err != nil {
			t.Fatal(err)
		}
		if ents, err := os.ReadDir(filepath.Join(j.Path(), upperName)); err != nil || len(ents) != 0 {
			t.Errorf("upper holds %v, %v", ents, err)
		}
		if _, err := os.Stat(filepath.Dir(j.Pre("workspace"))); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("preimages: %v", err)
		}
		for _, kept := range []string{j.Log("workspace"), filepath.Join(j.Path(), bundleName), filepath.Join(outside, "precious")} {
			if _, err := os.Stat(kept); err != nil {
				t.Error(err)
			}
		}
		if j.Run().Publication != bundle.Dropped {
			t.Errorf("publication is %s", j.Run().Publication)
		}
		if err := j.Drop(); err != nil {
			t.Errorf("second drop: %v", err)
		}
	})
}

func TestDropRefusesWhatIsStillNeeded(t *testing.T) {
	w := newWorld(t)
	running := w.create(t)
	if err := running.Drop(); !errors.Is(err, ErrWrongState) {
		t.Errorf("a job that runs: got %v, want ErrWrongState", err)
	}
	if err := running.Remove(); !errors.Is(err, ErrWrongState) {
		t.Errorf("remove of a job that runs: got %v, want ErrWrongState", err)
	}
	for _, p := range []bundle.Publication{bundle.PublishedAll, bundle.RecoveryNeeded} {
		j := w.ended(t)
		if err := j.UpdateRun(func(r *bundle.Run) { r.Publication = p }); err != nil {
			t.Fatal(err)
		}
		if err := j.Drop(); !errors.Is(err, ErrWrongState) {
			t.Errorf("publication %s: got %v, want ErrWrongState", p, err)
		}
	}
}

func TestCrashInDropIsFinishedByTheNext(t *testing.T) {
	eachFault(t, func(t *testing.T, w *world, f *failing) func() error {
		j := w.ended(t)
		if err := os.MkdirAll(filepath.Join(j.Upper("workspace"), "a/b/c"), 0o700); err != nil {
			t.Fatal(err)
		}
		closeJob(t, j)
		j = openFaulty(t, w, f)
		return func() error { return errors.Join(j.Drop(), j.Unlock()) }
	}, func(t *testing.T, w *world, err error) {
		j := w.find(t, Last)
		if err := j.Lock(); err != nil {
			t.Fatal(err)
		}
		if err := j.Drop(); err != nil {
			t.Fatal(err)
		}
		if ents, err := os.ReadDir(filepath.Join(j.Path(), upperName)); err != nil || len(ents) != 0 {
			t.Errorf("upper holds %v, %v", ents, err)
		}
	})
}

func TestRemoveTakesTheWholeJob(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		dir := u.TempDir(t)
		u.Become(t)
		w := worldIn(t, dir)
		j := w.ended(t)
		plant(t, j, dir)
		if err := j.Remove(); err != nil {
			t.Fatal(err)
		}
		if ents, err := os.ReadDir(filepath.Join(w.store.Path(), jobsName)); err != nil || len(ents) != 0 {
			t.Errorf("jobs/ holds %v, %v", ents, err)
		}
		w.wantNone(t, Last, ErrNoJob)
	})
}

func TestCleanRemovesWhatCrashesLeft(t *testing.T) {
	w := newWorld(t)
	j := w.create(t)
	jobs := filepath.Join(w.store.Path(), jobsName)
	for _, name := range []string{newPrefix + "x", gonePrefix + "y"} {
		if err := os.MkdirAll(filepath.Join(jobs, name, "upper/a/b"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	guard, err := guardJobs(w.store, unix.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.Clean(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(jobs, newPrefix+"x")); err != nil {
		t.Errorf("a job that is being made was removed: %v", err)
	}
	if err := guard.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.store.Clean(); err != nil {
		t.Fatal(err)
	}
	ents, err := os.ReadDir(jobs)
	if err != nil || len(ents) != 1 || ents[0].Name() != string(j.ID()) {
		t.Errorf("jobs/ holds %v, %v", ents, err)
	}
}

// TestRemovalStopsAtAMount runs itself in a mount namespace of its own.
func TestRemovalStopsAtAMount(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Tool("unshare"))
	if os.Getenv("STORE_TEST_UNSHARED") == "" {
		c := exec.Command("unshare", "--mount", "--propagation", "private", os.Args[0], "-test.run", "^TestRemovalStopsAtAMount$", "-test.v")
		c.Env = append(os.Environ(), "STORE_TEST_UNSHARED=1")
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestRemovalStopsAtAMount") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	w := newWorld(t)
	j := w.ended(t)
	point := filepath.Join(j.Path(), upperName, "m nt")
	precious := filepath.Join(point, "dir", "precious")
	if err := os.Mkdir(point, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", point, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(point, 0); err != nil {
			t.Error(err)
		}
	}()
	if err := errors.Join(os.Mkdir(filepath.Dir(precious), 0o700), os.WriteFile(precious, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() error{"drop": j.Drop, "remove": j.Remove} {
		if err := f(); !errors.Is(err, ErrMounted) {
			t.Errorf("%s: got %v, want ErrMounted", name, err)
		}
	}
	// The walk itself stops too, should something be mounted after the look at mountinfo.
	if err := emptyTree(j.dir); !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EBUSY) {
		t.Errorf("walk: got %v, want EXDEV or EBUSY", err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func TestMountPoints(t *testing.T) {
	got, err := mountPoints(strings.NewReader("36 35 98:0 /mnt1 /mnt\\040two\\134x rw - ext3 /dev/root rw\n"))
	if err != nil || len(got) != 1 || got[0] != `/mnt two\x` {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := mountPoints(strings.NewReader("36 35\n")); err == nil {
		t.Error("a short line was accepted")
	}
}

func BenchmarkRemoveTree(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		for i := range 100 {
			sub := filepath.Join(dir, "t", fmt.Sprint(i), "x")
			if err := os.MkdirAll(sub, 0o700); err != nil {
				b.Fatal(err)
			}
			for k := range 20 {
				if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(k)), nil, 0o600); err != nil {
					b.Fatal(err)
				}
			}
		}
		d, err := hostfs.OpenRoot(dir)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := removeTree(d, "t"); err != nil {
			b.Fatal(err)
		}
		d.Close()
	}
}
