package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stage/bundle"
	"stage/fs/tree"
	"stage/test/testenv"
)

func TestFindByIDPrefixAndDirectory(t *testing.T) {
	w := newWorld(t)
	j := w.ended(t)
	id := string(j.ID())
	link := filepath.Join(w.dir, "link")
	if err := os.Symlink(j.Path(), link); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(w.store.Path(), jobsName))
	for _, ref := range []string{id, id[:6], id[:25], strings.ToUpper(id), j.Path(), j.Path() + "/", "./" + id, link, Last, ""} {
		if got := w.find(t, ref); got.ID() != j.ID() || got.Path() != j.Path() {
			t.Errorf("%q: found %s in %s", ref, got.ID(), got.Path())
		}
	}
	t.Chdir(j.Path())
	if got := w.find(t, "."); got.Path() != j.Path() {
		t.Errorf(". is %s", got.Path())
	}
	for _, ref := range []string{id[:5], "zzzzzz", id + "0", w.dir, "/nonexistent/job", "..", "läst", "%s"} {
		w.wantNone(t, ref, ErrNoJob)
	}
}

func TestAmbiguousPrefixNamesThem(t *testing.T) {
	w := newWorld(t)
	a, b := w.ended(t), w.ended(t)
	common := string(a.ID())[:6] // the same hour
	if !strings.HasPrefix(string(b.ID()), common) {
		t.Fatalf("ids %s and %s", a.ID(), b.ID())
	}
	w.wantNone(t, common, ErrAmbiguous)
	_, err := w.store.Find(common, w.workspace)
	if e := new(AmbiguousError); !errors.As(err, &e) || len(e.IDs) != 2 {
		t.Errorf("got %v", err)
	}
}

func TestLastIsTheNewestOfThisWorkspaceOnly(t *testing.T) {
	w := newWorld(t)
	w.wantNone(t, Last, ErrNoJob)
	other := makeWorkspace(t, filepath.Join(w.dir, "other"))
	var want *Job
	for range 3 {
		want = w.ended(t)
		j, err := w.store.Create(optionsFor(other))
		if err != nil {
			t.Fatal(err)
		}
		closeJob(t, j)
	}
	if got := w.find(t, Last); got.ID() != want.ID() {
		t.Errorf("last is %s, want %s", got.ID(), want.ID())
	}
	third := makeWorkspace(t, filepath.Join(w.dir, "third"))
	if j, err := w.store.Find(Last, third); !errors.Is(err, ErrNoJob) {
		t.Errorf("a workspace without jobs: got %v, %v", j, err)
	}
	list, err := w.store.List(Filter{Workspace: &w.workspace})
	if err != nil || len(list) != 3 || list[0].ID != want.ID() {
		t.Errorf("listed %d jobs, %v", len(list), err)
	}
	if list, err := w.store.List(Filter{}); err != nil || len(list) != 6 {
		t.Errorf("listed %d jobs of all workspaces, %v", len(list), err)
	}
}

func TestMovedWorkspaceGetsAHint(t *testing.T) {
	w := newWorld(t)
	j := w.ended(t)
	moved := w.workspace
	moved.Path = bundle.MustHostPath("/somewhere/else")
	replaced := w.workspace
	replaced.Ino++
	for name, c := range map[string]struct {
		w    bundle.Workspace
		hint string
	}{"moved": {moved, "moved here from"}, "replaced": {replaced, "another directory"}} {
		_, err := w.store.Find(Last, c.w)
		e := new(NoJobError)
		if !errors.As(err, &e) || !errors.Is(err, ErrNoJob) {
			t.Fatalf("%s: got %v", name, err)
		}
		if hint := e.Hint(); !strings.Contains(hint, c.hint) || !strings.Contains(hint, string(j.ID())) {
			t.Errorf("%s: hint is %q", name, hint)
		}
	}
	stranger := bundle.Workspace{Path: bundle.MustHostPath("/x"), Dev: 1, Ino: 1}
	_, err := w.store.Find(Last, stranger)
	if e := new(NoJobError); !errors.As(err, &e) || len(e.Moved) != 0 || strings.Contains(e.Hint(), string(j.ID())) {
		t.Errorf("a workspace never seen: %v", err)
	}
}

