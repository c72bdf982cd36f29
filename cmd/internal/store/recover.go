package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"stage/bundle"
	"stage/fs/tree"
)

// Recover ends a Job that its supervisor left behind: it takes the lock, asks seal for a bundle and
// seals the Job as interrupted. A Job whose supervisor had sealed it before it died is ended as
// that seal says. It does nothing to a Job that is over, and returns ErrBusy for one that lives.
// The lock is kept.
func (j *Job) Recover(seal func(*Job) (*bundle.Bundle, error)) error {
	if err := j.recover(seal); err != nil {
		return fmt.Errorf("recover job %s: %w", j.ID(), err)
	}
	return nil
}

func (j *Job) recover(seal func(*Job) (*bundle.Bundle, error)) error {
	status, err := j.Status()
	switch {
	case err != nil:
		return err
	case status == Live:
		return ErrBusy
	}
	if err := j.Lock(); err != nil {
		return err
	}
	if j.run.State.Over() { // another process was first
		return nil
	}
	data, err := readFile(j.dir, bundleName, maxRecord)
	if err == nil {
		b, err := bundle.Decode[bundle.Bundle](data)
		if err != nil {
			return err
		}
		return j.endAs(b, tree.DigestBytes(data))
	}
	if !isAbsent(err) {
		return err
	}
	b, err := seal(j)
	if err != nil {
		return err
	}
	if b.SealedBy != bundle.SealedByRecovery {
		return fmt.Errorf("bundle says it is sealed by %s", b.SealedBy)
	}
	return j.Seal(b)
}

// Clean removes what crashes left in jobs/: Jobs that never became visible or were on their way
// out. It does nothing while another process makes a Job.
func (s *Store) Clean() error {
	guard, err := s.jobs.OpenDir(".")
	if err != nil {
		return err
	}
	defer guard.Close()
	switch err := unix.Flock(guard.Fd(), unix.LOCK_EX|unix.LOCK_NB); err {
	case nil:
	case unix.EWOULDBLOCK, unix.EINTR:
		return nil
	default:
		return fmt.Errorf("lock %q: %w", jobsName, err)
	}
	ents, err := guard.ReadDir()
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range ents {
		if isLeftover(e.Name) {
			errs = append(errs, s.removeLeftover(e.Name))
		}
	}
	return errors.Join(errs...)
}

func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

func isLeftover(name string) bool {
	return strings.HasPrefix(name, newPrefix) || strings.HasPrefix(name, gonePrefix)
}

func (s *Store) removeLeftover(name string) error {
	if err := checkUnmounted(filepath.Join(s.path, jobsName, name)); err != nil {
		return err
	}
	return removeTree(s.jobs, name)
}
