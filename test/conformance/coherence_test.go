package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/test/testenv"
)

// Within these times a host edit must show, where the directory is watched and where it is not: what is
// promised is 1 s and 2 s, and a machine that is busy with other tests needs some more. Without a
// notification it would take an hour.
const (
	watchedLag   = 10 * time.Second
	unwatchedLag = 12 * time.Second
)

// TestCoherence: what the host does to the workspace while the Job runs shows in the view.
func TestCoherence(t *testing.T) {
	testenv.Need(t, testenv.Tool("git"), testenv.Tool("tail"))
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		for _, c := range []struct {
			watches string
			suites  []string
		}{
			{"0", []string{"coherence", "coherent-content", "coherent-git", "overflow", "watchers", "storm"}},
			{"3", []string{"coherence", "coherent-content", "storm"}},
			{"-1", []string{"coherence"}},
		} {
			t.Run("watches "+c.watches, func(t *testing.T) {
				t.Setenv(watchesEnv, c.watches)
				tr := newTrial(t, u, c.suites[0])
				for _, suite := range c.suites {
					tr.run(suite)
				}
				checkLog(t, filepath.Join(tr.dir, "log"))
			})
		}
	})
}

// shared is a workspace and a Job's view of it, seen from inside: the process plays the host too.
type shared struct {
	t         *testing.T
	host, job string // a directory in the workspace, and the same in the view
	lag       time.Duration
}

func newShared(t *testing.T, dir, name string) *shared {
	w := &shared{t: t, host: filepath.Join(dir, "lower", name), job: filepath.Join(dir, "mnt", name), lag: watchedLag}
	if os.Getenv(watchesEnv) != "0" {
		w.lag = unwatchedLag
	}
	w.must(os.Mkdir(w.host, 0o755))
	return w
}

func (w *shared) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *shared) put(name, content string) {
	w.t.Helper()
	w.must(os.MkdirAll(filepath.Dir(filepath.Join(w.host, name)), 0o755))
	w.must(os.WriteFile(filepath.Join(w.host, name), []byte(content), 0o644))
}

// replace puts another file in the place of one, as editors and git do.
func (w *shared) replace(name, content string) {
	w.t.Helper()
	tmp := filepath.Join(w.host, ".tmp")
	w.must(os.WriteFile(tmp, []byte(content), 0o644))
	w.must(os.Rename(tmp, filepath.Join(w.host, name)))
}

// picture tells all that can be seen of a tree, inode numbers of directories left out, whose objects
// change in copy-up.
func picture(top string) string {
	var b strings.Builder
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(top, path)
		st := info.Sys().(*syscall.Stat_t)
		fmt.Fprintf(&b, "%s %v %d", rel, info.Mode(), st.Nlink)
		switch {
		case info.IsDir():
			fmt.Fprintf(&b, " %v\n", info.ModTime().UnixNano())
			return nil
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			fmt.Fprintf(&b, " %s\n", target)
			return err
		}
		content, err := os.ReadFile(path)
		if len(content) > 40 {
			content = fmt.Appendf(nil, "%d bytes, crc %08x", len(content), crc32.ChecksumIEEE(content))
		}
		fmt.Fprintf(&b, " %v %d %d %q\n", info.ModTime().UnixNano(), st.Ino, info.Size(), content)
		return err
	})
	if err != nil {
		return "error: " + err.Error()
	}
	return b.String()
}

// eventually waits until ask gives want.
func (w *shared) eventually(what, want string, ask func() string) {
	w.t.Helper()
	var got string
	begin := time.Now()
	for end := begin.Add(w.lag); ; {
		if got = ask(); got == want {
			w.t.Logf("%s after %v", what, time.Since(begin).Round(time.Millisecond))
			return
		}
		if time.Now().After(end) {
			w.t.Errorf("%s after %v: got\n%s\nwant\n%s", what, w.lag, got, want)
			return
		}
		time.Sleep(5 * time.Millisecond) // a polling reader
	}
}