func TestJobElsewhere(t *testing.T) {
	for name, prepare := range map[string]func(string) error{
		"absent": func(string) error { return nil },
		"empty":  func(dir string) error { return os.Mkdir(dir, 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			o := optionsFor(w.workspace)
			o.Dir = filepath.Join(w.dir, "job")
			if err := prepare(o.Dir); err != nil {
				t.Fatal(err)
			}
			j, err := w.store.Create(o)
			if err != nil {
				t.Fatal(err)
			}
			wantStatus(t, j, Live)
			if j.Path() != o.Dir {
				t.Errorf("job lies in %s", j.Path())
			}
			if err := j.Seal(endedBundle(j.Run(), bundle.SealedByRun)); err != nil {
				t.Fatal(err)
			}
			closeJob(t, j)
			checkModes(t, o.Dir)
			for _, ref := range []string{o.Dir, string(j.ID()), string(j.ID())[:8]} {
				if got := w.find(t, ref); got.ID() != j.ID() {
					t.Errorf("%q is %s", ref, got.ID())
				}
			}
			w.wantNone(t, Last, ErrNoJob)
			if list, err := w.store.List(Filter{}); err != nil || len(list) != 0 {
				t.Errorf("listed %d jobs, %v", len(list), err)
			}
			again := w.find(t, o.Dir)
			if err := again.Lock(); err != nil {
				t.Fatal(err)
			}
			if err := again.Remove(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(o.Dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the directory is still there: %v", err)
			}
			w.wantNone(t, string(j.ID()), ErrNoJob)
		})
	}
}

func TestJobElsewhereTakesOnlyAnEmptyDirectory(t *testing.T) {
	w := newWorld(t)
	o := optionsFor(w.workspace)
	o.Dir = filepath.Join(w.dir, "full")
	if err := os.MkdirAll(filepath.Join(o.Dir, "mine"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Create(o); err == nil {
		t.Error("a directory with content was taken")
	}
	if _, err := os.Stat(filepath.Join(o.Dir, "mine")); err != nil {
		t.Error(err)
	}
}

func TestJobElsewhereThatIsGone(t *testing.T) {
	w := newWorld(t)
	o := optionsFor(w.workspace)
	o.Dir = filepath.Join(w.dir, "job")
	j, err := w.store.Create(o)
	if err != nil {
		t.Fatal(err)
	}
	closeJob(t, j)
	if err := os.RemoveAll(o.Dir); err != nil {
		t.Fatal(err)
	}
	w.wantNone(t, string(j.ID()), ErrNoJob)
	if _, err := w.store.Create(o); err != nil { // another Job in its place
		t.Fatal(err)
	}
	w.wantNone(t, string(j.ID()), ErrNoJob)
}

func TestJobDirectoryOfAnotherUserIsRefused(t *testing.T) {
	testenv.Need(t, testenv.Root)
	w := newWorld(t)
	o := optionsFor(w.workspace)
	o.Dir = filepath.Join(w.dir, "job")
	j, err := w.store.Create(o)
	if err != nil {
		t.Fatal(err)
	}
	closeJob(t, j)
	if err := os.Chown(o.Dir, 1, 1); err != nil {
		t.Fatal(err)
	}
	w.wantNone(t, o.Dir, fs.ErrPermission)
}

func TestIndexIsOnlyACache(t *testing.T) {
	w := newWorld(t)
	var ids []bundle.ID
	for range 3 {
		ids = append(ids, w.ended(t).ID())
	}
	index := filepath.Join(w.store.Path(), indexName)
	check := func(name string) {
		t.Helper()
		list, err := w.store.List(Filter{Workspace: &w.workspace})
		if err != nil || len(list) != len(ids) || list[0].ID != ids[len(ids)-1] {
			t.Errorf("%s: listed %d jobs, %v", name, len(list), err)
		}
		if known, err := w.store.readIndex(); err != nil || len(known) < len(ids) {
			t.Errorf("%s: index knows %d jobs, %v", name, len(known), err)
		}
	}
	check("no index")
	text, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(text); n += 7 {
		flipped := append([]byte{}, text...)
		flipped[n] ^= 1
		if err := os.WriteFile(index, flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprintf("bit flipped at %d", n))
	}
	for n := 0; n < len(text); n += 11 {
		if err := os.WriteFile(index, text[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprintf("cut at %d", n))
	}
	gone := Ref{ID: "7zzzzzzzzzzzzzzzzzzzzzzzzz", Workspace: w.workspace, Created: 1 << 62}
	if err := os.WriteFile(index, appendRef(text, gone), 0o600); err != nil {
		t.Fatal(err)
	}
	check("a job that is not there")
	ids = append(ids, w.ended(t).ID())
	check("a job more")
	if err := os.Remove(index); err != nil {
		t.Fatal(err)
	}
	check("deleted")
}

func TestIndexThatCannotBeWrittenCostsOnlyTime(t *testing.T) {
	w := newWorld(t)
	id := w.ended(t).ID()
	if err := os.Mkdir(filepath.Join(w.store.Path(), indexName), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.List(Filter{}); err == nil {
		t.Error("an index that is a directory went unnoticed")
	}
	if err := os.Remove(filepath.Join(w.store.Path(), indexName)); err != nil {
		t.Fatal(err)
	}
	f := &failing{crash: true}
	s := w.faulty(t, f.op)
	f.armed = true
	if list, err := s.List(Filter{}); err != nil || len(list) != 1 || list[0].ID != id {
		t.Errorf("listed %+v, %v", list, err)
	}
}

func TestSameInstantIsOrderedByID(t *testing.T) {
	a := Ref{ID: "01jz4q8k2v6w9xf3h5n7p1rtaa", Created: 5}
	b := Ref{ID: "01jz4q8k2v6w9xf3h5n7p1rtab", Created: 5}
	c := Ref{ID: "01jz4q8k2v6w9xf3h5n7p1rta0", Created: 6}
	got := sorted(map[bundle.ID]Ref{a.ID: a, b.ID: b, c.ID: c})
	if got[0] != a || got[1] != b || got[2] != c {
		t.Errorf("got %v", got)
	}
}

func FuzzParseIndex(f *testing.F) {
	w := bundle.Workspace{Path: bundle.MustHostPath("/w \xff\t\n\""), Dev: 1<<64 - 1, Ino: 2}
	f.Add(appendRef([]byte(indexHeader), Ref{ID: "01jz4q8k2v6w9xf3h5n7p1rtaa", Workspace: w, Created: -5}))
	f.Add([]byte(indexHeader))
	f.Fuzz(func(t *testing.T, data []byte) {
		refs, err := parseIndex(data)
		if err != nil {
			return
		}
		text := []byte(indexHeader)
		for _, r := range sorted(refs) {
			text = appendRef(text, r)
		}
		again, err := parseIndex(text)
		if err != nil || len(again) != len(refs) {
			t.Fatalf("%d refs become %d: %v", len(refs), len(again), err)
		}
		for id, r := range refs {
			if again[id] != r {
				t.Fatalf("%v becomes %v", r, again[id])
			}
		}
	})
}

// FuzzRunRecord feeds run.json of a Job in a store: it is read whole or refused, and never makes the
// store answer for another id.
func FuzzRunRecord(f *testing.F) {
	w := newWorld(f)
	j := w.ended(f)
	file := filepath.Join(j.Path(), runName)
	text, err := os.ReadFile(file)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(strings.Replace(string(text), `"ended"`, `"running"`, 1)))
	f.Add([]byte(strings.Replace(string(text), string(j.ID()), string(j.Run().Session), 1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := w.store.Find(string(j.ID()), w.workspace)
		if err != nil {
			return
		}
		defer got.Close()
		if got.ID() != j.ID() {
			t.Fatalf("job %s says it is %s", j.ID(), got.ID())
		}
	})
}

// BenchmarkTenThousandJobs measures what `last` and `jobs` cost in a store of 10,000 Jobs.
func BenchmarkTenThousandJobs(b *testing.B) {
	const jobs = 10_000
	w := newWorld(b)
	other := makeWorkspace(b, filepath.Join(w.dir, "other"))
	r, err := w.store.newRun(optionsFor(other))
	if err != nil {
		b.Fatal(err)
	}
	r.StorePath, r.State, r.EndedAt = w.workspace.Path, bundle.Ended, &r.CreatedAt
	for i := range jobs {
		if i == jobs-20 {
			r.Workspace = w.workspace
		}
		if r.Job, err = NewID(); err != nil {
			b.Fatal(err)
		}
		r.CreatedAt = tree.Time(i)
		text, err := bundle.Encode(r)
		if err != nil {
			b.Fatal(err)
		}
		dir := filepath.Join(w.store.Path(), jobsName, string(r.Job))
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, runName), text, 0o600)); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("rebuild", func(b *testing.B) {
		for b.Loop() {
			if err := os.Remove(filepath.Join(w.store.Path(), indexName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				b.Fatal(err)
			}
			if _, _, err := w.store.Refs(Filter{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("last", func(b *testing.B) {
		for b.Loop() {
			j, err := w.store.Find(Last, w.workspace)
			if err != nil {
				b.Fatal(err)
			}
			j.Close()
		}
	})
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			list, err := w.store.List(Filter{Workspace: &w.workspace})
			if err != nil || len(list) != 20 {
				b.Fatalf("%d jobs, %v", len(list), err)
			}
		}
	})
	b.Run("list all", func(b *testing.B) {
		for b.Loop() {
			list, err := w.store.List(Filter{})
			if err != nil || len(list) != jobs {
				b.Fatalf("%d jobs, %v", len(list), err)
			}
		}
	})
}
