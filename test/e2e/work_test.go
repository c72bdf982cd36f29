package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"stage/test/testenv"
)

// works are pieces of real work. Each is done twice from the same start: in a plain directory, and
// in a Job whose changes are then applied. The trees must be the same.
var works = []struct {
	name  string
	tools []string
	start string // makes the workspace
	work  string // runs in it
}{
	{"git", []string{"git"}, `
git init -q; mkdir src; for i in 1 2 3 4 5; do echo line $i > src/$i; done; git add .; git commit -qm first
git checkout -qb topic; echo topic >> src/1; git commit -qam topic; git checkout -q main; echo main >> src/2; git commit -qam main`, `
git checkout -q topic; git rebase -q main; echo dirty >> src/3; git stash -q; git stash pop -q
git checkout -qb other; git rm -q src/4; git mv src/5 src/five; git commit -qam moved; git tag v1
git clone -q . clone; git -C clone log --oneline > log; git gc -q; git checkout -q main; git reset -q --hard HEAD~1`},
	{"editors", []string{"patch"}, `
printf 'a\nb\nc\n' > f; printf 'x\ny\n' > g; chmod 640 g; ln -s f l`, `
sed -i s/b/B/ f; sed -i s/y/Y/ l
printf '%s\n' '--- g' '+++ g' '@@ -1,2 +1,2 @@' ' x' '-y' '+z' | patch -s g
cp f f.new && mv f.new f; cat g > f.tmp; mv f.tmp g; : > empty; truncate -s 5 f; printf long >> f; echo short > g`},
	{"tar", []string{"tar"}, `
mkdir -p d/e; for i in 1 2 3; do echo $i > d/e/$i; done; chmod 711 d; chmod 600 d/e/1; ln d/e/1 d/hard; ln -s e/2 d/soft
touch -d 2001-01-01 d/e/2 d/e d`, `
tar cf t.tar d; rm -r d; mkdir out; tar xpf t.tar -C out; mv out/d d2; rmdir out; tar xpf t.tar`},
	{"rsync", []string{"rsync"}, `
mkdir -p a/x b; for i in 1 2 3; do echo $i > a/x/$i; done; touch -d 2002-02-02 a/x/1; ln a/x/2 a/x/two; echo stale > b/stale`, `
rsync -aH --delete a/ b/; echo more >> a/x/3; rsync -aH --delete a/ b/; chmod 400 a/x/1; rsync -aH a/ b/`},
	{"sqlite", []string{"sqlite3"}, `
sqlite3 db 'create table t(a, b); insert into t values (1, 2);'`, `
sqlite3 db 'pragma journal_mode=wal; insert into t values (3, 4); update t set b = 9 where a = 1; pragma wal_checkpoint(truncate); pragma journal_mode=delete;' > out
sqlite3 db 'select * from t' >> out; sqlite3 new 'pragma journal_mode=delete; create table u(c); insert into u values (5); select * from u' >> out`},
	{"go", []string{"go"}, `
mkdir p; printf 'module m\n\ngo 1.21\n' > go.mod
printf 'package main\n\nimport "m/p"\n\nfunc main() { println(p.P()) }\n' > main.go; printf 'package p\n\nfunc P() int { return 1 }\n' > p/p.go`, `
go build -trimpath -buildvcs=false -o bin .; go vet ./...; printf 'package p\n\nfunc P() int { return 2 }\n' > p/p.go
go build -trimpath -buildvcs=false -o bin2 .; ./bin2 2> out; gofmt -w p/p.go`},
	{"npm", []string{"npm"}, `
mkdir -p lib; printf '{"name":"lib","version":"1.0.0","main":"i.js","bin":{"hello":"i.js"}}' > lib/package.json
printf '#!/usr/bin/env node\nconsole.log("hi")\n' > lib/i.js; printf '{"name":"app","version":"1.0.0","private":true}' > package.json`, `
npm install --offline --no-audit --no-fund --silent ./lib; node -e 'require("lib")' > out; npm pack --silent --offline ./lib > /dev/null`},
	{"closed files", nil, `
for f in renamed opened removed replaced touched swapped; do echo $f > $f; chmod 0 $f; done; echo r > ro; chmod 444 ro; mkdir d; chmod 555 d`, `
! cat renamed 2>/dev/null; mv renamed r2; mv r2 r3; chmod 644 opened; echo more >> opened; rm -f removed; echo new > t; mv -f t replaced
touch -d 2003-03-03 touched; mkdir e; mv swapped e/; mv ro e/ro; cp e/ro e/copy; chmod 600 e/ro; echo w >> e/ro; ! touch d/x 2>/dev/null; chmod 755 d; touch d/x`},
	{"renames", nil, `
mkdir -p a/b/c d; for i in 1 2 3; do echo $i > a/b/c/$i; done; echo x > d/x; touch -d 2003-03-03 a/b/c/* a/b/c a/b a`, `
mv a e; mv e/b d/b; echo new > d/b/c/1; rm d/b/c/2; mkdir a; echo again > a/b; mv d/b/c a/c; mv a/c/3 three; rm -r e
mkdir z; mv z y; rmdir y; ln -s nowhere dangling; mkfifo pipe; ln three a/hard`},
}

