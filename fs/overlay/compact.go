package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
	"stage/journal"
)

// The change log grows with what is done, its state with what is changed: a file that is replaced a
// million times has a million records and one base. When it pays the log is written anew, beside the
// old one, which it replaces by a rename:
//
//	old ── replayed up to P, without a lock ──► state ──► new: the records of state
//	    ── what came after P, under the tree lock ──────►    + those
//	    ── from then on what is recorded goes to both, and is synced in both
//	                                                         synced, renamed to old's name
//
// So at any instant one of them stands under the name, and holds everything recorded.

const (
	newLogSuffix = ".new"
	// compactMin is how many records a log holds before it is looked at.
	compactMin = 20_000
	// compactClosed is the same for a log that is opened or closed.
	compactClosed = 2_000
	appendChunk   = 4096 // records written at once
)

// Records returns records that replay to s, few of them.
//
// Preconditions:
//   - nothing is pending.
func (s *State) Records() []Record {
	var recs []Record
	open := Record{Op: OpOpen, Boot: s.boot}
	if s.copies { // it must be the first only where it was
		recs = append(recs, open)
	}
	for _, p := range slices.SortedFunc(maps.Keys(s.Bases), tree.Path.Compare) {
		b := s.Bases[p]
		r := Record{Op: OpBase, Path: p, Subtree: b.Subtree, Time: b.Time, Lost: b.Lost}
		if !b.Lost {
			r.Node = &b.Node
		}
		recs = append(recs, r)
	}
	recs, fresh := s.markRecords(s.Root, tree.Path{}, recs, nil)
	if len(recs) > 0 {
		recs = append(recs, Record{Op: OpSynced, N: uint64(len(recs))})
	}
	recs = append(recs, fresh...)
	if s.boot != "" && !s.copies {
		recs = append(recs, open)
	}
	return recs
}

// markRecords adds the records of m and the marks below to recs, and to fresh those that must come
// behind an OpSynced.
func (s *State) markRecords(m *Mark, p tree.Path, recs, fresh []Record) (all, allFresh []Record) {
	add := func(is bool, r Record) {
		if r.Path = p; is {
			recs = append(recs, r)
		}
	}
	add(m.Lost, Record{Op: OpLost, Subtree: m.LostTree}) // first: it takes the place of what was said
	add(m.Opaque, Record{Op: OpOpaque})
	add(m.Lower != nil, Record{Op: OpLower, Lower: m.Lower})
	add(m.Times, Record{Op: OpTimes})
	add(m.Link != nil, Record{Op: OpLink, Node: m.Link})
	add(m.From != nil, Record{Op: OpFrom, Lower: m.From})
	if m.Dir != nil {
		add(true, Record{Op: OpDir, Ino: m.Dir.Ino, Time: m.Dir.Made})
	}
	if m.fresh > s.synced {
		fresh = append(fresh, Record{Op: OpCopy, Path: p, Ino: m.Shown})
	} else {
		add(m.Shown != 0, Record{Op: OpCopy, Ino: m.Shown})
	}
	for _, name := range slices.Sorted(maps.Keys(m.White)) {
		if q, err := p.Child(name); err == nil { // names in marks come from parsed paths
			recs = append(recs, Record{Op: OpWhite, Path: q})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Children)) {
		if q, err := p.Child(name); err == nil {
			recs, fresh = s.markRecords(m.Children[name], q, recs, fresh)
		}
	}
	return recs, fresh
}

// compactLoaded writes a log that was just replayed anew, if that pays. Nobody else uses it yet.
func (f *FS) compactLoaded() error {
	_, n := f.log.Position()
	if f.cfg.LogDir == nil || n < compactClosed {
		return nil
	}
	recs := f.bases.Records()
	if f.nextCompact = max(compactMin, 4*uint64(len(recs))); n < 2*uint64(len(recs)) {
		return nil
	}
	w, err := f.newLog(recs)
	if err != nil {
		return err
	}
	f.log.Mirror(w)
	return f.installLog(w)
}

