package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// memFile is a File in memory. It reads from its start, like a file just opened.
type memFile struct {
	mu     sync.Mutex
	data   []byte
	off    int
	syncs  int
	fail   error // of the next write or sync
	short  bool  // the failing write writes half
	closed bool
}

func (f *memFile) Read(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.off == len(f.data) {
		return 0, io.EOF
	}
	n := copy(b, f.data[f.off:])
	f.off += n
	return n, nil
}

func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.fail
	if err != nil {
		if !f.short {
			return 0, err
		}
		b = b[:len(b)/2]
	}
	if end := int(off) + len(b); end > len(f.data) {
		f.data = append(f.data, make([]byte, end-len(f.data))...)
	}
	return copy(f.data[off:], b), err
}

func (f *memFile) Truncate(size int64) error {
	f.data = f.data[:size]
	return nil
}

func (f *memFile) Sync() error {
	f.syncs++
	return f.fail
}

func (f *memFile) Close() error {
	f.closed = true
	return nil
}

type rec struct {
	Name string `json:"name"`
	N    int    `json:"n"`
}

func create(t *testing.T, f File, recs ...any) *Writer {
	t.Helper()
	w, err := Create(f, "test")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recs {
		if _, err := w.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// collect returns a replay func and what it was given.
func collect() (func(uint64, json.RawMessage) error, *[]string) {
	var got []string
	return func(n uint64, r json.RawMessage) error {
		got = append(got, fmt.Sprintf("%d %s", n, r))
		return nil
	}, &got
}

func readAll(data []byte) ([]string, error) {
	replay, got := collect()
	err := Read(bytes.NewReader(data), "test", replay)
	return *got, err
}

var three = []any{rec{"a", 1}, rec{"<&>\u2028\"", 2}, map[string]any{}}

func TestAppendedRecordsAreReadInOrder(t *testing.T) {
	f := &memFile{}
	create(t, f, three...)
	got, err := readAll(f.data)
	want := []string{`1 {"name":"a","n":1}`, `2 {"name":"\u003c\u0026\u003e\u2028\"","n":2}`, `3 {}`}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestAppendOfSeveralIsOneWrite(t *testing.T) {
	f := &memFile{}
	w := create(t, f)
	n, err := w.Append(rec{"a", 1}, rec{"b", 2})
	if err != nil || n != 2 {
		t.Fatalf("got %d, %v", n, err)
	}
	if _, err := w.Append(rec{"c", 3}, make(chan int)); err == nil {
		t.Error("a record that is no JSON was taken")
	}
	if n, err = w.Append(rec{"d", 4}); err != nil || n != 3 {
		t.Errorf("after a refused batch: got %d, %v, want record 3", n, err)
	}
	got, err := readAll(f.data)
	if err != nil || len(got) != 3 || !strings.Contains(got[2], `"d"`) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestV1FilesAreReadForEver(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "v1", "three.log"))
	if err != nil {
		t.Fatal(err)
	}
	f := &memFile{}
	create(t, f, three...)
	if !bytes.Equal(f.data, data) {
		t.Errorf("the writer writes another form now:\n%s", f.data)
	}
	if got, err := readAll(data); err != nil || len(got) != 3 {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestEveryTornEndIsCut(t *testing.T) {
	whole := &memFile{}
	create(t, whole, three...)
	head := bytes.IndexByte(whole.data, '\n') + 1
	for size := range len(whole.data) + 1 {
		torn := &memFile{data: slices.Clone(whole.data[:size])}
		replay, got := collect()
		w, err := Open(torn, "test", replay)
		if size < head {
			if !errors.Is(err, ErrCorrupt) || !errors.Is(err, ErrNoHeader) {
				t.Errorf("%d bytes: got %v, want ErrNoHeader", size, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if want := bytes.Count(whole.data[head:size], []byte("\n")); len(*got) != want {
			t.Errorf("%d bytes: %d records, want %d", size, len(*got), want)
		}
		if _, err := w.Append(rec{"new", 9}); err != nil {
			t.Fatal(err)
		}
		again, err := readAll(torn.data)
		if err != nil || len(again) != len(*got)+1 || !strings.Contains(again[len(again)-1], `"new"`) {
			t.Errorf("%d bytes: after an append: %q, %v", size, again, err)
		}
	}
}

func TestEveryFlippedByteIsNoticed(t *testing.T) {
	whole := &memFile{}
	create(t, whole, three...)
	before, _ := readAll(whole.data)
	for i := range whole.data {
		for _, flip := range []byte{0x01, 0x20, 0x80} {
			data := slices.Clone(whole.data)
			data[i] ^= flip
			got, err := readAll(data)
			switch {
			case errors.Is(err, ErrCorrupt), errors.Is(err, ErrVersion), errors.Is(err, ErrKind):
			case err == nil && i == len(data)-1: // the last newline: an unfinished line
			default:
				t.Fatalf("byte %d ^ %#x: got %v", i, flip, err)
			}
			if len(got) > len(before) || !slices.Equal(got, before[:len(got)]) {
				t.Errorf("byte %d ^ %#x: replayed %q", i, flip, got)
			}
		}
	}
}

func TestDamageIsNeverCut(t *testing.T) {
	f := &memFile{}
	create(t, f, three...)
	f.data[len(f.data)-4] ^= 1 // in the last, complete line
	before := slices.Clone(f.data)
	if _, err := Open(f, "test", func(uint64, json.RawMessage) error { return nil }); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v, want ErrCorrupt", err)
	}
	if !bytes.Equal(f.data, before) {
		t.Error("the file was changed")
	}
}

func TestLinesOfAnotherFormAreDamage(t *testing.T) {
	f := &memFile{}
	create(t, f, rec{"a", 1})
	good := string(f.data)
	for name, bad := range map[string]string{
		"text behind a line":    strings.Replace(good, "}}\n", "}} x\n", 1),
		"a second value":        strings.Replace(good, "}}\n", "}}{}\n", 1),
		"a space":               strings.Replace(good, `"n":1,"crc"`, `"n": 1,"crc"`, 1),
		"a record left out":     strings.Replace(good, `"n":1,"crc"`, `"n":2,"crc"`, 1),
		"an empty line":         strings.Replace(good, "\n", "\n\n", 1),
		"a header with more":    strings.Replace(good, `"kind":"test"`, `"kind":"test","x":1`, 1),
		"a header of version 0": strings.Replace(good, `"version":1`, `"version":0`, 1),
		"no header":             good[strings.Index(good, "\n")+1:],
	} {
		if got, err := readAll([]byte(bad)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: got %q, %v, want ErrCorrupt", name, got, err)
		}
	}
}

func TestNewerVersionsAreRefused(t *testing.T) {
	if _, err := readAll([]byte(`{"version":2,"shape":["unknown"]}` + "\n")); !errors.Is(err, ErrVersion) {
		t.Errorf("got %v, want ErrVersion", err)
	}
}

func TestOtherKindsAreRefused(t *testing.T) {
	f := &memFile{}
	create(t, f)
	if err := Read(bytes.NewReader(f.data), "ledger", nil); !errors.Is(err, ErrKind) {
		t.Errorf("got %v, want ErrKind", err)
	}
}

func TestErrorOfReplayEndsReading(t *testing.T) {
	f := &memFile{}
	create(t, f, three...)
	stop := errors.New("stop")
	calls := 0
	err := Read(bytes.NewReader(f.data), "test", func(uint64, json.RawMessage) error { calls++; return stop })
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("got %v after %d records", err, calls)
	}
}

func TestWriterRefusesAllAfterAFailedWrite(t *testing.T) {
	for _, short := range []bool{false, true} {
		f := &memFile{}
		w := create(t, f, rec{"a", 1})
		f.fail, f.short = errors.New("disk full"), short
		if _, err := w.Append(rec{"b", 2}); !errors.Is(err, f.fail) {
			t.Errorf("got %v", err)
		}
		f.fail = nil
		if _, err := w.Append(rec{"c", 3}); err == nil {
			t.Error("a write after a failed one went through")
		}
		if err := w.Sync(); err == nil {
			t.Error("a sync after a failed write went through")
		}
		if got, err := readAll(f.data); err != nil || len(got) != 1 {
			t.Errorf("got %q, %v, want the record before", got, err)
		}
	}
}

func TestWriterRefusesAllAfterAFailedSync(t *testing.T) {
	// What a failed fsync left on disk nobody knows, and a second one would say it is all right.
	f := &memFile{}
	w := create(t, f, rec{"a", 1})
	f.fail = errors.New("I/O error")
	if err := w.Sync(); !errors.Is(err, f.fail) {
		t.Errorf("got %v", err)
	}
	f.fail = nil
	if err := w.Sync(); err == nil {
		t.Error("a later sync went through")
	}
	if _, err := w.Append(rec{"b", 2}); err == nil {
		t.Error("a later append went through")
	}
}

func TestSyncCostsNothingWithoutNewRecords(t *testing.T) {
	f := &memFile{}
	w := create(t, f, rec{"a", 1})
	for range 3 {
		if err := w.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if f.syncs != 1 {
		t.Errorf("%d syncs, want 1", f.syncs)
	}
	if _, err := w.Append(rec{"b", 2}); err != nil {
		t.Fatal(err)
	}
	if err := w.Sync(); err != nil || f.syncs != 2 {
		t.Errorf("%d syncs, %v, want 2", f.syncs, err)
	}
}

func TestClosedWriterRefuses(t *testing.T) {
	f := &memFile{}
	w := create(t, f)
	if err := w.Close(); err != nil || !f.closed {
		t.Errorf("got %v", err)
	}
	if _, err := w.Append(rec{}); err == nil {
		t.Error("append after close went through")
	}
}

func TestSeveralGoroutinesAppend(t *testing.T) {
	f := &memFile{}
	w := create(t, f)
	const writers, each = 8, 50
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for j := range each {
				if _, err := w.Append(rec{"x", i*each + j}, rec{"y", 0}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got, err := readAll(f.data)
	if err != nil || len(got) != 2*writers*each {
		t.Errorf("%d records, %v, want %d", len(got), err, 2*writers*each)
	}
}

func TestJournalOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	w := create(t, f, three...)
	if err := errors.Join(w.Sync(), w.Close()); err != nil {
		t.Fatal(err)
	}
	for want := len(three); want < len(three)+3; want++ {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		replay, got := collect()
		w, err := Open(f, "test", replay)
		if err != nil || len(*got) != want {
			t.Fatalf("got %q, %v, want %d records", *got, err, want)
		}
		n, err := w.Append(rec{"more", want})
		if err != nil || n != uint64(want+1) {
			t.Errorf("got record %d, %v", n, err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzRead(f *testing.F) {
	m := &memFile{}
	w, err := Create(m, "test")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(slices.Clone(m.data))
	if _, err := w.Append(three...); err != nil {
		f.Fatal(err)
	}
	f.Add(slices.Clone(m.data))
	f.Add(slices.Clone(m.data[:len(m.data)-3]))
	f.Fuzz(func(t *testing.T, data []byte) {
		replay, got := collect()
		file := &memFile{data: slices.Clone(data)}
		w, err := Open(file, "test", replay)
		if err != nil {
			return
		}
		if !bytes.HasPrefix(data, file.data) {
			t.Fatal("opening changed more than the end")
		}
		if _, err := w.Append(rec{"new", 1}); err != nil {
			t.Fatal(err)
		}
		again, err := readAll(file.data)
		if err != nil || len(again) != len(*got)+1 || !slices.Equal(again[:len(*got)], *got) {
			t.Errorf("got %q then %q, %v", *got, again, err)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	f, err := os.OpenFile(filepath.Join(b.TempDir(), "log"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	w, err := Create(f, "bench")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := w.Append(rec{"some/path/of/a/file.go", 1}); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}

// TestSwitchToAMirror: what is appended and synced while another journal takes over is in both.
func TestSwitchToAMirror(t *testing.T) {
	old, anew := &memFile{}, &memFile{}
	w, err := Create(old, "k")
	if err != nil {
		t.Fatal(err)
	}
	append1 := func(r string) {
		t.Helper()
		if _, err := w.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	append1("a")
	append1("b")
	to, err := Create(anew, "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := to.Append("a and b"); err != nil {
		t.Fatal(err)
	}
	w.Mirror(to)
	append1("c")
	before := anew.syncs
	if err := w.Sync(); err != nil || anew.syncs == before {
		t.Errorf("sync: %v, %d of the mirror", err, anew.syncs-before)
	}
	if err := w.Switch(); err != nil || !old.closed {
		t.Errorf("switch: %v, closed %v", err, old.closed)
	}
	append1("d")
	for f, want := range map[*memFile][]string{old: {`"a"`, `"b"`, `"c"`}, anew: {`"a and b"`, `"c"`, `"d"`}} {
		var got []string
		err := Read(f, "k", func(_ uint64, r json.RawMessage) error {
			got = append(got, string(r))
			return nil
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	anew.fail = errors.New("full")
	if _, err := w.Append("e"); !errors.Is(err, anew.fail) {
		t.Errorf("append: got %v", err)
	}
}

// TestMirrorThatFails: a record that is not in both is not recorded.
func TestMirrorThatFails(t *testing.T) {
	anew := &memFile{}
	w, err := Create(&memFile{}, "k")
	to, err2 := Create(anew, "k")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	w.Mirror(to)
	anew.fail = errors.New("full")
	if _, err := w.Append("a"); !errors.Is(err, anew.fail) {
		t.Errorf("got %v", err)
	}
	if _, err := w.Append("b"); err == nil {
		t.Error("went on after a failure")
	}
}

func TestResumeBeforeDamage(t *testing.T) {
	f := &memFile{}
	w, err := Create(f, "k")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []string{"a", "b", "c"} {
		if _, err := w.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	i := bytes.LastIndex(f.data, []byte(`"b"`))
	f.data[i+1] = 0
	damage := new(DamageError)
	if err := Read(f, "k", func(uint64, json.RawMessage) error { return nil }); !errors.As(err, &damage) || !errors.Is(err, ErrCorrupt) || damage.Last != 1 {
		t.Fatalf("got %v", err)
	}
	if w, err = Resume(f, damage.End, damage.Last); err != nil {
		t.Fatal(err)
	}
	if n, err := w.Append("d"); n != 2 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	n := 0
	f.off = 0
	if err := Read(f, "k", func(uint64, json.RawMessage) error { n++; return nil }); err != nil || n != 2 {
		t.Errorf("got %d records, %v", n, err)
	}
}
