package store

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/bundle"
	"stage/fs/hostfs"
	"stage/fs/tree"
	"stage/test/testenv"
)

// roleEnv makes the test binary act as another process of stage: "ROLE STORE WORKSPACE".
const roleEnv = "STORE_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		f := strings.Split(role, "\n")
		if err := act(f[0], f[1], f[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// act does what a role asks, tells the id of its Job on stdout, and stays until stdin ends.
func act(role, store, workspace string) error {
	s, err := Open(store)
	if err != nil {
		return err
	}
	w, err := Identify(workspace)
	if err != nil {
		return err
	}
	if role == "work" {
		return work(s, w)
	}
	j, err := s.Create(optionsFor(w))
	if err != nil {
		return err
	}
	if err := j.UpdateRun(func(r *bundle.Run) { r.State = bundle.Running }); err != nil {
		return err
	}
	if role == "seal" { // die between the seal and what run.json says of it
		b := endedBundle(j.Run(), bundle.SealedByRun)
		data, err := bundle.Encode(b)
		if err != nil {
			return err
		}
		if err := createFile(j.dir, bundleName, data, now); err != nil {
			return err
		}
	}
	fmt.Println(j.ID())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// worker is how many Jobs each process of the concurrency test makes.
const worker = 15

// work is a process that does a bit of everything.
func work(s *Store, w bundle.Workspace) error {
	for i := range worker {
		j, err := s.Create(optionsFor(w))
		if err != nil {
			return err
		}
		if err := j.Seal(endedBundle(j.Run(), bundle.SealedByRun)); err != nil {
			return err
		}
		if i%3 == 0 {
			if err := j.Drop(); err != nil {
				return err
			}
		}
		if err := j.Close(); err != nil {
			return err
		}
		if err := look(s, w); err != nil {
			return err
		}
		fmt.Println(j.ID())
	}
	return s.Clean()
}

func look(s *Store, w bundle.Workspace) error {
	list, err := s.List(Filter{Workspace: &w})
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.Err != nil {
			return fmt.Errorf("list: job %s: %w", e.ID, e.Err)
		}
		if e.Status == Stale {
			return fmt.Errorf("job %s of a living process is %s", e.ID, e.Status)
		}
	}
	j, err := s.Find(Last, w)
	if err != nil {
		return err
	}
	return j.Close()
}

// child is another process of stage, with a Job of its own.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	id  bundle.ID
}

func startChild(t *testing.T, role, store, workspace string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(exe)}
	c.cmd.Env = append(os.Environ(), roleEnv+"="+role+"\n"+store+"\n"+workspace)
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("child said %q: %v", line, err)
	}
	c.id = bundle.ID(strings.TrimSpace(line))
	return c
}

// kill is SIGKILL, and waits for the end.
func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

// world is a store and a workspace.
type world struct {
	store     *Store
	workspace bundle.Workspace
	dir       string // holds both
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return worldIn(t, t.TempDir())
}

