package conformance

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/test/testenv"
)

// modelTime is how long random operations run; soak runs longer.
const (
	modelTime = 4 * time.Second
	soakTime  = 2 * time.Minute
)

// TestRandomOperations does the same random operations on a plain directory and on the mount, and
// compares every result and, now and then, the trees. STAGE_CONFORMANCE_SEED repeats a run.
func TestRandomOperations(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		if os.Getenv(seedEnv) == "" {
			t.Setenv(seedEnv, strconv.FormatInt(time.Now().UnixNano(), 10))
		}
		t.Logf("%s=%s", seedEnv, os.Getenv(seedEnv))
		onTransports(t, u, "model", "reopened")
	})
}

// modelSetup fills the tree that random operations start from.
func modelSetup(dir string) {
	for _, d := range []string{"a", "a/b", "a/b/c", "d", "d/e", "f"} {
		must(os.Mkdir(filepath.Join(dir, d), 0o755))
		for i := range 3 {
			must(os.WriteFile(filepath.Join(dir, d, fmt.Sprintf("%d", i)), bytes.Repeat([]byte(d), 100*i), 0o644))
		}
	}
	must(os.Link(filepath.Join(dir, "a/0"), filepath.Join(dir, "d/linked")))
	must(os.Link(filepath.Join(dir, "a/0"), filepath.Join(dir, "f/linked2")))
	must(os.Symlink("../x", filepath.Join(dir, "a/s")))
	must(unix.Mkfifo(filepath.Join(dir, "d/p"), 0o644))
}

// modelTrees is how many trees are made for random operations: each run of a few hundred starts in
// an untouched one, where the lower still matters.
const (
	modelTrees = 40
	modelSteps = 400
)

func modelName(i int) string { return fmt.Sprintf("model%d", i) }

