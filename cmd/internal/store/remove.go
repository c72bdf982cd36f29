package store

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stage/bundle"
	"stage/fs/hostfs"
	"stage/fs/tree"
)

// removeTree removes the directory name in d and everything below it, on the file system of d only.
// What is gone already is no error: two processes may clean up the same tree.
func removeTree(d hostfs.Dir, name string) error {
	sub, err := openToEmpty(d, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := errors.Join(emptyTree(sub), sub.Close()); err != nil {
		return err
	}
	return unlessGone(d.Rmdir(name))
}

// emptyTree removes everything below d. A staged tree can be deeper than there are descriptors, so
// it does not descend: a directory that is not empty gives its sub-directories to d and goes.
func emptyTree(d hostfs.Dir) error {
	e := emptier{top: d}
	for {
		ents, err := d.ReadDir()
		if err != nil || len(ents) == 0 {
			return err
		}
		for _, ent := range ents {
			if err := e.remove(ent); err != nil {
				return err
			}
		}
	}
}

type emptier struct {
	top  hostfs.Dir
	next int // number in the name of the next directory given to top
}

// remove removes one entry of top.
func (e *emptier) remove(ent hostfs.Dirent) error {
	gone, err := removePlain(e.top, ent)
	if gone || err != nil {
		return err
	}
	if err := e.flatten(ent.Name); err != nil {
		return err
	}
	return unlessGone(e.top.Rmdir(ent.Name))
}

// flatten removes the files of directory name of top and moves its directories up into top.
func (e *emptier) flatten(name string) error {
	sub, err := openToEmpty(e.top, name)
	if err != nil {
		return unlessGone(err)
	}
	defer sub.Close()
	ents, err := sub.ReadDir()
	if err != nil {
		return err
	}
	for _, ent := range ents {
		gone, err := removePlain(sub, ent)
		if err == nil && !gone {
			err = e.hoist(sub, ent.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removePlain removes a file or an empty directory. gone is false for a directory that is not empty.
func removePlain(d hostfs.Dir, ent hostfs.Dirent) (gone bool, err error) {
	dir, err := isDir(d, ent)
	switch {
	case err != nil:
		return true, unlessGone(err)
	case !dir:
		return true, unlessGone(d.Unlink(ent.Name))
	}
	err = unlessGone(d.Rmdir(ent.Name))
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	return true, err
}

// hoist moves the directory name of sub into top under a name that is free there. A directory can
// only be moved by who may write to it (its ".." changes), so it is opened up first.
func (e *emptier) hoist(sub hostfs.Dir, name string) error {
	if err := openUp(sub, name); err != nil {
		return unlessGone(err)
	}
	for {
		to := ".removing-" + strconv.Itoa(e.next)
		e.next++
		err := sub.Rename(name, e.top, to, hostfs.NoReplace)
		if !errors.Is(err, fs.ErrExist) {
			return unlessGone(err)
		}
	}
}

func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func isDir(d hostfs.Dir, ent hostfs.Dirent) (bool, error) {
	if ent.Kind != tree.Absent {
		return ent.Kind == tree.Dir, nil
	}
	n, err := d.Stat(ent.Name)
	return n.Kind == tree.Dir, err
}

// openToEmpty opens directory name of d, never crossing a mount point, with all rights its owner
// can have.
func openToEmpty(d hostfs.Dir, name string) (hostfs.Dir, error) {
	if err := openUp(d, name); err != nil {
		return nil, err
	}
	p, err := tree.Path{}.Child(name)
	if err != nil {
		return nil, err
	}
	return d.OpenDirAt(p, true)
}

func openUp(d hostfs.Dir, name string) error {
	n, err := d.Stat(name)
	if err != nil {
		return err
	}
	if n.Mode&dirMode == dirMode || n.Kind != tree.Dir {
		return nil
	}
	return d.Chmod(name, n.Mode|dirMode)
}

// checkUnmounted refuses while a file system is mounted at path or below it.
func checkUnmounted(path string) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	points, err := mountPoints(f)
	if err != nil {
		return err
	}
	for _, p := range points {
		if p == path || strings.HasPrefix(p, path+"/") {
			return fmt.Errorf("%q: %w", p, ErrMounted)
		}
	}
	return nil
}

// mountPoints returns field 5 of each line of mountinfo (proc_pid_mountinfo(5)), where the kernel
// writes space, tab, newline and backslash as octal escapes.
func mountPoints(r io.Reader) ([]string, error) {
	var points []string
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadString('\n')
		if err == io.EOF {
			return points, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read mountinfo: %w", err)
		}
		fields := strings.Fields(line)
		if len(fields) < 5 {
			return nil, fmt.Errorf("mountinfo line %q is too short", line)
		}
		points = append(points, unescape.Replace(fields[4]))
	}
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// Drop discards the Job's staged changes; its records stay. It may be repeated after a crash.
//
// Preconditions:
//   - this process holds the Job's lock.
//   - no apply of the Job is unfinished.
func (j *Job) Drop() error {
	if err := j.drop(); err != nil {
		return fmt.Errorf("drop job %s: %w", j.ID(), err)
	}
	return nil
}

func (j *Job) drop() error {
	if err := j.mayDiscard(); err != nil {
		return err
	}
	if j.run.Publication == bundle.PublishedAll {
		return fmt.Errorf("all its changes are applied: %w", ErrWrongState)
	}
	if err := j.UpdateRun(func(r *bundle.Run) { r.Publication = bundle.Dropped }); err != nil {
		return err
	}
	if err := clearDir(j.dir, upperName); err != nil {
		return err
	}
	base, err := j.dir.OpenDir(baseName)
	if err != nil {
		return err
	}
	return errors.Join(removeTree(base, preName), base.Close())
}

// mayDiscard refuses while anything still needs the Job's files.
func (j *Job) mayDiscard() error {
	if err := j.needLock(); err != nil {
		return err
	}
	if err := j.Reload(); err != nil {
		return err
	}
	if !j.run.State.Over() {
		return fmt.Errorf("it is %s: %w", j.run.State, ErrWrongState)
	}
	if j.run.Publication == bundle.RecoveryNeeded {
		return fmt.Errorf("an apply was interrupted: %w", ErrWrongState)
	}
	return checkUnmounted(j.path)
}

// clearDir empties the directory name of d and leaves it there.
func clearDir(d hostfs.Dir, name string) error {
	sub, err := openToEmpty(d, name)
	if err != nil {
		return err
	}
	return errors.Join(emptyTree(sub), sub.Close())
}

// Remove deletes the Job with all its records and closes it.
//
// Preconditions:
//   - this process holds the Job's lock.
func (j *Job) Remove() error {
	err := j.mayDiscard()
	if err == nil {
		err = j.remove()
	}
	if err != nil {
		return fmt.Errorf("remove job %s: %w", j.ID(), err)
	}
	return j.Close()
}

func (j *Job) remove() error {
	s := j.store
	if filepath.Dir(j.path) == filepath.Join(s.path, jobsName) {
		gone := gonePrefix + string(j.ID())
		if err := s.jobs.Rename(string(j.ID()), s.jobs, gone, hostfs.NoReplace); err != nil {
			return err
		}
		return removeTree(s.jobs, gone)
	}
	// run.json goes first: what is left then is no Job.
	if err := j.dir.Unlink(runName); err != nil {
		return err
	}
	if err := emptyTree(j.dir); err != nil {
		return err
	}
	return errors.Join(s.forget(j), os.Remove(j.path))
}

func (s *Store) forget(j *Job) error {
	d, err := s.root.OpenDir(elsewhereName)
	if err != nil {
		return err
	}
	defer d.Close()
	return unlessGone(d.Unlink(string(j.ID())))
}
