// Package judge compares what a workspace has now with the bases of changes. Review and apply both
// ask it, so that they cannot come to different verdicts.
package judge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Judge knows a workspace and the changes that are to be made to it.
type Judge struct {
	dir     hostfs.Reader
	byPath  map[tree.Path]tree.Change
	moved   map[tree.Path]bool // the paths of Moved changes
	origins map[tree.Path]bool // and where they come from
	memo    map[tree.Path]Finding
	known   Known
}

// Alike reports whether two contents of path p, which a and b open, mean the same though their bytes
// differ.
type Alike func(p tree.Path, a, b func() (hostfs.File, error)) (bool, error)

// Known is what a Judge is told beside the changes. Each of it may be nil.
type Known struct {
	// Left reports whether an earlier batch of the Job left a node at a path.
	Left func(tree.Path, tree.Node) bool
	// Preimage opens what the base of a path held; fs.ErrNotExist where that was not kept.
	Preimage func(tree.Path) (hostfs.File, error)
	// Alike is asked about a file that has not the content of its base, with Preimage.
	Alike Alike
}

// Finding is a judgement with what was looked at.
type Finding struct {
	tree.Judgement
	Found tree.Node
	// At is the workspace path that holds now what the change is made to. It differs from the
	// change's path below a directory that is still to be moved.
	At tree.Path
}

// New returns a Judge over all changes of a Job to the workspace dir.
func New(dir hostfs.Reader, changes []tree.Change, k Known) *Judge {
	j := &Judge{dir: dir, known: k, byPath: map[tree.Path]tree.Change{}, moved: map[tree.Path]bool{}, origins: map[tree.Path]bool{}, memo: map[tree.Path]Finding{}}
	for _, c := range changes {
		j.byPath[c.Path] = c
		if c.Moved {
			j.moved[c.Path], j.origins[*c.RenameFrom] = true, true
		}
	}
	return j
}

// MovedAbove returns the Moved change that path p lies strictly below.
func (j *Judge) MovedAbove(p tree.Path) (tree.Change, bool) {
	if len(j.moved) == 0 {
		return tree.Change{}, false
	}
	for !p.IsRoot() {
		if p = p.Parent(); j.moved[p] {
			return j.byPath[p], true
		}
	}
	return tree.Change{}, false
}

// Judge compares the workspace with c, one of the changes given to New.
func (j *Judge) Judge(ctx context.Context, c tree.Change) (Finding, error) {
	if f, ok := j.memo[c.Path]; ok {
		return f, nil
	}
	f, err := j.judge(ctx, c)
	switch {
	case errors.Is(err, fs.ErrPermission):
		f.At, err = c.Path, nil
		f.conflict("cannot be looked at: permission denied")
	case err == nil && f.Verdict == tree.Clean && !c.Moved && !j.origins[c.Path]:
		f.needsOwner(c, f.Found)
	}
	if err == nil {
		j.memo[c.Path] = f
	}
	return f, err
}

func (j *Judge) judge(ctx context.Context, c tree.Change) (Finding, error) {
	if c.UnknownBase { // wherever it is
		f, err := j.look(c)
		f.Judgement = c.Judge(f.Found)
		return f, err
	}
	if m, ok := j.MovedAbove(c.Path); ok {
		return j.belowMoved(ctx, c, m)
	}
	f, err := j.look(c)
	if err != nil || f.Verdict != "" {
		return f, err
	}
	if c.Moved {
		return j.movedDir(ctx, c, f)
	}
	if err := j.compare(ctx, c, &f); err != nil {
		return f, err
	}
	if f.Verdict == tree.Clean && c.Subtree {
		err = j.subtree(ctx, c.Path, c.SubtreeTime, &f)
	}
	if err == nil && f.Verdict == tree.Clean && c.Subtree && !j.movedFrom(c.Path) {
		err = j.unmounted(ctx, c.Path, &f)
	}
	return f, err
}

