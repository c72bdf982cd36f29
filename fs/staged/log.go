package staged

import (
	"errors"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"

	"stage/fs/overlay"
	"stage/fs/tree"
	"stage/journal"
)

// readLog replays a change log written, if the machine runs without a break since, on the given boot. A
// log damaged by a power loss, or that never began, counts as far as it goes.
func readLog(log io.Reader, boot string) (*overlay.State, error) {
	s := overlay.NewState()
	err := journal.Read(log, overlay.LogKind, s.Replay())
	if damage := new(journal.DamageError); errors.As(err, &damage) || errors.Is(err, journal.ErrNoHeader) {
		if s.Unsure(boot) {
			return s, nil
		}
	}
	return s, err
}

func (r *Reader) readLog() (err error) {
	if r.log, err = readLog(r.cfg.Log, r.cfg.Boot); err != nil {
		return err
	}
	if err := r.settlePending(); err != nil {
		return err
	}
	return r.settleLosses()
}

// settleLosses notes what nothing vouches for after a power loss.
func (r *Reader) settleLosses() error {
	if !r.log.Unsure(r.cfg.Boot) {
		return nil
	}
	lost, err := r.log.Losses(r.cfg.Lower, r.cfg.Upper)
	if err != nil {
		return err
	}
	for _, l := range lost {
		if err := r.log.Lose(l); err != nil {
			return err
		}
	}
	return nil
}

// renamedFrom returns the workspace path that the upper node at view path p had once.
func (r *Reader) renamedFrom(p tree.Path) (tree.Path, bool) {
	m := r.log.Lookup(p)
	if m == nil || m.From == nil || *m.From == p {
		return tree.Path{}, false
	}
	return *m.From, true
}

// settlePending takes the move the log ends with back, in memory, if it did not happen: the record
// is written first, and the Job may have been killed in between.
func (r *Reader) settlePending() error {
	rec := r.log.Pending()
	if rec == nil {
		return nil
	}
	ino, err := r.upperIno(rec.Path)
	if err != nil {
		return err
	}
	if ino != 0 && ino == rec.Ino {
		r.log.Abort()
	}
	return nil
}

// upperIno returns the inode number of p in the upper, 0 if there is none.
func (r *Reader) upperIno(p tree.Path) (uint64, error) {
	dir, err := r.cfg.Upper.OpenDirAt(p.Parent(), false)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
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
