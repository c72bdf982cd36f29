package store

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"stage/bundle"
	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Options describe a Job that is to be made.
type Options struct {
	Session, Operation, Attempt bundle.ID // made where empty
	Parent                      *bundle.Parent
	Workspace                   bundle.Workspace
	Roots                       []bundle.Root
	Argv                        []string
	Cwd                         bundle.HostPath
	Preset                      string
	// Dir is the Job's directory, absent or empty, when it is not to lie in the store.
	Dir string
}

// The names of directories in jobs/ that are not Jobs: being made, being removed.
const (
	newPrefix  = ".new-"
	gonePrefix = ".gone-"
)

// NewID returns a fresh id for a Job, session, operation or attempt.
func NewID() (bundle.ID, error) {
	u, err := ulid.New(ulid.Timestamp(time.Now()), rand.Reader)
	if err != nil {
		return "", fmt.Errorf("make id: %w", err)
	}
	return bundle.ParseID(strings.ToLower(u.String()))
}

// Create makes a Job in state preparing, with its lock held by this process. Its directory appears
// complete or not at all, and never unlocked.
func (s *Store) Create(o Options) (*Job, error) {
	j, err := s.create(o)
	if err != nil {
		return nil, fmt.Errorf("create job: %w", err)
	}
	return j, nil
}

func (s *Store) create(o Options) (*Job, error) {
	// A workspace in the store would show the Job what the store hides.
	if err := checkOutside(o.Workspace.Path.String(), []string{s.path}); err != nil {
		return nil, err
	}
	run, err := s.newRun(o)
	if err != nil {
		return nil, err
	}
	// A cleaner takes the jobs directory exclusively; shared, it cannot mistake a half-made Job
	// for one that a crash left, nor its mark.
	guard, err := guardJobs(s, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer guard.Close()
	if err := s.mark(run.Job, false); err != nil {
		return nil, err
	}
	j, err := s.createIn(o, run)
	if err != nil {
		return nil, errors.Join(err, s.unmark(run.Job))
	}
	return j, nil
}

func (s *Store) createIn(o Options, run *bundle.Run) (*Job, error) {
	if o.Dir != "" {
		return s.createElsewhere(o, run)
	}
	path := filepath.Join(s.path, jobsName, string(run.Job))
	if err := checkOutside(path, lowers(o)); err != nil {
		return nil, err
	}
	return s.createHere(path, run)
}

func (s *Store) createHere(path string, run *bundle.Run) (*Job, error) {
	temp := newPrefix + string(run.Job)
	if err := s.jobs.Mkdir(temp, dirMode); err != nil {
		return nil, err
	}
	dir, err := s.jobs.OpenDir(temp)
	if err != nil {
		return nil, errors.Join(err, s.jobs.Rmdir(temp))
	}
	j := &Job{store: s, path: path, dir: dir}
	if err = j.fill(run); err == nil {
		err = s.jobs.Rename(temp, s.jobs, string(run.Job), hostfs.NoReplace)
	}
	if err != nil {
		return nil, errors.Join(err, j.Close(), removeTree(s.jobs, temp))
	}
	return j, nil
}

// createElsewhere makes the Job in o.Dir, in place: run.json comes last and makes it a Job.
func (s *Store) createElsewhere(o Options, run *bundle.Run) (*Job, error) {
	path, made, err := emptyDir(o.Dir)
	if err != nil {
		return nil, err
	}
	undo := func() error {
		if made {
			return os.Remove(path)
		}
		return nil
	}
	if err := checkOutside(path, lowers(o)); err != nil {
		return nil, errors.Join(err, undo())
	}
	dir, err := hostfs.OpenRoot(path)
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	j := &Job{store: s, path: path, dir: dir}
	err = secure(dir)
	if err == nil {
		err = j.fill(run)
	}
	if err == nil {
		err = s.remember(j)
	}
	if err != nil {
		return nil, errors.Join(err, emptyTree(dir), j.Close(), undo())
	}
	return j, nil
}

// emptyDir returns the path without links of dir, which is made when absent and refused when it
// holds anything.
func emptyDir(dir string) (path string, made bool, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", false, err
	}
	err = os.Mkdir(abs, os.FileMode(dirMode))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", false, err
	}
	made = err == nil
	if path, err = filepath.EvalSymlinks(abs); err != nil {
		return "", made, err
	}
	ents, err := os.ReadDir(path)
	if err == nil && len(ents) > 0 {
		err = fmt.Errorf("directory %q is not empty", path)
	}
	return path, made, err
}

// remember lets the Job be found by its id.
func (s *Store) remember(j *Job) error {
	d, err := s.root.OpenDir(elsewhereName)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Symlink(j.path, string(j.ID()))
}

// guardJobs takes a flock on the jobs directory, through a handle of its own.
func guardJobs(s *Store, how int) (hostfs.Dir, error) {
	d, err := s.jobs.OpenDir(".")
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(d.Fd(), how)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %q: %w", jobsName, err), d.Close())
	}
	return d, nil
}

// lowers are the trees that a Job's directory must not lie in.
func lowers(o Options) []string {
	trees := []string{o.Workspace.Path.String()}
	for _, r := range o.Roots {
		trees = append(trees, r.Path.String())
	}
	return trees
}

// nextID returns an id that sorts after every earlier one of this Store: two of the same millisecond
// would sort by chance.
func (s *Store) nextID() (bundle.ID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		id, err := NewID()
		if err != nil {
			return "", err
		}
		if id > s.last {
			s.last = id
			return id, nil
		}
	}
}

func (s *Store) newRun(o Options) (*bundle.Run, error) {
	r := &bundle.Run{
		Session: o.Session, Operation: o.Operation, Attempt: o.Attempt,
		Parent: o.Parent, Workspace: o.Workspace, Roots: o.Roots,
		Argv: bundle.Words(o.Argv), Cwd: o.Cwd, Preset: o.Preset,
		State: bundle.Preparing, Publication: bundle.PublishedNone,
		CreatedAt: tree.Time(time.Now().UnixNano()),
		PID:       os.Getpid(), UID: uint32(os.Geteuid()),
	}
	var err error
	if r.Job, err = s.nextID(); err != nil {
		return nil, err
	}
	for _, id := range []*bundle.ID{&r.Session, &r.Operation, &r.Attempt} {
		if *id != "" {
			continue
		}
		if *id, err = NewID(); err != nil {
			return nil, err
		}
	}
	self, err := readProcess(r.PID)
	if err != nil {
		return nil, err
	}
	r.PIDStart = self.start
	r.BootID, err = bootID()
	return r, err
}

// fill makes what is in a Job's directory: the lock first, run.json last.
func (j *Job) fill(run *bundle.Run) error {
	path, err := bundle.ParseHostPath(j.path)
	if err != nil {
		return err
	}
	run.StorePath = path
	lock, err := j.dir.Create(lockName, fileMode)
	if err != nil {
		return err
	}
	j.lock = lock.OSFile()
	if err := tryLock(j.lock, unix.LOCK_EX); err != nil {
		return err
	}
	for _, name := range []string{upperName, baseName, applyName, homeName, outName, workName} {
		if err := j.dir.Mkdir(name, dirMode); err != nil {
			return err
		}
	}
	data, err := bundle.Encode(run)
	if err != nil {
		return err
	}
	if err := createFile(j.dir, runName, data, soon); err != nil {
		return err
	}
	j.run = *run
	return nil
}
