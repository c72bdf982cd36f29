package render

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stage/bundle"
	"stage/fs/tree"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares got with testdata/<name>.golden.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
}

// text runs f on a Screen that is a file.
func text(t *testing.T, f func(*Screen) error) string {
	t.Helper()
	var b bytes.Buffer
	must(t, f(&Screen{W: &b}))
	return b.String()
}

// sampleReview has one of everything the list knows. Owners and times are fixed.
func sampleReview(t *testing.T) *Review {
	w := newTrees(t)
	w.base(func(dir string) {
		put(t, dir, "README.md", numbered(0, 30))
		put(t, dir, "main.go", numbered(0, 30))
		put(t, dir, "old name.txt", numbered(50, 60))
		put(t, dir, "lib/a.go", "a\n")
		put(t, dir, "lib/b.go", "b\n")
		put(t, dir, "docs/x.md", "x\n")
		put(t, dir, "run.sh", "#!/bin/sh\n")
		put(t, dir, "logo.png", "\x00\x01")
		put(t, dir, "becomes", "a file\n")
		put(t, dir, "conflict", "1\n")
		put(t, dir, "dist/tracked.js", "1\n")
	})
	put(t, w.after, "main.go", strings.Replace(numbered(0, 30), "line 7 ", "line seven ", 1)+"end\n")
	put(t, w.after, "new/deep/file", "1\n2\n")
	put(t, w.after, "\x1b[31mevil\u202etxt", "x\n")
	must(t, os.Rename(filepath.Join(w.after, "old name.txt"), filepath.Join(w.after, "new name.txt")))
	must(t, os.Rename(filepath.Join(w.after, "docs"), filepath.Join(w.after, "documentation")))
	w.moves["documentation"] = "docs"
	must(t, os.RemoveAll(filepath.Join(w.after, "lib")))
	must(t, os.Chmod(filepath.Join(w.after, "run.sh"), 0o755))
	put(t, w.after, "logo.png", "\x00\x01\x02")
	must(t, os.Remove(filepath.Join(w.after, "becomes")))
	must(t, os.Symlink("/etc/passwd", filepath.Join(w.after, "becomes")))
	must(t, os.Mkdir(filepath.Join(w.after, "empty"), 0o755))
	put(t, w.after, "conflict", "2\n")
	put(t, w.after, "dist/tracked.js", "2\n")
	for _, name := range []string{"a/index.js", "b/index.js", "b/package.json"} {
		put(t, w.after, "node_modules/"+name, numbered(0, 10))
	}
	put(t, w.after, "node_modules/.bin/tool", "#!/bin/sh\n")
	must(t, os.Chmod(filepath.Join(w.after, "node_modules/.bin/tool"), 0o4755))
	put(t, w.after, "package-lock.json", numbered(0, 100))
	put(t, w.after, "api/go.sum", numbered(0, 100))
	put(t, w.after, ".git/objects/ab/cdef", "object")
	put(t, w.after, ".git/refs/heads/main", "ref")
	put(t, w.after, ".git/hooks/pre-commit", "#!/bin/sh\n")
	r := w.review()
	for i := range r.Changes {
		r.Changes[i].Base.UID, r.Changes[i].Base.GID = 0, 0
		r.Changes[i].New.UID, r.Changes[i].New.GID = 0, 0
	}
	r.Outcome = "exited with 0 after 1.2s"
	r.Git = []string{"branch main: 1a2b3c4 -> 5d6e7f8, 1 new commit", "  5d6e7f8 subject \x1b[2J"}
	r.Tracked = func(p tree.Path) bool { return p.String() == "dist/tracked.js" }
	flag := func(path string, class bundle.Class, reason string) {
		e := entryOf(t, r, path)
		e.Flags = append(e.Flags, bundle.Flag{Class: class, Reason: reason})
	}
	flag("run.sh", bundle.ClassExecBit, "became executable")
	flag("becomes", bundle.ClassSymlinkOut, "leads to /etc/passwd\x1b[0m\nA  fake line")
	flag(".git/hooks/pre-commit", bundle.ClassGitHook, "git runs it before each commit")
	flag("node_modules/.bin/tool", bundle.ClassSetuid, "mode 4755")
	flag("node_modules/b/package.json", bundle.ClassScript, "has scripts")
	c := entryOf(t, r, "conflict")
	c.Verdict, c.Drift, c.Why = bundle.VerdictConflict, true, "content changed in the workspace since"
	entryOf(t, r, "logo.png").Verdict = bundle.VerdictApplied
	return r
}