func TestWorkGivesTheSameTree(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		for _, work := range works {
			t.Run(work.name, func(t *testing.T) {
				for _, tool := range work.tools {
					testenv.Need(t, testenv.Tool(tool))
				}
				w := newWorld(t, u)
				w.fixDates()
				plain := w.ws
				w.sh(w.ws, work.start)
				direct := filepath.Join(filepath.Dir(w.ws), "direct")
				// The same path for both: tools write it into what they make. Made twice, as no copy is
				// made of what is closed to the user.
				w.must(nil, "/", "mv", w.ws, w.ws+".job")
				w.must(nil, "/", "mkdir", plain)
				w.sh(plain, work.start+"\n"+work.work)
				w.must(nil, "/", "mv", plain, direct)
				w.must(nil, "/", "mv", w.ws+".job", plain)
				w.compareWithJob(plain, direct, work.work)
			})
		}
	})
}

// fixDates makes what git and tar write depend on nothing but the work.
func (w *world) fixDates() {
	w.env = append(w.env, "GIT_AUTHOR_DATE=2005-05-05T05:05:05Z", "GIT_COMMITTER_DATE=2005-05-05T05:05:05Z",
		"SOURCE_DATE_EPOCH=1115269505", "TZ=UTC", "GOTOOLCHAIN=local", "GIT_CONFIG_COUNT=0")
	config := "[user]\nname = T\nemail = t@example.org\n[init]\ndefaultBranch = main\n[gc]\nauto = 0\n"
	if err := os.WriteFile(filepath.Join(w.u.Home, ".gitconfig"), []byte(config), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// compareWithJob does work in a Job over ws, applies it and compares ws with direct.
func (w *world) compareWithJob(ws, direct, work string) {
	w.t.Helper()
	before := testenv.Snapshot(w.t, ws)
	j := w.stage("run", "--env", "GIT_AUTHOR_DATE", "--env", "GIT_COMMITTER_DATE", "--env", "TZ", "--", "sh", "-euc", work)
	if j.code != 0 {
		w.t.Fatalf("the work failed in the Job: exit code %d\n%s%s", j.code, j.out, j.err)
	}
	if d := testenv.Untouched(before, testenv.Snapshot(w.t, ws)); d != "" {
		w.t.Errorf("the run changed the workspace:\n%s", d)
	}
	w.want(0, "apply", "--allow", "all")
	// Times that nobody set differ between two runs of anything.
	if d := testenv.Diff(comparable(w.t, direct), comparable(w.t, ws), testenv.Mtime); d != "" {
		w.t.Errorf("direct and applied trees differ:\n%s", d)
	}
	w.want(0, "undo")
	if d := testenv.Diff(before, testenv.Snapshot(w.t, ws)); d != "" {
		w.t.Errorf("undo did not give the original back:\n%s", d)
	}
}

// comparable is the snapshot of a tree without what differs between two runs of anything: indexes
// hold stat data, reflogs and databases hold times.
func comparable(t *testing.T, dir string) testenv.Tree {
	return testenv.Snapshot(t, dir).Without(".git/index", "clone/.git/index", "node_modules/.package-lock.json", "*.tgz", "t.tar")
}
