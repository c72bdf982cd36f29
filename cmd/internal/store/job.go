package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"stage/bundle"
	"stage/fs/hostfs"
)

// The names in a Job's directory.
const (
	runName     = "run.json"
	planName    = "plan.json"
	bundleName  = "bundle.json"
	lockName    = "lock"
	upperName   = "upper"
	orphansName = "orphans"
	baseName    = "base"
	preName     = "pre"
	applyName   = "apply"
	homeName    = "home"
	outName     = "out"
	workName    = "work"

	logSuffix     = ".log"
	readsSuffix   = ".reads"
	partialSuffix = ".partial"
)

// Job is the directory of one Job. A Job is used by one goroutine at a time.
type Job struct {
	store *Store
	path  string
	dir   hostfs.Dir
	run   bundle.Run
	lock  *os.File // nil while this process does not hold the Job's lock
}

// openJob takes dir over.
func (s *Store) openJob(path string, dir hostfs.Dir) (*Job, error) {
	j := &Job{store: s, path: path, dir: dir}
	if err := j.Reload(); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return j, nil
}

// ID returns the Job's id.
func (j *Job) ID() bundle.ID { return j.run.Job }

// Path returns the Job's directory.
func (j *Job) Path() string { return j.path }

// Dir returns the handle of the Job's directory, valid until Close.
func (j *Job) Dir() hostfs.Dir { return j.dir }

// Run returns run.json as it was last read or written.
func (j *Job) Run() bundle.Run { return j.run }

// Reload reads run.json again.
func (j *Job) Reload() error {
	r, err := readRecord[bundle.Run](j.dir, runName)
	if err != nil {
		return fmt.Errorf("job %q: %w", filepath.Base(j.path), err)
	}
	j.run = *r
	return nil
}

// Plan reads plan.json. Its absence is fs.ErrNotExist: the run died before it had a plan.
func (j *Job) Plan() (*bundle.Plan, error) { return readRecord[bundle.Plan](j.dir, planName) }

// Bundle reads bundle.json; ErrNotSealed when there is none yet.
func (j *Job) Bundle() (*bundle.Bundle, error) {
	b, err := readRecord[bundle.Bundle](j.dir, bundleName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("job %s: %w", j.ID(), ErrNotSealed)
	}
	return b, err
}

// Close releases the Job's handles and its lock, if this process holds it.
func (j *Job) Close() error { return errors.Join(j.Unlock(), j.dir.Close()) }

// Upper returns the directory of a root's staged tree.
func (j *Job) Upper(root string) string { return filepath.Join(j.path, upperName, root) }

// Base returns the directory of the change logs and preimages.
func (j *Job) Base() string { return filepath.Join(j.path, baseName) }

// Log returns the change log of a root.
func (j *Job) Log(root string) string { return filepath.Join(j.Base(), root+logSuffix) }

// Reads returns the log of what was read of a root.
func (j *Job) Reads(root string) string { return filepath.Join(j.Base(), root+readsSuffix) }

// Pre returns the directory of a root's preimages.
func (j *Job) Pre(root string) string { return filepath.Join(j.Base(), preName, root) }

// Orphans returns the directory of what was unlinked in a root while in use.
func (j *Job) Orphans(root string) string { return filepath.Join(j.path, orphansName, root) }

// ClearOrphans removes what a session that was killed left there.
func (j *Job) ClearOrphans() error {
	err := clearDir(j.dir, orphansName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Apply returns the directory of a published batch.
func (j *Job) Apply(n int) string { return filepath.Join(j.path, applyName, strconv.Itoa(n)) }

// Home returns the directory of the agent's private home.
func (j *Job) Home() string { return filepath.Join(j.path, homeName) }

// Out returns the directory of captured output.
func (j *Job) Out() string { return filepath.Join(j.path, outName) }

// Work returns the directory of mount points. It holds no data and is emptied with rmdir only.
func (j *Job) Work() string { return filepath.Join(j.path, workName) }

// MakeRoot makes the upper directory and the empty change log of a staged root.
func (j *Job) MakeRoot(root string) (upper hostfs.Dir, log hostfs.File, err error) {
	uppers, err := j.dir.OpenDir(upperName)
	if err != nil {
		return nil, nil, err
	}
	defer uppers.Close()
	if err := uppers.Mkdir(root, dirMode); err != nil {
		return nil, nil, err
	}
	if upper, err = uppers.OpenDir(root); err != nil {
		return nil, nil, err
	}
	base, err := j.dir.OpenDir(baseName)
	if err != nil {
		return nil, nil, errors.Join(err, upper.Close())
	}
	defer base.Close()
	if log, err = base.Create(root+logSuffix, fileMode); err != nil {
		return nil, nil, errors.Join(err, upper.Close())
	}
	return upper, log, nil
}

// OpenRoot opens the upper directory and, for reading, the change log of a staged root.
func (j *Job) OpenRoot(root string) (upper hostfs.Dir, log hostfs.File, err error) {
	uppers, err := j.dir.OpenDir(upperName)
	if err != nil {
		return nil, nil, err
	}
	defer uppers.Close()
	if upper, err = uppers.OpenDir(root); err != nil {
		return nil, nil, err
	}
	base, err := j.dir.OpenDir(baseName)
	if err != nil {
		return nil, nil, errors.Join(err, upper.Close())
	}
	defer base.Close()
	if log, err = base.Open(root + logSuffix); err != nil {
		return nil, nil, errors.Join(err, upper.Close())
	}
	return upper, log, nil
}