func worldIn(t testing.TB, dir string) *world {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(filepath.Join(dir, "state", "stage"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &world{s, makeWorkspace(t, filepath.Join(dir, "w")), dir}
}

func makeWorkspace(t testing.TB, path string) bundle.Workspace {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := Identify(path)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func optionsFor(w bundle.Workspace) Options {
	return Options{
		Workspace: w, Argv: []string{"true"}, Cwd: w.Path, Preset: "generic",
		Roots: []bundle.Root{{Name: "workspace", Path: w.Path, Kind: bundle.RootStaged}},
	}
}

func (w *world) create(t testing.TB) *Job {
	t.Helper()
	j, err := w.store.Create(optionsFor(w.workspace))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if j.dir.Fd() >= 0 {
			j.Close()
		}
	})
	return j
}

// ended makes a Job that ran and was sealed, and keeps its lock.
func (w *world) ended(t testing.TB) *Job {
	t.Helper()
	j := w.create(t)
	if err := j.Seal(endedBundle(j.Run(), bundle.SealedByRun)); err != nil {
		t.Fatal(err)
	}
	return j
}

func endedBundle(r bundle.Run, by bundle.SealedBy) *bundle.Bundle {
	b := bundle.Lost(&r, nil)
	now := tree.Time(time.Now().UnixNano())
	b.SealedAt, b.SealedBy, b.Host.Mode = now, by, bundle.ModeRootless
	if by == bundle.SealedByRun {
		zero, ns := 0, int64(1)
		b.Outcome = bundle.Outcome{Kind: bundle.Exited, ExitCode: &zero, StageExit: &zero, StartedAt: &now, EndedAt: &now, WallNs: &ns}
	}
	return b
}

func (w *world) find(t testing.TB, ref string) *Job {
	t.Helper()
	j, err := w.store.Find(ref, w.workspace)
	if err != nil {
		t.Fatalf("find %q: %v", ref, err)
	}
	t.Cleanup(func() {
		if j.dir.Fd() >= 0 {
			j.Close()
		}
	})
	return j
}

func (w *world) wantNone(t *testing.T, ref string, want error) {
	t.Helper()
	j, err := w.store.Find(ref, w.workspace)
	if !errors.Is(err, want) {
		t.Fatalf("find %q: got %v, want %v", ref, err, want)
	}
	if err == nil {
		t.Fatalf("find %q: got %s", ref, j.ID())
	}
}

func wantStatus(t *testing.T, j *Job, want Status) {
	t.Helper()
	got, err := j.Status()
	if err != nil || got != want {
		t.Fatalf("status is %s, %v; want %s", got, err, want)
	}
}

func TestDefaultPath(t *testing.T) {
	for _, c := range []struct{ state, home, want string }{
		{"/s", "/h", "/s/stage"},
		{"", "/h", "/h/.local/state/stage"},
		{"relative", "/h", "/h/.local/state/stage"},
	} {
		env := map[string]string{"XDG_STATE_HOME": c.state, "HOME": c.home}
		got, err := DefaultPath(func(k string) string { return env[k] })
		if err != nil || got != c.want {
			t.Errorf("%+v: got %q, %v", c, got, err)
		}
	}
	if p, err := DefaultPath(func(string) string { return "" }); err == nil {
		t.Errorf("without any variable: got %q", p)
	}
}

// TestModesWhateverTheUmask sets the umask of the whole process, so it does not run in parallel.
func TestModesWhateverTheUmask(t *testing.T) {
	for _, mask := range []int{0, 0o077, 0o777} {
		t.Run(fmt.Sprintf("%#o", mask), func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "state"), 0o755); err != nil {
				t.Fatal(err)
			}
			ws := makeWorkspace(t, filepath.Join(dir, "w"))
			old := syscall.Umask(mask)
			defer syscall.Umask(old)
			if mask == 0o777 { // os.MkdirAll obeys the umask; a store that is there does not need it
				if err := errors.Join(os.Mkdir(filepath.Join(dir, "state", "stage"), 0o700), os.Chmod(filepath.Join(dir, "state", "stage"), 0o755)); err != nil {
					t.Fatal(err)
				}
			}
			s, err := Open(filepath.Join(dir, "state", "stage"))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			j, err := s.Create(optionsFor(ws))
			if err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			upper, log, err := j.MakeRoot("workspace")
			if err != nil {
				t.Fatal(err)
			}
			defer upper.Close()
			defer log.Close()
			if err := j.Seal(endedBundle(j.Run(), bundle.SealedByRun)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.List(Filter{}); err != nil {
				t.Fatal(err)
			}
			checkModes(t, s.Path())
		})
	}
}

func checkModes(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if fi.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", path, fi.Mode().Perm(), want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestStoreOfAnotherUserIsRefused(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	if err := os.Chown(dir, 1, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v, want fs.ErrPermission", err)
	}
}

func TestStoreAndWorkspaceInEachOtherAreRefused(t *testing.T) {
	w := newWorld(t)
	alias := filepath.Join(w.dir, "alias")
	if err := os.Symlink(w.workspace.Path.String(), alias); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{w.workspace.Path.String() + "/s", alias + "/s"} {
		s, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Create(optionsFor(w.workspace)); !errors.Is(err, ErrInside) {
			t.Errorf("store %q: got %v, want ErrInside", dir, err)
		}
	}
	o := optionsFor(w.workspace)
	o.Dir = w.workspace.Path.String() + "/job"
	if _, err := w.store.Create(o); !errors.Is(err, ErrInside) {
		t.Errorf("--stage inside: got %v, want ErrInside", err)
	}
	if _, err := os.Lstat(o.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the refused directory was left behind: %v", err)
	}
	inside, err := Identify(filepath.Join(w.store.Path(), jobsName))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Create(optionsFor(inside)); !errors.Is(err, ErrInside) {
		t.Errorf("workspace in the store: got %v, want ErrInside", err)
	}
}

