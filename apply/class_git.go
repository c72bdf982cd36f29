package apply

import (
	"slices"
	"strings"

	"stage/fs/tree"
)

// gitDir returns the names of p below the outermost git directory it lies in; none if it is a .git.
func (s *places) gitDir(p tree.Path) (in []string, ok bool, err error) {
	all := p.Names()
	n, err := s.gitDepth(p.Parent())
	if err != nil {
		return nil, false, err
	}
	if n >= 0 {
		return all[n:], true, nil
	}
	return nil, p.Base() == ".git", nil
}

// gitDepth returns how many names the outermost git directory has that d is or lies in, else -1.
func (s *places) gitDepth(d tree.Path) (int, error) {
	if n, ok := s.depth[d]; ok {
		return n, nil
	}
	n := -1
	if !d.IsRoot() {
		var err error
		if n, err = s.gitDepth(d.Parent()); err != nil {
			return 0, err
		}
	}
	if n < 0 {
		is, err := s.isGitDir(d)
		if err != nil {
			return 0, err
		}
		if is || s.named[d] || d.Base() == ".git" {
			n = len(d.Names())
		}
	}
	s.depth[d] = n
	return n, nil
}

// isGitDir reports whether git takes directory d for a repository (is_git_directory in its setup.c),
// or may soon: a HEAD that changes make suffices.
func (s *places) isGitDir(d tree.Path) (bool, error) {
	head, err := d.Child("HEAD")
	if err != nil {
		return false, err
	}
	if _, ok := s.r.now[head]; ok {
		return true, nil
	}
	return hasRepository(d, s.r.there)
}

func hasRepository(d tree.Path, there func(d tree.Path, name string) (bool, error)) (bool, error) {
	if ok, err := there(d, "HEAD"); err != nil || !ok {
		return false, err
	}
	if ok, err := there(d, "commondir"); err != nil || ok {
		return ok, err
	}
	if ok, err := there(d, "objects"); err != nil || !ok {
		return false, err
	}
	return there(d, "refs")
}

// findRepositories looks for a repository in each directory above what changes make, and in the
// workspace itself.
func (s *places) findRepositories() error {
	seen := map[tree.Path]bool{{}: true}
	dirs := []tree.Path{{}}
	for _, n := range s.r.nodes {
		for d := n.Path.Parent(); !seen[d]; d = d.Parent() {
			seen[d] = true
			dirs = append(dirs, d)
		}
	}
	for _, d := range dirs {
		if err := s.repositoriesAt(d); err != nil {
			return err
		}
	}
	clear(s.depth) // named may have grown
	return nil
}

func (s *places) repositoriesAt(d tree.Path) error {
	is, err := s.isGitDir(d)
	if err != nil {
		return err
	}
	if is && d.Base() != ".git" {
		if err := s.repository(d, d); err != nil {
			return err
		}
	}
	dot, err := d.Child(".git")
	if err != nil {
		return err
	}
	n, err := s.r.look(dot)
	switch {
	case err != nil:
		return err
	case n.Kind == tree.Dir:
		return s.repository(d, dot)
	case n.Kind == tree.Symlink:
		return s.elsewhere(d, d, n.Target)
	case n.Kind == tree.File:
		return s.gitFile(d, dot)
	}
	return nil
}

// gitFile follows a file .git to the git directory of top.
func (s *places) gitFile(top, dot tree.Path) error {
	texts, err := s.r.texts(dot)
	if err != nil {
		return err
	}
	for _, t := range texts {
		if to, ok := strings.CutPrefix(string(t), "gitdir:"); ok {
			if err := s.elsewhere(top, top, strings.TrimSpace(to)); err != nil {
				return err
			}
		}
	}
	return nil
}

// elsewhere follows target, seen from d, to a git directory of top.
func (s *places) elsewhere(top, d tree.Path, target string) error {
	dirs, err := s.resolve(d, target)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if dir.IsRoot() || s.named[dir] {
			continue
		}
		s.named[dir] = true
		if err := s.repository(top, dir); err != nil {
			return err
		}
	}
	return nil
}

