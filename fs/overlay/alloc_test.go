package overlay

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestHotPathAllocatesNothing holds what is asked for all the time to no allocation: to look up a known
// name or one that is not there, to get attributes, to read, and to list a directory further.
func TestHotPathAllocatesNothing(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		if raceEnabled {
			t.Skip("the race detector allocates")
		}
		j.put("d/lower", "content")
		j.put("d/other", "content")
		j.open()
		j.create("d/upper", "content")
		d := j.mustID("d")
		buf := make([]byte, 100)
		read := func(id uint64, whole bool) {
			c, err := j.fs.Content(id)
			j.must(err)
			n, err := unix.Pread(c.FD(), buf, 0)
			j.must(err)
			c.Done(n, whole)
		}
		var e Entry
		var a Attr
		names := map[string][]byte{"lower": []byte("lower"), "upper": []byte("upper")}
		lower, upper := j.mustID("d/lower"), j.mustID("d/upper")
		for _, c := range []struct {
			name string
			act  func()
		}{
			{"look up a lower file", func() { j.must(j.fs.Lookup(d, j.fs.NameIn(d, names["lower"]), &e)) }},
			{"look up an upper file", func() { j.must(j.fs.Lookup(d, j.fs.NameIn(d, names["upper"]), &e)) }},
			{"look up nothing", func() {
				if err := j.fs.Lookup(d, "nothing", &e); err != unix.ENOENT {
					t.Fatal(err)
				}
			}},
			{"attributes of a lower file", func() { j.must(j.fs.Getattr(lower, &a)) }},
			{"attributes of an upper file", func() { j.must(j.fs.Getattr(upper, &a)) }},
			{"attributes of a directory", func() { j.must(j.fs.Getattr(d, &a)) }},
			{"read all of a lower file", func() { read(lower, true) }},
			{"read some of a lower file", func() { read(lower, false) }},
			{"read an upper file", func() { read(upper, false) }},
			{"list known files", func() {
				j.must(j.fs.Readdir(d, firstOffset, true, func(*DirEntry) bool { return true }))
			}},
		} {
			c.act()
			if got := testing.AllocsPerRun(200, c.act); got >= 0.5 {
				t.Errorf("%s: %v allocations", c.name, got)
			}
		}
	})
}
