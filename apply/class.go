package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Class is a risk class of changes.
type Class string

// The risk classes. Those up to MassDelete always gate; the others only mark a change.
const (
	GitHook       Class = "git-hook"
	GitConfig     Class = "git-config"
	GitAttributes Class = "git-attributes"
	Envrc         Class = "envrc"
	EditorTask    Class = "editor-task"
	AgentConfig   Class = "agent-config"
	Setuid        Class = "setuid"
	SymlinkOut    Class = "symlink-out"
	MassDelete    Class = "mass-delete"

	CI      Class = "ci"
	Script  Class = "script"
	ExecBit Class = "exec-bit"
	Secret  Class = "secret"

	// All in Options.Allow lets every class pass.
	All Class = "all"
)

func gatedClasses() []Class {
	return []Class{GitHook, GitConfig, GitAttributes, Envrc, EditorTask, AgentConfig, Setuid, SymlinkOut, MassDelete}
}

// Flag is one reason to look twice at a change.
type Flag struct {
	Class  Class
	Reason string
}

// massDelete is how many deleted files are many in any tree.
const massDelete = 1000

// Classify returns the risk flags of changes by path. It decides from the resulting tree: names,
// modes and link targets, and for git configuration the keys that can execute something. tracked
// is the number of files that git tracks in the workspace, 0 if not known.
func Classify(ctx context.Context, changes []tree.Change, c Contents, tracked int) (map[tree.Path][]Flag, error) {
	l := &classifier{c: c, flags: map[tree.Path][]Flag{}, has: map[tree.Path]bool{}}
	for _, ch := range changes {
		if ch.New.Kind != tree.Absent {
			l.has[ch.Path] = true
		}
	}
	for _, ch := range changes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := l.change(ch); err != nil {
			return nil, fmt.Errorf("classify %q: %w", ch.Path, err)
		}
	}
	l.massDelete(changes, tracked)
	return l.flags, nil
}

type classifier struct {
	c       Contents
	flags   map[tree.Path][]Flag
	has     map[tree.Path]bool // paths that changes make or change
	deleted int                // files
}

func (l *classifier) flag(p tree.Path, c Class, format string, args ...any) {
	f := Flag{c, fmt.Sprintf(format, args...)}
	if !slices.Contains(l.flags[p], f) {
		l.flags[p] = append(l.flags[p], f)
	}
}

func (l *classifier) change(c tree.Change) error {
	switch {
	case c.New.Kind == tree.Absent:
		return l.removal(c)
	case c.Moved:
		return l.moved(c)
	}
	if c.Base.Kind == tree.Dir && c.New.Kind != tree.Dir {
		if err := l.removal(c); err != nil {
			return err
		}
	}
	return l.node(c.Path, c)
}

// removal counts what goes. Removing what protects or configures is no risk of its own class.
func (l *classifier) removal(c tree.Change) error {
	if c.Base.Kind == tree.Dir && c.Subtree {
		return l.c.WalkRemoved(c, func(tree.Path, tree.Node) error {
			l.deleted++
			return nil
		})
	}
	if c.Base.Kind != tree.Dir {
		l.deleted++
	}
	return nil
}

// moved looks at everything that a moved directory brings to its new place. The files were deleted
// at the old one, but are not lost.
func (l *classifier) moved(c tree.Change) error {
	return l.c.WalkMoved(c, func(_, to tree.Path, n tree.Node) error {
		l.deleted--
		return l.node(c.Path, tree.Change{Path: to, New: n})
	})
}

// node flags, at path at, what the result has at c.Path.
func (l *classifier) node(at tree.Path, c tree.Change) error {
	if c.RenameFrom != nil && c.New.Kind != tree.Dir {
		l.deleted--
	}
	l.modes(at, c)
	if c.New.Kind == tree.Dir {
		return nil
	}
	if c.New.Kind == tree.Symlink && leads(c.Path, c.New.Target) {
		l.flag(at, SymlinkOut, "%q is a link out of the workspace", c.Path)
	}
	for _, r := range nameRules {
		if why, ok := r.match(c.Path); ok {
			l.flag(at, r.class, "%s", why)
		}
	}
	if err := l.git(at, c); err != nil {
		return err
	}
	return l.script(at, c)
}

func (l *classifier) modes(at tree.Path, c tree.Change) {
	const set, exec = 0o6000, 0o111
	if c.New.Kind != tree.File {
		return
	}
	if c.New.Mode&set&^c.Base.Mode != 0 {
		l.flag(at, Setuid, "%q is setuid or setgid, mode %04o", c.Path, uint32(c.New.Mode))
	}
	if v, ok := c.New.Xattrs["security.capability"]; ok && string(c.Base.Xattrs["security.capability"]) != string(v) {
		l.flag(at, Setuid, "%q has file capabilities", c.Path)
	}
	if c.New.Mode&exec != 0 && (c.Base.Kind != tree.File || c.Base.Mode&exec == 0) {
		l.flag(at, ExecBit, "%q becomes executable", c.Path)
	}
}

