package gitview

import (
	"bytes"
	"crypto/sha1"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stage/fs/tree"
)

func mustPath(t testing.TB, s string) tree.Path {
	t.Helper()
	p, err := tree.ParsePath(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func indexOf(t *testing.T, dir string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, ".git/index"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// fill makes files with names that are hard on a parser, an executable, a link and a file that is
// only intended to be added, and stages them.
func fill(t *testing.T, dir string) {
	t.Helper()
	for i := range 300 {
		write(t, dir, fmt.Sprintf("d%d/%s/f%d", i%7, strings.Repeat("x", i%40+1), i), fmt.Sprint(i))
	}
	for _, name := range []string{"a b", "tab\there", "new\nline", "\xff\xfe", "é", "d1.x", "d1", "zz/" + strings.Repeat("n", 255)} {
		if name == "d1" {
			continue
		}
		write(t, dir, name, name)
	}
	if err := os.Chmod(filepath.Join(dir, "a b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a b", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "add", "-A")
	write(t, dir, "later", "x")
	git(t, dir, "add", "-N", "later")
	git(t, dir, "update-index", "--assume-unchanged", "link")
}

// lsFiles is what git says of the index, in the form of listing.
func lsFiles(t *testing.T, dir string) string { return git(t, dir, "ls-files", "-s", "-z") }

func listing(x *Index) string {
	var b strings.Builder
	for _, e := range x.Entries {
		fmt.Fprintf(&b, "%06o %x %d\t%s\x00", e.Mode, e.ID, e.Stage, e.Path)
	}
	return b.String()
}

func TestIndexReadsAsGitReadsIt(t *testing.T) {
	for _, version := range []string{"2", "3", "4"} {
		for _, format := range []string{"sha1", "sha256"} {
			t.Run(version+format, func(t *testing.T) {
				dir := tempDir(t)
				git(t, dir, "init", "-q", "--object-format="+format)
				fill(t, dir)
				git(t, dir, "update-index", "--index-version="+version)
				x, err := ReadIndex(bytes.NewReader(indexOf(t, dir)))
				if err != nil {
					t.Fatal(err)
				}
				if got, want := listing(x), lsFiles(t, dir); got != want {
					t.Errorf("got\n%q\nwant\n%q", got, want)
				}
				if !x.Has("new\nline") || x.Has("new") || !x.Has("later") {
					t.Error("Has disagrees with the entries")
				}
			})
		}
	}
}

func TestConflictedPathIsOneTrackedFile(t *testing.T) {
	dir := repo(t)
	write(t, dir, "f", "base\n")
	write(t, dir, "g", "g\n")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-qm", "base")
	id := strings.TrimSpace(git(t, dir, "rev-parse", "HEAD:f"))
	git(t, dir, "rm", "-q", "--cached", "f")
	for stage := 1; stage <= 3; stage++ {
		write(t, dir, "info", fmt.Sprintf("100644 %s %d\tf\n", id, stage))
		gitInput(t, dir, filepath.Join(dir, "info"), "update-index", "--index-info")
	}
	x, err := ReadIndex(bytes.NewReader(indexOf(t, dir)))
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Entries) != 4 || x.Len() != 2 {
		t.Errorf("got %d entries, %d files; want 4, 2", len(x.Entries), x.Len())
	}
}

func TestSparseIndexStandsForWhatIsBelow(t *testing.T) {
	dir := repo(t)
	write(t, dir, "in/f", "x")
	write(t, dir, "out/deep/f", "x")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-qm", "one")
	git(t, dir, "sparse-checkout", "set", "--cone", "--sparse-index", "in")
	x, err := ReadIndex(bytes.NewReader(indexOf(t, dir)))
	if err != nil {
		t.Fatal(err)
	}
	if !x.Has("in/f") || !x.Has("out/deep/f") || x.Has("other/f") {
		t.Errorf("sparse index of %d entries is misread", len(x.Entries))
	}
}

func TestStatDataIsNoChangeOfTheIndex(t *testing.T) {
	dir := repo(t)
	fill(t, dir)
	before := indexOf(t, dir)
	if err := os.Chtimes(filepath.Join(dir, "a b"), fixedTime, fixedTime); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "update-index", "-q", "--refresh")
	git(t, dir, "write-tree") // adds the cached tree
	after := indexOf(t, dir)
	if bytes.Equal(before, after) {
		t.Fatal("the index file did not change: nothing is tested")
	}
	wantSame(t, before, after, true)
	git(t, dir, "update-index", "--index-version=4")
	wantSame(t, before, indexOf(t, dir), true)
	git(t, dir, "update-index", "--chmod=+x", "é")
	wantSame(t, before, indexOf(t, dir), false)
}

func wantSame(t *testing.T, a, b []byte, want bool) {
	t.Helper()
	same, err := SameEntries(bytes.NewReader(a), bytes.NewReader(b))
	if err != nil || same != want {
		t.Errorf("SameEntries: %v, %v; want %v", same, err, want)
	}
}

func TestSplitIndexIsRefused(t *testing.T) {
	dir := repo(t)
	fill(t, dir)
	git(t, dir, "update-index", "--split-index")
	if _, err := ReadIndex(bytes.NewReader(indexOf(t, dir))); !errors.Is(err, ErrIndexForm) {
		t.Errorf("got %v, want ErrIndexForm", err)
	}
}

func TestDamagedIndexIsRefused(t *testing.T) {
	dir := repo(t)
	fill(t, dir)
	good := indexOf(t, dir)
	for n := 0; n < len(good); n += 97 {
		if _, err := ReadIndex(bytes.NewReader(good[:n])); err == nil {
			t.Fatalf("the first %d bytes are taken for an index", n)
		}
		bad := bytes.Clone(good)
		bad[n] ^= 0x10
		if _, err := ReadIndex(bytes.NewReader(bad)); err == nil {
			t.Fatalf("a changed byte %d is not noticed", n)
		}
	}
}

// FuzzIndex feeds the parser bodies whose checksum is right: it may refuse, never panic, and what it
// takes is sorted.
func FuzzIndex(f *testing.F) {
	f.Add([]byte("DIRC\x00\x00\x00\x02\x00\x00\x00\x00"))
	f.Add(append([]byte("DIRC\x00\x00\x00\x04\x00\x00\x00\x02"), append(append(make([]byte, 62), "\x00a\x00"...), append(make([]byte, 62), "\x01b\x00"...)...)...))
	f.Add([]byte("DIRC\x00\x00\x00\x02\x00\x00\x00\x00TREE\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, body []byte) {
		sum := sha1.Sum(body)
		x, err := parseIndex(append(bytes.Clone(body), sum[:]...))
		if err != nil {
			return
		}
		for i, e := range x.Entries {
			if i > 0 && !before(x.Entries[i-1], e) {
				t.Errorf("entry %d, %q, is out of order", i, e.Path)
			}
			if !x.Has(e.Path) {
				t.Errorf("entry %q is not found", e.Path)
			}
		}
	})
}
