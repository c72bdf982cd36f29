package conformance

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/test/testenv"
)

// Random tests do the same random steps on a plain directory and on the mount, and compare every
// result and, now and then, the trees. Each round starts from untouched trees, where the lower still
// matters, and reopens the overlay in the middle. STAGE_CONFORMANCE_SEED repeats a round; the steps
// of a failing tree are saved, and STAGE_CONFORMANCE_SCRIPT gives them to TestReplay.

// How long the rounds of one random test go on, for one user; the last round is finished.
const (
	shortTime = 12 * time.Second
	soakTime  = 5 * time.Minute
)

// kind is a kind of random test.
type kind struct {
	name         string
	setup        func(dir string) // fills one tree
	trees, steps int
	next         func(m *model) step
	workers      int  // processes that share the trees; 0: this one
	readers      bool // descriptors stay open over a copy-up, and passthrough keeps what they read
}

func kinds() map[string]kind {
	all := map[string]kind{}
	for _, k := range []kind{
		{name: "names", setup: namesTree, trees: 40, steps: 400, next: (*model).nameStep},
		{name: "data", setup: dataTree, trees: 30, steps: 500, next: (*model).dataStep, readers: true},
		{name: "processes", setup: bothTrees, trees: 12, steps: 600, next: (*model).workerStep, workers: 4, readers: true},
		{name: "law", setup: lawTree, trees: 500, steps: 24, next: (*model).lawStep, readers: true},
	} {
		all[k.name] = k
	}
	return all
}

// TestRandomNames works on the name space.
func TestRandomNames(t *testing.T) { randomTest(t, "names") }

// TestRandomData works on what files hold, through several descriptors and maps.
func TestRandomData(t *testing.T) { randomTest(t, "data") }

// TestRandomProcesses has several processes at work at once, each in trees of its own and all in
// shared directories, where each has its own names.
func TestRandomProcesses(t *testing.T) { randomTest(t, "processes") }

// TestTreeLaw does 500 short scripts: the tree seen inside is the tree of doing it directly,
// attribute for attribute, explicitly set times included.
func TestTreeLaw(t *testing.T) { randomTest(t, "law") }

func randomTest(t *testing.T, kind string) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		seed, given := os.LookupEnv(seedEnv)
		if !given {
			seed = strconv.FormatInt(time.Now().UnixNano(), 10)
		}
		first, err := strconv.ParseUint(seed, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		length := shortTime
		if soaking() {
			length = soakTime
		}
		in := modes(u)
		if kinds()[kind].readers {
			in = slices.DeleteFunc(in, func(mode string) bool { return mode == passthrough })
		}
		rounds := uint64(0)
		for end := time.Now().Add(length); rounds < uint64(len(in)) || !given && time.Now().Before(end) && !t.Failed(); rounds++ {
			mode := in[rounds%uint64(len(in))]
			seed := first // one that was given is for all modes
			if !given {
				seed += rounds
			}
			t.Setenv(seedEnv, strconv.FormatUint(seed, 10))
			t.Run(fmt.Sprintf("%s %d", mode, seed), func(t *testing.T) { inMode(t, mode, u, kind+":0", kind+":1", kind+":check") })
		}
		t.Logf("%d rounds of %d trees from %s=%d on", rounds, kinds()[kind].trees, seedEnv, first)
	})
}

// TestReplay does the saved script of a failing tree again.
func TestReplay(t *testing.T) {
	script := os.Getenv(scriptEnv)
	if script == "" {
		return
	}
	sc, err := readScript(script)
	if err != nil {
		t.Fatal(err)
	}
	var suites []string
	for i := range sc.parts {
		suites = append(suites, fmt.Sprintf("%s:replay%d", sc.kind, i))
	}
	testenv.Users(t, func(t *testing.T, u testenv.User) { runSuite(t, u, append(suites, sc.kind+":check")...) })
}

// keepScript saves the script of the tree that was at work when a random suite failed.
func (tr *trial) keepScript() {
	tr.t.Helper()
	current, err := os.ReadFile(filepath.Join(tr.dir, "failed"))
	if err != nil {
		return // no random suite
	}
	script, err := os.ReadFile(filepath.Join(tr.dir, "scripts", string(current)))
	if err != nil {
		tr.t.Error(err)
		return
	}
	f, err := os.CreateTemp("", "stage-script-"+tr.u.Name+"-*.jsonl")
	if err != nil {
		tr.t.Error(err)
		return
	}
	defer f.Close()
	if _, err := f.Write(script); err != nil {
		tr.t.Error(err)
	}
	if err := f.Chmod(0o644); err != nil { // the user is to read it
		tr.t.Error(err)
	}
	as := "user"
	if tr.u.IsRoot() {
		as = "root"
	}
	tr.t.Logf("seed %s; once more: %s=%s go test -run TestReplay/%s ./test/conformance", os.Getenv(seedEnv), scriptEnv, f.Name(), as)
}

