package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"stage/fs/hostfs"
)

// Status is whether a Job is alive.
type Status uint8

// The statuses. The zero Status is Over: nothing of the Job runs.
const (
	Over  Status = iota
	Live         // its supervisor holds the lock
	Stale        // its record says it runs, but its supervisor died: Recover it
)

// String returns the status as a word.
func (s Status) String() string {
	switch s {
	case Over:
		return "over"
	case Live:
		return "live"
	case Stale:
		return "stale"
	default:
		return fmt.Sprintf("status %d", uint8(s))
	}
}

// A reader that asks whether a lock is free holds it shared for an instant, and a process that was
// killed keeps its lock until the kernel has closed its files. Both pass: a lock that is taken is
// asked for again this often before it counts as taken.
const (
	lockTries = 20
	lockPause = 5 * time.Millisecond
)

// Lock takes the Job's lock for this process, or returns ErrBusy.
func (j *Job) Lock() error {
	if j.lock != nil {
		return nil
	}
	f, err := openLock(j.dir)
	if err != nil {
		return fmt.Errorf("lock job %s: %w", j.ID(), err)
	}
	if err := tryLock(f, unix.LOCK_EX); err != nil {
		return errors.Join(fmt.Errorf("lock job %s: %w", j.ID(), err), f.Close())
	}
	j.lock = f
	return j.Reload()
}

// Unlock gives the lock back. It does nothing when this process does not hold it.
func (j *Job) Unlock() error {
	if j.lock == nil {
		return nil
	}
	f := j.lock
	j.lock = nil
	return f.Close()
}

func (j *Job) needLock() error {
	if j.lock == nil {
		return fmt.Errorf("job %s is changed without its lock: %w", j.ID(), ErrWrongState)
	}
	return nil
}

// openLock opens the lock file and makes it where somebody deleted it. It is opened close-on-exec:
// a child that inherited it would keep a dead supervisor's Job alive.
func openLock(d hostfs.Dir) (*os.File, error) {
	f, err := d.OpenWrite(lockName)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = d.Create(lockName, fileMode)
	}
	if err != nil {
		return nil, err
	}
	return f.OSFile(), nil
}

// tryLock takes a flock(2) of the given kind, or returns ErrBusy after lockTries.
func tryLock(f *os.File, how int) error {
	for i := 0; ; i++ {
		err := flock(f, how|unix.LOCK_NB)
		if err != unix.EWOULDBLOCK {
			return err
		}
		if i == lockTries {
			return ErrBusy
		}
		time.Sleep(lockPause)
	}
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// Status tells whether the Job is over, alive, or left behind by a supervisor that died. A Job that
// was over when its record was last read is over for good.
func (j *Job) Status() (Status, error) {
	if j.run.State.Over() {
		return Over, nil
	}
	if j.lock != nil {
		return Live, nil
	}
	free, err := lockFree(j.dir)
	if err != nil {
		return Over, fmt.Errorf("job %s: %w", j.ID(), err)
	}
	if !free {
		return Live, nil
	}
	return j.statusByWitness()
}

// lockFree asks without changing anything, so that it works on a store that cannot be written.
func lockFree(d hostfs.Dir) (bool, error) {
	f, err := d.Open(lockName)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	switch err := flock(f.OSFile(), unix.LOCK_SH|unix.LOCK_NB); err {
	case nil:
		return true, nil
	case unix.EWOULDBLOCK:
		return false, nil
	default:
		return false, fmt.Errorf("flock: %w", err)
	}
}

// statusByWitness is asked when the lock of a running Job is free. The Job may have ended in
// between, and a supervisor whose lock file was deleted is still alive: then its process says so.
func (j *Job) statusByWitness() (Status, error) {
	for i := 0; ; i++ {
		if err := j.Reload(); err != nil {
			return Over, err
		}
		alive, err := supervisorAlive(&j.run)
		switch {
		case err != nil:
			return Over, fmt.Errorf("job %s: %w", j.ID(), err)
		case j.run.State.Over():
			return Over, nil
		case !alive:
			return Stale, nil
		case i == lockTries:
			return Live, nil
		}
		time.Sleep(lockPause)
	}
}
