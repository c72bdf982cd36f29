package apply

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"stage/test/testenv"
)

func TestMerge3(t *testing.T) {
	const base = "1\n2\n3\n4\n5\n"
	for _, c := range []struct {
		name, base, ours, theirs, want string
		conflicts                      int
	}{
		{"far apart", base, "one\n2\n3\n4\n5\n", "1\n2\n3\n4\nfive\n", "one\n2\n3\n4\nfive\n", 0},
		{"one side", base, base, "1\n3\n4\n5\n", "1\n3\n4\n5\n", 0},
		{"both alike", base, "1\nx\n3\n4\n5\n", "1\nx\n3\n4\n5\n", "1\nx\n3\n4\n5\n", 0},
		{"same line", base, "1\nx\n3\n4\n5\n", "1\ny\n3\n4\n5\n", "1\n<<<<<<< o\nx\n||||||| b\n2\n=======\ny\n>>>>>>> t\n3\n4\n5\n", 1},
		{"touching lines", base, "1\nx\n3\n4\n5\n", "1\n2\ny\n4\n5\n", "1\n<<<<<<< o\nx\n3\n||||||| b\n2\n3\n=======\n2\ny\n>>>>>>> t\n4\n5\n", 1},
		{"both append", "1\n", "1\na\n", "1\nb\n", "1\n<<<<<<< o\na\n||||||| b\n=======\nb\n>>>>>>> t\n", 1},
		{"deleted and changed", base, "1\n5\n", "1\n2\nx\n4\n5\n", "1\n<<<<<<< o\n||||||| b\n2\n3\n4\n=======\n2\nx\n4\n>>>>>>> t\n5\n", 1},
		{"no newline at the end", "1\n2", "1\n2\n3", "0\n1\n2", "0\n1\n2\n3", 0},
		{"empty base", "", "a\n", "a\n", "a\n", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, n := merge3(c.base, c.ours, c.theirs, marks{"o", "b", "t"})
			if got != c.want || n != c.conflicts {
				t.Errorf("got %d conflicts and\n%s\nwant %d and\n%s", n, got, c.conflicts, c.want)
			}
		})
	}
}

// lines is a random text of few different lines.
func lines(r *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(strings.Repeat(string(rune('a'+r.IntN(20))), 3) + "\n")
	}
	return b.String()
}

// edit changes a few lines of a text.
func edit(r *rand.Rand, text string) string {
	l := strings.SplitAfter(text, "\n")
	for range 1 + r.IntN(3) {
		i := r.IntN(len(l))
		switch r.IntN(3) {
		case 0:
			l[i] = lines(r, 1)
		case 1:
			l[i] += lines(r, 1+r.IntN(2))
		default:
			l[i] = ""
		}
	}
	return strings.Join(l, "")
}

// TestMerge3AsGit: texts that git merges get the text git gives them, and what is a conflict for git
// is one for us, but for a few texts full of equal lines, which two diffs align in different ways.
func TestMerge3AsGit(t *testing.T) {
	testenv.Need(t, testenv.Tool("git"))
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("STAGE_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("STAGE_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	const rounds = 400
	clean, other := 0, 0
	for i := range rounds {
		base := lines(r, 5+r.IntN(40))
		ours, theirs := edit(r, base), edit(r, base)
		want, conflict := gitMerge(t, base, ours, theirs)
		got, n := merge3(base, ours, theirs, marks{"o", "b", "t"})
		switch {
		case n > 0:
		case conflict, got != want:
			other++
			t.Logf("%d: git has a conflict: %v\nbase %q\nours %q\ntheirs %q\ngot %q\ngit %q", i, conflict, base, ours, theirs, got, want)
		default:
			clean++
		}
	}
	if clean < rounds/5 || other > rounds/50 {
		t.Errorf("%d of %d merged like git's, %d otherwise", clean, rounds, other)
	}
}

func gitMerge(t *testing.T, base, ours, theirs string) (text string, conflict bool) {
	t.Helper()
	dir := t.TempDir()
	var args []string
	for _, f := range [][2]string{{"ours", ours}, {"base", base}, {"theirs", theirs}} {
		p := filepath.Join(dir, f[0])
		if err := os.WriteFile(p, []byte(f[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, p)
	}
	out, err := exec.Command("git", append([]string{"merge-file", "-p", "-q"}, args...)...).Output()
	return string(out), err != nil
}