func TestCreatedJobIsCompleteAndLive(t *testing.T) {
	w := newWorld(t)
	j := w.create(t)
	wantStatus(t, j, Live)
	other := w.find(t, string(j.ID()))
	wantStatus(t, other, Live)
	if err := other.Lock(); !errors.Is(err, ErrBusy) {
		t.Errorf("lock of a live job: got %v, want ErrBusy", err)
	}
	r := other.Run()
	if r.State != bundle.Preparing || r.PID != os.Getpid() || r.StorePath.String() != j.Path() || r.UID != uint32(os.Geteuid()) {
		t.Errorf("run.json says %+v", r)
	}
	for _, dir := range []string{j.Base(), j.Home(), j.Out(), j.Work(), filepath.Dir(j.Apply(1)), filepath.Dir(j.Upper("x"))} {
		if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestRecordsChangeOnlyUnderTheLock(t *testing.T) {
	w := newWorld(t)
	j := w.create(t)
	other := w.find(t, string(j.ID()))
	for name, err := range map[string]error{
		"update": other.UpdateRun(func(*bundle.Run) {}),
		"plan":   other.WritePlan(&bundle.Plan{Job: other.ID()}),
		"seal":   other.Seal(endedBundle(other.Run(), bundle.SealedByRun)),
		"drop":   other.Drop(),
		"remove": other.Remove(),
	} {
		if !errors.Is(err, ErrWrongState) {
			t.Errorf("%s without the lock: got %v, want ErrWrongState", name, err)
		}
	}
}

func TestStateOnlyGoesForward(t *testing.T) {
	w := newWorld(t)
	j := w.ended(t)
	err := j.UpdateRun(func(r *bundle.Run) { r.State, r.EndedAt, r.BundleDigest = bundle.Running, nil, "" })
	if !errors.Is(err, ErrWrongState) {
		t.Errorf("ended becomes running: got %v, want ErrWrongState", err)
	}
	if err := j.UpdateRun(func(r *bundle.Run) { r.Workspace.Ino++ }); err == nil {
		t.Error("the workspace changed")
	}
	if err := j.Reload(); err != nil || j.Run().State != bundle.Ended {
		t.Errorf("run.json says %s, %v", j.Run().State, err)
	}
}

func TestSealIsWrittenOnce(t *testing.T) {
	w := newWorld(t)
	j := w.create(t)
	if _, err := j.Bundle(); !errors.Is(err, ErrNotSealed) {
		t.Errorf("bundle before the seal: got %v, want ErrNotSealed", err)
	}
	if err := j.Seal(endedBundle(j.Run(), bundle.SealedByRun)); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(filepath.Join(j.Path(), bundleName))
	if err != nil {
		t.Fatal(err)
	}
	if j.Run().BundleDigest != tree.DigestBytes(first) || j.Run().State != bundle.Ended || j.Run().EndedAt == nil {
		t.Errorf("run.json says %+v", j.Run())
	}
	if err := j.Seal(endedBundle(j.Run(), bundle.SealedByRun)); !errors.Is(err, ErrWrongState) {
		t.Errorf("second seal: got %v, want ErrWrongState", err)
	}
	second, err := os.ReadFile(filepath.Join(j.Path(), bundleName))
	if err != nil || string(first) != string(second) {
		t.Errorf("the second seal changed the bundle (%v)", err)
	}
	wantNames(t, j, applyName, baseName, bundleName, homeName, lockName, outName, runName, upperName, workName)
}

func wantNames(t *testing.T, j *Job, want ...string) {
	t.Helper()
	ents, err := os.ReadDir(j.Path())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range ents {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("job holds %q, want %q", got, want)
	}
}

func TestPlanIsWrittenOnce(t *testing.T) {
	w := newWorld(t)
	j := w.create(t)
	if _, err := j.Plan(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("plan before it is written: %v", err)
	}
	p := &bundle.Plan{Job: j.ID(), Preset: bundle.PresetUse{Name: "generic"}}
	if err := p.SetDigest(); err != nil {
		t.Fatal(err)
	}
	if err := j.WritePlan(p); err != nil {
		t.Fatal(err)
	}
	if got, err := j.Plan(); err != nil || got.Digest != p.Digest {
		t.Errorf("read %v, %v", got, err)
	}
	if err := j.WritePlan(p); err == nil {
		t.Error("a second plan was accepted")
	}
}

func TestRootsOfAJob(t *testing.T) {
	w := newWorld(t)
	j := w.create(t)
	upper, log, err := j.MakeRoot("workspace")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	f, err := upper.Create("f", 0o640)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []io.Closer{f, log, upper} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	upper, log, err = j.OpenRoot("workspace")
	if err != nil {
		t.Fatal(err)
	}
	defer upper.Close()
	defer log.Close()
	if text, err := io.ReadAll(log); err != nil || string(text) != "x" {
		t.Errorf("log holds %q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(j.Upper("workspace"), "f")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(j.Log("workspace")); err != nil {
		t.Error(err)
	}
	if _, _, err := j.OpenRoot("r1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a root that is not there: %v", err)
	}
}

func TestBatchesCountFromOne(t *testing.T) {
	w := newWorld(t)
	j := w.ended(t)
	for want := 1; want <= 11; want++ {
		n, dir, err := j.NewBatch()
		if err != nil || n != want {
			t.Fatalf("batch %d, %v; want %d", n, err, want)
		}
		if err := dir.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(j.Apply(n)); err != nil {
			t.Error(err)
		}
	}
	if err := j.DropBatch(11); err != nil {
		t.Fatal(err)
	}
	all, err := j.Batches()
	if err != nil || !slices.Equal(all, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
		t.Errorf("batches %v, %v", all, err)
	}
}

func TestUnknownRecordsAreRefused(t *testing.T) {
	w := newWorld(t)
	j := w.ended(t)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(j.Path(), runName)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(old, new string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Replace(string(text), old, new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range [][2]string{{`"version": 1`, `"version": 2`}, {`"pid":`, `"mood": "good", "pid":`}} {
		edit(c[0], c[1])
		w.wantNone(t, string(j.ID()), ErrNewerStore)
		w.wantNone(t, Last, ErrNewerStore)
		list, err := w.store.List(Filter{})
		if err != nil || len(list) != 1 || !errors.Is(list[0].Err, ErrNewerStore) {
			t.Errorf("list: %+v, %v", list, err)
		}
	}
	edit("", "")
	older := w.find(t, Last)
	if older.ID() != j.ID() {
		t.Errorf("last is %s", older.ID())
	}
}

// TestUnreadableNewestJobIsNotPassedOver: `last` must not silently mean an older Job.
func TestUnreadableNewestJobIsNotPassedOver(t *testing.T) {
	w := newWorld(t)
	old := w.ended(t)
	newest := w.ended(t)
	if err := os.Truncate(filepath.Join(newest.Path(), runName), 10); err != nil {
		t.Fatal(err)
	}
	w.wantNone(t, Last, bundle.ErrMalformed)
	if j := w.find(t, string(old.ID())); j.ID() != old.ID() {
		t.Errorf("found %s", j.ID())
	}
	if err := os.Remove(filepath.Join(newest.Path(), runName)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Find(Last, w.workspace); err == nil || errors.Is(err, ErrNoJob) {
		t.Errorf("a job without run.json: got %v", err)
	}
}

func TestStoreWorksForEveryUser(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		dir := u.TempDir(t)
		u.Become(t)
		w := worldIn(t, dir)
		j := w.ended(t)
		if err := j.Drop(); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if found := w.find(t, Last); found.ID() != j.ID() || found.Run().Publication != bundle.Dropped {
			t.Errorf("last is %+v", found.Run())
		}
		checkModes(t, w.store.Path())
	})
}

// TestManyProcesses: several processes make, seal, drop, list and clean in one store.
func TestManyProcesses(t *testing.T) {
	w := newWorld(t)
	const processes = 6
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		out []byte
		err error
	}
	results := make(chan result)
	for range processes {
		go func() {
			c := exec.Command(exe)
			c.Env = append(os.Environ(), roleEnv+"=work\n"+w.store.Path()+"\n"+w.workspace.Path.String())
			c.Stderr = os.Stderr
			out, err := c.Output()
			results <- result{out, err}
		}()
	}
	want := map[bundle.ID]bool{}
	for range processes {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
		}
		for id := range strings.FieldsSeq(string(r.out)) {
			want[bundle.ID(id)] = true
		}
	}
	if len(want) != processes*worker {
		t.Errorf("%d jobs made, want %d", len(want), processes*worker)
	}
	list, err := w.store.List(Filter{Workspace: &w.workspace})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Err != nil || e.Run.State != bundle.Ended || !want[e.ID] {
			t.Errorf("job %s: %s, %v", e.ID, e.Run.State, e.Err)
		}
	}
	if len(list) != len(want) {
		t.Errorf("%d jobs listed, want %d", len(list), len(want))
	}
	ents, err := os.ReadDir(filepath.Join(w.store.Path(), jobsName))
	if err != nil || len(ents) != len(want) {
		t.Errorf("%d names in jobs/, %v; want %d", len(ents), err, len(want))
	}
	known, err := w.store.readIndex()
	if err != nil || len(known) != len(want) {
		t.Errorf("index knows %d jobs, %v; want %d", len(known), err, len(want))
	}
}

