package render

import (
	"fmt"
	"strings"
	"testing"

	"stage/bundle"
	"stage/fs/tree"
)

func TestVolumeIsCollapsedUnderItsOutermostDirectory(t *testing.T) {
	tracked := func(p tree.Path) bool { return strings.HasPrefix(p.String(), "build/src/") }
	tests := []struct{ path, want string }{
		{"src/main.go", ""},
		{"node_modules/a/node_modules/b/x.js", "node_modules/"},
		{"web/node_modules/a.js", "web/node_modules/"},
		{"web/dist", "web/dist/"},
		{"a/__pycache__/x.pyc", "a/__pycache__/"},
		{"target/debug/x", "target/"},
		{"build/out.o", "build/"},
		{"build/src/main.c", ""},
		{"distance/x", ""},
		{"go.sum", "lock files"},
		{"api/package-lock.json", "lock files"},
		{"node_modules/x/package-lock.json", "lock files"},
		{".git/config", ".git/"},
		{".git", ".git/"},
		{".gitignore", ""},
		{"sub/.git/config", ""},
		{"\x1b/target/x", `"\033/target/"`},
	}
	for _, test := range tests {
		got := ""
		if v, ok := collapse(tree.MustParsePath(test.path), tracked); ok {
			got = v.String()
		}
		if got != test.want {
			t.Errorf("%q is collapsed under %q, want %q", test.path, got, test.want)
		}
	}
}

func item1(path string, e *Entry) item {
	return item{letter: 'A', path: tree.MustParsePath(path), now: tree.Node{Kind: tree.File, Size: 10}, entry: e}
}

func TestNothingIsLostByCollapsing(t *testing.T) {
	var items []item
	for i := range 100 {
		items = append(items, item1(fmt.Sprintf("node_modules/%d", i), &Entry{}))
	}
	items = append(items, item1("a.go", &Entry{}), item1("dist/only", &Entry{}), item1("go.sum", &Entry{}))
	gated := &Entry{Flags: []bundle.Flag{{Class: bundle.ClassSetuid}}}
	conflict := &Entry{Verdict: bundle.VerdictConflict}
	marked := &Entry{Flags: []bundle.Flag{{Class: bundle.ClassExecBit}}}
	items = append(items, item1("node_modules/gated", gated), item1("node_modules/conflict", conflict), item1("node_modules/marked", marked))
	own, groups := (&Review{}).collapsed(items)
	var names []string
	for _, it := range own {
		names = append(names, it.path.String())
	}
	want := "a.go dist/only go.sum node_modules/conflict node_modules/gated"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("lines of their own: %s, want %s", got, want)
	}
	if len(groups) != 1 || groups[0].counts.Added != 101 || groups[0].bytes != 1010 || groups[0].flags[bundle.ClassExecBit] != 1 {
		t.Errorf("groups: %+v, want one of 101 files, 1010 bytes, one flag", groups)
	}
}

func TestCountsAddUp(t *testing.T) {
	var c Counts
	for _, letter := range []byte("AAMDRTm") {
		c.add(&item{letter: letter})
	}
	if c.Total() != 7 {
		t.Errorf("total is %d, want 7", c.Total())
	}
	want := "7 changes: 2 added, 1 modified, 1 deleted, 1 renamed, 1 type changed, 1 metadata only"
	if c.String() != want {
		t.Errorf("got %q, want %q", c, want)
	}
	if got := (Counts{}).String(); got != "no changes" {
		t.Errorf("got %q", got)
	}
}

func TestSizesAreReadable(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 3 << 30: "3.0 GiB", 1 << 62: "4.0 EiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d bytes: %q, want %q", n, got, want)
		}
	}
}

func TestARenameIsOneChangeWhereverItsOldEndIsTold(t *testing.T) {
	file, dir := tree.Node{Kind: tree.File, Size: 3, Digest: tree.DigestBytes([]byte("abc"))}, tree.Node{Kind: tree.Dir}
	edited := file
	edited.Digest = tree.DigestBytes([]byte("abd"))
	from := func(p string) *tree.Path { q := tree.MustParsePath(p); return &q }
	changes := []tree.Change{
		{Path: tree.MustParsePath("d"), Base: dir, Subtree: true},
		{Path: tree.MustParsePath("e"), Base: dir, Subtree: true},
		{Path: tree.MustParsePath("moved"), New: dir, RenameFrom: from("d"), Moved: true},
		{Path: tree.MustParsePath("moved/x"), New: edited, RenameFrom: from("d/x")},
		{Path: tree.MustParsePath("new"), New: dir},
		{Path: tree.MustParsePath("new/f"), New: file},
		{Path: tree.MustParsePath("old"), Base: file},
		{Path: tree.MustParsePath("to"), New: file, RenameFrom: from("old")},
	}
	got, bytes := CountChanges(changes)
	if want := (Counts{Added: 1, Deleted: 1, Renamed: 3}); got != want || bytes != 6 {
		t.Errorf("got %+v, %d bytes; want %+v, 6 bytes", got, bytes, want)
	}
}
