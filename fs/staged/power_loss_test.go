package staged_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stage/fs/overlay"
	"stage/fs/staged"
	"stage/fs/staged/stagedtest"
	"stage/fs/tree"
	"stage/journal"
	"stage/test/testenv"
)

// script does random operations on a Job, and remembers every state the view was in between them.
type script struct {
	t        *testing.T
	job      *stagedtest.Job
	rand     *rand.Rand
	view     map[string]string
	seen     map[string]map[string]bool // by path, what it ever was; "" for absent
	left     string                     // an upper kept from before; empty: the Job's own
	original map[string]bool            // what files of the workspace hold
	did      []string
	told     map[bool]int    // changes by whether their base was unknown
	synced   int             // records that were durable at the last sync
	copies   map[uint64]bool // upper files by inode: whether it is a copy whose content was not synced
}

func newScript(t *testing.T, job *stagedtest.Job, seed uint64) *script {
	s := &script{t: t, job: job, rand: rand.New(rand.NewPCG(seed, 0)), seen: map[string]map[string]bool{}, told: map[bool]int{}}
	s.look()
	s.original = map[string]bool{}
	for p, state := range s.view {
		s.original[state] = isFile(p, state)
	}
	return s
}

// look notes the state of the view. A path not noted before was absent so far.
func (s *script) look() {
	s.view = s.job.View()
	for p := range s.view {
		if s.seen[p] == nil {
			s.seen[p] = map[string]bool{"": len(s.did) > 0}
		}
	}
	for p, states := range s.seen {
		states[s.view[p]] = true
	}
}