// look finds what the workspace has at c.Path and judges its parents.
func (j *Judge) look(c tree.Change) (Finding, error) {
	n, parent, at, err := Look(j.dir, c.Path)
	f := Finding{Found: n, At: c.Path}
	if err != nil || parent.Kind == tree.Dir {
		return f, err
	}
	own, ours := j.byPath[at]
	switch {
	case ours && own.New.Kind == tree.Dir && own.Base.Kind != tree.Dir:
		// The Job puts a directory there itself; whether it may is judged at that path.
	case parent.Kind == tree.Symlink:
		f.conflict(fmt.Sprintf("%s became a link", quote(at)))
	case c.New.Kind != tree.Absent:
		f.conflict(fmt.Sprintf("its directory %s is gone", quote(at)))
	}
	return f, nil
}

// compare judges c.Path alone, reading the workspace's content only if that decides.
func (j *Judge) compare(ctx context.Context, c tree.Change, f *Finding) error {
	f.Judgement = c.Judge(f.Found)
	if f.NeedDigest {
		d, err := j.digest(ctx, f.At)
		if err != nil {
			return fmt.Errorf("read %q: %w", f.At, err)
		}
		f.Found.Digest = d
		f.Judgement = c.Judge(f.Found)
	}
	if f.Verdict == tree.Conflict {
		return j.alike(ctx, c, f)
	}
	return nil
}

// alike makes f clean if the content of a file means what that of the base meant.
func (j *Judge) alike(ctx context.Context, c tree.Change, f *Finding) error {
	if j.known.Alike == nil || j.known.Preimage == nil || c.SubtreeTime != 0 || c.Base.Kind != tree.File || !f.Found.SameMeta(c.Base) {
		return nil
	}
	before := Checked(ctx, func() (hostfs.File, error) { return j.known.Preimage(c.Path) }, c.Base.Digest)
	same, err := j.known.Alike(c.Path, before, func() (hostfs.File, error) { return open(j.dir, f.At) })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("compare %q with its base: %w", f.At, err)
	case same:
		f.Judgement = tree.Judgement{Verdict: tree.Clean}
	}
	return nil
}

// Checked returns a function that opens what open opens if it has the digest want; else that is
// fs.ErrNotExist.
func Checked(ctx context.Context, open func() (hostfs.File, error), want tree.Digest) func() (hostfs.File, error) {
	return func() (hostfs.File, error) {
		f, err := open()
		if err != nil {
			return nil, err
		}
		defer f.Close()
		got, err := DigestFile(ctx, f)
		if err != nil {
			return nil, err
		}
		if got != want {
			return nil, fmt.Errorf("content of digest %q: %w", want, fs.ErrNotExist)
		}
		return open()
	}
}

func open(root hostfs.Reader, p tree.Path) (hostfs.File, error) {
	dir, err := root.OpenDirAt(p.Parent(), false)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Open(p.Base())
}

func (j *Judge) digest(ctx context.Context, p tree.Path) (tree.Digest, error) {
	dir, err := j.dir.OpenDirAt(p.Parent(), false)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	return Digest(ctx, dir, p.Base())
}

