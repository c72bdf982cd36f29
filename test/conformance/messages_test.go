package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/fs/fusefs"
	"stage/test/testenv"
)

// messageCase is an operation and the most messages it may cost. FORGETs are left out: they come
// when the kernel likes, and nobody waits for them.
type messageCase struct {
	name    string
	setup   func(dir string) // makes the lower
	prepare func(dir string) // on the mount, not counted
	act     func(dir string) // on the mount, counted
	want    string
}

func (c *messageCase) dir() string { return strings.ReplaceAll(c.name, " ", "-") }

// TestMessages holds what operations cost in messages, so that no change makes one dearer unnoticed.
func TestMessages(t *testing.T) {
	testenv.Need(t, testenv.Tool("git"), testenv.Tool("tar"))
	testenv.Users(t, func(t *testing.T, u testenv.User) { runSuite(t, u, "messages") })
}

// uncounted are the requests that come when the kernel likes.
var uncounted = []string{"FORGET", "BATCH_FORGET", "INTERRUPT"}

func setupMessages(top string) {
	for _, c := range messageCases {
		d := filepath.Join(top, c.dir())
		mustDo(os.Mkdir(d, 0o755))
		if c.setup != nil {
			c.setup(d)
		}
	}
}

func insideMessages(t *testing.T, dir string) {
	// What the server answers ENOSYS is asked once per mount.
	warm := filepath.Join(dir, "mnt", "warm")
	mustDo(os.Mkdir(warm, 0o755))
	all(putFile("f"), readOne("f"), run("ls", "-l"))(warm)
	for _, c := range messageCases {
		t.Run(c.name, func(t *testing.T) {
			at := filepath.Join(dir, "mnt", c.dir())
			if c.prepare != nil {
				c.prepare(at)
			}
			// The directory itself is known; what is counted is what lies in it.
			if _, err := os.Lstat(at); err != nil {
				t.Fatal(err)
			}
			before := askMessages(t)
			c.act(at)
			after := askMessages(t)
			got := map[string]uint64{}
			for op, n := range after {
				if n > before[op] && !slices.Contains(uncounted, op) {
					got[op] = n - before[op]
				}
			}
			if tooMany(t, got, c.want) {
				t.Errorf("got %s, want at most %s", showMessages(got), c.want)
			}
			t.Logf("%s: %s", c.name, showMessages(got))
		})
	}
}

// tooMany reports whether got has more of any kind than want, "LOOKUP 1, CREATE 1".
func tooMany(t *testing.T, got map[string]uint64, want string) bool {
	t.Helper()
	most := map[string]uint64{}
	for part := range strings.SplitSeq(want, ", ") {
		if part == "" {
			continue
		}
		var op string
		var n uint64
		if _, err := fmt.Sscanf(part, "%s %d", &op, &n); err != nil {
			t.Fatalf("table says %q: %v", want, err)
		}
		most[op] = n
	}
	for op, n := range got {
		if n > most[op] {
			return true
		}
	}
	return false
}

func showMessages(got map[string]uint64) string {
	var parts []string
	for _, op := range slices.Sorted(maps.Keys(got)) {
		parts = append(parts, fmt.Sprintf("%s %d", op, got[op]))
	}
	return strings.Join(parts, ", ")
}

