package overlay

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// openWithReads opens the overlay with a log of reads, and returns what reads it.
func (j *job) openWithReads() func() []string {
	j.t.Helper()
	j.open()
	name := filepath.Join(j.dir, "reads")
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	j.must(err)
	j.fs.reads, err = newReadLog(file)
	j.must(err)
	return func() []string {
		text, err := os.ReadFile(name)
		j.must(err)
		lower, err := hostfs.OpenRoot(filepath.Join(j.dir, "lower"))
		j.must(err)
		defer lower.Close()
		var got []string
		j.must(LoadReads(bytes.NewReader(text), func(r Read) {
			if r.More > 0 {
				got = append(got, fmt.Sprintf("more %d", r.More))
				return
			}
			n, err := lower.Stat(r.Path.String())
			got = append(got, fmt.Sprintf("%s %v", r.Path, err == nil && r.Same(n)))
		}))
		return got
	}
}

func TestReadsAreNotedOnce(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		for _, f := range []string{"a", "b", "c", "unread"} {
			j.put(f, "content")
		}
		reads := j.openWithReads()
		for _, f := range []string{"a", "b", "a", "c"} {
			j.read(f)
		}
		j.write(j.mustID("c"), "job")
		j.create("new", "job")
		j.read("new")
		j.hostEdits("b", "host's")
		j.hostEdits("unread", "host's")
		j.close()
		if got, want := reads(), []string{"a true", "b false", "c true"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestReadsHaveABound(t *testing.T) {
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "reads"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	l, err := newReadLog(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxReads + 7 {
		p, err := tree.ParsePath(fmt.Sprintf("f%d", i))
		if err != nil {
			t.Fatal(err)
		}
		l.add(p, &unix.Stat_t{Ino: uint64(i)})
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	n, more := 0, uint64(0)
	err = LoadReads(bytes.NewReader(text), func(r Read) { n, more = n+1, more+r.More })
	if err != nil || n != maxReads+1 || more != 7 {
		t.Errorf("got %d records and %d more, %v; want %d and 7", n, more, err, maxReads+1)
	}
}

// TestBaseOfWhatWasReadOutlivesItsNode: the kernel may forget a file that a process of the Job has read
// and is going to write back, and then be told of what the host made of it meanwhile.
func TestBaseOfWhatWasReadOutlivesItsNode(t *testing.T) {
	hosts := map[string]func(j *job){
		"edits":    func(j *job) { j.hostEdits("f", "host") },
		"replaces": func(j *job) { j.hostReplaces("f", "host") },
	}
	for name, host := range hosts {
		t.Run(name, func(t *testing.T) {
			asUsers(t, func(t *testing.T, j *job) {
				j.put("f", "line")
				j.openWithReads()
				was := j.lowerState("f")
				j.read("f")
				j.fs.Forget(j.mustID("f"), 1<<32)
				if j.fs.kid(j.fs.tab.root, "f") != nil {
					t.Fatal("f is still known")
				}
				host(j)
				j.write(j.mustID("f"), "job")
				j.wantBase("f", was, "")
			})
		})
	}
}
