package render

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"stage/fs/tree"
)

// records cuts -z output into records: letter and paths.
func records(out string) []string {
	var l []string
	fields := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	for len(fields) > 1 {
		n := 2
		if fields[0][0] == 'R' {
			n = 3
		}
		l = append(l, strings.Join(fields[:n], "\x00"))
		fields = fields[n:]
	}
	return l
}

// filesOnly removes the records about directories, which git does not have.
func (w *trees) filesOnly(l []string) []string {
	old, now := snapshot(w.t, w.before), snapshot(w.t, w.after)
	dirs := map[string]bool{}
	for p, n := range old {
		if n.Kind == 2 && (now[p].Kind == 0 || now[p].Kind == 2) {
			dirs[p.String()] = true
		}
	}
	for p, n := range now {
		if n.Kind == 2 && (old[p].Kind == 0 || old[p].Kind == 2) {
			dirs[p.String()] = true
		}
	}
	return slices.DeleteFunc(l, func(r string) bool { return dirs[r[strings.LastIndexByte(r, 0)+1:]] })
}

// withoutRenames turns each rename into a deletion and an addition and sorts by path.
func withoutRenames(l []string) []string {
	var out []string
	for _, r := range l {
		f := strings.Split(r, "\x00")
		if f[0][0] == 'R' {
			out = append(out, "D\x00"+f[1], "A\x00"+f[2])
			continue
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Compare(a[2:], b[2:]) })
	return out
}

// notGit removes modified files that git takes as unchanged: it stores one bit of the mode.
func (w *trees) notGit(l []string) []string {
	before, after := gitView(w.t, w.before), gitView(w.t, w.after)
	return slices.DeleteFunc(l, func(r string) bool {
		return r[0] == 'M' && before[r[2:]] == after[r[2:]]
	})
}

func TestNameStatusEqualsGitsOfRandomChanges(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newTrees(t)
			randomTrees(w, seed)
			dir, before, after := w.gitTrees()
			ours := w.notGit(w.filesOnly(records(rendered(t, w.review(), FormatNameStatusZ))))
			want := records(git(t, dir, "diff-tree", "-r", "-z", "--name-status", "--no-renames", before, after))
			if got := withoutRenames(ours); !slices.Equal(got, want) {
				t.Errorf("without renames: got\n%q\nwant\n%q", got, want)
			}
		})
	}
}

func TestRenamesEqualGits(t *testing.T) {
	w := newTrees(t)
	c := newChaos(w, 3)
	texts := map[string]string{}
	w.base(func(dir string) {
		for _, name := range []string{"same", "edited", "rewritten", "sub/inner", "cr"} {
			texts[name] = c.text(40)
			if name == "cr" {
				texts[name] = strings.ReplaceAll(texts[name], "\n", "\r\n")
			}
			put(t, dir, name, texts[name])
		}
		must(t, os.Symlink("somewhere", filepath.Join(dir, "ln")))
	})
	for name, text := range texts {
		must(t, os.Remove(filepath.Join(w.after, name)))
		lines := strings.SplitAfter(text, "\n")
		switch name {
		case "edited":
			text = strings.Join(lines[:31], "") + c.text(9)
		case "rewritten":
			text = c.text(40)
		case "cr":
			text = strings.ReplaceAll(text, "\r\n", "\n")
		}
		put(t, w.after, "new/"+filepath.Base(name), text)
	}
	must(t, os.Rename(filepath.Join(w.after, "ln"), filepath.Join(w.after, "ln2")))
	dir, before, after := w.gitTrees()
	want := git(t, dir, "diff-tree", "-r", "-z", "-M", "--name-status", before, after)
	got := w.filesOnly(records(rendered(t, w.review(), FormatNameStatusZ)))
	if !slices.Equal(got, records(want)) {
		t.Errorf("got\n%q\nwant\n%q", got, records(want))
	}
}

