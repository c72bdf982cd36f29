package gitview

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

var fixedTime = time.Unix(1_000_000_000, 0)

func gitInput(t *testing.T, dir, input string, args ...string) {
	t.Helper()
	f, err := os.Open(input)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := exec.CommandContext(t.Context(), "git", args...)
	c.Dir, c.Stdin = dir, f
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

// twoTrees is the Contents of a change from one directory to another.
type twoTrees struct{ before, after string }

func (c twoTrees) OpenNew(p tree.Path) (hostfs.File, error)  { return open(c.after, p) }
func (c twoTrees) OpenBase(p tree.Path) (hostfs.File, error) { return open(c.before, p) }

func (c twoTrees) WalkRemoved(ch tree.Change, f func(tree.Path, tree.Node) error) error {
	return walk(c.before, ch.Path, f)
}

func open(root string, p tree.Path) (hostfs.File, error) {
	d, err := hostfs.OpenRoot(filepath.Join(root, p.Parent().String()))
	if err != nil {
		return nil, err
	}
	f, err := d.Open(p.Base())
	return f, errors.Join(err, d.Close())
}

// walk calls f for the files below dir, which may be the root.
func walk(root string, dir tree.Path, f func(tree.Path, tree.Node) error) error {
	return filepath.WalkDir(filepath.Join(root, dir.String()), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		p, err := tree.ParsePath(rel)
		if err != nil {
			return err
		}
		st, err := os.Lstat(path)
		if err != nil {
			return err
		}
		return f(p, tree.Node{Kind: tree.File, Mode: tree.Mode(st.Mode().Perm()), Size: st.Size()})
	})
}

