package gitview

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Contents opens and lists what changes stand for; *staged.Reader is one.
type Contents interface {
	OpenNew(tree.Path) (hostfs.File, error)
	OpenBase(tree.Path) (hostfs.File, error)
	WalkRemoved(c tree.Change, f func(p tree.Path, n tree.Node) error) error
}

// maxPacked is the size up to which packed-refs is read.
const maxPacked = 64 << 20

// Summary is what git would say of the changes below a git directory.
type Summary struct {
	HEAD    *RefChange // what HEAD says: "ref: refs/heads/main" or an object's name
	Refs    []RefChange
	Objects Objects
	Index   IndexChange
	Config  []tree.Path // config, info/attributes, info/exclude and the like
	Hooks   []tree.Path
	Other   []tree.Path // logs left out
}

// RefChange is a reference that was created (Old is ""), moved or deleted (New is "").
type RefChange struct {
	Name, Old, New string
	Commits        []Commit // those between Old and New that the Job made, newest first; at most maxCommits
}

// Objects counts files of the object store.
type Objects struct {
	Added, Packs, Removed int
	Bytes                 int64 // of what was added
}

// IndexChange says how the entries of the index differ.
type IndexChange struct {
	Changed                  bool // the file differs
	Unreadable               bool // and what it says cannot be told
	Added, Removed, Modified int
}

// Summarize reads the changes below git, the git directory's path in the root (".git", or the root
// itself). Only small files are read, as data.
func Summarize(ctx context.Context, git tree.Path, changes []tree.Change, c Contents) (*Summary, error) {
	s := &summarizer{git: git, contents: c, objects: map[string]bool{}, refs: map[string]bool{}}
	for _, ch := range changes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !git.Contains(ch.Path) {
			continue
		}
		if err := s.change(ch); err != nil {
			return nil, err
		}
	}
	if err := s.references(); err != nil {
		return nil, err
	}
	return &s.sum, s.commits(ctx)
}

// summarizer sorts changes by what they are to git.
type summarizer struct {
	git      tree.Path
	contents Contents
	sum      Summary
	objects  map[string]bool // names of added loose objects
	refs     map[string]bool // references of which a file changed
	packed   bool            // packed-refs changed
}

// change takes one change; a directory that went as a whole is all files below it.
func (s *summarizer) change(c tree.Change) error {
	if c.Base.Kind == tree.Dir && c.Subtree {
		err := s.contents.WalkRemoved(c, func(p tree.Path, n tree.Node) error {
			return s.file(tree.Change{Path: p, Base: n})
		})
		if err != nil {
			return fmt.Errorf("list removed directory %q: %w", c.Path, err)
		}
	}
	if (c.Base.Kind == tree.Dir || c.Base.Kind == tree.Absent) && (c.New.Kind == tree.Dir || c.New.Kind == tree.Absent) {
		return nil
	}
	return s.file(c)
}

func (s *summarizer) file(c tree.Change) error {
	name := s.name(c.Path)
	switch first, rest, _ := strings.Cut(name, "/"); {
	case name == "HEAD":
		return s.head(c)
	case name == "packed-refs":
		s.packed = true
	case first == "refs":
		s.refs[name] = true
	case first == "objects":
		s.object(rest, c)
	case name == "index":
		return s.index(c)
	case first == "hooks":
		s.sum.Hooks = append(s.sum.Hooks, c.Path)
	case strings.HasPrefix(name, "config") || first == "info":
		s.sum.Config = append(s.sum.Config, c.Path)
	case first == "logs":
	default:
		s.sum.Other = append(s.sum.Other, c.Path)
	}
	return nil
}

// name is p as git sees it, below its directory.
func (s *summarizer) name(p tree.Path) string { return p.Rebase(s.git, tree.Path{}).String() }

// path is name below the git directory. A name that is none, as a damaged file may hold, is refused.
func (s *summarizer) path(name string) (tree.Path, error) {
	p, err := tree.ParsePath(name)
	if err != nil {
		return tree.Path{}, err
	}
	return p.Rebase(tree.Path{}, s.git), nil
}

func (s *summarizer) head(c tree.Change) error {
	before, err := s.line(c.Base, c.Path, s.contents.OpenBase)
	if err != nil {
		return err
	}
	after, err := s.line(c.New, c.Path, s.contents.OpenNew)
	if err != nil {
		return err
	}
	if before != after {
		s.sum.HEAD = &RefChange{Name: "HEAD", Old: before, New: after}
	}
	return nil
}

// line returns the one line of a small file, "" where there is none.
func (s *summarizer) line(n tree.Node, p tree.Path, open func(tree.Path) (hostfs.File, error)) (string, error) {
	switch n.Kind {
	case tree.Symlink: // HEAD of an old repository
		return "ref: " + n.Target, nil
	case tree.File:
	default:
		return "", nil
	}
	data, err := readContent(p, open, smallFile)
	if absent(err) || errors.Is(err, errTooLarge) {
		return "", nil
	}
	text, _, _ := strings.Cut(string(data), "\n")
	return text, err
}

