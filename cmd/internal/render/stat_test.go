package render

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func numbered(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "line %d of this text\n", i)
	}
	return b.String()
}

func TestStatEqualsGits(t *testing.T) {
	long := strings.Repeat("directory/", 8) + "file"
	tests := map[string]func(t *testing.T, w *trees){
		"small": func(t *testing.T, w *trees) {
			put(t, w.after, "a", "1\n2\n")
			put(t, w.after, "edited", numbered(0, 20)+"end\n")
		},
		"wide": func(t *testing.T, w *trees) {
			put(t, w.after, "a", numbered(0, 500))
			put(t, w.after, "edited", numbered(3, 22))
			put(t, w.after, long, "x\n")
			put(t, w.after, "empty", "")
		},
		"renames": func(t *testing.T, w *trees) {
			must(t, os.MkdirAll(filepath.Join(w.after, "sub/new/deep"), 0o755))
			must(t, os.Rename(filepath.Join(w.after, "sub/one/deep/f"), filepath.Join(w.after, "sub/new/deep/f")))
			must(t, os.Rename(filepath.Join(w.after, "gone"), filepath.Join(w.after, "there")))
			must(t, os.Rename(filepath.Join(w.after, "x/y"), filepath.Join(w.after, "x/z")))
		},
		"binary, modes, links": func(t *testing.T, w *trees) {
			put(t, w.after, "bin", "\x00\x01\x02")
			put(t, w.after, "binary", "\x00changed")
			must(t, os.Chmod(filepath.Join(w.after, "edited"), 0o755))
			must(t, os.Symlink("edited", filepath.Join(w.after, "link")))
			must(t, os.Remove(filepath.Join(w.after, "gone")))
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			w := newTrees(t)
			w.base(func(dir string) {
				put(t, dir, "edited", numbered(0, 20))
				put(t, dir, "gone", numbered(100, 110))
				put(t, dir, "sub/one/deep/f", numbered(200, 220))
				put(t, dir, "x/y", numbered(300, 310))
				put(t, dir, "binary", "\x00old")
			})
			change(t, w)
			dir, before, after := w.gitTrees()
			// git's plumbing leaves the width to the terminal: porcelain on a file takes 80.
			want := git(t, dir, "-c", "diff.renames=true", "diff", "--stat", before, after)
			if got := rendered(t, w.review(), FormatStat); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestDiffEqualsGits(t *testing.T) {
	w := newTrees(t)
	w.base(func(dir string) {
		put(t, dir, "edited", numbered(0, 60))
		put(t, dir, "gone", "1\n2\n")
		put(t, dir, "with space", "old\n")
		put(t, dir, "tail", "no newline")
		put(t, dir, "moved", numbered(100, 130))
		put(t, dir, "mode", "#!/bin/sh\n")
		put(t, dir, "becomes a link", "text\n")
		must(t, os.Symlink("a", filepath.Join(dir, "link")))
	})
	text := strings.Replace(numbered(0, 60), "line 2 ", "LINE 2 ", 1)
	put(t, w.after, "edited", strings.Replace(text, "line 40 of this text\n", "", 1)+"end\n")
	put(t, w.after, "empty", "")
	put(t, w.after, "caf\u00e9", "new\n")
	put(t, w.after, "with space", "new\n")
	put(t, w.after, "tail", "no newline\nno newline yet")
	must(t, os.Remove(filepath.Join(w.after, "gone")))
	must(t, os.Rename(filepath.Join(w.after, "moved"), filepath.Join(w.after, "moved away")))
	must(t, os.Chmod(filepath.Join(w.after, "mode"), 0o755))
	must(t, os.Remove(filepath.Join(w.after, "link")))
	must(t, os.Symlink("b", filepath.Join(w.after, "link")))
	must(t, os.Remove(filepath.Join(w.after, "becomes a link")))
	must(t, os.Symlink("text", filepath.Join(w.after, "becomes a link")))
	dir, before, after := w.gitTrees()
	// An attribute that turns off the text after @@ is not to be had: it is cut from git's output.
	want := hunkHeads(git(t, dir, "-c", "diff.renames=true", "-c", "core.abbrev=7", "diff", before, after))
	if got := rendered(t, w.review(), FormatDiff); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	full := hunkHeads(git(t, dir, "-c", "diff.renames=true", "diff", "--binary", "--full-index", before, after))
	if got := rendered(t, w.review(), FormatPatch); got != full {
		t.Errorf("got\n%s\nwant\n%s", got, full)
	}
}

// hunkHeads cuts what git writes after the second @@.
func hunkHeads(diff string) string {
	l := strings.SplitAfter(diff, "\n")
	for i := range l {
		if strings.HasPrefix(l[i], "@@ ") {
			l[i] = l[i][:strings.LastIndex(l[i], "@@")+2] + "\n"
		}
	}
	return strings.Join(l, "")
}