// askMessages asks the server, through descriptor 3, what it received so far.
func askMessages(t *testing.T) map[string]uint64 {
	t.Helper()
	if _, err := unix.Write(3, []byte{0}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<14)
	n, err := unix.Read(3, buf)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]uint64
	if err := json.Unmarshal(buf[:n], &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// answerMessages answers askMessages until whoever may ask is gone.
func answerMessages(sock int, srv *fusefs.Server) {
	buf := make([]byte, 1)
	for {
		n, err := unix.Read(sock, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		text, err := json.Marshal(srv.Messages())
		if err != nil {
			panic(err)
		}
		if _, err := unix.Write(sock, text); err != nil {
			return
		}
	}
}

func mustDo(err error) {
	if err != nil {
		panic(err)
	}
}

func putFile(name string) func(string) {
	return func(dir string) { mustDo(os.WriteFile(filepath.Join(dir, name), []byte("content"), 0o644)) }
}

func statFile(name string) func(string) {
	return func(dir string) {
		_, err := os.Lstat(filepath.Join(dir, name))
		mustDo(err)
	}
}

func readOne(name string) func(string) {
	return func(dir string) {
		_, err := os.ReadFile(filepath.Join(dir, name))
		mustDo(err)
	}
}

func all(acts ...func(string)) func(string) {
	return func(dir string) {
		for _, act := range acts {
			act(dir)
		}
	}
}

func run(name string, arg ...string) func(string) {
	return func(dir string) {
		c := exec.Command(name, arg...)
		c.Dir = dir
		c.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*", "GIT_OPTIONAL_LOCKS=0")
		if out, err := c.CombinedOutput(); err != nil {
			panic(fmt.Sprintf("%s: %v\n%s", name, err, out))
		}
	}
}

func twentyFiles(dir string) {
	for i := range 20 {
		putFile(fmt.Sprintf("f%02d", i))(dir)
	}
}

// repository makes a git work tree whose index is not racily clean.
func repository(dir string) {
	twentyFiles(dir)
	long := time.Now().Add(-time.Hour)
	for i := range 20 {
		mustDo(os.Chtimes(filepath.Join(dir, fmt.Sprintf("f%02d", i)), long, long))
	}
	run("git", "init", "-q")(dir)
	run("git", "config", "core.checkStat", "minimal")(dir) // the mount shows other owners
	run("git", "add", "-A")(dir)
}

func tarred(dir string) {
	putFile("f")(dir)
	run("tar", "--owner=0", "--group=0", "-cf", "t.tar", "f")(dir)
	mustDo(os.Remove(filepath.Join(dir, "f")))
	mustDo(os.Mkdir(filepath.Join(dir, "to"), 0o755))
	putFile("to/there")(dir)
}

func appendTo(name string) func(string) {
	return func(dir string) {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND, 0)
		mustDo(err)
		_, err = f.WriteString("more")
		mustDo(err)
		mustDo(f.Close())
	}
}

func renameOne(from, to string) func(string) {
	return func(dir string) { mustDo(os.Rename(filepath.Join(dir, from), filepath.Join(dir, to))) }
}

func removeOne(name string) func(string) {
	return func(dir string) { mustDo(os.Remove(filepath.Join(dir, name))) }
}

// What the kernel makes us pay (fs/fuse of Linux 6.18): a READ makes the access time stale and a WRITE
// size and times, so the next stat asks again; each change in a directory makes all its attributes
// stale, so the next walk through it asks for its mode; and before the first WRITE after attributes
// came, the kernel asks for security.capability.
var messageCases = []messageCase{
	{"stat a fresh name", putFile("f"), nil, statFile("f"), "LOOKUP 1"},
	{"stat again", putFile("f"), statFile("f"), statFile("f"), ""},
	{"stat what is not there", nil, nil, func(dir string) { os.Lstat(filepath.Join(dir, "f")) }, "LOOKUP 1"},
	{"stat what is not there again", nil, func(dir string) { os.Lstat(filepath.Join(dir, "f")) }, func(dir string) { os.Lstat(filepath.Join(dir, "f")) }, ""},
	{"read a fresh name", putFile("f"), nil, readOne("f"), "LOOKUP 1, READ 1"},
	{"read again", putFile("f"), readOne("f"), readOne("f"), "GETATTR 1"},
	{"stat after a read", putFile("f"), readOne("f"), statFile("f"), "GETATTR 1"},
	{"list", twentyFiles, nil, func(dir string) { _, err := os.ReadDir(dir); mustDo(err) }, "READDIRPLUS 2"},
	{"list and stat each", twentyFiles, nil, run("ls", "-ln", "--color=never"), "READDIRPLUS 2, GETXATTR 40"},
	{"list again", twentyFiles, run("ls", "-ln"), run("ls", "-ln"), "GETXATTR 40"},
	{"create, write, close", nil, nil, putFile("f"), "LOOKUP 1, CREATE 1, GETXATTR 1, WRITE 1"},
	{"create and write in a directory listed before", putFile("e"), run("ls", "-l"), putFile("f"), "LOOKUP 1, CREATE 1, GETXATTR 1, WRITE 1"},
	{"stat after create and write", nil, putFile("f"), statFile("f"), "GETATTR 1"},
	{"read after create and write", nil, putFile("f"), readOne("f"), "GETATTR 1, READ 1"},
	{"rewrite", putFile("f"), readOne("f"), putFile("f"), "SETATTR 1, GETXATTR 2, WRITE 1"},
	{"append to a lower file", putFile("f"), statFile("f"), appendTo("f"), "GETXATTR 1, WRITE 1"},
	{"append again", putFile("f"), appendTo("f"), appendTo("f"), "WRITE 1"},
	{"mkdir", nil, nil, func(dir string) { mustDo(os.Mkdir(filepath.Join(dir, "d"), 0o755)) }, "LOOKUP 1, MKDIR 1"},
	{"rename", putFile("f"), statFile("f"), renameOne("f", "g"), "LOOKUP 2, RENAME 1"},
	{"editor save", putFile("f"), statFile("f"), all(putFile("f.tmp"), renameOne("f.tmp", "f"), readOne("f")), "LOOKUP 2, CREATE 1, GETXATTR 1, WRITE 1, RENAME 1, GETATTR 3, READ 1"},
	{"editor save again", putFile("f"), all(putFile("f.tmp"), renameOne("f.tmp", "f"), readOne("f")), all(putFile("f.tmp"), renameOne("f.tmp", "f"), readOne("f")), "LOOKUP 2, CREATE 1, GETXATTR 1, WRITE 1, RENAME 1, GETATTR 4, READ 1"},
	{"unlink", putFile("f"), statFile("f"), removeOne("f"), "UNLINK 1"},
	{"unlink what was created", nil, putFile("f"), removeOne("f"), "UNLINK 1"},
	{"rm of one of many", twentyFiles, run("ls", "-l"), run("rm", "f03"), "UNLINK 1"},
	{"rm -rf of twenty", func(dir string) {
		mustDo(os.Mkdir(filepath.Join(dir, "d"), 0o755))
		twentyFiles(filepath.Join(dir, "d"))
	}, nil, run("rm", "-rf", "d"), "LOOKUP 1, READDIRPLUS 3, STATFS 1, UNLINK 20, GETATTR 20, RMDIR 1"},
	{"tar x of one file", tarred, all(run("tar", "tf", "t.tar"), statFile("to/there")), run("tar", "xf", "t.tar", "-C", "to"), "LOOKUP 1, CREATE 1, GETXATTR 2, WRITE 1, SETATTR 3"},
	{"chmod, chown, utimens", putFile("f"), appendTo("f"), func(dir string) {
		f := filepath.Join(dir, "f")
		mustDo(os.Chmod(f, 0o600))
		mustDo(os.Chown(f, os.Getuid(), os.Getgid()))
		mustDo(os.Chtimes(f, time.Unix(1e9, 0), time.Unix(1e9, 0)))
		statFile("f")(dir)
	}, "GETXATTR 1, SETATTR 3"},
	{"git status", repository, nil, run("git", "status", "--porcelain"), "LOOKUP 44, READDIRPLUS 2, READ 4, GETATTR 2"},
	{"git status of what was listed", repository, run("find", "."), run("git", "status", "--porcelain"), "LOOKUP 14, READ 4, GETATTR 3"},
	{"git status again", repository, all(run("git", "status", "--porcelain"), run("git", "status", "--porcelain")), run("git", "status", "--porcelain"), ""},
	{"git status after reading all", repository, run("sh", "-c", "git status --porcelain && git status --porcelain && cat f*"), run("git", "status", "--porcelain"), "GETATTR 20"},
}