// hostEdits are what the host may do to a tree that the Job has looked at: no path was changed by
// the Job, so that the view shows what the workspace has.
var hostEdits = map[string]func(w *shared){
	"write":                            func(w *shared) { w.put("d/f", "longer content than before") },
	"write less":                       func(w *shared) { w.put("d/f", "x") },
	"write as much":                    func(w *shared) { w.put("d/f", "CONTENT") },
	"replace":                          func(w *shared) { w.replace("d/f", "another content") },
	"replace as much":                  func(w *shared) { w.replace("d/f", "CONTENT") },
	"create":                           func(w *shared) { w.put("d/new", "content") },
	"create what was looked for":       func(w *shared) { w.put("d/absent", "content") },
	"create below what was looked for": func(w *shared) { w.put("absent/f", "content") },
	"delete":                           func(w *shared) { w.must(os.Remove(filepath.Join(w.host, "d/f"))) },
	"rename":                           func(w *shared) { w.must(os.Rename(filepath.Join(w.host, "d/f"), filepath.Join(w.host, "g"))) },
	"rename over":                      func(w *shared) { w.must(os.Rename(filepath.Join(w.host, "d/f"), filepath.Join(w.host, "d/h"))) },
	"chmod":                            func(w *shared) { w.must(os.Chmod(filepath.Join(w.host, "d/f"), 0o600)) },
	"touch":                            func(w *shared) { w.must(os.Chtimes(filepath.Join(w.host, "d/f"), time.Unix(1, 0), time.Unix(1, 0))) },
	"chmod a directory":                func(w *shared) { w.must(os.Chmod(filepath.Join(w.host, "d"), 0o700)) },
	"touch a directory":                func(w *shared) { w.must(os.Chtimes(filepath.Join(w.host, "d"), time.Unix(1, 0), time.Unix(1, 0))) },
	"rename a directory":               func(w *shared) { w.must(os.Rename(filepath.Join(w.host, "d"), filepath.Join(w.host, "e"))) },
	"remove a directory":               func(w *shared) { w.must(os.RemoveAll(filepath.Join(w.host, "d"))) },
	"replace a directory": func(w *shared) {
		w.must(os.Rename(filepath.Join(w.host, "d"), filepath.Join(w.host, "old")))
		w.put("d/f", "of another directory")
		w.put("d/deep/new", "of another directory")
		w.put("old/deep/in", "moved")
	},
	"swap two directories": func(w *shared) {
		w.must(unix.Renameat2(unix.AT_FDCWD, filepath.Join(w.host, "d"), unix.AT_FDCWD, filepath.Join(w.host, "d2"), unix.RENAME_EXCHANGE))
		w.put("d/f", "after the swap")
		w.put("d2/deep/f", "after the swap")
	},
	"directory becomes file": func(w *shared) {
		w.must(os.RemoveAll(filepath.Join(w.host, "d")))
		w.put("d", "a file")
	},
	"file becomes link": func(w *shared) {
		w.must(os.Remove(filepath.Join(w.host, "d/f")))
		w.must(os.Symlink("h", filepath.Join(w.host, "d/f")))
	},
	"link elsewhere": func(w *shared) {
		w.must(os.Remove(filepath.Join(w.host, "l")))
		w.must(os.Symlink("d/h", filepath.Join(w.host, "l")))
	},
	"hard link": func(w *shared) { w.must(os.Link(filepath.Join(w.host, "d/f"), filepath.Join(w.host, "d/deep/link"))) },
	"write through a mapping": func(w *shared) {
		f, err := os.OpenFile(filepath.Join(w.host, "d/f"), os.O_RDWR, 0)
		w.must(err)
		m, err := unix.Mmap(int(f.Fd()), 0, 7, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		w.must(err)
		w.must(f.Close())
		copy(m, "MAPPED!")
		w.must(unix.Munmap(m))
	},
	"much at once": func(w *shared) {
		for i := range 300 {
			w.put(fmt.Sprintf("d/deep/%d/f", i), strconv.Itoa(i))
			w.replace("d/f", strconv.Itoa(i))
		}
	},
}

func insideCoherence(t *testing.T, dir string) {
	t.Run("edits", func(t *testing.T) {
		for name, edit := range hostEdits {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newShared(t, dir, "edits-"+strings.ReplaceAll(name, " ", "-"))
				for _, f := range []string{"d/f", "d/h", "d/deep/f", "d2/f", "d2/deep/f"} {
					w.put(f, "content")
				}
				w.must(os.Symlink("d/f", filepath.Join(w.host, "l")))
				w.look()
				edit(w)
				want := picture(w.host)
				w.eventually("view", want, func() string { return picture(w.job) })
			})
		}
	})
	t.Run("linked", func(t *testing.T) { hardLinkIsWrittenElsewhere(t, dir) })
	t.Run("changed", func(t *testing.T) { jobsOwnChangesStay(t, dir) })
	t.Run("moved", func(t *testing.T) { renamedDirectoryFollows(t, dir) })
	t.Run("many", func(t *testing.T) { manyDirectories(t, dir) })
}

