package gitview

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// ErrGitfile: a .git file does not lead to a git directory. git refuses to work there.
var ErrGitfile = errors.New("not a gitfile")

// Repo is where a work tree keeps what git knows of it. In a linked worktree GitDir lies below
// CommonDir, which the worktrees share; otherwise the two are the same.
type Repo struct {
	WorkTree, GitDir, CommonDir string
}

// TopLevel returns the top of the git work tree that contains dir, an absolute path. ok is false
// where there is none.
func TopLevel(dir string) (top string, ok bool, err error) {
	r, ok, err := Find(dir)
	return r.WorkTree, ok, err
}

// Find looks for a .git that git would take, from dir upwards, as git does: it stops at the border
// of a file system, passes over a .git that is no git directory, and does not enter the work tree
// of another user (safe.directory), unless root asks. Links in dir are resolved first.
func Find(dir string) (r Repo, ok bool, err error) {
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return Repo{}, false, fmt.Errorf("look for a git work tree: %w", err)
	}
	dev, err := device(dir)
	if err != nil {
		return Repo{}, false, err
	}
	for {
		r, ok, err := at(dir)
		if err != nil || ok {
			return r, ok && ownedByCaller(dir), err
		}
		up := filepath.Dir(dir)
		if d, err := device(up); up == dir || err != nil || d != dev {
			return Repo{}, false, nil
		}
		dir = up
	}
}

func device(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("stat %q: %w", dir, err)
	}
	return st.Dev, nil
}

// ownedByCaller reports whether git would trust dir: it belongs to whoever asks.
func ownedByCaller(dir string) bool {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return false
	}
	return trusts(uint32(os.Geteuid()), st.Uid)
}

// trusts reports whether user me works in a work tree of owner. A .git that somebody else planted
// in a directory above must not decide what the workspace is.
func trusts(me, owner uint32) bool { return me == 0 || me == owner }

// at looks for a git directory that belongs to the work tree dir.
func at(dir string) (Repo, bool, error) {
	dot := filepath.Join(dir, ".git")
	st, err := os.Lstat(dot)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOTDIR) {
		return Repo{}, false, nil
	}
	if err != nil {
		return Repo{}, false, fmt.Errorf("look for a git work tree: %w", err)
	}
	git := dot
	if st.Mode()&fs.ModeSymlink != 0 {
		if st, err = os.Stat(dot); err != nil {
			return Repo{}, false, nil // a dangling link is nothing to git
		}
	}
	if st.Mode().IsRegular() {
		if git, err = gitfile(dir); err != nil {
			return Repo{}, false, err
		}
	}
	if git, err = filepath.EvalSymlinks(git); err != nil {
		return Repo{}, false, fmt.Errorf("follow %q: %w: %w", dot, ErrGitfile, err)
	}
	common, err := commonDir(git)
	if errors.Is(err, fs.ErrPermission) {
		return Repo{}, false, nil
	}
	if err != nil || !isGitDir(git, common) {
		return Repo{}, false, err
	}
	return Repo{WorkTree: dir, GitDir: git, CommonDir: common}, true, nil
}

// gitfile returns the git directory that the file .git in dir names: "gitdir: <path>".
func gitfile(dir string) (string, error) {
	text, err := readSmall(dir, ".git")
	if err != nil {
		return "", err
	}
	path, ok := strings.CutPrefix(strings.TrimRight(text, "\r\n"), "gitdir: ")
	if !ok || path == "" {
		return "", fmt.Errorf("read %q: %w", filepath.Join(dir, ".git"), ErrGitfile)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	return filepath.Clean(path), nil
}

// commonDir returns the directory that the worktrees of git share; git itself when it is not linked.
func commonDir(git string) (string, error) {
	text, err := readSmall(git, "commondir")
	if errors.Is(err, fs.ErrNotExist) {
		return git, nil
	}
	if err != nil {
		return "", err
	}
	path := strings.TrimRight(text, "\r\n")
	if !filepath.IsAbs(path) {
		path = filepath.Join(git, path)
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", fmt.Errorf("follow commondir of %q: %w", git, err)
	}
	return path, nil
}

// isGitDir asks what git's is_git_directory asks: a HEAD, objects and refs.
func isGitDir(git, common string) bool {
	for _, dir := range []string{filepath.Join(common, "objects"), filepath.Join(common, "refs")} {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return false
		}
	}
	head := filepath.Join(git, "HEAD")
	if target, err := os.Readlink(head); err == nil {
		return strings.HasPrefix(target, "refs/")
	}
	text, err := readSmall(git, "HEAD")
	if err != nil {
		return false
	}
	return strings.HasPrefix(text, "ref: refs/") || objectName(strings.TrimSpace(text))
}

// objectName reports whether s is the full name of an object, SHA-1 or SHA-256.
func objectName(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// smallFile is the size up to which files that hold one line are read.
const smallFile = 8 << 10

// readSmall returns the content of the regular file name in dir; a link is not followed and a FIFO
// does not block.
func readSmall(dir, name string) (string, error) {
	d, err := hostfs.OpenRoot(dir)
	if err != nil {
		return "", fmt.Errorf("read %q: %w", filepath.Join(dir, name), err)
	}
	text, err := readFile(d, name, smallFile)
	return string(text), errors.Join(err, d.Close())
}

// errTooLarge: a file is larger than anything git would write there.
var errTooLarge = errors.New("larger than expected")

func readFile(d hostfs.Reader, name string, limit int64) ([]byte, error) {
	f, err := d.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", name, err)
	}
	data, err := readAll(f, limit)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read %q: %w", name, err)
	}
	return data, nil
}

func readAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = errTooLarge
	}
	return data, err
}

// Index returns the repository's index as it is on the host; an empty one where there is none yet.
func (r Repo) Index() (*Index, error) {
	d, err := hostfs.OpenRoot(r.GitDir)
	if err != nil {
		return nil, fmt.Errorf("open git directory: %w", err)
	}
	data, err := readFile(d, "index", maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return &Index{}, d.Close()
	}
	if err := errors.Join(err, d.Close()); err != nil {
		return nil, err
	}
	return parseIndex(data)
}

// Tracked returns the function that tells whether git tracks a path below the work tree, and how
// many files it tracks.
func (r Repo) Tracked() (has func(tree.Path) bool, n int, err error) {
	x, err := r.Index()
	if err != nil {
		return nil, 0, err
	}
	return func(p tree.Path) bool { return x.Has(p.String()) }, x.Len(), nil
}