func (k kind) tree(i int) string { return k.name + strconv.Itoa(i) }

func (k kind) setupTrees(top string) {
	for i := range k.trees {
		dir := filepath.Join(top, k.tree(i))
		must(os.Mkdir(dir, 0o755))
		k.setup(dir)
	}
	if k.workers > 0 {
		setupShared(top)
	}
}

func (k kind) inside(t *testing.T, dir string) {
	switch part := part(); {
	case part == "check":
		k.compareAll(t, dir)
	case strings.HasPrefix(part, "replay"):
		k.replay(t, dir, strings.TrimPrefix(part, "replay"))
	case k.workers == 0:
		k.runTrees(t, dir, 0, 1)
	case os.Getenv(workerEnv) != "":
		k.work(t, dir)
	default:
		k.startWorkers(t, dir)
	}
}

// runTrees does random steps in every n-th tree from the first on.
func (k kind) runTrees(t *testing.T, dir string, first, n int) {
	seed, err := strconv.ParseUint(os.Getenv(seedEnv), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for i := first; i < k.trees; i += n {
		m := k.model(t, dir, i)
		m.rand = rand.New(rand.NewPCG(seed, uint64(i)<<8|uint64(part()[0])))
		m.history, err = openHistory(dir, k, i)
		if err != nil {
			t.Fatal(err)
		}
		m.run(k)
		if t.Failed() {
			must(os.WriteFile(filepath.Join(dir, "failed"), []byte(k.tree(i)), 0o644))
			t.Fatalf("seed %d, tree %s, the last steps:\n%s", seed, k.tree(i), m.history.tail(60))
		}
		must(m.history.file.Close())
	}
}

// replay does one part of a saved script.
func (k kind) replay(t *testing.T, dir, part string) {
	sc, err := readScript(os.Getenv(scriptEnv))
	if err != nil {
		t.Fatal(err)
	}
	i, err := strconv.Atoi(part)
	if err != nil {
		t.Fatal(err)
	}
	m := k.model(t, dir, sc.tree)
	defer m.close()
	for _, st := range sc.parts[i] {
		if m.steps++; !m.step(st) {
			return
		}
	}
	m.compareTrees()
}

// compareAll compares the trees once more, over an overlay that was closed and opened again.
func (k kind) compareAll(t *testing.T, dir string) {
	for i := range k.trees {
		m := k.model(t, dir, i)
		m.compareTrees()
		m.close()
		if t.Failed() {
			must(os.WriteFile(filepath.Join(dir, "failed"), []byte(k.tree(i)), 0o644))
			t.Fatalf("tree %s, the overlay reopened", k.tree(i))
		}
	}
	if k.workers > 0 {
		compareShared(t, dir)
	}
}

// model is one run of steps on both sides.
type model struct {
	t            *testing.T
	rand         *rand.Rand
	plain, mount *side
	steps        int
	history      *history
	worker       string // begins the names of this process in shared directories
	// sloppyHoles allows steps after which holes are not compared: fallocate, of which ext4 may make
	// data when it likes, and stores through a map, which make data of a whole folio, and of which FUSE
	// knows nothing while it looks for holes (fuse_lseek, fs/fuse/file.c).
	sloppyHoles bool
}

func (k kind) model(t *testing.T, dir string, i int) *model {
	m := &model{
		t:           t,
		sloppyHoles: i%2 == 1,
		plain:       newSide(filepath.Join(dir, "plain"), k.tree(i)),
		mount:       newSide(filepath.Join(dir, "mnt"), k.tree(i)),
	}
	if k.workers > 0 && part() != "check" {
		m.worker = "w" + os.Getenv(workerEnv)
		m.plain.share(3)
		m.mount.share(3 + len(sharedDirs))
	}
	return m
}

func (m *model) close() {
	m.plain.close()
	m.mount.close()
}

func (m *model) run(k kind) {
	defer m.close()
	for range k.steps {
		m.steps++
		st := k.next(m)
		m.history.add(st)
		if !m.step(st) {
			return
		}
		if m.steps%100 == 0 {
			m.compareTrees()
		}
		if m.t.Failed() {
			return
		}
	}
	m.compareTrees()
}

// step does one step on both sides. It reports false when they differed.
func (m *model) step(st step) bool {
	a, b := m.plain.do(st), m.mount.do(st)
	if m.history != nil && a == b {
		m.history.result(a)
	}
	if a != b {
		m.t.Errorf("step %d, %s: plain %s, mount %s", m.steps, st, a, b)
	}
	return a == b
}

func (m *model) compareTrees() {
	m.t.Helper()
	m.openUp()
	var ignore []testenv.Field
	if m.sloppyHoles {
		ignore = append(ignore, testenv.Holes)
	}
	if d := diffTrees(m.t, m.plain.dir, m.mount.dir, ignore...); d != "" {
		m.t.Errorf("after step %d the trees differ, plain → mount:\n%s", m.steps, d)
	}
}

// diffTrees compares two trees in everything. Of mtimes only those count that were set: the others
// depend on when each side was at work. A FIFO's is not set by FUSE when it is written to (S_NOCMTIME).
func diffTrees(t *testing.T, plain, mount string, ignore ...testenv.Field) string {
	t.Helper()
	a, b := testenv.Snapshot(t, plain), testenv.Snapshot(t, mount)
	for _, s := range []testenv.Tree{a, b} {
		for p, e := range s {
			if when, err := time.Parse(time.RFC3339Nano, e.Mtime); err != nil || when.Unix() >= recent || e.Kind == "fifo" {
				e.Mtime = "now"
				s[p] = e
			}
		}
	}
	return testenv.Diff(a, b, ignore...)
}

// openUp makes what nobody may read readable on both sides, its mode having been compared, so that
// the trees can be.
func (m *model) openUp() {
	for closed := true; closed && !m.t.Failed(); { // what lies in a closed directory shows in the next round
		closed = false
		for _, path := range m.there() {
			closed = m.openUpPath(path) || closed
		}
	}
}

func (m *model) openUpPath(path string) bool {
	var st unix.Stat_t
	must(unix.Lstat(m.plain.at(path), &st))
	need := map[uint32]uint32{unix.S_IFREG: 0o400, unix.S_IFDIR: 0o700}[st.Mode&unix.S_IFMT]
	if st.Mode&need == need {
		return false
	}
	m.step(step{Op: "stat", P: path})
	return m.step(step{Op: "chmod", P: path, Flags: int(st.Mode&0o7777 | need)})
}

// there returns the paths in the plain tree.
func (m *model) there() []string {
	var paths []string
	err := filepath.WalkDir(m.plain.dir, func(p string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(m.plain.dir, p)
		if rel == "." {
			return err
		}
		if err != nil && d.IsDir() {
			return fs.SkipDir // closed; listed already
		}
		paths = append(paths, rel)
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return paths
}

// oldTime is what fixtures are from, unless a test says otherwise.
func oldTime(path string, ns int64) {
	ts := unix.NsecToTimespec(946684800_000000000 + ns)
	must(unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW))
}

// ageAll gives everything in dir times that are long past.
func ageAll(dir string) {
	must(filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			oldTime(p, int64(len(p)-len(dir)))
		}
		return err
	}))
}