// look makes the kernel remember all there is, and something that is not.
func (w *shared) look() {
	w.t.Helper()
	for range 2 {
		if got, want := picture(w.job), picture(w.host); got != want {
			w.t.Fatalf("view before: got\n%s\nwant\n%s", got, want)
		}
		for _, name := range []string{"absent", "d/absent", "d/deep/absent"} {
			if _, err := os.Lstat(filepath.Join(w.job, name)); !errors.Is(err, fs.ErrNotExist) {
				w.t.Fatalf("%s: got %v, want it absent", name, err)
			}
		}
	}
}

func hardLinkIsWrittenElsewhere(t *testing.T, dir string) {
	w := newShared(t, dir, "linked")
	w.lag = unwatchedLag
	w.put("d/f", "content")
	w.must(os.Mkdir(filepath.Join(w.host, "other"), 0o755))
	w.must(os.Link(filepath.Join(w.host, "d/f"), filepath.Join(w.host, "other/f")))
	f := filepath.Join(w.job, "d/f")
	w.eventually("content", "content", func() string { return contentOf(f) })
	w.put("other/f", "through another name")
	w.eventually("content", "through another name", func() string { return contentOf(f) })
}

func contentOf(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	info, err := os.Lstat(path)
	if err == nil && info.Size() != int64(len(b)) {
		return fmt.Sprintf("%q, size %d", b, info.Size())
	}
	return string(b)
}

