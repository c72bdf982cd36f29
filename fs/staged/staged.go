// Package staged reads what a Job staged, without FUSE: its upper tree, its change log and the
// workspace below. It yields the net changes; what was touched and restored, or created and
// deleted, is none.
//
// The cost follows what changed: only the upper tree and the workspace paths that the log or the
// upper names are looked at, and directories that were moved or replaced. The one exception is a
// changed file that had several names in the workspace: those are searched for.
//
// Three kinds of directory stand in the view, and a walk treats each in its way:
//
//	in place   shows the workspace directory at its own path: only what the upper has and what
//	           the log says is gone can differ
//	new        shows nothing of the workspace: compared name by name with what was there
//	displaced  shows a workspace directory from elsewhere. Moved as a whole to where nothing was,
//	           it is one change, and what the Job did below it is compared with where it came
//	           from. In any other case it is compared name by name like a new one.
package staged

import (
	"context"
	"fmt"
	"io"
	"slices"

	"stage/fs/hostfs"
	"stage/fs/judge"
	"stage/fs/overlay"
	"stage/fs/tree"
)

// Config is what a Reader reads.
type Config struct {
	Lower hostfs.Reader // the workspace
	Upper hostfs.Reader // upper/<root>/ of the Job
	Log   io.Reader     // base/<root>.log, read to its end by Open
	// Rootless: the Job's logical modes and owners are in the attribute overlay.AttrXattr.
	Rootless bool
	UID, GID uint32 // the caller's real ids
	// Rebased is what earlier applies published: the base of these paths from now on.
	Rebased map[tree.Path]tree.Node
	// Merged is what the Job has at paths of Rebased where its change was published merged with
	// somebody else's: that is no change any more.
	Merged map[tree.Path]tree.Node
	// Preimages is base/pre/<root>/ of the Job: what bases held, by the hex digits of its digest. nil:
	// none was kept.
	Preimages hostfs.Reader
	// Alike is asked about a file of the workspace that has not the content of its base, where that
	// was kept; if it says yes, the file counts as unchanged. nil: bytes decide.
	Alike func(p tree.Path, a, b func() (hostfs.File, error)) (bool, error)
	Boot  string // of the machine (overlay.BootID); empty asks
}

// Reader reads one staged root of a Job that is not running. It is for one goroutine at a time.
type Reader struct {
	cfg   Config
	log   *overlay.State
	bases []tree.Path // the keys of log.Bases, sorted

	walked   bool
	changes  []tree.Change
	moves    map[tree.Path]tree.Path // directories moved as a whole: view path, origin
	times    map[tree.Path]dirTimes  // directories changed in place
	aliases  map[tree.Path]tree.Path // view path of a lower name, view path whose content it shows
	anchors  map[int]tree.Path       // link group, unchanged member
	groups   map[tree.Path]int       // link group of a change
	links    map[inode][]member      // upper files with several names
	removed  map[tree.Path]bool      // paths whose deletion is among changes
	judgment *judge.Judge
}

type dirTimes struct{ base, view tree.Time }

// Open reads the change log. The directories of cfg stay the caller's.
func Open(cfg Config) (*Reader, error) {
	var err error
	if cfg.Boot == "" {
		if cfg.Boot, err = overlay.BootID(); err != nil {
			return nil, err
		}
	}
	r := &Reader{cfg: cfg}
	if err := r.readLog(); err != nil {
		return nil, fmt.Errorf("read change log: %w", err)
	}
	for p := range r.log.Bases {
		r.bases = append(r.bases, p)
	}
	slices.SortFunc(r.bases, tree.Path.Compare)
	return r, nil
}

// Changes returns the net changes, sorted by path, with the digest of every new file. A directory
// moved or deleted as a whole is one change.
func (r *Reader) Changes(ctx context.Context) ([]tree.Change, error) {
	if err := r.walk(ctx); err != nil {
		return nil, err
	}
	return slices.Clone(r.changes), nil
}

// walk finds the changes once.
func (r *Reader) walk(ctx context.Context) error {
	if r.walked {
		return nil
	}
	r.changes = nil
	r.times, r.aliases, r.anchors = map[tree.Path]dirTimes{}, map[tree.Path]tree.Path{}, map[int]tree.Path{}
	r.links, r.groups, r.removed = map[inode][]member{}, map[tree.Path]int{}, map[tree.Path]bool{}
	for _, step := range []func(context.Context) error{r.findMoves, r.walkRoot, r.groupLinks, r.findRenames} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	slices.SortFunc(r.changes, func(a, b tree.Change) int { return a.Path.Compare(b.Path) })
	r.judgment = judge.New(r.cfg.Lower, r.changes, judge.Known{Left: r.Left, Preimage: r.OpenPreimage, Alike: r.cfg.Alike})
	r.walked = true
	return nil
}

// Verdict compares what the workspace has now with the base of c, one of Changes.
func (r *Reader) Verdict(ctx context.Context, c tree.Change) (tree.Judgement, error) {
	if err := r.walk(ctx); err != nil {
		return tree.Judgement{}, err
	}
	f, err := r.judgment.Judge(ctx, c)
	if err != nil {
		return tree.Judgement{}, fmt.Errorf("compare %q with the workspace: %w", c.Path, err)
	}
	return f.Judgement, nil
}

// DirTimes returns the mtimes that directory p had when the Job first changed it and has in the
// view. ok is false for a directory that the Job did not change or made. It knows directories once
// Changes was called.
func (r *Reader) DirTimes(p tree.Path) (base, view tree.Time, ok bool) {
	t, ok := r.times[p]
	return t.base, t.view, ok
}

// LinkAnchor returns an unchanged workspace file that the names of a link group are to be linked
// to. It knows groups once Changes was called.
func (r *Reader) LinkAnchor(group int) (tree.Path, bool) {
	p, ok := r.anchors[group]
	return p, ok
}

// Left reports whether an earlier apply or undo left n at workspace path p. A later ctime than that
// of a directory above is then its own doing: of a file with several names, each changes it.
func (r *Reader) Left(p tree.Path, n tree.Node) bool {
	left, ok := r.cfg.Rebased[p]
	return ok && left.SameIdentity(n)
}
