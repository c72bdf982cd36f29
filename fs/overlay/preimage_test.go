package overlay

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// keepPreimages makes the next open keep preimages, and returns where.
func (j *job) keepPreimages() string {
	j.t.Helper()
	dir := filepath.Join(j.dir, "pre")
	j.must(os.Mkdir(dir, 0o700))
	pre, err := hostfs.OpenRoot(dir)
	j.must(err)
	j.t.Cleanup(func() { j.must(pre.Close()) })
	j.pre = pre
	return dir
}

// changeContent are the ways to replace or remove the content of f: whether it is read, and kept.
var changeContent = []struct {
	name       string
	read, kept bool
	act        func(j *job)
}{
	{"truncate", true, true, func(j *job) { j.must(j.fs.Setattr(j.mustID("f"), &SetAttr{Set: SetSize}, &Attr{})) }},
	{"write", true, true, func(j *job) { j.write(j.mustID("f"), "job") }},
	{"replace", true, true, func(j *job) { j.create("new", "job"); j.must(j.rename("new", "f", 0)) }},
	{"unlink", false, false, func(j *job) { j.unlink("f") }},
	{"move", true, false, func(j *job) { j.must(j.rename("f", "g", 0)) }},
}

// digestRead is the digest of "before" if it was read.
func digestRead(read bool) tree.Digest {
	if read {
		return digest("before")
	}
	return ""
}

func TestReplacedContentIsDigestedAndKept(t *testing.T) {
	for _, c := range changeContent {
		t.Run(c.name, func(t *testing.T) {
			asUsers(t, func(t *testing.T, j *job) {
				dir := j.keepPreimages()
				j.put("f", "before")
				j.open()
				was := j.lowerState("f")
				c.act(j)
				j.wantBase("f", was, digestRead(c.read))
				got, err := os.ReadFile(filepath.Join(dir, preimageName(digest("before"))))
				if c.kept && string(got) != "before" || !c.kept && !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("preimage: got %q, %v; kept should be %v", got, err, c.kept)
				}
			})
		})
	}
}

func TestWithoutPreimagesThereAreDigests(t *testing.T) {
	for _, c := range changeContent {
		t.Run(c.name, func(t *testing.T) {
			asUsers(t, func(t *testing.T, j *job) {
				j.put("f", "before")
				j.open()
				was := j.lowerState("f")
				c.act(j)
				j.wantBase("f", was, digestRead(c.read))
			})
		})
	}
}

func TestAlikePreimagesAreStoredOnce(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		dir := j.keepPreimages()
		j.put("f", "same")
		j.put("g", "same")
		j.open()
		j.write(j.mustID("f"), "1")
		j.must(j.fs.Setattr(j.mustID("g"), &SetAttr{Set: SetSize}, &Attr{}))
		if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
			t.Errorf("got %v, %v, want one preimage", list, err)
		}
	})
}

func TestPreimageCutShortIsWrittenAgain(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		name := filepath.Join(j.keepPreimages(), preimageName(digest("before")))
		j.put("f", "before")
		j.open()
		j.must(os.WriteFile(name, []byte("bef"), 0o600))
		j.write(j.mustID("f"), "job")
		if got, err := os.ReadFile(name); err != nil || string(got) != "before" {
			t.Errorf("preimage: got %q, %v", got, err)
		}
	})
}

func TestSparseAndLargeFilesAreCopiedByExtents(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		dir := j.keepPreimages()
		j.put("sparse", "")
		j.must(os.Truncate(filepath.Join(j.dir, "lower", "sparse"), 1<<20))
		large := string(bytes.Repeat([]byte("0123456789abcdef"), 2*smallSize/16))
		j.put("large", large)
		j.open()
		j.write(j.mustID("sparse"), "job")
		j.write(j.mustID("large"), "job")
		var st unix.Stat_t
		j.must(unix.Stat(j.up("sparse"), &st))
		if st.Size != 1<<20 || st.Blocks*512 >= 1<<20 {
			t.Errorf("copy of sparse file: %d bytes in %d blocks", st.Size, st.Blocks)
		}
		if got, err := os.ReadFile(filepath.Join(dir, preimageName(digest(large)))); err != nil || string(got) != large {
			t.Errorf("preimage of large file: %d bytes, %v", len(got), err)
		}
	})
}