func jobsOwnChangesStay(t *testing.T, dir string) {
	w := newShared(t, dir, "changed")
	for _, f := range []string{"d/mine", "d/gone", "d/moved", "d/theirs", "e/f"} {
		w.put(f, "content")
	}
	w.look()
	job := func(name string) string { return filepath.Join(w.job, name) }
	w.must(os.WriteFile(job("d/mine"), []byte("job"), 0o644))
	w.must(os.Remove(job("d/gone")))
	w.must(os.Rename(job("d/moved"), job("d/to")))
	w.must(os.RemoveAll(job("e")))
	w.must(os.WriteFile(job("d/created"), []byte("job"), 0o644))
	for _, f := range []string{"d/mine", "d/gone", "d/moved", "e/f", "d/created", "d/theirs", "d/new"} {
		w.replace(f, "host")
	}
	w.eventually("theirs", "host", func() string { return contentOf(job("d/theirs")) })
	w.eventually("new", "host", func() string { return contentOf(job("d/new")) })
	want := "created mine new theirs to"
	list := func() string { return strings.Join(names(job("d")), " ") }
	w.eventually("listing", want, list)
	for name, want := range map[string]string{"d/mine": "job", "d/to": "content", "d/created": "job"} {
		if got := contentOf(job(name)); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if _, err := os.Lstat(job("e")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the Job removed: got %v", err)
	}
}

func names(dir string) []string {
	list, err := os.ReadDir(dir)
	if err != nil {
		return []string{err.Error()}
	}
	var all []string
	for _, e := range list {
		all = append(all, e.Name())
	}
	return all
}

func renamedDirectoryFollows(t *testing.T, dir string) {
	w := newShared(t, dir, "moved")
	w.put("d/f", "content")
	w.put("d/deep/f", "content")
	w.look()
	to := func(name string) string { return filepath.Join(w.job, "e", name) }
	w.must(os.Rename(filepath.Join(w.job, "d"), filepath.Join(w.job, "e")))
	contentOf(to("f"))
	w.replace("d/f", "host")
	w.put("d/deep/f", "longer than it was")
	w.put("d/deep/new", "host")
	w.eventually("replaced", "host", func() string { return contentOf(to("f")) })
	w.eventually("written", "longer than it was", func() string { return contentOf(to("deep/f")) })
	w.eventually("created", "host", func() string { return contentOf(to("deep/new")) })
}

// manyDirectories has more of them than a small budget can watch.
func manyDirectories(t *testing.T, dir string) {
	w := newShared(t, dir, "many")
	const n = 150
	name := func(i int) string { return fmt.Sprintf("d%d/sub/f", i) }
	for i := range n {
		w.put(name(i), "content")
	}
	if got, want := picture(w.job), picture(w.host); got != want {
		t.Fatalf("view before: got\n%s\nwant\n%s", got, want)
	}
	for i := range n {
		switch i % 3 {
		case 0:
			w.put(name(i), "longer content")
		case 1:
			w.must(os.Remove(filepath.Join(w.host, name(i))))
		case 2:
			w.put(name(i)+"2", "new")
		}
	}
	want := picture(w.host)
	w.eventually("view", want, func() string { return picture(w.job) })
}

// version is a content that tells of itself: its number, its size, and that all of it is of one piece.
func version(n uint32, size int) []byte {
	b := make([]byte, 8, size)
	binary.LittleEndian.PutUint32(b, n)
	binary.LittleEndian.PutUint32(b[4:], uint32(size))
	return append(b, bytes.Repeat([]byte{byte(n)}, size-8)...)
}

func checkVersion(b []byte) error {
	if len(b) < 8 {
		return fmt.Errorf("%d bytes", len(b))
	}
	n := binary.LittleEndian.Uint32(b)
	if want := version(n, max(int(binary.LittleEndian.Uint32(b[4:])), 8)); !bytes.Equal(b, want) {
		return fmt.Errorf("%d bytes of version %d are not its %d bytes", len(b), n, len(want))
	}
	return nil
}

// insideContent reads files that the host replaces all the time. Whoever has one open sees all of it,
// in one version, with its size, and never an error.
func insideContent(t *testing.T, dir string) {
	w := newShared(t, dir, "content")
	seed := seedOf(t)
	const files = 4
	file := func(i int) string { return fmt.Sprintf("d/f%d", i) }
	for i := range files {
		w.put(file(i), string(version(0, 5000)))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var reads atomic.Uint64
	for i := range files {
		wg.Go(func() {
			var before uint32
			for !closed(stop) {
				n, err := readVersion(filepath.Join(w.job, file(i)))
				if err != nil || n < before {
					t.Errorf("%s: version %d after %d, %v", file(i), n, before, err)
					return
				}
				before = n
				reads.Add(1)
			}
		})
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	n := uint32(0)
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end) && !t.Failed(); {
		n++
		w.replace(file(rng.IntN(files)), string(version(n, 8+rng.IntN(400_000))))
	}
	close(stop)
	wg.Wait()
	t.Logf("%d replacements, %d reads", n, reads.Load())
	for i := range files {
		want, err := readVersion(filepath.Join(w.host, file(i)))
		w.must(err)
		w.eventually(file(i), fmt.Sprint(want), func() string {
			n, err := readVersion(filepath.Join(w.job, file(i)))
			if err != nil {
				return err.Error()
			}
			return fmt.Sprint(n)
		})
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// readVersion opens a file, asks for its size, reads it in pieces, and holds one against the other.
func readVersion(path string) (uint32, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(bufio.NewReaderSize(f, 60_000)); err != nil {
		return 0, err
	}
	if int64(b.Len()) != info.Size() {
		return 0, fmt.Errorf("%d bytes of a file of %d", b.Len(), info.Size())
	}
	if err := checkVersion(b.Bytes()); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b.Bytes()), nil
}

func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv(seedEnv), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	t.Logf("%s=%d", seedEnv, seed)
	return seed
}

// insideGit lets host and Job use one repository: the host writes its index 1,000 times.
func insideGit(t *testing.T, dir string) {
	w := newShared(t, dir, "git")
	repository(w.host)
	run("git", "-c", "user.name=n", "-c", "user.email=e@localhost", "commit", "-qm", "first")(w.host)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	status := 0
	wg.Go(func() {
		for ; !closed(stop); status++ {
			if out, err := gitStatus(w.job); err != nil || out != "" {
				t.Errorf("git status of the Job: %v\n%s", err, out)
				return
			}
		}
	})
	c := exec.Command("sh", "-c", `i=0; while [ $i -lt 1000 ]; do touch -d @$((1000000000 + i)) f05; git update-index -q --refresh || exit 1; i=$((i + 1)); done; git status --porcelain`)
	c.Dir = w.host
	c.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("git of the host: %v\n%s", err, out)
	}
	close(stop)
	wg.Wait()
	t.Logf("git status of the Job ran %d times", status)
	w.must(os.WriteFile(filepath.Join(w.host, "f03"), []byte("the host's edit"), 0o644))
	w.eventually("git status", " M f03\n", func() string { out, _ := gitStatus(w.job); return out })
}

func gitStatus(dir string) (string, error) {
	c := exec.Command("git", "status", "--porcelain")
	c.Dir = dir
	c.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*", "GIT_OPTIONAL_LOCKS=0")
	out, err := c.CombinedOutput()
	return string(out), err
}

// insideOverflow makes more events than inotify keeps, while the server cannot read them.
func insideOverflow(t *testing.T, dir string) {
	w := newShared(t, dir, "overflow")
	for i := range 40 {
		w.put(fmt.Sprintf("d%d/f", i), "content")
		w.put(fmt.Sprintf("d%d/g", i), "content")
	}
	look := func() {
		picture(w.job)
		for i := range 40 {
			os.Lstat(filepath.Join(w.job, fmt.Sprintf("d%d/absent", i)))
		}
	}
	look()
	look()
	most, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	w.must(err)
	n, err := strconv.Atoi(strings.TrimSpace(string(most)))
	w.must(err)
	server := os.Getppid()
	w.must(unix.Kill(server, unix.SIGSTOP))
	for i := range n + 1000 {
		w.must(os.Chtimes(filepath.Join(w.host, "d0", []string{"f", "g"}[i%2]), time.Unix(1, 0), time.Unix(1, 0)))
	}
	for i := range 40 {
		d := fmt.Sprintf("d%d/", i)
		w.put(d+"f", "longer content")
		w.must(os.Remove(filepath.Join(w.host, d+"g")))
		w.put(d+"absent", "new")
		w.put(d+"other", "new")
	}
	w.must(unix.Kill(server, unix.SIGCONT))
	want := picture(w.host)
	w.eventually("view", want, func() string { return picture(w.job) })
	w.put("d7/f", "after that")
	w.eventually("content", "after that", func() string { return contentOf(filepath.Join(w.job, "d7/f")) })
}

// insideWatchers: inotify inside the view tells of what the Job does, and of files the host deletes;
// tail -f sees what either appends.
func insideWatchers(t *testing.T, dir string) {
	w := newShared(t, dir, "watchers")
	for _, f := range []string{"d/f", "d/g", "d/deleted", "log"} {
		w.put(f, "content\n")
	}
	w.look()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	w.must(err)
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	for _, name := range []string{"d", "d/deleted"} {
		_, err := unix.InotifyAddWatch(fd, filepath.Join(w.job, name), unix.IN_CREATE|unix.IN_MODIFY|unix.IN_DELETE|unix.IN_MOVE|unix.IN_ATTRIB|unix.IN_DELETE_SELF)
		w.must(err)
	}
	job := func(name string) string { return filepath.Join(w.job, "d", name) }
	w.must(os.WriteFile(job("new"), []byte("x"), 0o644))
	w.must(os.WriteFile(job("f"), []byte("x"), 0o644))
	w.must(os.Rename(job("f"), job("f2")))
	w.must(os.Chmod(job("g"), 0o600))
	w.must(os.Remove(job("g")))
	w.must(os.Remove(filepath.Join(w.host, "d/deleted")))
	w.must(events.SetReadDeadline(time.Now().Add(5 * time.Second)))
	want := []string{"create new", "modify f", "from f", "to f2", "attrib g", "delete g", "delete_self "}
	for seen := map[string]bool{}; len(want) > 0; {
		buf := make([]byte, 1<<14)
		n, err := events.Read(buf)
		if err != nil {
			t.Errorf("no event %v: %v", want, err)
			break
		}
		for _, e := range eventsIn(buf[:n]) {
			seen[e] = true
		}
		want = slices.DeleteFunc(want, func(e string) bool { return seen[e] })
	}
	tailFollows(w)
}

func eventsIn(buf []byte) []string {
	var all []string
	for len(buf) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(buf[4:]), binary.NativeEndian.Uint32(buf[12:])
		name := string(bytes.TrimRight(buf[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size], "\x00"))
		for bit, word := range map[uint32]string{
			unix.IN_CREATE: "create ", unix.IN_MODIFY: "modify ", unix.IN_DELETE: "delete ", unix.IN_MOVED_FROM: "from ",
			unix.IN_MOVED_TO: "to ", unix.IN_ATTRIB: "attrib ", unix.IN_DELETE_SELF: "delete_self ",
		} {
			if mask&bit != 0 {
				all = append(all, word+name)
			}
		}
		buf = buf[unix.SizeofInotifyEvent+size:]
	}
	return all
}

