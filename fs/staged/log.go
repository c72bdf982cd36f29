package staged

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"stage/fs/overlay"
	"stage/fs/tree"
	"stage/journal"
)

// history is the change log replayed: its state, and where files were renamed from.
type history struct {
	state  *overlay.State
	origin *track
	undo   func() // takes the last move in origin back
}

// track says where the upper node at a view path, and those below, was renamed from.
type track struct {
	from     *tree.Path
	children map[string]*track
}

func readLog(r io.Reader) (*history, error) {
	h := &history{state: overlay.NewState(), origin: &track{}}
	return h, journal.Read(r, overlay.LogKind, h.replay)
}

func (h *history) replay(_ uint64, raw json.RawMessage) error {
	var rec overlay.Record
	if err := json.Unmarshal(raw, &rec); err != nil {
		return fmt.Errorf("%w: %w", journal.ErrCorrupt, err)
	}
	if rec.Op == overlay.OpAbort {
		if h.state.Pending() == nil {
			return fmt.Errorf("abort without a move before it: %w", journal.ErrCorrupt)
		}
		h.abort()
		return nil
	}
	if err := h.state.Apply(rec); err != nil {
		return err
	}
	h.follow(rec)
	return nil
}

func (h *history) abort() {
	h.state.Abort()
	if h.undo != nil {
		h.undo()
	}
}

// follow keeps origin in step with the log.
func (h *history) follow(rec overlay.Record) {
	h.undo = nil
	switch rec.Op {
	case overlay.OpMove, overlay.OpSwap:
		a, b := h.take(rec.Path), h.take(*rec.To)
		h.put(*rec.To, a)
		if rec.Op == overlay.OpSwap {
			h.put(rec.Path, b)
		}
		h.undo = func() {
			h.put(rec.Path, a)
			h.put(*rec.To, b)
		}
	case overlay.OpDrop:
		h.put(rec.Path, nil)
	default:
	}
}

// take returns the track of p. A path never moved whose base is there is its own origin.
func (h *history) take(p tree.Path) *track {
	t := h.origin
	for _, name := range p.Names() {
		if t = t.children[name]; t == nil {
			break
		}
	}
	if t == nil {
		t = &track{}
	}
	if b, ok := h.state.Bases[p]; ok && t.from == nil && b.Node.Kind != tree.Absent && b.Node.Kind != tree.Dir {
		t.from = &p
	}
	return t
}

func (h *history) put(p tree.Path, c *track) {
	t := h.origin
	for _, name := range p.Parent().Names() {
		next := t.children[name]
		if next == nil {
			next = &track{}
			t.set(name, next)
		}
		t = next
	}
	t.set(p.Base(), c)
}

func (t *track) set(name string, c *track) {
	if t.children == nil {
		t.children = map[string]*track{}
	}
	t.children[name] = c
}

// renamedFrom returns the workspace path that the upper node at view path p had once.
func (h *history) renamedFrom(p tree.Path) (tree.Path, bool) {
	t := h.origin
	for _, name := range p.Names() {
		if t = t.children[name]; t == nil {
			return tree.Path{}, false
		}
	}
	if t.from == nil || *t.from == p {
		return tree.Path{}, false
	}
	return *t.from, true
}

// settlePending takes the move the log ends with back, in memory, if it did not happen: the record
// is written first, and the Job may have been killed in between.
func (r *Reader) settlePending() error {
	rec := r.log.state.Pending()
	if rec == nil {
		return nil
	}
	ino, err := r.upperIno(rec.Path)
	if err != nil {
		return err
	}
	if ino != 0 && ino == rec.Ino {
		r.log.abort()
	}
	return nil
}

// upperIno returns the inode number of p in the upper, 0 if there is none.
func (r *Reader) upperIno(p tree.Path) (uint64, error) {
	dir, err := r.cfg.Upper.OpenDirAt(p.Parent(), false)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	n, err := dir.Stat(p.Base())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return n.Ino, err
}
