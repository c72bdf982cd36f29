// Package store keeps Jobs on disk: it makes, finds, lists, seals and discards their directories.
//
//	<store>/ 0700
//	    jobs/<id>/            one Job; visible under its id means complete
//	        lock              flock(2)ed by the supervisor while the Job lives, by a writing verb else
//	        run.json plan.json bundle.json
//	        upper/<root>/     what the Job wrote
//	        orphans/<root>/   what it unlinked and still used; empty once it is over
//	        base/<root>.log   the change log      base/pre/<root>/  preimages
//	        apply/<n>/        one published batch
//	        home/ out/ work/  the agent's home, captured output, mount points
//	    elsewhere/<id>        symlink to a Job that `--stage PATH` put somewhere else
//	    busy/<id>             a mark while a Job runs or is being published
//	    cache/                scratch caches, one folder per workspace
//	    index                 cache of the directories: which Job belongs to which workspace
//
// The directories are the truth and the index can be deleted at any time. Everything is made
// 0700/0600 whatever the umask. A record is written under a partial name, synced, renamed, and where
// it must outlive a power failure the directory is synced: a crash leaves the old record or the new.
//
// Several processes may use a store at once. A Job's records change only under its lock; who does
// not get the lock gets ErrBusy and does not wait.
package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"stage/bundle"
	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Errors someone branches on.
var (
	ErrNoJob      = errors.New("no such job")
	ErrAmbiguous  = errors.New("several jobs match")
	ErrWrongState = errors.New("the job's state does not allow it")
	ErrBusy       = errors.New("the job is in use by another process")
	ErrInside     = errors.New("store and workspace lie in each other")
	ErrMounted    = errors.New("a file system is still mounted there")
	ErrNotSealed  = errors.New("the job has no bundle yet")
	// ErrNewerStore: a record has a version or key this stage does not know.
	ErrNewerStore = bundle.ErrNewer
)

// The names in a store.
const (
	jobsName      = "jobs"
	elsewhereName = "elsewhere"
	cacheName     = "cache"
	indexName     = "index"
)

const (
	dirMode  tree.Mode = 0o700
	fileMode tree.Mode = 0o600
)

// Store is one store directory.
type Store struct {
	path string
	root hostfs.Dir
	jobs hostfs.Dir

	mu   sync.Mutex
	last bundle.ID // guarded by mu: the newest Job this Store made
}

// DefaultPath returns where the store lies by default: $XDG_STATE_HOME/stage, else
// ~/.local/state/stage. An XDG_STATE_HOME that is not absolute is ignored, as its standard asks.
func DefaultPath(getenv func(string) string) (string, error) {
	if state := getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "stage"), nil
	}
	home := getenv("HOME")
	if !filepath.IsAbs(home) {
		return "", errors.New("neither XDG_STATE_HOME nor HOME is an absolute path")
	}
	return filepath.Join(home, ".local", "state", "stage"), nil
}

// Open opens the store in dir and makes it where it is absent. A store of another user is refused.
func Open(dir string) (*Store, error) {
	s, err := open(dir, hostfs.OpenRoot)
	if err != nil {
		return nil, fmt.Errorf("open store %q: %w", dir, err)
	}
	return s, nil
}

func open(dir string, openRoot func(string) (hostfs.Dir, error)) (*Store, error) {
	path, err := resolveNew(dir)
	if err != nil {
		return nil, err
	}
	root, err := openRoot(path)
	if err != nil {
		return nil, err
	}
	s := &Store{path: path, root: root}
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// resolveNew makes dir and its parents where they are absent and returns its path without links.
func resolveNew(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(abs, os.FileMode(dirMode)); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

func (s *Store) prepare() error {
	if err := secure(s.root); err != nil {
		return err
	}
	for _, name := range []string{jobsName, elsewhereName, cacheName, busyName} {
		if err := makeDir(s.root, name); err != nil {
			return err
		}
	}
	var err error
	s.jobs, err = s.root.OpenDir(jobsName)
	return err
}

// secure refuses a directory of somebody else and shuts everybody else out of our own.
func secure(d hostfs.Dir) error {
	n, err := d.Stat(".")
	if err != nil {
		return err
	}
	if n.UID != uint32(os.Geteuid()) {
		return fmt.Errorf("it belongs to user %d, this is user %d: %w", n.UID, os.Geteuid(), fs.ErrPermission)
	}
	if n.Mode == dirMode {
		return nil
	}
	return d.Chmod(".", dirMode)
}

// makeDir makes a directory that may be there already.
func makeDir(d hostfs.Dir, name string) error {
	if err := d.Mkdir(name, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Path returns the store's absolute path, free of symbolic links.
func (s *Store) Path() string { return s.path }

// Close releases the store's handles. Its Jobs stay usable, but for Remove.
func (s *Store) Close() error {
	err := s.root.Close()
	if s.jobs != nil {
		err = errors.Join(err, s.jobs.Close())
	}
	return err
}

// Cache makes, where it is absent, the scratch cache folder name of a workspace and returns its path.
func (s *Store) Cache(w bundle.Workspace, name string) (string, error) {
	key := tree.DigestBytes(fmt.Appendf(nil, "%s\x00%d\x00%d", w.Path, w.Dev, w.Ino))
	dir := string(key[len("sha256:"):])[:32]
	cache, err := s.root.OpenDir(cacheName)
	if err != nil {
		return "", err
	}
	defer cache.Close()
	if err := makeDir(cache, dir); err != nil {
		return "", err
	}
	own, err := cache.OpenDir(dir)
	if err != nil {
		return "", err
	}
	defer own.Close()
	if err := makeDir(own, name); err != nil {
		return "", err
	}
	return filepath.Join(s.path, cacheName, dir, name), nil
}

// Identify returns the identity of the directory path, which must be absolute and free of links.
func Identify(path string) (bundle.Workspace, error) {
	p, err := bundle.ParseHostPath(path)
	if err != nil {
		return bundle.Workspace{}, err
	}
	d, err := hostfs.OpenRoot(path)
	if err != nil {
		return bundle.Workspace{}, err
	}
	defer d.Close()
	n, err := d.Stat(".")
	return bundle.Workspace{Path: p, Dev: n.Dev, Ino: n.Ino}, err
}

// CheckOutside refuses a store directory, which need not be there yet, that lies in a workspace.
func CheckOutside(path, workspace string) error {
	return checkOutside(filepath.Clean(path), []string{workspace})
}

// checkOutside refuses a directory that is one of the trees or lies in one, under whatever name a
// bind mount gives it: it looks at every directory above path.
func checkOutside(path string, trees []string) error {
	for _, t := range trees {
		var want unix.Stat_t
		if err := unix.Stat(t, &want); err != nil {
			return fmt.Errorf("stat %q: %w", t, err)
		}
		for p := path; ; p = filepath.Dir(p) {
			var st unix.Stat_t
			if err := unix.Stat(p, &st); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("stat %q: %w", p, err)
			} else if err == nil && st.Dev == want.Dev && st.Ino == want.Ino {
				return fmt.Errorf("%q is in %q: %w", path, t, ErrInside)
			}
			if p == filepath.Dir(p) {
				break
			}
		}
	}
	return nil
}