func insideModel(t *testing.T, dir string) {
	seed, err := strconv.ParseUint(os.Getenv(seedEnv), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	length := modelTime
	if os.Getenv(soakEnv) != "" {
		length = soakTime
	}
	end := time.Now().Add(length)
	for i := 0; time.Now().Before(end) || i < modelTrees; i++ {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		tree := modelName(i % modelTrees)
		m := &model{t: t, rand: rnd, plain: filepath.Join(dir, "plain", tree), mount: filepath.Join(dir, "mnt", tree)}
		m.run()
		if t.Failed() {
			t.Fatalf("tree %s, seed %d:\n%s", tree, seed, strings.Join(m.history[max(0, len(m.history)-110):], "\n"))
		}
	}
}

// insideReopened compares the trees of a run of insideModel once more, over an overlay that was
// closed and opened again.
func insideReopened(t *testing.T, dir string) {
	for i := range modelTrees {
		m := &model{t: t, plain: filepath.Join(dir, "plain", modelName(i)), mount: filepath.Join(dir, "mnt", modelName(i))}
		m.compareTrees()
	}
}

func (m *model) run() {
	defer m.closeAll()
	for range modelSteps {
		if !m.step() {
			return
		}
		if m.steps%100 == 0 {
			m.compareTrees()
		}
		if m.t.Failed() {
			return
		}
	}
}

// model is one run of random operations.
type model struct {
	t            *testing.T
	rand         *rand.Rand
	plain, mount string
	steps        int
	history      []string
	open         [][2]int // descriptors of the same file on both sides
}

// operation is done below dir and returns what it saw.
type operation struct {
	name string
	do   func(dir string) string
}

// step does one operation on both sides. It reports false when they differed.
func (m *model) step() bool {
	m.steps++
	if m.rand.IntN(8) == 0 {
		return m.stepOpen()
	}
	op := m.operation()
	a, b := op.do(m.plain), op.do(m.mount)
	m.history = append(m.history, op.name+": "+a)
	if a != b {
		m.t.Errorf("step %d, %s: plain %s, mount %s", m.steps, op.name, a, b)
	}
	return a == b
}

// stepOpen opens a file, or uses one that is open, whatever happened to its names.
func (m *model) stepOpen() bool {
	if len(m.open) < 10 && m.rand.IntN(2) == 0 {
		path := m.path()
		a, errA := unix.Open(m.plain+"/"+path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		b, errB := unix.Open(m.mount+"/"+path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		m.history = append(m.history, "open "+path+": "+errName(errA))
		if errName(errA) != errName(errB) {
			m.t.Errorf("step %d, open %s: plain %s, mount %s", m.steps, path, errName(errA), errName(errB))
			return false
		}
		if errA == nil {
			m.open = append(m.open, [2]int{a, b})
		}
		return true
	}
	if len(m.open) == 0 {
		return true
	}
	i := m.rand.IntN(len(m.open))
	op := m.operationOnOpen()
	a, b := op.onFD(m.open[i][0]), op.onFD(m.open[i][1])
	m.history = append(m.history, fmt.Sprintf("%s of open file %d: %s", op.name, i, a))
	if a != b {
		m.t.Errorf("step %d, %s of an open file: plain %s, mount %s", m.steps, op.name, a, b)
		return false
	}
	if op.name == "close" {
		m.open = append(m.open[:i], m.open[i+1:]...)
	}
	return true
}

type openOperation struct {
	name string
	onFD func(fd int) string
}

func (m *model) operationOnOpen() openOperation {
	off, data := int64(m.rand.IntN(3000)), m.data()
	all := []openOperation{
		{"close", func(fd int) string { return errName(unix.Close(fd)) }},
		{"fstat", func(fd int) string {
			var st unix.Stat_t
			err := unix.Fstat(fd, &st)
			return describe(&st) + errName(err)
		}},
		{"pread", func(fd int) string {
			b := make([]byte, 4000)
			n, err := unix.Pread(fd, b, off)
			return brief(b[:max(n, 0)]) + errName(err)
		}},
		{fmt.Sprintf("pwrite %d at %d", len(data), off), func(fd int) string {
			n, err := unix.Pwrite(fd, data, off)
			return fmt.Sprint(n, errName(err))
		}},
		{fmt.Sprintf("ftruncate %d", off), func(fd int) string { return errName(unix.Ftruncate(fd, off)) }},
		{"fchmod", func(fd int) string { return errName(unix.Fchmod(fd, uint32(off)&0o777|0o600)) }},
		{"fallocate", func(fd int) string { return errName(unix.Fallocate(fd, 0, off, 1000)) }},
	}
	return all[m.rand.IntN(len(all))]
}

func (m *model) closeAll() {
	for _, fds := range m.open {
		unix.Close(fds[0])
		unix.Close(fds[1])
	}
}

func (m *model) data() []byte {
	return bytes.Repeat([]byte{byte('a' + m.rand.IntN(26))}, m.rand.IntN(2000))
}

// path returns a random path: half of the time one that is there, else one of few names, so that
// operations meet.
func (m *model) path() string {
	if m.rand.IntN(2) == 0 {
		if there := m.there(); len(there) > 0 {
			return there[m.rand.IntN(len(there))]
		}
	}
	names := []string{"a", "b", "c", "d", "e", "f", "0", "1", "2", "linked", "linked2", "s", "p", "new"}
	path := names[m.rand.IntN(len(names))]
	for range m.rand.IntN(4) {
		path += "/" + names[m.rand.IntN(len(names))]
	}
	return path
}

// there returns the paths in the plain tree.
func (m *model) there() []string {
	var paths []string
	err := filepath.WalkDir(m.plain, func(p string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(m.plain, p); rel != "." {
			paths = append(paths, rel)
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return paths
}

func (m *model) operation() operation {
	p, q, data := m.path(), m.path(), m.data()
	mode, size := uint32(m.rand.IntN(0o1000)), int64(m.rand.IntN(5000))
	when := unix.NsecToTimespec(int64(m.rand.IntN(1<<30)) * 1e9)
	all := []operation{
		{"write " + p, func(d string) string { return errName(writeNonblock(d+"/"+p, data, unix.O_TRUNC)) }},
		{"append " + p, func(d string) string { return errName(writeNonblock(d+"/"+p, data, unix.O_APPEND)) }},
		{"read " + p, func(d string) string { return readNonblock(d + "/" + p) }},
		{"stat " + p, func(d string) string {
			var st unix.Stat_t
			err := unix.Lstat(d+"/"+p, &st)
			return describe(&st) + errName(err)
		}},
		{"mkdir " + p, func(d string) string { return errName(unix.Mkdir(d+"/"+p, 0o755)) }},
		{"unlink " + p, func(d string) string { return errName(unix.Unlink(d + "/" + p)) }},
		{"rmdir " + p, func(d string) string { return errName(unix.Rmdir(d + "/" + p)) }},
		{"rm -r " + p, func(d string) string { return removeTree(d + "/" + p) }},
		m.rename(p, q, 0), m.rename(p, q, 0), m.rename(p, q, unix.RENAME_NOREPLACE), m.rename(p, q, unix.RENAME_EXCHANGE),
		{"link " + p + " " + q, func(d string) string { return errName(unix.Link(d+"/"+p, d+"/"+q)) }},
		{"symlink " + p, func(d string) string { return errName(unix.Symlink(q, d+"/"+p)) }},
		{fmt.Sprintf("chmod %s %o", p, mode), func(d string) string {
			return errName(unix.Fchmodat(unix.AT_FDCWD, d+"/"+p, mode|0o700, 0))
		}},
		{fmt.Sprintf("truncate %s %d", p, size), func(d string) string { return errName(unix.Truncate(d+"/"+p, size)) }},
		{"utimes " + p, func(d string) string {
			return errName(unix.UtimesNanoAt(unix.AT_FDCWD, d+"/"+p, []unix.Timespec{when, when}, unix.AT_SYMLINK_NOFOLLOW))
		}},
		{"setxattr " + p, func(d string) string {
			return errName(unix.Lsetxattr(d+"/"+p, "user.x", data[:min(len(data), 100)], 0))
		}},
	}
	return all[m.rand.IntN(len(all))]
}

func (m *model) rename(p, q string, flags uint) operation {
	return operation{fmt.Sprintf("rename %s %s %d", p, q, flags), func(d string) string {
		return errName(unix.Renameat2(unix.AT_FDCWD, d+"/"+p, unix.AT_FDCWD, d+"/"+q, flags))
	}}
}

// writeNonblock is a write that cannot wait for a FIFO's reader.
func writeNonblock(path string, data []byte, flags int) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_NONBLOCK|unix.O_NOFOLLOW|flags, 0o644)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, data)
	return err
}

func readNonblock(path string) string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return errName(err)
	}
	defer unix.Close(fd)
	b := make([]byte, 10000)
	n, err := unix.Read(fd, b)
	return brief(b[:max(n, 0)]) + errName(err)
}

// brief tells contents apart in a line.
func brief(b []byte) string { return fmt.Sprintf("%d bytes %.6x ", len(b), sha256.Sum256(b)) }

// removeTree removes what is at path. os.RemoveAll would wait in a path that leads through a FIFO.
func removeTree(path string) string {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return errName(err)
	}
	return errName(os.RemoveAll(path))
}

func (m *model) compareTrees() {
	a, b := testenv.Snapshot(m.t, m.plain), testenv.Snapshot(m.t, m.mount)
	if d := testenv.Diff(a, b, testenv.Mtime, testenv.Holes); d != "" {
		m.t.Errorf("after step %d the trees differ, plain → mount:\n%s", m.steps, d)
	}
}
