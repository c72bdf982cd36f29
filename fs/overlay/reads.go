package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
	"stage/journal"
)

// ReadsKind is the journal kind of a log of reads, jobs/<id>/base/<root>.reads.
const ReadsKind = "reads"

const (
	maxReads   = 100_000     // how many files a log of reads holds
	readsEvery = time.Second // how often what is new is written
)

// Read is one record of a log of reads: the state of the workspace file Path when the Job first read
// its content. A record with More, the last, says that so many further files were read.
type Read struct {
	Path  tree.Path `json:"path"`
	Dev   uint64    `json:"dev,omitempty"`
	Ino   uint64    `json:"ino,omitempty"`
	Size  int64     `json:"size,omitempty"`
	Mtime tree.Time `json:"mtime,omitempty"`
	More  uint64    `json:"more,omitempty"`
}

// Same reports whether n is still the file that was read, as far as its identity tells.
func (r *Read) Same(n tree.Node) bool {
	return n.Kind == tree.File && n.Dev == r.Dev && n.Ino == r.Ino && n.Size == r.Size && n.Mtime == r.Mtime
}

// LoadReads calls visit for each record of the log of reads in r.
func LoadReads(r io.Reader, visit func(Read)) error {
	return journal.Read(r, ReadsKind, func(_ uint64, raw json.RawMessage) error {
		var rec Read
		if err := json.Unmarshal(raw, &rec); err != nil {
			return fmt.Errorf("%w: %w", journal.ErrCorrupt, err)
		}
		visit(rec)
		return nil
	})
}

// readLog notes what the Job reads of the workspace, each file once, and writes it in batches.
type readLog struct {
	seed maphash.Seed
	w    *journal.Writer // nil: no account is kept

	mu    sync.Mutex      // the last in the lock order of the package
	known map[uint64]seen // by hashes of paths; guarded by mu, like all below
	wait  []any
	more  uint64
}

// newReadLog starts a log of reads in file, which must be empty. A nil file keeps none.
func newReadLog(file journal.File) (*readLog, error) {
	l := &readLog{seed: maphash.MakeSeed(), known: map[uint64]seen{}}
	if file == nil {
		return l, nil
	}
	var err error
	l.w, err = journal.Create(file, ReadsKind)
	return l, err
}

func (l *readLog) add(path tree.Path, st *unix.Stat_t) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := maphash.String(l.seed, path.String())
	if _, ok := l.known[h]; ok {
		return
	}
	if len(l.known) >= maxReads {
		l.more++
		return
	}
	l.known[h] = seenOf(st, &seen{})
	l.wait = append(l.wait, &Read{Path: path, Dev: uint64(st.Dev), Ino: st.Ino, Size: st.Size, Mtime: timeOf(st.Mtim)})
}

// first returns the state of which content of path was first read, the zero seen if none was, or the
// log was full by then.
func (l *readLog) first(path tree.Path) seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known[maphash.String(l.seed, path.String())]
}

// flush writes what is new.
func (l *readLog) flush() error {
	l.mu.Lock()
	wait := l.wait
	l.wait = nil
	l.mu.Unlock()
	if len(wait) == 0 {
		return nil
	}
	if _, err := l.w.Append(wait...); err != nil {
		return fmt.Errorf("log of reads: %w", err)
	}
	return nil
}

func (l *readLog) close() error {
	if l.w == nil {
		return nil
	}
	if l.more > 0 {
		l.wait = append(l.wait, &Read{More: l.more})
	}
	return errors.Join(l.flush(), l.w.Close())
}

// noteRead notes that content of n, whose state is st, is read for the first time.
func (f *FS) noteRead(n *node, st *unix.Stat_t) {
	if f.reads.w == nil {
		return
	}
	if path, ok := f.lowerPath(n); ok {
		f.reads.add(path, st)
	}
}

// lowerPath returns the workspace path of a lower file.
func (f *FS) lowerPath(n *node) (tree.Path, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if n.upper.Load() || n.parent == nil {
		return tree.Path{}, false
	}
	return f.lowerPathOf(n.parent, n.name)
}

// lowerPathOf returns the workspace path of name in p, false where p shows nothing of the workspace.
//
// Preconditions:
//   - FS.mu is held.
func (f *FS) lowerPathOf(p *node, name string) (tree.Path, bool) {
	if p == nil || p.dir.lower == nil {
		return tree.Path{}, false
	}
	path, err := p.dir.lower.child(name)
	return path, err == nil
}