// changesBetween lists the files that differ.
func changesBetween(t *testing.T, before, after string) []tree.Change {
	t.Helper()
	nodes := map[tree.Path]*tree.Change{}
	at := func(p tree.Path) *tree.Change {
		if nodes[p] == nil {
			nodes[p] = &tree.Change{Path: p}
		}
		return nodes[p]
	}
	collect := func(root string, set func(*tree.Change, tree.Node)) {
		err := walk(root, tree.Path{}, func(p tree.Path, n tree.Node) error {
			data, err := os.ReadFile(filepath.Join(root, p.String()))
			n.Digest = tree.DigestBytes(data)
			set(at(p), n)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	collect(before, func(c *tree.Change, n tree.Node) { c.Base = n })
	collect(after, func(c *tree.Change, n tree.Node) { c.New = n })
	var l []tree.Change
	for _, c := range nodes {
		if c.Base.SameContent(c.New) != tree.Same {
			l = append(l, *c)
		}
	}
	slices.SortFunc(l, func(a, b tree.Change) int { return a.Path.Compare(b.Path) })
	return l
}

// summarize runs script in a copy of a repository with one commit and tells what changed.
func summarize(t *testing.T, script string) (*Summary, string) {
	t.Helper()
	before := repo(t)
	write(t, before, "f", "one\n")
	git(t, before, "add", ".")
	git(t, before, "commit", "-qm", "first")
	git(t, before, "branch", "topic")
	after := filepath.Join(tempDir(t), "after")
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", before, after).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
	c := exec.CommandContext(t.Context(), "sh", "-ec", script)
	c.Dir = after
	c.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	s, err := Summarize(t.Context(), mustPath(t, ".git"), changesBetween(t, before, after), twoTrees{before, after})
	if err != nil {
		t.Fatal(err)
	}
	return s, after
}

func TestCommitsAreToldByBranchAndSubject(t *testing.T) {
	s, after := summarize(t, `echo two >> f; git commit -qam second; echo three >> f; git commit -qam third`)
	if len(s.Refs) != 1 || s.Refs[0].Name != "refs/heads/main" {
		t.Fatalf("references: %+v, want refs/heads/main", s.Refs)
	}
	want := strings.Fields(git(t, after, "log", "-2", "--format=%H %s"))
	got := s.Refs[0].Commits
	if len(got) != 2 || got[0] != (Commit{want[0], "third"}) || got[1] != (Commit{want[2], "second"}) {
		t.Errorf("commits: %+v, want %q", got, want)
	}
	if s.Objects.Added != 6 || s.Index.Modified != 1 || !s.Index.Changed {
		t.Errorf("objects %+v, index %+v; want 6 objects, 1 entry modified", s.Objects, s.Index)
	}
	lines := strings.Join(s.Lines(), "\n")
	for _, part := range []string{"branch main: ", "2 new commits", "third", "index: 0 entries added, 0 removed, 1 changed"} {
		if !strings.Contains(lines, part) {
			t.Errorf("%q is missing in\n%s", part, lines)
		}
	}
}

func TestSwitchingBranchesMovesHEADOnly(t *testing.T) {
	s, _ := summarize(t, `git checkout -q topic`)
	if s.HEAD == nil || s.HEAD.Old != "ref: refs/heads/main" || s.HEAD.New != "ref: refs/heads/topic" {
		t.Errorf("HEAD: %+v", s.HEAD)
	}
	if len(s.Refs) != 0 {
		t.Errorf("references: %+v, want none", s.Refs)
	}
}

func TestPackingReferencesMovesNone(t *testing.T) {
	s, _ := summarize(t, `git pack-refs --all; git gc -q`)
	if len(s.Refs) != 0 {
		t.Errorf("references: %+v, want none", s.Refs)
	}
	if s.Objects.Packs != 1 || s.Objects.Removed == 0 {
		t.Errorf("objects: %+v, want one pack and loose objects gone", s.Objects)
	}
}

func TestPackedBranchThatMovesIsTold(t *testing.T) {
	s, _ := summarize(t, `git pack-refs --all; git branch -D -q topic; git tag v1; echo x >> f; git commit -qam second`)
	names := map[string]bool{}
	for _, r := range s.Refs {
		names[r.Name] = true
	}
	if len(s.Refs) != 3 || !names["refs/heads/main"] || !names["refs/heads/topic"] || !names["refs/tags/v1"] {
		t.Errorf("references: %+v, want main moved, topic deleted, v1 created", s.Refs)
	}
}

func TestHooksAndConfigAreNamed(t *testing.T) {
	s, _ := summarize(t, `printf '#!/bin/sh\n' > .git/hooks/pre-commit; git config core.pager evil; echo x > .git/COMMIT_EDITMSG2`)
	if len(s.Hooks) != 1 || len(s.Config) != 1 || len(s.Other) != 1 {
		t.Errorf("hooks %v, config %v, other %v; want one each", s.Hooks, s.Config, s.Other)
	}
}

func TestStagingIsAChangeOfTheIndex(t *testing.T) {
	s, _ := summarize(t, `echo x > g; git add g; git rm -q --cached f`)
	if s.Index != (IndexChange{Changed: true, Added: 1, Removed: 1}) {
		t.Errorf("index: %+v", s.Index)
	}
}

func TestRefreshedIndexIsNoChange(t *testing.T) {
	s, _ := summarize(t, `touch -d @1 f; git update-index -q --refresh`)
	if s.Index.Changed || len(s.Lines()) != 0 {
		t.Errorf("index: %+v, lines: %q; want nothing", s.Index, s.Lines())
	}
}

func TestStatOnlyIsAboutIndexesAlone(t *testing.T) {
	before := repo(t)
	write(t, before, "f", "one\n")
	git(t, before, "add", ".")
	after := filepath.Join(tempDir(t), "after")
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", before, after).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
	trees := twoTrees{before, after}
	want := func(wanted bool, spoil func(*tree.Change)) {
		t.Helper()
		for _, c := range changesBetween(t, before, after) {
			if c.Path.String() != ".git/index" {
				continue
			}
			spoil(&c)
			if got, err := StatOnly(c, trees); err != nil || got != wanted {
				t.Errorf("StatOnly: %v, %v; want %v", got, err, wanted)
			}
			return
		}
		t.Error("the index did not change")
	}
	if err := os.Chtimes(filepath.Join(after, "f"), fixedTime, fixedTime); err != nil {
		t.Fatal(err)
	}
	git(t, after, "update-index", "-q", "--refresh")
	want(true, func(*tree.Change) {})
	want(false, func(c *tree.Change) { c.New.Mode = 0o666 })
	want(false, func(c *tree.Change) { c.Path = mustPath(t, "index") })
	want(false, func(c *tree.Change) { c.Base.Digest = tree.DigestBytes(nil) })
	write(t, after, "g", "new\n")
	git(t, after, "add", "g")
	want(false, func(*tree.Change) {})
	write(t, after, ".git/index", "no index")
	want(false, func(*tree.Change) {})
	if err := os.Remove(filepath.Join(before, ".git/index")); err != nil {
		t.Fatal(err)
	}
	if got, err := StatOnly(tree.Change{Path: mustPath(t, ".git/index"), Base: tree.Node{Kind: tree.File}, New: tree.Node{Kind: tree.File}}, trees); got || err != nil {
		t.Errorf("StatOnly without the base: %v, %v; want false", got, err)
	}
}

func TestRemovedDirectoryOfReferencesIsRead(t *testing.T) {
	before := repo(t)
	write(t, before, "f", "one\n")
	git(t, before, "add", ".")
	git(t, before, "commit", "-qm", "first")
	git(t, before, "branch", "team/a")
	git(t, before, "branch", "team/b")
	after := tempDir(t)
	dir := tree.Node{Kind: tree.Dir, Mode: 0o755}
	changes := []tree.Change{{Path: mustPath(t, ".git/refs/heads/team"), Base: dir, Subtree: true}}
	s, err := Summarize(t.Context(), mustPath(t, ".git"), changes, twoTrees{before, after})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Refs) != 2 || s.Refs[0].New != "" || s.Refs[1].New != "" {
		t.Errorf("references: %+v, want two deleted", s.Refs)
	}
}
