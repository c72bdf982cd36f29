package overlay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/fs/hostfs"
	"stage/fs/tree"
	"stage/journal"
)

// compacting makes j write its log anew.
func (j *job) compacting() {
	j.t.Helper()
	d, err := hostfs.OpenRoot(j.dir)
	j.must(err)
	j.t.Cleanup(func() { d.Close() })
	j.logs = d
}

// sameState compares what two states say, whatever the numbers of their records.
func sameStates(a, b *State) bool {
	return reflect.DeepEqual(a.Bases, b.Bases) && sameMarks(a, a.Root, b, b.Root) && a.boot == b.boot && (a.copies == b.copies || len(b.Root.Children) == 0)
}

func sameMarks(sa *State, a *Mark, sb *State, b *Mark) bool {
	if a == nil {
		a = &Mark{}
	}
	if b == nil {
		b = &Mark{}
	}
	names := map[string]bool{}
	for name := range a.Children {
		names[name] = true
	}
	for name := range b.Children {
		names[name] = true
	}
	for name := range names {
		if !sameMarks(sa, a.Children[name], sb, b.Children[name]) {
			return false
		}
	}
	if a.fresh > sa.synced != (b.fresh > sb.synced) {
		return false
	}
	x, y := *a, *b
	x.Children, y.Children, x.fresh, y.fresh = nil, nil, 0, 0
	if len(x.White) == 0 && len(y.White) == 0 {
		x.White, y.White = nil, nil
	}
	return reflect.DeepEqual(x, y)
}

// randomRecord returns a record as some Job might write it; sense it need not make.
func randomRecord(r *rand.Rand, n uint64) Record {
	p := func() tree.Path {
		list := []string{"a", "b", "a/a", "a/b", "b/a", "b/a/c", "d"}
		return path(list[r.IntN(len(list))])
	}
	to := p()
	node := &tree.Node{Kind: []tree.Kind{tree.Absent, tree.File, tree.Dir}[r.IntN(3)], Ino: r.Uint64N(5), Nlink: 2}
	ops := []Record{
		{Op: OpBase, Path: p(), Node: node, Subtree: r.IntN(2) == 0, Time: tree.Time(r.IntN(9))},
		{Op: OpBase, Path: p(), Lost: true}, {Op: OpWhite, Path: p()}, {Op: OpOpaque, Path: p()},
		{Op: OpLower, Path: p(), Lower: &to}, {Op: OpMove, Path: p(), To: &to}, {Op: OpSwap, Path: p(), To: &to},
		{Op: OpDrop, Path: p()}, {Op: OpTimes, Path: p()}, {Op: OpLink, Path: p(), Node: node},
		{Op: OpCopy, Path: p(), Ino: 1 + r.Uint64N(5)}, {Op: OpDir, Path: p(), Ino: r.Uint64N(5), Time: 7},
		{Op: OpSynced, N: max(n, 3) - 2}, {Op: OpSynced, Path: p()}, {Op: OpLost, Path: p(), Subtree: r.IntN(2) == 0},
		{Op: OpOpen, Boot: fmt.Sprint(r.IntN(3))},
	}
	return ops[r.IntN(len(ops))]
}

func TestRecordsReplayToTheSameState(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := NewState()
		var did []Record
		for n := range 1 + r.Uint64N(40) {
			rec := randomRecord(r, n)
			if contains(rec) {
				continue
			}
			did = append(did, rec)
			s.n = uint64(len(did))
			if err := s.Apply(rec); err != nil {
				t.Fatal(err)
			}
		}
		again := NewState()
		recs := s.Records()
		for _, rec := range recs {
			again.n++
			if err := again.Apply(rec); err != nil {
				t.Fatal(err)
			}
		}
		if !sameStates(s, again) {
			t.Fatalf("seed %d: records %+v\nof a state after %+v\nreplay to another one", seed, recs, did)
		}
	}
}

// contains reports whether r moves a directory into itself, or something onto what is above it: no rename(2) does.
func contains(r Record) bool {
	return r.To != nil && (r.Path.Contains(*r.To) || r.To.Contains(r.Path))
}

// churn replaces a file n times the way editors and git do.
func (j *job) churn(n int) {
	j.t.Helper()
	for range n {
		j.create("index.lock", "new")
		j.must(j.rename("index.lock", "index", 0))
	}
}

