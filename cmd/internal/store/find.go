package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"stage/bundle"
	"stage/fs/hostfs"
)

// Last is the reference to the newest Job of a workspace.
const Last = "last"

// MinPrefix is the shortest prefix of an id that names a Job.
const MinPrefix = 6

// NoJobError says which Job was not found. It is an ErrNoJob.
type NoJobError struct {
	Ref       string
	Workspace bundle.Workspace
	// Moved are Jobs of what may be the same workspace under another identity: the directory was
	// moved, or another one stands at its path now.
	Moved []Ref
}

// Error says what was looked for.
func (e *NoJobError) Error() string {
	if e.Ref == Last {
		return fmt.Sprintf("no job of workspace %q", e.Workspace.Path)
	}
	return fmt.Sprintf("no such job: %q", e.Ref)
}

// Unwrap returns ErrNoJob.
func (e *NoJobError) Unwrap() error { return ErrNoJob }

// Hint returns the next useful step in words.
func (e *NoJobError) Hint() string {
	switch {
	case e.Ref != Last:
		return "`stage jobs --all` lists the jobs of every workspace"
	case len(e.Moved) == 0:
		return "`stage run -- COMMAND` makes one; `stage jobs --all` lists those of other workspaces"
	}
	m := e.Moved[0]
	if m.Workspace.Path == e.Workspace.Path {
		return fmt.Sprintf("another directory stood at %q when job %s was made; name the job by its id", m.Workspace.Path, m.ID)
	}
	return fmt.Sprintf("the workspace seems to have moved here from %q; name its job by its id: %s", m.Workspace.Path, m.ID)
}

// AmbiguousError says which Jobs a prefix matches. It is an ErrAmbiguous.
type AmbiguousError struct {
	Prefix string
	IDs    []bundle.ID
}

// Error names the prefix.
func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("%d jobs begin with %q", len(e.IDs), e.Prefix)
}

// Unwrap returns ErrAmbiguous.
func (e *AmbiguousError) Unwrap() error { return ErrAmbiguous }

// IsJobDir reports whether path is a Job's directory.
func IsJobDir(path string) bool {
	_, err := os.Lstat(filepath.Join(path, runName))
	return err == nil
}

// Find opens the Job that ref names: "last" or "" for the newest Job of the workspace in this store,
// an id, a unique prefix of one, or a Job's directory. It never answers with another workspace's
// Job where "last" was asked for.
func (s *Store) Find(ref string, w bundle.Workspace) (*Job, error) {
	switch {
	case ref == Last || ref == "":
		return s.findLast(w)
	case strings.Contains(ref, "/") || ref == "." || ref == "..":
		return s.findDir(ref)
	}
	j, err := s.findPrefix(strings.ToLower(ref))
	if !errors.Is(err, ErrNoJob) {
		return j, err
	}
	if _, err := os.Lstat(filepath.Join(ref, runName)); err == nil {
		return s.findDir(ref)
	}
	return nil, err
}

func (s *Store) findLast(w bundle.Workspace) (*Job, error) {
	all, broken, err := s.survey()
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if r.Workspace != w {
			continue
		}
		if err := newerThan(r.ID, broken); err != nil {
			return nil, err
		}
		j, err := s.openID(r.ID)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since the survey
		}
		return j, err
	}
	if err := newerThan("", broken); err != nil {
		return nil, err
	}
	return nil, &NoJobError{Ref: Last, Workspace: w, Moved: moved(all, w)}
}

// newerThan refuses to call a Job the last one while the record of a newer one cannot be read: that
// may be the one that is meant.
func newerThan(id bundle.ID, broken []Entry) error {
	for _, b := range broken {
		if b.ID > id {
			return fmt.Errorf("which job is the last is not known, name one by its id: %w", b.Err)
		}
	}
	return nil
}

// moved returns the Jobs whose workspace shares the path or the inode with w, but not both.
func moved(all []Ref, w bundle.Workspace) []Ref {
	var l []Ref
	for _, r := range all {
		inode := r.Workspace.Dev == w.Dev && r.Workspace.Ino == w.Ino
		if (r.Workspace.Path == w.Path) != inode {
			l = append(l, r)
		}
	}
	return l
}

func (s *Store) findPrefix(prefix string) (*Job, error) {
	if id, err := bundle.ParseID(prefix); err == nil {
		return s.openAnywhere(id)
	}
	if len(prefix) < MinPrefix {
		return nil, &NoJobError{Ref: prefix}
	}
	here, err := s.jobIDs()
	if err != nil {
		return nil, err
	}
	there, err := s.elsewhereIDs()
	if err != nil {
		return nil, err
	}
	var match []bundle.ID
	for _, id := range append(here, there...) {
		if strings.HasPrefix(string(id), prefix) {
			match = append(match, id)
		}
	}
	switch len(match) {
	case 0:
		return nil, &NoJobError{Ref: prefix}
	case 1:
	default:
		return nil, &AmbiguousError{Prefix: prefix, IDs: match}
	}
	return s.openAnywhere(match[0])
}

func (s *Store) openAnywhere(id bundle.ID) (*Job, error) {
	j, err := s.openID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return s.openElsewhere(id)
	}
	return j, err
}

func (s *Store) elsewhereIDs() ([]bundle.ID, error) {
	d, err := s.root.OpenDir(elsewhereName)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	ents, err := d.ReadDir()
	return idsIn(ents), err
}

// openElsewhere opens the Job that the link of an id leads to, if it is still that Job.
func (s *Store) openElsewhere(id bundle.ID) (*Job, error) {
	d, err := s.root.OpenDir(elsewhereName)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	n, err := d.Stat(string(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &NoJobError{Ref: string(id)}
	}
	if err != nil {
		return nil, err
	}
	j, err := s.findDir(n.Target)
	if err != nil {
		return nil, err
	}
	if j.ID() != id {
		return nil, errors.Join(fmt.Errorf("%q holds another job now: %w", n.Target, &NoJobError{Ref: string(id)}), j.Close())
	}
	return j, nil
}

// findDir opens a Job by its directory. One of somebody else is refused: its records decide what
// apply writes.
func (s *Store) findDir(ref string) (*Job, error) {
	abs, err := filepath.Abs(ref)
	if err != nil {
		return nil, err
	}
	path, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &NoJobError{Ref: ref}
	}
	if err != nil {
		return nil, err
	}
	dir, err := hostfs.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	n, err := dir.Stat(".")
	if err == nil && n.UID != uint32(os.Geteuid()) {
		err = fmt.Errorf("job directory %q belongs to user %d: %w", path, n.UID, fs.ErrPermission)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	j, err := s.openJob(path, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &NoJobError{Ref: ref}
	}
	return j, err
}
