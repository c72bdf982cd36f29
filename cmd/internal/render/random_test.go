package render

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// oddNames are names that are hard on quoting.
var oddNames = []string{"plain", "with space", "tab\there", "new\nline", "quote\"d", "back\\slash", "é", "\xff\xfe", "-dash", "#hash", "a => b", "\x1b[31mred", "\u202egnp", "trailing ", "{x", "c}"}

// chaos changes trees at random.
type chaos struct {
	*rand.Rand
	w *trees
	n int
}

func (c *chaos) text(lines int) string {
	var b strings.Builder
	for range lines {
		fmt.Fprintf(&b, "line %d %x\n", c.IntN(1000), c.Uint64())
	}
	return b.String()
}

// content is a text, an empty file, a text without a newline at its end, CRLF text or binary.
func (c *chaos) content() string {
	switch c.IntN(8) {
	case 0:
		return ""
	case 1:
		return strings.TrimSuffix(c.text(1+c.IntN(20)), "\n")
	case 2:
		return strings.ReplaceAll(c.text(1+c.IntN(20)), "\n", "\r\n")
	case 3:
		b := make([]byte, c.IntN(3000)+1)
		for i := range b {
			b[i] = byte(c.Uint32())
		}
		return string(b) + "\x00"
	case 4:
		return "\xff\xfe latin \x1b[31m\n" + c.text(3)
	}
	return c.text(1 + c.IntN(60))
}

func (c *chaos) name() string {
	c.n++
	return fmt.Sprintf("%s%d", oddNames[c.IntN(len(oddNames))], c.n)
}

func (c *chaos) dir() string {
	return []string{"", "d1/", "d1/sub/", "d 2/", "d3/", "moved/", "moved/in/"}[c.IntN(7)]
}

func (c *chaos) fill(dir string) {
	for range 25 {
		put(c.w.t, dir, c.dir()+c.name(), c.content())
	}
	put(c.w.t, dir, "moved/keep", c.text(10))
	put(c.w.t, dir, "moved/in/keep", c.text(10))
	put(c.w.t, dir, "gone/a", c.text(5))
	put(c.w.t, dir, "gone/deep/b", c.text(5))
	must(c.w.t, os.Symlink("nowhere", filepath.Join(dir, "link")))
	must(c.w.t, os.Symlink("d1/"+c.name(), filepath.Join(dir, "d1", "link")))
}

// files returns the paths in after that are no directories.
func (c *chaos) files() []string {
	var l []string
	m := snapshot(c.w.t, c.w.after)
	for _, p := range sortedPaths(m) {
		if m[p].Kind != 2 {
			l = append(l, p.String())
		}
	}
	return l
}

// edit replaces, adds and removes a few lines.
func (c *chaos) edit(text string) string {
	l := strings.SplitAfter(text, "\n")
	for range 1 + c.IntN(4) {
		i := c.IntN(len(l))
		switch c.IntN(3) {
		case 0:
			l[i] = c.text(1)
		case 1:
			l = append(l[:i], append([]string{c.text(1 + c.IntN(3))}, l[i:]...)...)
		default:
			l = append(l[:i], l[min(i+1, len(l)):]...)
		}
		if len(l) == 0 {
			l = []string{""}
		}
	}
	return strings.Join(l, "")
}

// step does one thing to one file.
func (c *chaos) step() {
	t, after := c.w.t, c.w.after
	files := c.files()
	name := files[c.IntN(len(files))]
	p := filepath.Join(after, name)
	fi, err := os.Lstat(p)
	must(t, err)
	link := fi.Mode()&os.ModeSymlink != 0
	switch c.IntN(11) {
	case 0, 1, 2:
		if link {
			must(t, os.Remove(p))
			must(t, os.Symlink(c.name(), p))
			return
		}
		data, err := os.ReadFile(p)
		must(t, err)
		must(t, os.WriteFile(p, []byte(c.edit(string(data))), 0o644))
	case 3:
		must(t, os.Remove(p))
	case 4:
		put(t, after, c.dir()+c.name(), c.content())
	case 5:
		must(t, os.Rename(p, filepath.Join(after, c.name())))
	case 6:
		if !link {
			must(t, os.Chmod(p, []os.FileMode{0o755, 0o600, 0o644}[c.IntN(3)]))
		}
	case 7: // another type
		must(t, os.Remove(p))
		if link {
			put(t, after, name, c.content())
		} else {
			must(t, os.Symlink(c.name(), p))
		}
	case 8: // a file becomes a directory
		must(t, os.Remove(p))
		put(t, after, name+"/inside", c.content())
	case 9:
		must(t, os.MkdirAll(filepath.Join(after, "empty"+c.name()), 0o755))
	case 10:
		must(t, os.RemoveAll(filepath.Join(after, "gone")))
		if c.IntN(2) == 0 {
			put(t, after, "gone", c.content()) // a directory becomes a file
		}
	}
}

// randomTrees makes two trees that differ in up to a dozen ways.
func randomTrees(w *trees, seed uint64) {
	c := newChaos(w, seed)
	w.base(c.fill)
	if c.IntN(2) == 0 {
		must(w.t, os.Rename(filepath.Join(w.after, "moved"), filepath.Join(w.after, "to here")))
		w.moves["to here"] = "moved"
	}
	for range 1 + c.IntN(12) {
		c.step()
	}
}

func newChaos(w *trees, seed uint64) *chaos { return &chaos{rand.New(rand.NewPCG(seed, 1)), w, 0} }