func TestLogIsWrittenAnewWhileInUse(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.compacting()
		j.put("index", "old")
		j.put("d/x", "1")
		j.put("d/y", "2")
		j.open()
		j.write(j.mustID("d/x"), "3")
		j.must(j.rename("d", "e", 0))
		j.churn(500)
		want := j.state()
		before := len(j.records())
		done, err := j.fs.compact(100)
		if err != nil || !done {
			t.Fatalf("compact: got %v, %v", done, err)
		}
		if n := len(j.records()); n >= before/10 {
			t.Errorf("got %d records of %d", n, before)
		}
		if got := j.state(); !sameStates(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		j.write(j.mustID("e/y"), "4") // goes on in the new log
		j.churn(10)
		j.reopen()
		j.wantRead("e/x", "3")
		j.wantRead("e/y", "4")
		j.wantRead("index", "new")
		j.wantLs(".", "e", "index")
	})
}

func TestLogIsWrittenAnewAtCloseAndOpen(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("index", "old")
		j.open()
		j.churn(compactClosed)
		j.close()
		if n := len(j.records()); n < compactClosed {
			t.Fatalf("got %d records", n)
		}
		j.compacting()
		j.open()
		if n := len(j.records()); n > 20 {
			t.Errorf("opened: got %d records", n)
		}
		j.churn(compactClosed)
		j.close()
		if n := len(j.records()); n > 20 {
			t.Errorf("closed: got %d records", n)
		}
		j.open()
		j.wantRead("index", "new")
	})
}

var errFault = errors.New("no more")

// TestRewriteIsAllOrNothing fails the n-th operation of writing a log anew, and stops there as a killed
// process does: the log says the same before and after.
func TestRewriteIsAllOrNothing(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.compacting()
		j.put("index", "old")
		j.put("d/x", "1")
		done := false
		for n := 0; !done; n++ {
			j.open()
			j.write(j.mustID("d/x"), fmt.Sprint(n))
			j.churn(20)
			want := j.state()
			left := n
			j.fs.cfg.LogDir = hostfs.NewFault(j.logs, func(string) error {
				if left--; left < 0 {
					return errFault
				}
				return nil
			})
			var err error
			if done, err = j.fs.compact(10); !done && !errors.Is(err, errFault) {
				t.Fatalf("operation %d: %v", n, err)
			}
			if got := j.state(); !sameStates(got, want) {
				t.Fatalf("operation %d: got %+v, want %+v", n, got, want)
			}
			j.kill()
			j.open()
			j.wantRead("d/x", fmt.Sprint(n))
			j.wantRead("index", "new")
			j.close()
			if t.Failed() {
				return
			}
		}
	})
}

// kill ends the overlay without a word in its log: as its process would be at its death.
func (j *job) kill() {
	j.t.Helper()
	text, err := os.ReadFile(filepath.Join(j.dir, "log"))
	j.must(err)
	_ = j.fs.Close() // may say again what failed
	j.must(errors.Join(j.upper.Close(), j.lower.Close()))
	j.must(os.WriteFile(filepath.Join(j.dir, "log"), text, 0o600))
	j.fs = nil
}

func TestReadersOfALogThatIsWrittenAnew(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.compacting()
		j.put("index", "old")
		j.open()
		stop, done := make(chan struct{}), make(chan error)
		go func() {
			for {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				f, err := os.Open(filepath.Join(j.dir, "log"))
				if err == nil {
					err = journal.Read(f, LogKind, NewState().Replay())
					f.Close()
				}
				if err != nil {
					done <- err
					return
				}
			}
		}()
		for range 30 {
			j.churn(20)
			_, err := j.fs.compact(10)
			j.must(err)
		}
		close(stop)
		j.must(<-done)
	})
}

// TestPauseOfARewrite holds the tree lock for the tail of the log alone.
func TestPauseOfARewrite(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.compacting()
		j.put("index", "old")
		j.open()
		const n = 30_000
		var recs []Record
		for i := range n {
			p := tree.MustParsePath(fmt.Sprint("f", i%1000))
			recs = append(recs, Record{Op: OpMove, Path: path("tmp"), To: &p, Ino: uint64(i)})
		}
		for chunk := range slices.Chunk(recs, appendChunk) {
			j.must(appendAll(j.fs.log, chunk))
		}
		longest := make(chan time.Duration)
		stop := make(chan struct{})
		go func() {
			var worst time.Duration
			for {
				select {
				case <-stop:
					longest <- worst
					return
				default:
					begin := time.Now()
					j.fs.mu.Lock()
					j.fs.mu.Unlock()
					worst = max(worst, time.Since(begin))
				}
			}
		}()
		begin := time.Now()
		done, err := j.fs.compact(10)
		took := time.Since(begin)
		close(stop)
		t.Logf("%d records written anew: %v, in %v, the tree held for at most %v", n, done, took, <-longest)
		j.must(err)
	})
}