func TestNamesAreQuotedAsGitQuotesThem(t *testing.T) {
	w := newTrees(t)
	for _, name := range append(slices.Clone(oddNames), "\a\b\v\f\r", "\x7f", "\u0085", strings.Repeat("n", 255)) {
		put(t, w.after, name, "x"+name)
	}
	dir, before, after := w.gitTrees()
	want := git(t, dir, "diff-tree", "-r", "--name-status", before, after)
	if got := rendered(t, w.review(), FormatNameStatus); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	wantZ := git(t, dir, "diff-tree", "-r", "-z", "--name-status", before, after)
	if got := rendered(t, w.review(), FormatNameStatusZ); got != wantZ {
		t.Errorf("got\n%q\nwant\n%q", got, wantZ)
	}
}

func TestDirectoriesAppearOnlyWhenTheyMatter(t *testing.T) {
	w := newTrees(t)
	w.base(func(dir string) {
		put(t, dir, "removed/a", "1\n")
		put(t, dir, "removed/deep/b", "2\n")
		put(t, dir, "mode/keep", "3\n")
		put(t, dir, "moved/c", "4\n")
		put(t, dir, "touched/d", "5\n")
	})
	must(t, os.RemoveAll(filepath.Join(w.after, "removed")))
	must(t, os.Chmod(filepath.Join(w.after, "mode"), 0o700))
	must(t, os.Rename(filepath.Join(w.after, "moved"), filepath.Join(w.after, "there")))
	w.moves["there"] = "moved"
	must(t, os.MkdirAll(filepath.Join(w.after, "new/empty"), 0o755))
	put(t, w.after, "new/file", "x\n")
	put(t, w.after, "touched/e", "y\n")
	got := rendered(t, w.review(), FormatNameStatus)
	want := "M\tmode\nA\tnew/empty\nA\tnew/file\nD\tremoved\nD\tremoved/a\nD\tremoved/deep/b\nR100\tmoved/c\tthere/c\nA\ttouched/e\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestMovedDirectoryTellsWhatChangedInIt(t *testing.T) {
	w := newTrees(t)
	text := strings.Repeat("a line of text\n", 3) + strings.Repeat("another line\n", 30)
	w.base(func(dir string) {
		put(t, dir, "old/same", "1\n")
		put(t, dir, "old/edited", text)
		put(t, dir, "old/gone", "2\n")
		put(t, dir, "old/sub/x", "3\n")
	})
	must(t, os.Rename(filepath.Join(w.after, "old"), filepath.Join(w.after, "new")))
	w.moves["new"] = "old"
	put(t, w.after, "new/edited", text+"end\n")
	put(t, w.after, "new/fresh", "4\n")
	must(t, os.Remove(filepath.Join(w.after, "new/gone")))
	must(t, os.Chmod(filepath.Join(w.after, "new/sub"), 0o700))
	r := w.review()
	got := rendered(t, r, FormatNameStatus)
	want := "R099\told/edited\tnew/edited\nA\tnew/fresh\nR100\told/same\tnew/same\nR100\told/sub\tnew/sub\nR100\told/sub/x\tnew/sub/x\nD\told/gone\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	list := rendered(t, r, FormatList)
	for _, line := range []string{" R  old/ -> new/", "old/edited -> new/edited  +1", " A  new/fresh", " D  old/gone"} {
		if !strings.Contains(list, line) {
			t.Errorf("%q is missing in the list\n%s", line, list)
		}
	}
}

func TestVolumeDoesNotCrowdOutRenames(t *testing.T) {
	w := newTrees(t)
	text := numbered(0, 40)
	w.base(func(dir string) { put(t, dir, "before", text) })
	must(t, os.Remove(filepath.Join(w.after, "before")))
	put(t, w.after, "src/after", text+"more\n")
	r := w.review()
	for i := range maxSimilarPairs {
		p := tree.MustParsePath(fmt.Sprintf("node_modules/%d", i))
		r.Changes = append(r.Changes, Entry{Change: tree.Change{Path: p, New: tree.Node{Kind: tree.File, Digest: tree.DigestBytes(nil)}}})
	}
	if got := rendered(t, r, FormatList); !strings.Contains(got, " R  before -> src/after") {
		t.Errorf("the rename is missing in\n%s", got)
	}
}