// leads reports whether a link at p with this target can lead out of the tree that p is in.
func leads(p tree.Path, target string) bool {
	if path.IsAbs(target) {
		return true
	}
	depth := len(p.Names()) - 1
	for name := range strings.SplitSeq(target, "/") {
		switch name {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return true
			}
		default:
			depth++
		}
	}
	return false
}

// git looks at what git executes or is configured by, in any repository of the tree.
func (l *classifier) git(at tree.Path, c tree.Change) error {
	in, ok := l.gitDir(c.Path)
	if !ok {
		return nil
	}
	switch {
	case len(in) == 0:
		l.flag(at, GitConfig, "%q takes the place of a git directory", c.Path)
	case slices.Contains(in[:len(in)-1], "hooks"):
		if !strings.HasSuffix(in[len(in)-1], ".sample") {
			l.flag(at, GitHook, "%q is a git hook", c.Path)
		}
	case in[len(in)-1] == "config" || in[len(in)-1] == "config.worktree":
		return l.config(at, c)
	case strings.Join(in[max(0, len(in)-2):], "/") == "info/attributes":
		l.flag(at, GitAttributes, "%q selects filters, diff and merge drivers", c.Path)
	case slices.Contains([]string{"commondir", "gitdir", "alternates"}, in[len(in)-1]):
		l.flag(at, GitConfig, "%q tells git to look elsewhere", c.Path)
	}
	return nil
}

// gitDir returns the names of p below the git directory it lies in: .git, or a bare repository that
// changes make.
func (l *classifier) gitDir(p tree.Path) (in []string, ok bool) {
	all := p.Names()
	if i := slices.Index(all, ".git"); i >= 0 {
		return all[i+1:], true
	}
	for d := p; !d.IsRoot(); {
		d = d.Parent()
		head, err := d.Child("HEAD")
		if err == nil && l.has[head] {
			return all[len(d.Names()):], true
		}
	}
	return nil, false
}

// config flags a git configuration with keys that execute something and were not there before. One
// that is no file, or too long to be one, is flagged as it is.
func (l *classifier) config(at tree.Path, c tree.Change) error {
	if c.New.Kind != tree.File || c.New.Size > maxConfig {
		l.flag(at, GitConfig, "%q is no ordinary git configuration", c.Path)
		return nil
	}
	text, err := readAll(l.c.OpenNew(c.Path))
	if err != nil {
		return err
	}
	now, err := executingKeys(text)
	if err != nil {
		l.flag(at, GitConfig, "%q is no ordinary git configuration", c.Path)
		return nil
	}
	old, err := l.oldKeys(c)
	if err != nil {
		return err
	}
	for _, k := range now {
		if !old[k] {
			l.flag(at, GitConfig, "%q sets %s", c.Path, k.key)
		}
	}
	return nil
}

// oldKeys returns what the base of a git configuration executes already.
func (l *classifier) oldKeys(c tree.Change) (map[configKey]bool, error) {
	old := map[configKey]bool{}
	if c.Base.Kind != tree.File || c.Base.Size > maxConfig {
		return old, nil
	}
	text, err := readAll(l.c.OpenBase(c.Path))
	if errors.Is(err, fs.ErrNotExist) {
		return old, nil
	}
	if err != nil {
		return nil, err
	}
	keys, err := executingKeys(text)
	if err != nil {
		return old, nil // executed nothing: git refuses such a file
	}
	for _, k := range keys {
		old[k] = true
	}
	return old, nil
}

// maxConfig is the longest git configuration that is looked into.
const maxConfig = 1 << 20

func readAll(f hostfs.File, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxConfig+1))
}

// script marks what a shell or another interpreter is to run.
func (l *classifier) script(at tree.Path, c tree.Change) error {
	if c.New.Kind != tree.File || c.New.Size < 3 {
		return nil
	}
	for _, ext := range []string{".sh", ".bash", ".zsh", ".ps1", ".bat", ".cmd"} {
		if strings.HasSuffix(c.Path.Base(), ext) {
			l.flag(at, Script, "%q is a script", c.Path)
			return nil
		}
	}
	if c.New.Mode&0o111 == 0 {
		return nil
	}
	f, err := l.c.OpenNew(c.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 2)
	if _, err := io.ReadFull(f, head); err != nil {
		return err
	}
	if string(head) == "#!" {
		l.flag(at, Script, "%q is a script", c.Path)
	}
	return nil
}

// massDelete flags all deletions when they are many.
func (l *classifier) massDelete(changes []tree.Change, tracked int) {
	if l.deleted <= massDelete && (tracked == 0 || l.deleted*2 <= tracked) {
		return
	}
	for _, c := range changes {
		if c.New.Kind == tree.Absent {
			l.flag(c.Path, MassDelete, "%d files are deleted", l.deleted)
		}
	}
}