func BenchmarkReplay100k(b *testing.B) {
	name := filepath.Join(b.TempDir(), "log")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	w, err := journal.Create(f, LogKind)
	if err != nil {
		b.Fatal(err)
	}
	var recs []Record
	for i := range 50_000 {
		p := tree.MustParsePath(fmt.Sprintf("some/directory%d/file%d.go", i%500, i))
		node := &tree.Node{Kind: tree.File, Mode: 0o644, Size: 4711, Mtime: 1700000000123456789, Ctime: 1700000000123456789, Dev: 64512, Ino: uint64(i), Nlink: 1}
		recs = append(recs, Record{Op: OpCopy, Path: p, Ino: uint64(i)}, Record{Op: OpBase, Path: p, Node: node})
	}
	for chunk := range slices.Chunk(recs, appendChunk) {
		if err := appendAll(w, chunk); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		f, err := os.Open(name)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := LoadState(f); err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

func TestInodeNumbersSurviveRenameAndReopen(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("f", "1")
		j.put("d/x", "2")
		j.put("d/sub/y", "3")
		j.put("gone", "4")
		j.put("l1", "5")
		j.must(os.Link(j.low("l1"), j.low("l2")))
		j.must(os.Symlink("t", j.low("s")))
		j.open()
		want := map[string]uint64{}
		for to, from := range map[string]string{
			"g": "f", "e": "d", "e/x": "d/x", "e/sub": "d/sub", "e/sub/y": "d/sub/y", "l3": "l1", "l2": "l2", "s2": "s",
		} {
			want[to] = j.stat(from).Ino
		}
		for _, p := range []string{"d/x", "d/sub/y", "l1"} {
			j.write(j.mustID(p), "changed")
		}
		for _, m := range [][2]string{{"f", "t"}, {"t", "g"}, {"d", "u"}, {"u", "e"}, {"l1", "l3"}, {"s", "s2"}} {
			j.must(j.rename(m[0], m[1], 0))
		}
		// What the Job puts where the workspace had something is another file, and stays it.
		j.unlink("gone")
		j.create("gone", "anew")
		want["gone"] = j.stat("gone").Ino
		j.create("tmp", "replaces")
		want["e/x"] = j.stat("tmp").Ino
		j.must(j.rename("tmp", "e/x", 0))
		j.must(j.rename("g", "e/sub", unix.RENAME_EXCHANGE))
		want["g"], want["e/sub"], want["g/y"] = want["e/sub"], want["g"], want["e/sub/y"]
		delete(want, "e/sub/y")
		for range 3 {
			for p, ino := range want {
				if got := j.stat(p).Ino; got != ino {
					t.Errorf("%s: got inode %d, want %d", p, got, ino)
				}
			}
			j.reopen()
		}
	})
}

// TestFrozenLog reads a change log that an earlier stage wrote. It is never written anew.
func TestFrozenLog(t *testing.T) {
	f, err := os.Open("testdata/v1.log")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := LoadState(f)
	if err != nil {
		t.Fatal(err)
	}
	base := s.Bases[path("f")].Node
	moved, dir := s.Lookup(path("f2")), s.Lookup(path("e"))
	switch {
	case s.Unsure("another boot") || !s.copies || !s.HasRoot():
		t.Error("was closed, and tells copies")
	case base.Kind != tree.File || base.Size != 5 || base.Digest != digest("hello") || string(base.Xattrs["user.x"]) != "y":
		t.Errorf("base of f: %+v", base)
	case moved == nil || !moved.Times || moved.Shown != 12 || moved.Link == nil || moved.From == nil || *moved.From != path("f"):
		t.Errorf("f2: %+v", moved)
	case dir == nil || dir.Lower == nil || *dir.Lower != path("d") || *dir.Dir != DirID{100, 1700000000000000004}:
		t.Errorf("e: %+v", dir)
	case !s.Bases[path("d")].Subtree || s.Bases[path("d")].Time != 1700000000000000003:
		t.Errorf("base of d: %+v", s.Bases[path("d")])
	case !s.Lookup(path("new")).Opaque || !s.Root.White["f"] || !s.Root.White["d"]:
		t.Errorf("root: %+v", s.Root)
	case !s.Bases[path("l")].Lost || !s.Lookup(path("l")).LostTree || *s.Lookup(path("g")).From != path("h"):
		t.Errorf("l: %+v", s.Lookup(path("l")))
	}
}
