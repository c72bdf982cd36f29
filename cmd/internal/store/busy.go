package store

import (
	"errors"
	"io/fs"

	"stage/bundle"
	"stage/fs/hostfs"
)

// busyName is the directory of marks: busy/<id> is there while a Job runs or a batch of it is being
// published, and stays when the process doing so is killed. It tells where to look for what a crash
// left, so that nobody has to look at every Job. A mark too many costs a look; a Job whose mark was
// lost is still recovered when it is named.
const busyName = "busy"

// Busy returns the Jobs that run, are being published, or were when somebody was killed.
func (s *Store) Busy() ([]bundle.ID, error) {
	d, err := s.root.OpenDir(busyName)
	if err != nil {
		return nil, err
	}
	defer d.Close() // read only
	ents, err := d.ReadDir()
	return idsIn(ents), err
}

// Begin marks the Job as busy. The mark is durable when durably is set: what begins must not be
// forgotten in a power failure.
func (j *Job) Begin(durably bool) error {
	return j.store.mark(j.ID(), durably)
}

func (s *Store) mark(id bundle.ID, durably bool) error {
	return s.inBusy(func(d hostfs.Dir) error {
		f, err := d.Create(string(id), fileMode)
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		if err == nil {
			err = f.Close()
		}
		if err == nil && durably {
			err = d.Sync()
		}
		return err
	})
}

// Done takes the mark of Begin away: nothing of the Job is half-done.
func (j *Job) Done() error { return j.store.unmark(j.ID()) }

func (s *Store) unmark(id bundle.ID) error {
	return s.inBusy(func(d hostfs.Dir) error {
		return unlessGone(d.Unlink(string(id)))
	})
}

func (s *Store) inBusy(f func(hostfs.Dir) error) error {
	d, err := s.root.OpenDir(busyName)
	if err != nil {
		return err
	}
	return errors.Join(f(d), d.Close())
}