// namesTree fills a tree with names of every kind.
func namesTree(dir string) {
	for _, d := range []string{"a", "a/b", "a/b/c", "d", "d/e", "f"} {
		must(os.Mkdir(filepath.Join(dir, d), 0o755))
		for i := range 3 {
			must(os.WriteFile(filepath.Join(dir, d, strconv.Itoa(i)), bytes.Repeat([]byte(d), 100*i), 0o644))
		}
	}
	must(os.Link(filepath.Join(dir, "a/0"), filepath.Join(dir, "d/linked")))
	must(os.Link(filepath.Join(dir, "a/0"), filepath.Join(dir, "f/linked2")))
	must(os.Symlink("../x", filepath.Join(dir, "a/s")))
	must(unix.Mkfifo(filepath.Join(dir, "d/p"), 0o644))
	must(unix.Mknod(filepath.Join(dir, "f/sock"), unix.S_IFSOCK|0o600, 0))
	must(unix.Setxattr(filepath.Join(dir, "a/b"), "user.x", []byte("of b"), 0))
	must(unix.Setxattr(filepath.Join(dir, "f/1"), "user.y", []byte("of 1"), 0))
	must(os.Chmod(filepath.Join(dir, "a/1"), 0o444))
	must(os.Chmod(filepath.Join(dir, "f/2"), 0o755|os.ModeSetuid|os.ModeSetgid))
	ageAll(dir)
}

