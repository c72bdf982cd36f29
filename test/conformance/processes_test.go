package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Several processes work at once. What they share are directories, in which each has names of its
// own, and a file all append to: whatever the order, the result is known.

var sharedDirs = []string{"s0", "s1", "s2"}

const sharedLog = "shared/log"

// bothTrees fills a tree for steps of every kind.
func bothTrees(dir string) {
	namesTree(dir)
	dataTree(dir)
}

// setupShared makes what processes share: directories with a few names of each.
func setupShared(top string) {
	for _, d := range sharedDirs {
		must(os.MkdirAll(filepath.Join(top, "shared", d, "is-"+d), 0o755))
		for w := range 4 {
			must(os.WriteFile(filepath.Join(top, "shared", d, fmt.Sprintf("w%d-a", w)), []byte(d), 0o644))
			must(os.MkdirAll(filepath.Join(top, "shared", d, fmt.Sprintf("w%d-d", w), "e"), 0o755))
		}
	}
	must(os.WriteFile(filepath.Join(top, sharedLog), nil, 0o666))
	ageAll(filepath.Join(top, "shared"))
}

// openShared opens the shared directories, whatever they are called by now: they are renamed while
// others work in them.
func openShared(top string) []int {
	var dirs []int
	for _, name := range sharedDirs {
		found, err := filepath.Glob(filepath.Join(top, "shared/*/is-"+name))
		if err != nil || len(found) != 1 {
			panic(fmt.Sprintf("shared directory %s: %q, %v", name, found, err))
		}
		fd, err := unix.Open(filepath.Dir(found[0]), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(err)
		dirs = append(dirs, fd)
	}
	return dirs
}

// share makes the shared directories known to a side. A worker was given them, as descriptors from
// inherited on.
func (s *side) share(inherited int) {
	if os.Getenv(workerEnv) == "" {
		for i, fd := range openShared(s.top) {
			s.shared[sharedDirs[i]] = fd
		}
		return
	}
	for i, name := range sharedDirs {
		s.shared[name] = inherited + i
	}
}

// startWorkers has a copy of this process do the work of each worker.
func (k kind) startWorkers(t *testing.T, dir string) {
	var wg sync.WaitGroup
	var dirs []*os.File
	for _, fd := range slices.Concat(openShared(filepath.Join(dir, "plain")), openShared(filepath.Join(dir, "mnt"))) {
		dirs = append(dirs, os.NewFile(uintptr(fd), "shared"))
	}
	for i := range k.workers {
		c := exec.Command("/proc/self/exe", "-test.run=^TestInside$", "-test.v")
		c.Env = append(os.Environ(), workerEnv+"="+strconv.Itoa(i))
		c.ExtraFiles = dirs
		wg.Go(func() {
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("worker %d: %v\n%s", i, err, out)
			}
		})
	}
	wg.Wait()
	for _, d := range dirs {
		must(d.Close())
	}
	compareShared(t, dir)
}

// work is what one worker does.
func (k kind) work(t *testing.T, dir string) {
	worker, err := strconv.Atoi(os.Getenv(workerEnv))
	if err != nil {
		t.Fatal(err)
	}
	k.runTrees(t, dir, worker, k.workers)
}

// compareShared compares what the processes did together.
func compareShared(t *testing.T, dir string) {
	for _, top := range []string{"plain", "mnt"} {
		b, err := os.ReadFile(filepath.Join(dir, top, sharedLog))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfter(string(b), "\n")
		slices.Sort(lines)
		must(os.WriteFile(filepath.Join(dir, top, sharedLog), []byte(strings.Join(lines, "")), 0o644))
	}
	if d := diffTrees(t, filepath.Join(dir, "plain/shared"), filepath.Join(dir, "mnt/shared")); d != "" {
		t.Errorf("the shared trees differ, plain → mount:\n%s", d)
	}
}

// workerStep returns a step in the worker's own tree or in a shared directory.
func (m *model) workerStep() step {
	switch k := m.rand.IntN(12); {
	case k < 4:
		return m.nameStep()
	case k < 7:
		return synced(m.dataStep())
	case k == 7:
		return step{Op: "log", P: fmt.Sprintf("%s in %s, step %d", m.worker, filepath.Base(m.plain.dir), m.steps)}
	case k == 8 && m.worker == "w0":
		return step{Op: "rename-shared", P: one(m, []string{"s0", "s1", "s2", "free"}), Q: one(m, []string{"s0", "s1", "s2", "free"})}
	}
	st := m.namesIn(m.sharedPath)
	switch st.Op {
	case "rm-r", "chown", "ls", "tmpfile":
		return step{Op: "ls", P: one(m, sharedDirs) + "/.", Q: m.worker + "-"}
	case "chmod":
		st.Flags |= 0o700
	case "mkdir":
		st.Flags |= 0o700
	}
	return st
}

// sharedPath returns a name of this worker in a shared directory.
func (m *model) sharedPath() string {
	path := one(m, sharedDirs) + "/" + m.worker + "-" + one(m, []string{"a", "b", "c", "d", "e"})
	for range m.rand.IntN(3) {
		path += "/" + one(m, []string{"a", "d", "e"})
	}
	return path
}