// compact writes the log anew while the overlay is used, if it holds at least least records and most
// of them are of no more use. It reports whether it did.
func (f *FS) compact(least uint64) (bool, error) {
	f.syncing.Lock() // an OpSynced names records by number
	defer f.syncing.Unlock()
	f.mu.RLock() // what is recorded has happened
	end, n := f.log.Position()
	f.mu.RUnlock()
	if f.cfg.LogDir == nil || n < least {
		return false, nil
	}
	s, err := f.replayTo(end)
	if err != nil {
		return false, err
	}
	recs := s.Records()
	f.nextCompact = max(compactMin, 4*uint64(len(recs)))
	if n < 2*uint64(len(recs)) {
		return false, nil
	}
	w, err := f.newLog(recs)
	if err != nil {
		return false, err
	}
	if err := f.catchUp(w, end, n); err != nil {
		return false, errors.Join(err, f.dropNewLog(w))
	}
	return true, f.installLog(w)
}

// catchUp makes w hold what the log holds behind record n, at offset end, and whatever is recorded from
// now on.
func (f *FS) catchUp(w *journal.Writer, end int64, n uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.copyTail(w, end, n); err != nil {
		return err
	}
	f.log.Mirror(w)
	return nil
}

// replayTo replays the log up to offset end.
func (f *FS) replayTo(end int64) (*State, error) {
	file, err := f.cfg.LogDir.Open(f.cfg.LogName)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	s := NewState()
	if err := journal.Read(io.LimitReader(file, end), LogKind, s.Replay()); err != nil {
		return nil, err
	}
	s.last, s.undo = nil, nil
	return s, nil
}

// newLog writes a log of recs beside the one in use.
func (f *FS) newLog(recs []Record) (*journal.Writer, error) {
	name := f.cfg.LogName + newLogSuffix
	if err := f.cfg.LogDir.Unlink(name); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	file, err := f.cfg.LogDir.Create(name, 0o600)
	if err != nil {
		return nil, err
	}
	w, err := journal.Create(file, LogKind)
	if err != nil {
		return nil, errors.Join(err, file.Close(), f.cfg.LogDir.Unlink(name))
	}
	for chunk := range slices.Chunk(recs, appendChunk) {
		if err := appendAll(w, chunk); err != nil {
			return nil, errors.Join(err, f.dropNewLog(w))
		}
	}
	return w, nil
}

func appendAll(w *journal.Writer, recs []Record) error {
	list := make([]any, len(recs))
	for i := range recs {
		list[i] = &recs[i]
	}
	_, err := w.Append(list...)
	return err
}

func (f *FS) dropNewLog(w *journal.Writer) error {
	return errors.Join(w.Close(), f.cfg.LogDir.Unlink(f.cfg.LogName+newLogSuffix))
}

// copyTail appends to w what the log holds from offset end on, behind record n.
//
// Preconditions:
//   - FS.mu is held exclusively.
func (f *FS) copyTail(w *journal.Writer, end int64, n uint64) error {
	now, _ := f.log.Position()
	file, err := f.cfg.LogDir.Open(f.cfg.LogName)
	if err != nil {
		return err
	}
	defer file.Close()
	var tail []any
	err = journal.ReadTail(io.NewSectionReader(file, end, now-end), n, func(_ uint64, r json.RawMessage) error {
		tail = append(tail, r)
		return nil
	})
	if err != nil || len(tail) == 0 {
		return err
	}
	_, err = w.Append(tail...)
	return err
}

// installLog makes w, the mirror of the log, the log. Once it has the name there is no way back: where
// that cannot be made durable nothing more is recorded, as a power loss would bring the old log back.
func (f *FS) installLog(w *journal.Writer) error {
	err := w.Sync()
	if err == nil {
		err = f.cfg.LogDir.Rename(f.cfg.LogName+newLogSuffix, f.cfg.LogDir, f.cfg.LogName, 0)
	}
	if err != nil {
		f.log.Unmirror()
		return errors.Join(err, f.dropNewLog(w))
	}
	if err := errors.Join(f.cfg.LogDir.Sync(), f.log.Switch()); err != nil {
		return errors.Join(fmt.Errorf("replace change log: %w", err), f.log.Close())
	}
	return nil
}