func tailFollows(w *shared) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, "tail", "-n0", "-f", "-s0.1", filepath.Join(w.job, "log"), filepath.Join(w.job, "d/new"))
	out, err := c.StdoutPipe()
	w.must(err)
	w.must(c.Start())
	lines := bufio.NewScanner(out)
	await := func(want string) {
		for lines.Scan() {
			if lines.Text() == want {
				return
			}
		}
		w.t.Errorf("tail -f did not print %q: %v", want, lines.Err())
	}
	await("==> " + filepath.Join(w.job, "d/new") + " <==")
	appendLine := func(path, line string) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		w.must(err)
		_, err = f.WriteString(line + "\n")
		w.must(err)
		w.must(f.Close())
	}
	appendLine(filepath.Join(w.host, "log"), "from the host")
	await("from the host")
	appendLine(filepath.Join(w.job, "d/new"), "from the Job")
	await("from the Job")
	appendLine(filepath.Join(w.job, "log"), "job after host")
	await("job after host")
	cancel()
	c.Wait()
}

// insideStorm lets the host edit at full speed what the Job reads, lists, looks for and changes. All
// must come to an end, and then view and workspace agree where the Job changed nothing.
func insideStorm(t *testing.T, dir string) {
	w := newShared(t, dir, "storm")
	seed := seedOf(t)
	const dirs = 6
	for i := range dirs {
		for j := range 10 {
			w.put(fmt.Sprintf("d%d/f%d", i, j), "content")
		}
	}
	w.put("mine/f", "content")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 3 {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() { loop(stop, func() { w.hostActs(rng, dirs) }) })
		rng2 := rand.New(rand.NewPCG(seed, uint64(i)+100))
		wg.Go(func() { loop(stop, func() { w.jobActs(rng2, dirs) }) })
	}
	wg.Go(func() { loop(stop, unix.Sync) })
	time.Sleep(3 * time.Second) // the length of the storm
	close(stop)
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("the storm does not end")
	}
	for i := range dirs {
		name := fmt.Sprintf("d%d", i)
		want := picture(filepath.Join(w.host, name))
		w.eventually(name, want, func() string { return picture(filepath.Join(w.job, name)) })
	}
}

