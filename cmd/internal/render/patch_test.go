package render

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"stage/fs/tree"
)

// applied returns a copy of the workspace to which git applied the patch.
func (w *trees) applied(patch string) string {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "applied")
	if out, err := exec.CommandContext(w.t.Context(), "cp", "-a", w.before, dir).CombinedOutput(); err != nil {
		w.t.Fatalf("cp: %v\n%s", err, out)
	}
	file := filepath.Join(w.t.TempDir(), "patch")
	must(w.t, os.WriteFile(file, []byte(patch), 0o644))
	git(w.t, dir, "apply", "--binary", "--allow-empty", "--whitespace=nowarn", file)
	return dir
}

// gitView is what git sees of a tree: files with content and exec bit, links with targets.
func gitView(t *testing.T, dir string) map[string]string {
	t.Helper()
	v := map[string]string{}
	for p, n := range snapshot(t, dir) {
		if n.Kind == tree.File || n.Kind == tree.Symlink {
			v[p.String()] = fmt.Sprintf("%s %s %s", gitMode(n), n.Digest, n.Target)
		}
	}
	return v
}

func wantSameView(t *testing.T, got, want map[string]string) {
	t.Helper()
	for p := range want {
		if got[p] != want[p] {
			t.Errorf("%q: got %q, want %q", p, got[p], want[p])
		}
	}
	for p := range got {
		if _, ok := want[p]; !ok {
			t.Errorf("%q: got %q, want nothing", p, got[p])
		}
	}
}

func TestGitAppliesThePatchOfRandomChanges(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newTrees(t)
			randomTrees(w, seed)
			patch := rendered(t, w.review(), FormatPatch)
			wantSameView(t, gitView(t, w.applied(patch)), gitView(t, w.after))
			if t.Failed() {
				t.Logf("patch:\n%s", patch)
			}
		})
	}
}

func TestPatchCanBeReversed(t *testing.T) {
	w := newTrees(t)
	randomTrees(w, 7)
	file := filepath.Join(t.TempDir(), "patch")
	must(t, os.WriteFile(file, []byte(rendered(t, w.review(), FormatPatch)), 0o644))
	git(t, w.after, "apply", "-R", "--binary", "--whitespace=nowarn", file)
	wantSameView(t, gitView(t, w.after), gitView(t, w.before))
}

func TestLargeFilesGoThroughAPatch(t *testing.T) {
	w := newTrees(t)
	line := strings.Repeat("all work and no play\n", 1<<20) // 21 MiB
	w.base(func(dir string) { put(t, dir, "large", line) })
	put(t, w.after, "large", line+"end\n")
	r := w.review()
	wantSameView(t, gitView(t, w.applied(rendered(t, r, FormatPatch))), gitView(t, w.after))
	diff := rendered(t, r, FormatDiff)
	if len(diff) > 1000 || !strings.Contains(diff, "Large files a/large and b/large differ") {
		t.Errorf("diff of %d bytes does not just name the large file", len(diff))
	}
}

func TestPatchNamesWhatItCannotCarry(t *testing.T) {
	w := newTrees(t)
	w.base(func(dir string) {
		put(t, dir, "private", "x\n")
		put(t, dir, ".git/hooks/pre-commit", "old\n")
	})
	must(t, os.Chmod(filepath.Join(w.after, "private"), 0o600))
	must(t, os.Mkdir(filepath.Join(w.after, "empty"), 0o755))
	put(t, w.after, ".git/hooks/pre-commit", "new\n")
	r := w.review()
	r.RawGit = true
	got := rendered(t, r, FormatPatch)
	want := `# stage: not in this patch, below .git: .git/hooks/pre-commit
# stage: created dir: empty
# stage: mode 0644 -> 0600: private
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestPatchWithoutTheBaseIsAnError(t *testing.T) {
	w := newTrees(t)
	w.base(func(dir string) { put(t, dir, "f", "old\n") })
	put(t, w.after, "f", "new\n")
	r := w.review()
	must(t, os.Remove(filepath.Join(w.before, "f")))
	var b strings.Builder
	if err := Patch(t.Context(), &Screen{W: &b}, r); err == nil {
		t.Errorf("a patch was made without the base:\n%s", b.String())
	}
	if diff := rendered(t, r, FormatDiff); !strings.Contains(diff, "# stage: content not shown:") {
		t.Errorf("the diff does not say that content is missing:\n%s", diff)
	}
}