func readContent(p tree.Path, open func(tree.Path) (hostfs.File, error), limit int64) ([]byte, error) {
	f, err := open(p)
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", p, err)
	}
	data, err := readAll(f, limit)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read %q: %w", p, err)
	}
	return data, nil
}

// object counts a file below objects/.
func (s *summarizer) object(name string, c tree.Change) {
	dir, file, _ := strings.Cut(name, "/")
	switch {
	case c.New.Kind == tree.Absent:
		s.sum.Objects.Removed++
		return
	case dir == "pack" && strings.HasSuffix(file, ".pack"):
		s.sum.Objects.Packs++
	case len(dir) == 2 && objectName(dir+file):
		s.sum.Objects.Added++
		s.objects[dir+file] = true
	}
	s.sum.Objects.Bytes += c.New.Size
}

func (s *summarizer) index(c tree.Change) error {
	before, err := s.readIndex(c.Base, c.Path, s.contents.OpenBase)
	after, err2 := s.readIndex(c.New, c.Path, s.contents.OpenNew)
	if err := errors.Join(err, err2); err != nil {
		s.sum.Index = IndexChange{Changed: true, Unreadable: true}
		return nil
	}
	s.sum.Index = compareIndex(before, after)
	return nil
}

func (s *summarizer) readIndex(n tree.Node, p tree.Path, open func(tree.Path) (hostfs.File, error)) (*Index, error) {
	if n.Kind != tree.File {
		return &Index{}, nil
	}
	data, err := readContent(p, open, maxIndex)
	if err != nil {
		return nil, err
	}
	return parseIndex(data)
}

func compareIndex(a, b *Index) IndexChange {
	c := IndexChange{Changed: !bytes.Equal(a.resolve, b.resolve)}
	i, j := 0, 0
	for i < len(a.Entries) || j < len(b.Entries) {
		switch {
		case j == len(b.Entries) || i < len(a.Entries) && before(a.Entries[i], b.Entries[j]):
			c.Removed++
			i++
		case i == len(a.Entries) || before(b.Entries[j], a.Entries[i]):
			c.Added++
			j++
		default:
			if a.Entries[i] != b.Entries[j] {
				c.Modified++
			}
			i++
			j++
		}
	}
	c.Changed = c.Changed || c.Added+c.Removed+c.Modified > 0
	return c
}

// references compares the values of all references of which a file changed. A value stands in the
// reference's own file, else in packed-refs.
func (s *summarizer) references() error {
	packedPath, err := s.path("packed-refs")
	if err != nil {
		return err
	}
	before, err := s.packedRefs(packedPath, s.contents.OpenBase)
	if err != nil {
		return err
	}
	after := before
	if s.packed {
		if after, err = s.packedRefs(packedPath, s.contents.OpenNew); err != nil {
			return err
		}
		for name, id := range before {
			if after[name] != id {
				s.refs[name] = true
			}
		}
		for name, id := range after {
			if before[name] != id {
				s.refs[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.refs)) {
		p, err := s.path(name)
		if err != nil {
			return fmt.Errorf("reference of packed-refs: %w", err)
		}
		old, err := s.value(p, s.contents.OpenBase, before[name])
		if err != nil {
			return err
		}
		now, err := s.value(p, s.contents.OpenNew, after[name])
		if err != nil {
			return err
		}
		if old != now {
			s.sum.Refs = append(s.sum.Refs, RefChange{Name: name, Old: old, New: now})
		}
	}
	return nil
}

// value returns what a reference says: its own file, else packed.
func (s *summarizer) value(p tree.Path, open func(tree.Path) (hostfs.File, error), packed string) (string, error) {
	text, err := s.line(tree.Node{Kind: tree.File}, p, open)
	if absent(err) || err == nil && text == "" {
		return packed, nil
	}
	return strings.TrimSpace(text), err
}

// absent reports whether err says that there is no such file: a part of the path may be missing, or
// a directory may stand where a reference stood.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, hostfs.ErrNotRegular)
}

// packedRefs reads "<object> <reference>" lines; comments and peeled tags are passed over.
func (s *summarizer) packedRefs(p tree.Path, open func(tree.Path) (hostfs.File, error)) (map[string]string, error) {
	data, err := readContent(p, open, maxPacked)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	refs := map[string]string{}
	for l := range strings.Lines(string(data)) {
		id, name, ok := strings.Cut(strings.TrimSuffix(l, "\n"), " ")
		if ok && objectName(id) && strings.HasPrefix(name, "refs/") {
			refs[name] = id
		}
	}
	return refs, nil
}