func loop(stop chan struct{}, act func()) {
	for !closed(stop) {
		act()
	}
}

// hostActs does one thing in the workspace; what is not there cannot be done.
func (w *shared) hostActs(rng *rand.Rand, dirs int) {
	d := filepath.Join(w.host, fmt.Sprintf("d%d", rng.IntN(dirs)))
	f, g := filepath.Join(d, fmt.Sprintf("f%d", rng.IntN(10))), filepath.Join(d, fmt.Sprintf("f%d", rng.IntN(10)))
	switch rng.IntN(8) {
	case 0, 1:
		os.WriteFile(f, bytes.Repeat([]byte{byte(rng.Uint32())}, rng.IntN(20000)), 0o644)
	case 2:
		os.Remove(f)
	case 3:
		os.Rename(f, g)
	case 4:
		os.Chmod(f, 0o600|os.FileMode(rng.IntN(64)))
	case 5:
		os.Mkdir(f, 0o755)
	case 6:
		os.Symlink("f1", f)
	case 7:
		os.Rename(d, d+".away")
		os.Rename(d+".away", d)
	}
}

// jobActs looks at the view, and changes what only the Job uses.
func (w *shared) jobActs(rng *rand.Rand, dirs int) {
	d := filepath.Join(w.job, fmt.Sprintf("d%d", rng.IntN(dirs)))
	f := filepath.Join(d, fmt.Sprintf("f%d", rng.IntN(10)))
	switch rng.IntN(5) {
	case 0, 1:
		os.ReadFile(f)
	case 2:
		os.ReadDir(d)
	case 3:
		os.Lstat(f)
	case 4:
		mine := filepath.Join(w.job, "mine", fmt.Sprintf("f%d", rng.IntN(3)))
		os.WriteFile(mine, []byte("job"), 0o644)
		os.Rename(mine, mine+"2")
	}
}