var modelNames = []string{"a", "b", "c", "d", "e", "f", "0", "1", "2", "linked", "linked2", "s", "p", "sock", "new"}

// path returns a random path: half of the time one that is there, else one of few names, so that
// steps meet.
func (m *model) path() string {
	if m.rand.IntN(2) == 0 {
		if there := m.there(); len(there) > 0 {
			return there[m.rand.IntN(len(there))]
		}
	}
	path := one(m, modelNames)
	for range m.rand.IntN(4) {
		path += "/" + one(m, modelNames)
	}
	return path
}

func one[T any](m *model, of []T) T { return of[m.rand.IntN(len(of))] }

// nameStep returns a random step of the name space; in one of eight a file is opened or used that is
// open, whatever happened to its names.
func (m *model) nameStep() step {
	if m.rand.IntN(8) == 0 {
		return m.openFileStep(m.path)
	}
	return m.namesIn(m.path)
}

// namesIn is nameStep for paths of the caller.
func (m *model) namesIn(path func() string) step {
	st := step{P: path(), Q: path(), Fill: byte(m.rand.IntN(256)), Len: m.rand.IntN(2000)}
	switch st.Op = one(m, nameOps); st.Op {
	case "rename":
		st.Flags = one(m, []int{0, 0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE})
	case "mkdir":
		st.Flags = one(m, []int{0o755, 0o755, 0o700, 0o1777, 0o777, 0o2755, 0o555})
	case "chmod":
		st.Flags = m.rand.IntN(0o10000)
		if m.rand.IntN(3) > 0 {
			st.Flags |= 0o700
		}
	case "mkfifo", "mksock":
		st.Flags = m.rand.IntN(0o1000)
	case "tmpfile":
		st.P, st.Flags = parentOf(st.P), m.rand.IntN(0o1000)
	case "truncate":
		st.Off = int64(m.rand.IntN(5000))
	case "utimes":
		st.Off, st.Flags = int64(m.rand.IntN(1<<30)), one(m, []int{0, 0, 1, 2, 4})
	case "setxattr":
		st.Q, st.Len = one(m, []string{"user.x", "user.y", "user.z"}), m.rand.IntN(200)
		st.Flags = one(m, []int{0, 0, unix.XATTR_CREATE, unix.XATTR_REPLACE})
	case "removexattr":
		st.Q = one(m, []string{"user.x", "user.y", "user.z"})
	case "access":
		st.Flags = m.rand.IntN(8)
	case "symlink":
	case "ls":
		st.Q = ""
	}
	return st
}

func parentOf(path string) string { return filepath.Dir(path) }

// nameOps are the operations of the name space, the more frequent ones several times.
var nameOps = slices.Concat(
	[]string{
		"write", "append", "read", "stat", "mkdir", "unlink", "rmdir", "rm-r", "link", "symlink", "chmod", "truncate", "utimes",
		"setxattr", "removexattr", "xattrs", "ls", "mkfifo", "mksock", "tmpfile", "chown", "access",
	},
	[]string{"rename", "rename", "rename", "rename", "write", "mkdir", "stat", "ls"},
)

// openFileStep opens a file or does something to one that is open.
func (m *model) openFileStep(path func() string) step {
	if len(m.plain.files) == 0 || len(m.plain.files) < 10 && m.rand.IntN(2) == 0 {
		return step{Op: "open", P: path(), FD: m.rand.IntN(12), Flags: unix.O_RDWR}
	}
	st := step{FD: m.slot(), Off: int64(m.rand.IntN(3000)), Len: m.rand.IntN(2000), Fill: byte(m.rand.IntN(256))}
	switch st.Op = one(m, []string{"close", "fstat", "pread", "pwrite", "ftruncate", "fchmod", "fallocate"}); st.Op {
	case "fchmod":
		st.Flags = m.rand.IntN(0o1000) | 0o600
	case "fallocate":
		st.Len, st.Flags = 1000, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE
	}
	return st
}

// slot returns a slot with an open file.
func (m *model) slot() int {
	var slots []int
	for i := range m.plain.files {
		slots = append(slots, i)
	}
	slices.Sort(slots)
	return one(m, slots)
}