func TestGoldenReview(t *testing.T) {
	r := sampleReview(t)
	golden(t, "list", rendered(t, r, FormatList))
	golden(t, "list-colour", onTerminal(t, r, FormatList, true))
	golden(t, "name-status", rendered(t, r, FormatNameStatus))
	golden(t, "diff", rendered(t, r, FormatDiff))
	golden(t, "diff-colour", onTerminal(t, r, FormatDiff, true))
	golden(t, "stat", rendered(t, r, FormatStat))
	golden(t, "next", Next(r)+"\n")
}

func TestGoldenEmptyReview(t *testing.T) {
	r := &Review{Job: testJob, Root: "workspace", Outcome: "exited with 0"}
	golden(t, "list-empty", rendered(t, r, FormatList)+Next(r)+"\n")
	for _, f := range []Format{FormatDiff, FormatPatch, FormatStat, FormatNameStatus, FormatNameStatusZ, FormatJSONL} {
		if got := rendered(t, r, f); got != "" {
			t.Errorf("form %d of no changes: %q, want nothing", f, got)
		}
	}
	if HasChanges(r) {
		t.Error("no changes count as changes")
	}
}

func decoded[D bundle.Document](t *testing.T, name string) *D {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../../bundle/testdata/v1", name+".json"))
	must(t, err)
	d, err := bundle.Decode[D](data)
	must(t, err)
	return d
}

func TestGoldenStatus(t *testing.T) {
	run, b, lost := decoded[bundle.Run](t, "run"), decoded[bundle.Bundle](t, "bundle"), decoded[bundle.Bundle](t, "bundle-lost")
	golden(t, "status", text(t, func(s *Screen) error { return Status(s, run, b) }))
	golden(t, "status-lost", text(t, func(s *Screen) error { return Status(s, run, lost) }))
	golden(t, "status-running", text(t, func(s *Screen) error { return Status(s, decoded[bundle.Run](t, "run-new"), nil) }))
	golden(t, "end-of-run", text(t, func(s *Screen) error { return EndOfRun(s, b) }))
	golden(t, "status-json", text(t, func(s *Screen) error { return StatusJSON(s, run, nil) }))
}

func TestGoldenTables(t *testing.T) {
	run, b := decoded[bundle.Run](t, "run"), decoded[bundle.Bundle](t, "bundle")
	hostile := *run
	hostile.Argv = bundle.Words([]string{"sh", "-c", "echo \x1b[2J 'x'\n" + strings.Repeat("y", 200)})
	rows := []JobRow{{Run: run, Bundle: b}, {Run: &hostile}, {ID: "01jz4q8k2v6w9xf3h5n7p1rtzz", Problem: "decode run.json: \x1b[31m"}}
	golden(t, "jobs", text(t, func(s *Screen) error { return Jobs(s, rows) }))
	golden(t, "jobs-json", text(t, func(s *Screen) error { return JobsJSON(s, rows) }))
	golden(t, "jobs-none-json", text(t, func(s *Screen) error { return JobsJSON(s, nil) }))
	plan := decoded[bundle.Plan](t, "plan")
	golden(t, "plan", text(t, func(s *Screen) error { return Plan(s, plan) }))
	findings := []Finding{
		{"net.netns", "enforced", "network namespaces work", ""},
		{"landlock.fs", "unenforced", "kernel lacks Landlock", "add lsm=landlock to the kernel command line"},
	}
	golden(t, "doctor", text(t, func(s *Screen) error { return Doctor(s, findings) }))
	golden(t, "doctor-json", text(t, func(s *Screen) error { return DoctorJSON(s, findings) }))
}

func TestGoldenApply(t *testing.T) {
	rep := decoded[bundle.ApplyReport](t, "apply")
	golden(t, "apply", text(t, func(s *Screen) error { return Apply(s, rep, false) }))
	golden(t, "apply-check", text(t, func(s *Screen) error { return Apply(s, rep, true) }))
	golden(t, "apply-problem", text(t, func(s *Screen) error {
		if err := Problem(s, "apply", "paths changed since the run", Conflicts(rep)...); err != nil {
			return err
		}
		if err := Problem(s, "apply", "gated", Gates(rep.Gated)...); err != nil {
			return err
		}
		return Hint(s, "look first")
	}))
}