func (s *script) pick(match func(p, state string) bool) (string, bool) {
	var list []string
	for p, state := range s.view {
		if match(p, state) {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		return "", false
	}
	slices.Sort(list)
	return list[s.rand.IntN(len(list))], true
}

func isDir(_, state string) bool  { return state == "dir" }
func isFile(_, state string) bool { return strings.HasPrefix(state, "file") }
func any2(string, string) bool    { return true }

// free returns a path in some directory, mostly one that is free.
func (s *script) free() string {
	dir, ok := s.pick(isDir)
	if !ok || s.rand.IntN(3) == 0 {
		dir = ""
	}
	return filepath.Join(dir, string(rune('a'+s.rand.IntN(5))))
}

func (s *script) step() {
	n := len(s.did)
	switch p := s.free(); s.rand.IntN(12) {
	case 0, 1:
		if s.view[p] == "" {
			s.do("write "+p, func() { s.job.Write(p, fmt.Sprint("new ", n)) })
		}
	case 2:
		if s.view[p] == "" {
			s.do("mkdir "+p, func() { s.job.Mkdir(p) })
		}
	case 3, 4, 5:
		if p, ok := s.pick(isFile); ok {
			s.do("append "+p, func() { s.job.Append(p, fmt.Sprint(" more ", n)) })
		}
	case 6:
		if p, ok := s.pick(any2); ok {
			s.do("remove "+p, func() { stagedtest.RemoveAll(s.job, s.paths(), p) })
		}
	case 7, 8:
		if from, ok := s.pick(any2); ok && !strings.HasPrefix(p+"/", from+"/") && (s.view[p] == "" || isFile("", s.view[p]) && isFile("", s.view[from])) {
			s.do("rename "+from+" "+p, func() { s.job.Rename(from, p) })
		}
	case 9:
		from, ok := s.pick(any2)
		if ok && s.view[p] != "" && !strings.HasPrefix(p+"/", from+"/") && !strings.HasPrefix(from+"/", p+"/") {
			s.do("exchange "+from+" "+p, func() { s.job.Exchange(from, p) })
		}
	case 10:
		if p, ok := s.pick(isFile); ok && s.rand.IntN(2) == 0 {
			s.do("fsync "+p, func() { s.job.Fsync(p) })
			s.synced = len(s.records())
		}
	case 11:
		if from, ok := s.pick(isFile); ok && s.view[p] == "" {
			s.do("link "+from+" "+p, func() { s.job.Link(from, p) })
		}
	}
}

func (s *script) do(what string, act func()) {
	s.did = append(s.did, what)
	act()
	s.look()
	s.track()
}

// track notes which upper files are copies that were not synced since. A new file is the Job's own, and
// what gets another name is synced by the overlay.
func (s *script) track() {
	op := strings.Fields(s.did[len(s.did)-1])
	now := map[uint64]bool{}
	s.eachUpper(func(p string, ino uint64) {
		copied, known := s.copies[ino]
		if !known {
			copied = op[0] != "write" || p != op[1]
		}
		if op[0] != "append" && op[0] != "write" && slices.Contains(op[1:], p) {
			copied = false
		}
		now[ino] = now[ino] || copied
	})
	s.copies = now
}

func (s *script) sync() {
	s.job.Sync()
	for ino := range s.copies {
		s.copies[ino] = false
	}
	s.synced = max(len(s.records())-1, 0) // the record that says so may be lost
}

// eachUpper calls f for every file in the upper.
func (s *script) eachUpper(f func(p string, ino uint64)) {
	s.t.Helper()
	top := filepath.Join(s.job.Store, "upper")
	err := filepath.WalkDir(top, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		var st unix.Stat_t
		rel, _ := filepath.Rel(top, p)
		err = unix.Lstat(p, &st)
		f(rel, st.Ino)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *script) paths() (list []string) {
	for p := range s.view {
		list = append(list, p)
	}
	return list
}

func (s *script) logPath() string { return filepath.Join(s.job.Store, "log") }

// records returns the raw records of the log.
func (s *script) records() (recs []json.RawMessage) {
	s.t.Helper()
	text, err := os.ReadFile(s.logPath())
	if err == nil {
		err = journal.Read(bytes.NewReader(text), overlay.LogKind, func(_ uint64, r json.RawMessage) error {
			recs = append(recs, slices.Clone(r))
			return nil
		})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return recs
}

// cutLog writes a log of the first n records, and some damage behind them.
func (s *script) cutLog(n int, path string) {
	s.t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	w, err := journal.Create(f, overlay.LogKind)
	for _, r := range s.records()[:n] {
		if err == nil {
			_, err = w.Append(r)
		}
	}
	if err == nil {
		off, _ := w.Position()
		_, err = f.WriteAt([][]byte{nil, make([]byte, 100), []byte("{\"n\":3,\"crc\":\"zzz\n")}[s.rand.IntN(3)], off)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		s.t.Fatal(err)
	}
}

// tear empties the copies that were not synced, as delayed allocation does.
func (s *script) tear() {
	s.t.Helper()
	s.eachUpper(func(p string, ino uint64) {
		if !s.copies[ino] {
			return
		}
		if err := os.Truncate(filepath.Join(s.job.Store, "upper", p), 0); err != nil {
			s.t.Fatal(err)
		}
	})
}

// upper is what the power loss left of the upper.
func (s *script) upper() string {
	if s.left != "" {
		return s.left
	}
	return filepath.Join(s.job.Store, "upper")
}

// reader reads the Job with another log, on another boot.
func (s *script) reader(log, what string) *staged.Reader {
	s.t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		s.t.Fatal(err)
	}
	low := stagedtest.OpenRoot(s.t, s.job.Lower)
	up := stagedtest.OpenRoot(s.t, s.upper())
	r, err := staged.Open(staged.Config{
		Lower: low, Upper: up, Log: bytes.NewReader(text), Boot: "another boot",
		Rootless: os.Geteuid() != 0, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	})
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	return r
}

// judge checks what a reader says after the power loss: what is told for sure was so once.
func (s *script) judge(log, what string) {
	s.t.Helper()
	r := s.reader(log, what)
	changes, err := r.Changes(s.t.Context())
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	for _, c := range changes {
		s.told[c.UnknownBase]++
		if err := s.sure(r, c); err != nil {
			s.t.Errorf("%s: %v\n%s", what, err, strings.Join(s.did, "\n"))
		}
	}
}

func (s *script) sure(r *staged.Reader, c tree.Change) error {
	v, err := r.Verdict(s.t.Context(), c)
	if err != nil {
		return err
	}
	if v.Verdict == tree.UnknownBase { // of a moved directory it may be that of where it came from
		return nil
	}
	if c.UnknownBase {
		return fmt.Errorf("%q: unknown base, verdict %v", c.Path, v.Verdict)
	}
	if c.RenameFrom == nil {
		now, err := r.StatBase(c.Path)
		if err != nil {
			return err
		}
		if now.Kind != c.Base.Kind || now.Kind != tree.Absent && !now.SameIdentity(c.Base) {
			return fmt.Errorf("%q: base %+v, the workspace has %+v", c.Path, c.Base, now)
		}
	}
	state := ""
	switch c.New.Kind {
	case tree.Absent:
	case tree.Dir:
		state = "dir"
	default:
		f, err := r.OpenNew(c.Path)
		if err != nil {
			return err
		}
		defer f.Close()
		b := make([]byte, c.New.Size)
		if _, err := f.ReadAt(b, 0); err != nil && c.New.Size > 0 {
			return err
		}
		state = "file " + string(b)
	}
	if c.Moved && c.RenameFrom != nil && !s.seen[c.RenameFrom.String()][""] {
		return fmt.Errorf("%q: moved from %q, which was never gone", c.Path, c.RenameFrom)
	}
	// Where the removal of a copy was lost the workspace's own file shows again, as if neither had been.
	if !s.seen[c.Path.String()][state] && !s.original[state] {
		return fmt.Errorf("%q: is said to be %q, which it never was", c.Path, state)
	}
	return nil
}

// resume cuts the log of a Job that has ended anywhere behind what was durable, and goes on with it on
// another boot: what was lost stays lost, and nothing that follows makes a wrong base of it.
func (s *script) resume(all int) {
	s.t.Helper()
	n := s.synced + s.rand.IntN(all-s.synced+1)
	cut := filepath.Join(s.job.Store, "cut")
	s.cutLog(n, cut)
	what := fmt.Sprintf("resumed behind %d of %d records: %s", n, all, strings.Join(s.did, ", "))
	before := s.changes(cut, what)
	if err := os.Rename(cut, s.logPath()); err != nil {
		s.t.Fatal(err)
	}
	s.job = stagedtest.ResumeJob(s.t, s.job.Lower, s.job.Store, "another boot")
	s.job.Seal()
	if after := s.changes(s.logPath(), what); !slices.Equal(before, after) {
		s.t.Errorf("%s: changes were\n%q, are\n%q", what, before, after)
	}
	s.job = stagedtest.ResumeJob(s.t, s.job.Lower, s.job.Store, "another boot")
	s.look()
	for range 10 {
		s.step()
	}
	s.job.Seal()
	s.judge(s.logPath(), what)
}

// changes returns the paths that a reader tells, those of unknown base marked.
func (s *script) changes(log, what string) (list []string) {
	s.t.Helper()
	r := s.reader(log, what)
	changes, err := r.Changes(s.t.Context())
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	for _, c := range changes {
		list = append(list, fmt.Sprint(c.Path, " ", c.UnknownBase))
	}
	return list
}

var powerSeeds = flag.Uint64("power-seeds", 12, "how many random Jobs lose their power")

// TestPowerLoss cuts the log of random Jobs behind every record that was not durable, while the upper
// has all that was done, copies without their content, and looks for what is told wrongly.
func TestPowerLoss(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		top := u.TempDir(t)
		u.Become(t)
		unix.Umask(0o022)
		cuts, told := 0, map[bool]int{}
		for seed := range *powerSeeds + 1 {
			if seed == *powerSeeds {
				seed = 98 // a copy in a directory moved to where another one was moved away from
			}
			s := powerScript(t, filepath.Join(top, fmt.Sprint(seed)), seed)
			all := len(s.records())
			s.tear()
			for n := s.synced; n <= all; n++ {
				cuts++
				log := filepath.Join(s.job.Store, "cut")
				s.cutLog(n, log)
				s.judge(log, fmt.Sprintf("seed %d, %d of %d records", seed, n, all))
			}
			s.job.Seal()
			s.resume(all)
			told[false] += s.told[false]
			told[true] += s.told[true]
			if t.Failed() {
				return
			}
		}
		t.Logf("%d cuts; changes told for sure: %d, of unknown base: %d", cuts, told[false], told[true])
		if told[false] == 0 || told[true] == 0 {
			t.Error("one of them should not be 0")
		}
	})
}