// faulty opens the world's store with a fault point in front of every change.
func (w *world) faulty(t *testing.T, f func(op string) error) *Store {
	t.Helper()
	s, err := open(w.store.Path(), func(path string) (hostfs.Dir, error) {
		d, err := hostfs.OpenRoot(path)
		if err != nil {
			return nil, err
		}
		return hostfs.NewFault(d, f), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// failing counts operations once armed and fails the n-th; with crash set, all that follow too.
type failing struct {
	armed bool
	crash bool
	n     int
	count int
}

var errFault = fmt.Errorf("fault: %w", unix.EIO)

func (f *failing) op(string) error {
	if !f.armed {
		return nil
	}
	f.count++
	if f.count-1 == f.n || f.crash && f.count-1 > f.n {
		return hostfs.Short(errFault)
	}
	return nil
}

// eachFault runs step with the n-th operation failing, for n = 0, 1, 2 … until it succeeds, once as
// an error that the code can still clean up after, once as a crash. check looks at what is left.
func eachFault(t *testing.T, prepare func(*testing.T, *world, *failing) func() error, check func(*testing.T, *world, error)) {
	for _, crash := range []bool{false, true} {
		for n := 0; ; n++ {
			if n > 1000 {
				t.Fatal("the step never succeeds")
			}
			done := false
			t.Run(fmt.Sprintf("crash=%t/%d", crash, n), func(t *testing.T) {
				w := newWorld(t)
				f := &failing{crash: crash, n: n}
				step := prepare(t, w, f)
				f.armed = true
				err := step()
				f.armed = false
				if err != nil && !errors.Is(err, errFault) {
					t.Fatalf("an error that is not the fault's: %v", err)
				}
				done = f.count <= n
				if done && err != nil {
					t.Fatal(err)
				}
				check(t, w, err)
			})
			if done || t.Failed() {
				if n < 3 {
					t.Errorf("only %d operations were seen", n)
				}
				break
			}
		}
	}
}

func TestCrashInCreate(t *testing.T) {
	eachFault(t, func(t *testing.T, w *world, f *failing) func() error {
		s := w.faulty(t, f.op)
		return func() error {
			j, err := s.Create(optionsFor(w.workspace))
			if err == nil {
				err = j.Close()
			}
			return err
		}
	}, func(t *testing.T, w *world, err error) {
		if err := w.store.Clean(); err != nil {
			t.Fatal(err)
		}
		list, lerr := w.store.List(Filter{})
		if lerr != nil {
			t.Fatal(lerr)
		}
		for _, e := range list {
			if e.Err != nil || e.Run.State != bundle.Preparing {
				t.Errorf("a visible job is not complete: %+v", e)
			}
		}
		if err == nil && len(list) != 1 {
			t.Errorf("created, but %d jobs are listed", len(list))
		}
		for _, e := range list {
			wantBusy(t, w.store, e.ID) // a visible job is marked
		}
		ents, derr := os.ReadDir(filepath.Join(w.store.Path(), jobsName))
		if derr != nil || len(ents) != len(list) {
			t.Errorf("%d names in jobs/, %v; %d jobs", len(ents), derr, len(list))
		}
	})
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	eachFault(t, func(t *testing.T, w *world, f *failing) func() error {
		s := w.faulty(t, f.op)
		return func() error {
			j, err := s.Create(optionsFor(w.workspace))
			if err == nil {
				err = j.Close()
			}
			return err
		}
	}, func(t *testing.T, w *world, err error) {
		if err == nil || strings.Contains(t.Name(), "crash=true") {
			return
		}
		ents, derr := os.ReadDir(filepath.Join(w.store.Path(), jobsName))
		if derr != nil || len(ents) != 0 {
			t.Errorf("%v left in jobs/, %v", ents, derr)
		}
		if marks, berr := w.store.Busy(); berr != nil || len(marks) != 0 && !strings.Contains(err.Error(), "unlink") {
			t.Errorf("marks %v left, %v", marks, berr)
		}
	})
}

// openFaulty opens the only Job through a store with faults.
func openFaulty(t *testing.T, w *world, f *failing) *Job {
	t.Helper()
	j, err := w.faulty(t, f.op).Find(Last, w.workspace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	if err := j.Lock(); err != nil {
		t.Fatal(err)
	}
	return j
}

func closeJob(t *testing.T, j *Job) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestCrashInUpdateLeavesOldOrNew(t *testing.T) {
	eachFault(t, func(t *testing.T, w *world, f *failing) func() error {
		closeJob(t, w.ended(t))
		j := openFaulty(t, w, f)
		return func() error {
			err := j.UpdateRun(func(r *bundle.Run) { r.Publication = bundle.PublishedAll })
			return errors.Join(err, j.Unlock())
		}
	}, func(t *testing.T, w *world, err error) {
		j := w.find(t, Last)
		if p := j.Run().Publication; p != bundle.PublishedAll && (p != bundle.PublishedNone || err == nil) {
			t.Errorf("publication is %s after %v", p, err)
		}
		if err := j.Lock(); err != nil {
			t.Fatal(err)
		}
		if err := j.UpdateRun(func(r *bundle.Run) { r.Publication = bundle.PublishedPartial }); err != nil {
			t.Errorf("the next update: %v", err)
		}
	})
}

func TestCrashInSealIsRecovered(t *testing.T) {
	eachFault(t, func(t *testing.T, w *world, f *failing) func() error {
		closeJob(t, w.create(t))
		j := openFaulty(t, w, f)
		return func() error {
			err := j.Seal(endedBundle(j.Run(), bundle.SealedByRun))
			return errors.Join(err, j.Unlock())
		}
	}, func(t *testing.T, w *world, err error) {
		j := w.find(t, Last)
		// The supervisor of this Job is the test itself, which lives: it must count as dead.
		forgetSupervisor(t, j)
		seals := 0
		rerr := j.Recover(func(j *Job) (*bundle.Bundle, error) {
			seals++
			return endedBundle(j.Run(), bundle.SealedByRecovery), nil
		})
		if rerr != nil {
			t.Fatalf("recover after %v: %v", err, rerr)
		}
		b, berr := j.Bundle()
		if berr != nil {
			t.Fatal(berr)
		}
		want := map[bundle.SealedBy]bundle.State{bundle.SealedByRun: bundle.Ended, bundle.SealedByRecovery: bundle.Interrupted}[b.SealedBy]
		if j.Run().State != want || j.Run().BundleDigest == "" {
			t.Errorf("sealed by %s, but run.json says %s", b.SealedBy, j.Run().State)
		}
		if (b.SealedBy == bundle.SealedByRecovery) != (seals == 1) {
			t.Errorf("sealed by %s after %d seals", b.SealedBy, seals)
		}
	})
}

// forgetSupervisor rewrites run.json of a Job as if its supervisor were of another boot.
func forgetSupervisor(t *testing.T, j *Job) {
	t.Helper()
	file := filepath.Join(j.Path(), runName)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.Replace(string(text), v["boot_id"].(string), "another boot", 1))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestClearOrphans(t *testing.T) {
	w := newWorld(t)
	j := w.create(t)
	if err := j.ClearOrphans(); err != nil {
		t.Errorf("without any: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(j.Orphans("workspace"), "2"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(j.Orphans("workspace"), "1"), nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := j.ClearOrphans(); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(j.Orphans("workspace"), "*")); err != nil || len(left) != 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}
