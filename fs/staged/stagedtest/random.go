package stagedtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// Random does the same random operations on all trees. It looks at the plain one, which must be the
// first, to know what is possible, and returns what it did, one line per operation.
func Random(rnd *rand.Rand, n int, plain Plain, others ...Tree) []string {
	r := &random{Rand: rnd, plain: plain, trees: append([]Tree{plain}, others...)}
	for len(r.done) < n {
		r.step()
	}
	if r.IntN(3) == 0 {
		r.closeDirs()
	}
	return r.done
}

// closeDirs makes some directories read-only, as the module cache of Go is: the last operations,
// since nothing can be changed in them afterwards.
func (r *random) closeDirs() {
	dirs := slices.DeleteFunc(r.plain.List(), func(p string) bool { return !isDir(r.kind(p)) })
	slices.Sort(dirs)
	for _, p := range slices.Backward(dirs) {
		if r.IntN(3) == 0 {
			r.do("chmod "+p+" 555", func(t Tree) { t.Chmod(p, 0o555) })
		}
	}
}

type random struct {
	*rand.Rand
	plain Plain
	trees []Tree
	done  []string
	fresh int
}

func (r *random) do(what string, f func(Tree)) {
	r.done = append(r.done, what)
	for _, t := range r.trees {
		f(t)
	}
}

func (r *random) kind(p string) os.FileMode {
	fi, err := os.Lstat(r.plain.at(p))
	if err != nil {
		return os.ModeIrregular
	}
	return fi.Mode()
}

// pick returns an existing path that is ok, "" if there is none.
func (r *random) pick(ok func(os.FileMode) bool) string {
	list := r.plain.List()
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, p := range list {
		if ok(r.kind(p)) {
			return p
		}
	}
	return ""
}

func anything(os.FileMode) bool     { return true }
func isDir(m os.FileMode) bool      { return m.IsDir() }
func isFile(m os.FileMode) bool     { return m.IsRegular() && m.Perm()&0o200 != 0 }
func isLinkable(m os.FileMode) bool { return m.IsRegular() }

// free returns a path that does not exist, often one that did once.
func (r *random) free() string {
	dir := "."
	if r.IntN(4) > 0 {
		if d := r.pick(isDir); d != "" {
			dir = d
		}
	}
	for {
		name := string(rune('a' + r.IntN(8)))
		if r.IntN(4) == 0 {
			r.fresh++
			name = fmt.Sprintf("new%d", r.fresh)
		}
		p := path.Join(dir, name)
		if r.kind(p) == os.ModeIrregular {
			return p
		}
		dir = "."
		if r.IntN(3) > 0 {
			continue
		}
		r.fresh++
		return fmt.Sprintf("top%d", r.fresh)
	}
}

func (r *random) content() string {
	if r.IntN(5) == 0 {
		return ""
	}
	return strings.Repeat(fmt.Sprint(r.IntN(5)), 1+r.IntN(3)*4)
}

func (r *random) step() {
	switch r.IntN(16) {
	case 0, 1:
		r.write(r.free())
	case 2, 3:
		r.write(r.pick(isFile))
	case 4:
		p := r.free()
		r.do("mkdir "+p, func(t Tree) { t.Mkdir(p) })
	case 5, 6:
		r.remove(r.pick(anything))
	case 7, 8, 9:
		r.rename(r.pick(anything), r.free())
	case 10:
		r.replace(r.pick(anything), r.pick(anything))
	case 11:
		r.exchange(r.pick(anything), r.pick(anything))
	case 12:
		r.chmod(r.pick(func(m os.FileMode) bool { return m&os.ModeSymlink == 0 }))
	case 13:
		p := r.free()
		r.do("symlink "+p, func(t Tree) { t.Symlink("to-"+path.Base(p), p) })
	case 14:
		if from, to := r.pick(isLinkable), r.free(); from != "" {
			r.do("link "+from+" "+to, func(t Tree) { t.Link(from, to) })
		}
	case 15:
		r.attr(r.pick(func(m os.FileMode) bool { return m.IsRegular() || m.IsDir() }))
	}
}

func (r *random) write(p string) {
	if p == "" {
		return
	}
	c := r.content()
	r.do(fmt.Sprintf("write %s %q", p, c), func(t Tree) { t.Write(p, c) })
}

func (r *random) remove(p string) {
	if p == "" {
		return
	}
	list := r.plain.List()
	r.do("remove "+p, func(t Tree) { RemoveAll(t, list, p) })
}

func (r *random) rename(from, to string) {
	if from == "" || to == from || strings.HasPrefix(to, from+"/") {
		return
	}
	r.do("rename "+from+" "+to, func(t Tree) { t.Rename(from, to) })
}

// replace renames over what exists.
func (r *random) replace(from, to string) {
	if from == "" || to == "" || isDir(r.kind(from)) || isDir(r.kind(to)) {
		return
	}
	r.rename(from, to)
}

func (r *random) exchange(a, b string) {
	if a == "" || b == "" || a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/") {
		return
	}
	r.do("exchange "+a+" "+b, func(t Tree) { t.Exchange(a, b) })
}

func (r *random) chmod(p string) {
	if p == "" {
		return
	}
	modes := []uint32{0o755, 0o700, 0o750}
	if !isDir(r.kind(p)) {
		modes = []uint32{0o600, 0o644, 0o755, 0o400, 0o444}
	}
	m := modes[r.IntN(len(modes))]
	r.do(fmt.Sprintf("chmod %s %o", p, m), func(t Tree) { t.Chmod(p, m) })
}

func (r *random) attr(p string) {
	if p == "" || r.kind(p).Perm()&0o200 == 0 {
		return
	}
	if r.IntN(2) == 0 {
		at := time.Unix(int64(1e9+r.IntN(3)), int64(r.IntN(1e9)))
		r.do(fmt.Sprintf("touch %s", p), func(t Tree) { t.SetMtime(p, at) })
		return
	}
	v := r.content()
	r.do(fmt.Sprintf("setxattr %s %q", p, v), func(t Tree) { t.Setxattr(p, "user.test", v) })
}

// Sample fills a plain directory with a small tree: folders, empty and not, files of several modes,
// links, hard links.
func Sample(p Plain) {
	for _, d := range []string{"a", "a/b", "a/b/c", "d", "d/e", "empty"} {
		p.Mkdir(d)
	}
	for i, f := range []string{"f", "g", "a/f", "a/g", "a/b/f", "a/b/c/f", "a/b/c/g", "d/f", "d/e/f", "d/e/g"} {
		p.Write(f, fmt.Sprintf("content %d\n", i))
	}
	p.Link("a/g", "h")
	p.Link("a/g", "d/h")
	p.Symlink("f", "l")
	p.Symlink("../f", "a/l")
	p.Chmod("d/f", 0o755)
	p.Chmod("a/b/c", 0o700)
	p.Setxattr("a/b/f", "user.kept", "1")
	list := p.List()
	slices.Sort(list)
	for i, f := range slices.Backward(list) {
		p.SetMtime(f, time.Unix(int64(1_000_000_000+i), 123456789))
	}
}