func powerScript(t *testing.T, dir string, seed uint64) *script {
	t.Helper()
	lower, store := filepath.Join(dir, "lower"), filepath.Join(dir, "store")
	for _, d := range []string{"a/b", "a/c", "b/a/d", "e"} {
		if err := os.MkdirAll(filepath.Join(lower, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"a/a", "a/b/a", "a/b/c", "b/a/a", "b/a/d/e", "b/c", "c", "d"} {
		if err := os.WriteFile(filepath.Join(lower, p), []byte("lower "+p), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(store, 0o755); err != nil {
		t.Fatal(err)
	}
	s := newScript(t, stagedtest.NewJob(t, lower, store), seed)
	before := s.rand.IntN(12)
	for range before {
		s.step()
	}
	if s.rand.IntN(3) > 0 {
		s.sync()
	}
	for range 2 + s.rand.IntN(12) {
		s.step()
	}
	return s
}

// TestPowerLossBehindTheLog cuts the log of random Jobs at every record, while the upper is as it was some
// operations before: records were durable, what they are about was not.
func TestPowerLossBehindTheLog(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Loop, testenv.Tool("mkfs.btrfs"), testenv.Tool("btrfs"))
	top := btrfs(t)
	cuts := 0
	for seed := range *powerSeeds {
		dir := filepath.Join(top, fmt.Sprint(seed))
		store := filepath.Join(dir, "store")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		run(t, "btrfs", "subvolume", "create", store)
		s := powerScript(t, dir, seed)
		// A snapshot has the inode numbers of the original.
		left := filepath.Join(dir, "left")
		run(t, "btrfs", "subvolume", "snapshot", store, left)
		s.left = filepath.Join(left, "upper")
		s.synced = len(s.records())
		for range 2 + s.rand.IntN(10) {
			s.step()
		}
		all := len(s.records())
		for n := s.synced; n <= all; n++ {
			cuts++
			log := filepath.Join(dir, "cut")
			s.cutLog(n, log)
			s.judge(log, fmt.Sprintf("seed %d, %d of %d records, the upper as of %d", seed, n, all, s.synced))
		}
		s.job.Seal()
		if t.Failed() {
			return
		}
	}
	t.Logf("%d cuts", cuts)
}

func btrfs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 300<<20), os.Mkdir(at, 0o755)); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.btrfs", image)
	run(t, "mount", "-o", "loop", image, at)
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Errorf("unmount %s: %v", at, err)
		}
	})
	return at
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}
