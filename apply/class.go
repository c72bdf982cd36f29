package apply

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

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
	l := &classifier{result: newResult(c), flags: map[tree.Path][]Flag{}}
	for _, ch := range changes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := l.change(ch); err != nil {
			return nil, fmt.Errorf("classify %q: %w", ch.Path, err)
		}
	}
	var err error
	if l.places, err = findPlaces(l.result); err != nil {
		return nil, fmt.Errorf("find what git and links lead to: %w", err)
	}
	for _, n := range l.nodes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := l.node(n.at, n.Change); err != nil {
			return nil, fmt.Errorf("classify %q: %w", n.Path, err)
		}
	}
	l.massDelete(changes, tracked)
	return l.flags, nil
}

type classifier struct {
	*result
	*places
	flags   map[tree.Path][]Flag
	deleted int // files
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
	l.add(c.Path, c)
	return nil
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
	l.moves[c.Path] = *c.RenameFrom
	return l.c.WalkMoved(c, func(_, to tree.Path, n tree.Node) error {
		l.deleted--
		l.add(c.Path, tree.Change{Path: to, New: n})
		return nil
	})
}

// node flags, at path at, what the result has at c.Path.
func (l *classifier) node(at tree.Path, c tree.Change) error {
	if c.RenameFrom != nil && c.New.Kind != tree.Dir {
		l.deleted--
	}
	l.modes(at, c)
	if err := l.completes(at, c); err != nil || c.New.Kind == tree.Dir {
		return err
	}
	if c.New.Kind == tree.Symlink && leads(c.Path, c.New.Target) {
		l.flag(at, SymlinkOut, "%q is a link out of the workspace", c.Path)
	}
	if by, ok := l.runs[c.Path]; ok {
		l.flag(at, GitConfig, "%q is run by git: %s", c.Path, by)
	}
	for _, as := range l.of(c.Path) {
		l.names(at, as, c)
		if err := l.git(at, as, c); err != nil {
			return err
		}
	}
	return l.script(at, c)
}

// names flags c, which lies or counts as lying at path as, by name.
func (l *classifier) names(at, as tree.Path, c tree.Change) {
	for _, r := range nameRules {
		switch {
		case r.match(as):
			l.flag(at, r.class, "%s %s", called(c, as), r.why)
		case c.New.Kind == tree.Symlink && r.leadsTo(as):
			l.flag(at, r.class, "%s is a link to something that %s", called(c, as), r.why)
		}
	}
}

// called names c in a reason.
func called(c tree.Change, as tree.Path) string {
	name := quote(c.Path)
	if special(c.New.Kind) {
		name += ", a " + c.New.Kind.String() + ","
	}
	if as != c.Path {
		name += " counts as " + quote(as) + ", which"
	}
	return name
}

// special reports whether what opens k may wait for ever.
func special(k tree.Kind) bool {
	return k != tree.File && k != tree.Dir && k != tree.Symlink
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