// repository finds what the git directory dir of the working tree top leads to.
func (s *places) repository(top, dir tree.Path) error {
	for _, name := range []string{"hooks", "info", "info/attributes", "modules", "worktrees", "objects", "config", "config.worktree"} {
		if err := s.baseLink(dir, name); err != nil {
			return err
		}
	}
	for _, name := range []string{"config", "config.worktree"} {
		if err := s.configured(top, dir, name); err != nil {
			return err
		}
	}
	common, err := dir.Child("commondir")
	if err != nil {
		return err
	}
	texts, err := s.r.texts(common)
	if err != nil {
		return err
	}
	for _, t := range texts {
		if err := s.elsewhere(top, dir, strings.TrimSpace(string(t))); err != nil {
			return err
		}
	}
	return nil
}

// configured finds what the configuration name in git directory dir names.
func (s *places) configured(top, dir tree.Path, name string) error {
	files, err := s.resolve(dir, name)
	if err != nil {
		return err
	}
	for _, f := range files {
		texts, err := s.r.texts(f)
		if err != nil {
			return err
		}
		for _, t := range texts {
			keys, err := parseConfig(t)
			if err != nil {
				continue // git refuses it too; a change of it is flagged
			}
			for _, k := range keys {
				if err := s.variable(top, dir, f, k); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// variable finds what one variable of the configuration file names. A hook runs in the working tree
// or the git directory, so relative paths start from either.
func (s *places) variable(top, dir, file tree.Path, k configKey) error {
	switch {
	case k.key == "core.hookspath":
		return s.namedBy(k, []tree.Path{top, dir}, dir, "hooks")
	case k.key == "core.attributesfile":
		return s.namedBy(k, []tree.Path{top, dir}, dir, "info/attributes")
	case matchKey("include.path", k.key), matchKey("includeif.*.path", k.key):
		return s.namedBy(k, []tree.Path{file.Parent()}, dir, "config")
	case k.executes(false):
		return s.words(top, k)
	}
	return nil
}

// namedBy lets what k names, seen from each of from, count as dir/as.
func (s *places) namedBy(k configKey, from []tree.Path, dir tree.Path, as string) error {
	value := k.text()
	if value == "" {
		return nil
	}
	if home, ok := strings.CutPrefix(value, "~"); ok {
		value = "/" + home
	}
	for name := range strings.SplitSeq(as, "/") {
		var err error
		if dir, err = dir.Child(name); err != nil {
			return err
		}
	}
	for _, d := range from {
		targets, err := s.resolve(d, value)
		if err != nil {
			return err
		}
		for _, t := range targets {
			s.put(t, dir)
		}
	}
	return nil
}

// words remembers the files of top that the value of k, a command, may name.
func (s *places) words(top tree.Path, k configKey) error {
	isBreak := func(c rune) bool { return strings.ContainsRune(" \t\n\"'!;&|()=<>`$", c) }
	for _, w := range strings.FieldsFunc(k.text(), isBreak) {
		if !strings.ContainsAny(w, "./") || strings.Contains(w, "://") {
			continue
		}
		targets, err := s.resolve(top, w)
		if err != nil {
			return err
		}
		for _, t := range targets {
			s.runs[t] = k.key
		}
	}
	return nil
}

// git flags what git executes or is configured by, in any repository of the result, as c lies or
// counts as lying at path as.
func (l *classifier) git(at, as tree.Path, c tree.Change) error {
	in, ok, err := l.gitDir(as)
	if err != nil || !ok {
		return err
	}
	name := called(c, as)
	switch {
	case len(in) == 0 || in[len(in)-1] == ".git":
		l.flag(at, GitConfig, "%s takes the place of a git directory", name)
	case special(c.New.Kind):
		l.flag(at, GitConfig, "%s in a git directory lets git wait or read what nobody reviewed", name)
	case slices.Contains(in[:len(in)-1], "hooks"):
		if !strings.HasSuffix(in[len(in)-1], ".sample") {
			l.flag(at, GitHook, "%s is a git hook", name)
		}
	case c.New.Kind == tree.Symlink && in[len(in)-1] == "hooks":
		l.flag(at, GitHook, "%s is a link to git hooks", name)
	case in[len(in)-1] == "config" || in[len(in)-1] == "config.worktree":
		return l.config(at, as, c)
	case strings.Join(in[max(0, len(in)-2):], "/") == "info/attributes":
		l.flag(at, GitAttributes, "%s selects filters, diff and merge drivers", name)
	case slices.Contains([]string{"commondir", "gitdir", "alternates", "http-alternates"}, in[len(in)-1]):
		l.flag(at, GitConfig, "%s tells git to look elsewhere", name)
	case legacyRemote(in):
		l.flag(at, GitConfig, "%s defines a remote", name)
	case c.New.Kind == tree.Symlink:
		l.flag(at, GitConfig, "%s is a link in a git directory", name)
	}
	return nil
}

// legacyRemote reports whether a file is one of remotes/ or branches/ in a git directory, which git
// reads like remote.*.url; branches called so lie below refs.
func legacyRemote(in []string) bool {
	for i, name := range in[:len(in)-1] {
		switch name {
		case "refs":
			return false
		case "remotes", "branches":
			return i == len(in)-2
		}
	}
	return false
}

// config flags a git configuration with keys that execute something and were not there before. One
// that is no file, or too long to be one, is flagged as it is.
func (l *classifier) config(at, as tree.Path, c tree.Change) error {
	if !short(c.New) {
		l.flag(at, GitConfig, "%s is no ordinary git configuration", called(c, as))
		return nil
	}
	text, err := readAll(l.c.OpenNew(c.Path))
	if err != nil {
		return err
	}
	fresh, err := l.fresh(c)
	if err != nil {
		return err
	}
	now, err := executingKeys(text, fresh)
	if err != nil {
		l.flag(at, GitConfig, "%s is no ordinary git configuration", called(c, as))
		return nil
	}
	old, err := l.oldKeys(c)
	if err != nil {
		return err
	}
	for _, k := range now {
		if !old[k] {
			l.flag(at, GitConfig, "%s sets %s", called(c, as), k.key)
		}
	}
	return nil
}

// fresh reports whether c is the configuration of a repository that was not there.
func (l *classifier) fresh(c tree.Change) (bool, error) {
	if c.Base.Kind != tree.Absent || c.RenameFrom != nil {
		return false, nil
	}
	was, err := l.wasThere(c.Path.Parent(), "HEAD")
	return !was, err
}

// oldKeys returns what the base of a git configuration executes already.
func (l *classifier) oldKeys(c tree.Change) (map[configKey]bool, error) {
	old := map[configKey]bool{}
	if !short(c.Base) {
		return old, nil
	}
	text, err := l.baseText(c.Path)
	if err != nil {
		return nil, err
	}
	keys, err := executingKeys(text, false)
	if err != nil {
		return old, nil // executed nothing: git refuses such a file
	}
	for _, k := range keys {
		old[k] = true
	}
	return old, nil
}

// wasThere reports whether the workspace has name in directory d.
func (r *result) wasThere(d tree.Path, name string) (bool, error) {
	p, err := d.Child(name)
	if err != nil {
		return false, err
	}
	n, err := r.base(p)
	return n.Kind != tree.Absent, err
}

// completes flags what makes git see a repository where the workspace already has hooks or a
// configuration that executes something.
func (l *classifier) completes(at tree.Path, c tree.Change) error {
	d := c.Path.Parent()
	if !slices.Contains([]string{"HEAD", "objects", "refs", "commondir"}, c.Path.Base()) || c.Path.IsRoot() {
		return nil
	}
	if is, err := l.isGitDir(d); err != nil || !is {
		return err
	}
	if was, err := hasRepository(d, l.wasThere); err != nil || was {
		return err
	}
	if hooks, err := l.wasThere(d, "hooks"); err != nil {
		return err
	} else if hooks {
		l.flag(at, GitHook, "%q makes hooks of what is there", c.Path)
	}
	p, err := d.Child("config")
	if err != nil {
		return err
	}
	text, err := l.baseText(p)
	if err != nil {
		return err
	}
	keys, err := executingKeys(text, false)
	if err != nil {
		return nil // git refuses such a configuration
	}
	for _, k := range keys {
		l.flag(at, GitConfig, "%q makes git read a configuration that sets %s", c.Path, k.key)
	}
	return nil
}
