package render

import (
	"errors"
	"fmt"
	"io"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Limits that bound time and memory. What is above them is told about, never shown as text.
const (
	maxText  = 16 << 20 // bytes of one side of a text difference
	maxLines = 400_000  // lines of one side of a text difference
)

// errMoved: a file changed between its stat and the end of reading it.
var errMoved = errors.New("changed while it was read")

// side is one of the two states of an item, with access to its content.
type side struct {
	node tree.Node
	path tree.Path
	open func(tree.Path) (hostfs.File, error)
}

func (r *Review) before(it *item) side {
	p := it.path
	if it.letter == 'R' {
		p = it.from
	}
	return side{it.base, p, r.Contents.OpenBase}
}

func (r *Review) after(it *item) side { return side{it.now, it.path, r.Contents.OpenNew} }

// inGitPatch reports whether git knows this kind of node: it has no directories and no special files.
func (s side) inGitPatch() bool { return s.node.Kind == tree.File || s.node.Kind == tree.Symlink }

// read returns the content of a file or the target of a link, and its true size. whole is false
// when the content is larger than limit; data is nil then. Other kinds have no content.
func (s side) read(limit int64) (data []byte, whole bool, err error) {
	switch s.node.Kind {
	case tree.Symlink:
		return []byte(s.node.Target), true, nil
	case tree.File:
	default:
		return nil, true, nil
	}
	if s.node.Size > limit {
		return nil, false, nil
	}
	err = s.stream(func(r io.Reader) error {
		data, err = io.ReadAll(io.LimitReader(r, limit+1))
		return err
	})
	if err != nil || int64(len(data)) > limit {
		return nil, false, err
	}
	return data, true, nil
}

// stream calls f with the content of a regular file.
func (s side) stream(f func(io.Reader) error) error {
	h, err := s.open(s.path)
	if err != nil {
		return fmt.Errorf("read %q: %w", s.path, err)
	}
	if err := f(h); err != nil {
		return errors.Join(fmt.Errorf("read %q: %w", s.path, err), h.Close())
	}
	return h.Close()
}
