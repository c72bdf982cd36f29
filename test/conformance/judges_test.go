package conformance

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"stage/test/testenv"
)

// Programs that judge file systems, or whose files tell when one lost something.

// stressors are those of stress-ng that pass on a plain directory without capabilities.
var stressors = strings.Fields("access chdir copy-file dentry dir fallocate fcntl filename flock fstat getdent hdd link lockf lockofd " +
	"open rename seek symlink sync-file utime xattr")

// TestStressNG has stressors check what they read.
func TestStressNG(t *testing.T) {
	testenv.Need(t, testenv.Tool("stress-ng"))
	testenv.Users(t, func(t *testing.T, u testenv.User) { runSuite(t, u, "stress") })
}

func insideStress(t *testing.T, dir string) {
	short, long := "2s", "4s"
	if soaking() {
		long = "150s"
	}
	judge(t, filepath.Join(dir, "plain"), "stress-ng", stressArgs(short)...)
	judge(t, filepath.Join(dir, "mnt"), "stress-ng", stressArgs(long)...)
}

func stressArgs(length string) []string {
	args := []string{"--verify", "--temp-path", ".", "--timeout", length, "--hdd-bytes", "4m", "--copy-file-bytes", "128m", "--fallocate-bytes", "8m"}
	for _, s := range stressors {
		args = append(args, "--"+s, "1")
	}
	return args
}

func judge(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	c := exec.Command(name, args...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%s in %s: %v\n%s", name, filepath.Base(dir), err, out)
	}
}

// TestFio writes and verifies by several engines.
func TestFio(t *testing.T) {
	testenv.Need(t, testenv.Tool("fio"))
	testenv.Users(t, func(t *testing.T, u testenv.User) { runSuite(t, u, "fio") })
}

func insideFio(t *testing.T, dir string) {
	size := "8m"
	if soaking() {
		size = "128m"
	}
	for _, engine := range [][]string{
		{"--ioengine=psync"}, {"--ioengine=psync", "--direct=1"}, {"--ioengine=mmap"}, {"--ioengine=libaio", "--iodepth=8", "--direct=1"},
	} {
		args := append([]string{
			"--name=verify", "--rw=randwrite", "--bs=4k", "--numjobs=2", "--size=" + size, "--verify=crc32c", "--do_verify=1", "--verify_fatal=1",
		}, engine...)
		judge(t, filepath.Join(dir, "plain"), "fio", args...)
		judge(t, filepath.Join(dir, "mnt"), "fio", args...)
	}
}

// TestKilledServer kills the server while git and SQLite are at work, and has both judge what an
// overlay opened again shows.
func TestKilledServer(t *testing.T) {
	testenv.Need(t, testenv.Tool("git"), testenv.Tool("sqlite3"))
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		tr := newTrial(t, u, "killed")
		for _, lines := range []int{5, 12, 19} {
			tr.killAfter("killed:work", lines)
			tr.run("killed:check")
		}
		tr.check()
	})
}

// killAfter starts a suite and kills its server when DIR/progress has some lines.
func (tr *trial) killAfter(suite string, lines int) {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(tr.t.Context(), patience)
	defer cancel()
	c := self(ctx, tr.u, "serve", tr.dir, suite)
	if err := c.Start(); err != nil {
		tr.t.Fatal(err)
	}
	for ctx.Err() == nil {
		b, err := os.ReadFile(filepath.Join(tr.dir, "progress"))
		if err == nil && strings.Count(string(b), "\n") >= lines {
			break
		}
		time.Sleep(10 * time.Millisecond) // a file to poll, of a process nobody waits for
	}
	if err := c.Process.Kill(); err != nil {
		tr.t.Fatal(err)
	}
	if err := c.Wait(); err == nil || ctx.Err() != nil {
		tr.t.Fatalf("killed server: %v, %v", err, ctx.Err())
	}
}

// killedTree is a repository and a database.
func killedTree(top string) {
	c := exec.Command("sh", "-ec", `git init -q repo; cd repo; git config user.name T; git config user.email t@example.org; echo 0 >f; git add f
		git commit -qm first; cd ..; sqlite3 db 'pragma journal_mode=wal; create table t(a integer primary key, b text)'`)
	c.Dir = top
	c.Env = append(os.Environ(), "HOME="+top)
	if out, err := c.CombinedOutput(); err != nil {
		panic(string(out))
	}
}

const killedWork = `i=0; cd "$1"; while :; do i=$((i+1))
	sqlite3 db "insert into t(b) values(hex(randomblob(3000)))" || exit
	(cd repo; echo $i.$$ >f; echo $i >g$i; rm -f .git/index.lock .git/HEAD.lock .git/refs/heads/*.lock; git add . && git commit -qm $i) || exit
	echo $i >>../progress; done`

const killedCheck = `cd "$1"; test "$(sqlite3 db 'pragma integrity_check')" = ok; test "$(sqlite3 db 'select count(*) from t')" -gt 0
	cd repo; git fsck --strict --no-dangling; git log --oneline | tail -1 | grep -q first`

func insideKilled(t *testing.T, dir string) {
	script := killedCheck
	if part() == "work" {
		script = killedWork
	}
	c := exec.Command("sh", "-ec", script, "sh", filepath.Join(dir, "mnt"))
	c.Env = append(os.Environ(), "HOME="+dir)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