// subtree makes f a conflict if something below directory p changed later than since.
func (j *Judge) subtree(ctx context.Context, p tree.Path, since tree.Time, f *Finding) error {
	dir, err := j.dir.OpenDirAt(p, false)
	if errors.Is(err, fs.ErrPermission) {
		return nil // as in Later
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	late, ok, err := Later(ctx, dir, p, since, j.known.Left)
	if err == nil && ok {
		f.conflict(fmt.Sprintf("%s changed in the workspace since", quote(late)))
	}
	return err
}

// movedFrom reports whether a directory at or below p is moved as a whole: what is mounted in it goes along.
func (j *Judge) movedFrom(p tree.Path) bool {
	for q := range j.origins {
		if p.Contains(q) {
			return true
		}
	}
	return false
}

// unmounted makes f a conflict if something is mounted below directory p, which is to be removed.
func (j *Judge) unmounted(ctx context.Context, p tree.Path, f *Finding) error {
	dir, err := j.dir.OpenDirAt(p, false)
	if errors.Is(err, fs.ErrPermission) {
		return nil // as in Later
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	at, ok, err := mounted(ctx, dir, p)
	if err == nil && ok {
		f.conflict(fmt.Sprintf("something is mounted on %s", quote(at)))
	}
	return err
}

// movedDir judges a directory moved as a whole: the directory must be where it came from, as the
// Job found it, and nothing where it goes to. Somebody else's same move is as good.
func (j *Judge) movedDir(ctx context.Context, c tree.Change, f Finding) (Finding, error) {
	from, ok := j.origin(*c.RenameFrom)
	if !ok {
		return f, fmt.Errorf("moved directory %q: no change of %q, where it came from", c.Path, *c.RenameFrom)
	}
	src, _, _, err := Look(j.dir, *c.RenameFrom)
	if err != nil {
		return f, err
	}
	switch {
	case f.Found.Kind == tree.Absent && src.Kind == tree.Dir:
		if from.Path == *c.RenameFrom {
			f.Judgement = from.Judge(src)
		} else {
			f.Verdict = tree.Clean
		}
		if f.Verdict != tree.Clean {
			f.Why = fmt.Sprintf("%s: %s", quote(*c.RenameFrom), f.Why)
			return f, nil
		}
		if f.needsOwner(c, src); f.Verdict != tree.Clean {
			return f, nil
		}
		return f, j.subtree(ctx, *c.RenameFrom, from.SubtreeTime, &f)
	case f.Found.Kind == tree.Absent:
		f.conflict(fmt.Sprintf("%s, where it comes from, is gone", quote(*c.RenameFrom)))
	case f.Found.Kind == tree.Dir && src.Kind == tree.Absent && f.Found.Ino == from.Base.Ino && from.Path == *c.RenameFrom:
		f.Judgement = tree.Judgement{Verdict: tree.Applied, Why: "already moved"}
		return f, j.subtree(ctx, c.Path, from.SubtreeTime, &f)
	default:
		f.conflict("created in the workspace since")
	}
	return f, nil
}

// origin returns the change that says what was at p: its own, or of a directory above removed whole.
func (j *Judge) origin(p tree.Path) (tree.Change, bool) {
	for {
		if c, ok := j.byPath[p]; ok && c.Subtree {
			return c, true
		}
		if p.IsRoot() {
			return tree.Change{}, false
		}
		p = p.Parent()
	}
}

// belowMoved judges a change below a directory that is moved as a whole, m: what it is made to is
// still where the directory came from, and is covered by the walk over that.
func (j *Judge) belowMoved(ctx context.Context, c, m tree.Change) (Finding, error) {
	mf, err := j.Judge(ctx, m)
	if err != nil {
		return Finding{}, err
	}
	f := Finding{At: c.Path, Judgement: mf.Judgement}
	if f.Verdict == tree.Clean {
		f.At = c.Path.Rebase(m.Path, *m.RenameFrom)
	}
	if f.Found, _, _, err = Look(j.dir, f.At); err != nil {
		return f, err
	}
	if f.Verdict != tree.Applied {
		return f, nil
	}
	c.Base = tree.Node{Kind: tree.Absent}
	if err := j.compare(ctx, c, &f); err != nil {
		return f, err
	}
	if f.Verdict != tree.Applied {
		f.conflict("its directory was moved in the workspace since")
	}
	return f, nil
}

func (f *Finding) conflict(why string) {
	f.Judgement = tree.Judgement{Verdict: tree.Conflict, Why: why}
}

func quote(p tree.Path) string { return fmt.Sprintf("%q", p.String()) }
