package gitview

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"stage/test/testenv"
)

// git runs git in dir with nobody's configuration and returns what it prints.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	testenv.Need(t, testenv.Tool("git"))
	c := exec.CommandContext(t.Context(), "git", args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org", "LC_ALL=C")
	out, err := c.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("git %q: %v\n%s", args, err, exit.Stderr)
		}
		t.Fatalf("git %q: %v", args, err)
	}
	return string(out)
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// tempDir is t.TempDir without links, as git prints paths.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func repo(t *testing.T) string {
	t.Helper()
	dir := tempDir(t)
	git(t, dir, "init", "-q", "-b", "main")
	return dir
}

func wantTop(t *testing.T, dir, want string) {
	t.Helper()
	top, ok, err := TopLevel(dir)
	if err != nil {
		t.Fatal(err)
	}
	if ok != (want != "") || ok && top != want {
		t.Errorf("TopLevel(%q) = %q, %v; want %q", dir, top, ok, want)
	}
}

func TestTopLevelIsFoundFromBelow(t *testing.T) {
	dir := repo(t)
	write(t, dir, "a/b/c", "x")
	wantTop(t, dir, dir)
	wantTop(t, filepath.Join(dir, "a/b"), dir)
}

func TestTopLevelFollowsALinkToTheDirectory(t *testing.T) {
	dir := repo(t)
	write(t, dir, "a/b/c", "x")
	link := filepath.Join(tempDir(t), "link")
	if err := os.Symlink(filepath.Join(dir, "a/b"), link); err != nil {
		t.Fatal(err)
	}
	wantTop(t, link, dir)
}

func TestPlainDirectoryIsNoWorkTree(t *testing.T) { wantTop(t, tempDir(t), "") }

func TestDirectoryThatIsNoRepositoryIsPassedOver(t *testing.T) {
	dir := repo(t)
	write(t, dir, "a/.git/config", "x")
	wantTop(t, filepath.Join(dir, "a"), dir)
}

func TestLinkedWorktreeHasItsOwnTopAndASharedDirectory(t *testing.T) {
	dir := repo(t)
	write(t, dir, "f", "x")
	git(t, dir, "add", "f")
	git(t, dir, "commit", "-qm", "one")
	linked := filepath.Join(tempDir(t), "linked")
	git(t, dir, "worktree", "add", "-q", linked)
	r, ok, err := Find(linked)
	if err != nil || !ok {
		t.Fatalf("Find: %v, %v", ok, err)
	}
	want := Repo{WorkTree: linked, GitDir: filepath.Join(dir, ".git/worktrees/linked"), CommonDir: filepath.Join(dir, ".git")}
	if r != want {
		t.Errorf("got %+v, want %+v", r, want)
	}
	if _, n, err := r.Tracked(); err != nil || n != 1 {
		t.Errorf("tracked files: %d, %v; want 1", n, err)
	}
}

func TestBrokenGitfileIsAnError(t *testing.T) {
	for _, text := range []string{"", "gitdir: ", "gitdir: /nonexistent/x\n", "hello"} {
		dir := tempDir(t)
		write(t, dir, ".git", text)
		if _, _, err := TopLevel(dir); !errors.Is(err, ErrGitfile) {
			t.Errorf("gitfile %q: %v, want ErrGitfile", text, err)
		}
	}
}

func TestRepositoryWithoutAnIndexTracksNothing(t *testing.T) {
	r, ok, err := Find(repo(t))
	if err != nil || !ok {
		t.Fatalf("Find: %v, %v", ok, err)
	}
	has, n, err := r.Tracked()
	if err != nil || n != 0 {
		t.Errorf("tracked files: %d, %v; want 0", n, err)
	}
	if has(mustPath(t, "f")) {
		t.Error("f is tracked")
	}
}

func TestWorkTreeOfAnotherUserIsNotEntered(t *testing.T) {
	for _, test := range []struct {
		me, owner uint32
		want      bool
	}{{1000, 1000, true}, {1000, 1001, false}, {1000, 0, false}, {0, 1000, true}, {0, 0, true}} {
		if got := trusts(test.me, test.owner); got != test.want {
			t.Errorf("user %d in a work tree of %d: %v, want %v", test.me, test.owner, got, test.want)
		}
	}
}
