package session

import (
	"os"
	"path/filepath"
	"testing"
)

func TestResolverFollowsLinksAsFarAsTheyLead(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(base, "real/deep/f"), "")
	for link, to := range map[string]string{"alias": "real", "real/up": "..", "dangling": "no/where", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(base, link)); err != nil {
			t.Fatal(err)
		}
	}
	resolve := newResolver()
	for path, want := range map[string]string{
		"real/deep/f": "real/deep/f", "alias/deep/f": "real/deep/f", "alias/deep/absent/x": "real/deep/absent/x",
		"alias/up/alias/deep": "real/deep", "absent/alias": "absent/alias", "dangling/x": "dangling/x", "loop/x": "loop/x",
	} {
		if got := resolve(filepath.Join(base, path)); got != filepath.Join(base, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
