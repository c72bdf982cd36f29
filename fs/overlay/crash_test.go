package overlay

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"stage/fs/hostfs"
	"stage/fs/tree"
	"stage/journal"
)

// appendRecords puts records at the end of a closed change log, as a process that died right after
// would have.
func (j *job) appendRecords(recs ...Record) {
	j.t.Helper()
	f, err := os.OpenFile(filepath.Join(j.dir, "log"), os.O_RDWR, 0)
	j.must(err)
	s := NewState()
	w, err := journal.Open(f, LogKind, s.Replay())
	j.must(err)
	for _, r := range recs {
		_, err := w.Append(&r)
		j.must(err)
	}
	j.must(w.Close())
}

func (j *job) upperIno(path string) uint64 {
	j.t.Helper()
	var st unix.Stat_t
	j.must(unix.Lstat(j.up(path), &st))
	return st.Ino
}

// aborted reports whether the last opening of the overlay took a move back.
func aborted(ops []string) bool {
	i := len(ops) - 1
	for i > 0 && ops[i] != "open ." {
		i--
	}
	return i > 0 && ops[i-1] == "abort ."
}

func ptr(s string) *tree.Path {
	p := path(s)
	return &p
}

func TestMoveThatDidNotHappenIsTakenBack(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("d/x", "1")
		j.put("f", "2")
		j.open()
		j.write(j.mustID("d/x"), "changed")
		j.write(j.mustID("f"), "changed too")
		j.close()
		j.appendRecords(
			Record{Op: OpLower, Path: path("d"), Lower: ptr("d")},
			Record{Op: OpWhite, Path: path("d")},
			Record{Op: OpMove, Path: path("d"), To: ptr("e"), Ino: j.upperIno("d")},
		)
		j.open()
		j.wantRead("d/x", "changed")
		j.wantAbsent("e")
		if ops := j.ops(0); !aborted(ops) {
			t.Errorf("got records %q, want an abort before the last open", ops)
		}
		j.close()
		// The same for a file that would have replaced another.
		j.appendRecords(Record{Op: OpMove, Path: path("f"), To: ptr("d/x"), Ino: j.upperIno("f")})
		j.open()
		j.wantRead("d/x", "changed")
		j.wantRead("f", "changed too")
	})
}

func TestMoveThatHappenedIsKept(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("d/x", "1")
		j.put("d/y", "2")
		j.open()
		j.write(j.mustID("d/x"), "changed")
		j.unlink("d/y")
		j.close()
		j.appendRecords(
			Record{Op: OpLower, Path: path("d"), Lower: ptr("d")},
			Record{Op: OpWhite, Path: path("d")},
			Record{Op: OpMove, Path: path("d"), To: ptr("e"), Ino: j.upperIno("d")},
		)
		j.must(os.Rename(j.up("d"), j.up("e")))
		j.open()
		j.wantAbsent("d")
		j.wantLs("e", "x")
		j.wantRead("e/x", "changed")
	})
}

func TestSwapIsDecidedByInode(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		for _, happened := range []bool{false, true} {
			j.open()
			a, b := "a", "b"
			if happened {
				a, b = "c", "d"
			}
			j.create(a, "first")
			j.create(b, "second")
			j.close()
			j.appendRecords(Record{Op: OpSwap, Path: path(a), To: ptr(b), Ino: j.upperIno(a)})
			want := "first"
			if happened {
				j.must(unix.Renameat2(unix.AT_FDCWD, j.up(a), unix.AT_FDCWD, j.up(b), unix.RENAME_EXCHANGE))
				want = "second"
			}
			j.open()
			j.wantRead(a, want)
			ops := j.ops(0)
			if aborted(ops) == happened {
				t.Errorf("happened %v, records %q", happened, ops)
			}
			j.close()
		}
		j.open()
	})
}

func TestMarksOfARemovalCutOffAreForgotten(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("d/x", "1")
		j.open()
		j.unlink("d/x")
		j.close()
		// rmdir d died between the removal in the upper and the record that forgets its marks.
		j.appendRecords(Record{Op: OpWhite, Path: path("d")})
		j.must(os.Remove(j.up("d")))
		j.open()
		j.wantAbsent("d")
		j.mkdir("d")
		j.wantLs("d")
		j.reopen()
		j.wantLs("d")
	})
}

func TestRemovalCutOffBeforeTheUpperShowsTheOldTree(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("d/x", "1")
		j.put("d/y", "2")
		j.open()
		j.unlink("d/x")
		j.unlink("d/y")
		j.close()
		j.appendRecords(Record{Op: OpWhite, Path: path("d")})
		j.open()
		j.wantLs("d") // still there, still empty
	})
}

func TestRecordsWithoutTheirChangeDoNoHarm(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("f", "lower")
		j.put("d/x", "1")
		before := func() {
			j.wantRead("f", "lower")
			j.wantLs("d", "x")
			j.wantLs(".", "d", "f")
		}
		j.open()
		before()
		j.close()
		node := tree.Node{Kind: tree.File, Mode: 0o644}
		j.appendRecords(
			Record{Op: OpBase, Path: path("f"), Node: &node},
			Record{Op: OpBase, Path: path("new"), Node: &tree.Node{}},
			Record{Op: OpOpaque, Path: path("new")},
			Record{Op: OpTimes, Path: path("f")},
			Record{Op: OpLink, Path: path("d/x"), Node: &node},
		)
		j.open()
		before()
		j.wantAbsent("new")
	})
}

// failingLog fails its n-th write and all that follow.
type failingLog struct {
	journal.File
	left int
}

var errLog = errors.New("log device is full")

func (l *failingLog) WriteAt(b []byte, off int64) (int, error) {
	if l.left--; l.left < 0 {
		return 0, errLog
	}
	return l.File.WriteAt(b, off)
}

// TestWithoutARecordNothingChanges fails the change log at its first, second, third… write: what
// could not be recorded must not have happened.
func TestWithoutARecordNothingChanges(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		acts := map[string]func() error{
			"write": func() error {
				_, err := j.fs.Write(j.mustID("d/f"), []byte("new"), 0, false)
				return err
			},
			"create": func() error {
				var e Entry
				return j.fs.Create(Caller{}, j.mustID("d"), "new", 0, 0o644, &e)
			},
			"mkdir": func() error {
				var e Entry
				return j.fs.Mkdir(Caller{}, j.mustID("d"), "new", 0o755, &e)
			},
			"unlink": func() error { return j.fs.Unlink(j.mustID("d"), "f") },
			"rename": func() error { return j.rename("d", "e", 0) },
		}
		j.put("d/f", "old")
		for name, act := range acts {
			done := false
			for n := 1; !done; n++ { // the header is the first write
				j.must(errors.Join(os.RemoveAll(j.up(".")), os.Mkdir(j.up("."), 0o755), os.RemoveAll(filepath.Join(j.dir, "log"))))
				j.openFailing(n)
				err := act()
				if done = err == nil; !done && !errors.Is(err, errLog) {
					t.Fatalf("%s, write %d: %v", name, n, err)
				}
				if !done {
					// Directories may have come up already; the view is the old one.
					j.wantRead("d/f", "old")
					j.wantLs("d", "f")
					j.wantLs(".", "d")
				}
				_ = j.fs.Close() // reports the log's error again
				j.must(errors.Join(j.upper.Close(), j.lower.Close()))
				j.open()
				if !done {
					j.wantRead("d/f", "old")
					j.wantLs("d", "f")
				}
				j.close()
			}
		}
		j.open()
	})
}

func (j *job) openFailing(n int) {
	j.t.Helper()
	j.open()
	// Swap the log for one that fails: the header is written.
	f, err := os.OpenFile(filepath.Join(j.dir, "log"), os.O_RDWR, 0)
	j.must(err)
	j.must(j.fs.log.Close())
	j.fs.log, err = journal.Open(&failingLog{f, n - 1}, LogKind, NewState().Replay())
	j.must(err)
	_, err = f.Seek(0, io.SeekStart)
	j.must(err)
}

func TestReplayGivesTheSameView(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("a/x", "1")
		j.put("a/s/y", "2")
		j.put("b/z", "3")
		j.open()
		j.must(j.rename("a", "b/a", 0))
		j.mkdir("a")
		j.create("a/new", "4")
		j.must(j.rename("b/a/s", "a/s", unix.RENAME_NOREPLACE))
		j.must(j.rename("a", "b", unix.RENAME_EXCHANGE))
		j.unlink("a/z")
		j.write(j.mustID("b/s/y"), "changed")
		var views [2][]string
		for i := range views {
			for _, d := range []string{".", "a", "a/a", "b", "b/s"} {
				views[i] = append(views[i], d)
				views[i] = append(views[i], j.ls(d)...)
			}
			views[i] = append(views[i], j.read("b/s/y"), j.read("a/a/x"))
			j.reopen()
		}
		if !slices.Equal(views[0], views[1]) {
			t.Errorf("got %q after reopen, want %q", views[1], views[0])
		}
	})
}

// countingLog counts how often it was synced.
type countingLog struct {
	journal.File
	syncs int
}

func (l *countingLog) Sync() error {
	l.syncs++
	return l.File.Sync()
}

// TestSyncOfAFileSyncsTheLog: what the Job was told is durable has its record on disk.
func TestSyncOfAFileSyncsTheLog(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("d/f", "old")
		j.open()
		log := &countingLog{}
		f, err := os.OpenFile(filepath.Join(j.dir, "log"), os.O_RDWR, 0)
		j.must(err)
		j.must(j.fs.log.Close())
		log.File = f
		j.fs.log, err = journal.Open(log, LogKind, NewState().Replay())
		j.must(err)
		synced := func(what string, act func() error) {
			t.Helper()
			before := log.syncs
			j.must(act())
			if log.syncs == before {
				t.Errorf("%s: the log was not synced", what)
			}
		}
		id := j.mustID("d/f")
		j.write(id, "new")
		synced("fsync", func() error { return j.fs.Fsync(id, false) })
		if last := j.ops(0); last[len(last)-1] != "synced d/f" {
			t.Errorf("records: got %q", last)
		}
		id = j.create("d/new", "1")
		synced("fdatasync", func() error { return j.fs.Fsync(id, true) })
		j.mkdir("d/sub")
		synced("fsync of a directory", func() error { return j.fs.Fsyncdir(j.mustID("d")) })
		j.write(j.mustID("d/new"), "2")
		j.unlink("d/f")
		synced("syncfs", j.fs.Sync)
	})
}

// recover ends the log of a job that is not open, on the given boot.
func (j *job) recover(boot string) {
	j.t.Helper()
	low, err := hostfs.OpenRoot(j.low("."))
	j.must(err)
	defer low.Close()
	up, err := hostfs.OpenRoot(j.up("."))
	j.must(err)
	defer up.Close()
	log, err := os.OpenFile(filepath.Join(j.dir, "log"), os.O_RDWR, 0)
	j.must(err)
	j.must(Recover(Config{Lower: low, Upper: up, LogFile: log, Boot: boot}))
}

// TestRecoverAfterAKillPutsNothingInDoubt: the machine ran on, so all is there that was recorded; a later
// boot could not know.
func TestRecoverAfterAKillPutsNothingInDoubt(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.boot = "this boot"
		j.put("d/x", "1")
		j.open()
		j.write(j.mustID("d/x"), "changed")
		j.mkdir("new")
		j.kill()
		if s := j.state(); s.Unsure("this boot") || !s.Unsure("another") {
			t.Errorf("killed: unsure on this boot %v, on another %v", s.Unsure("this boot"), s.Unsure("another"))
		}
		j.recover("this boot")
		s := j.state()
		if s.Unsure("another") {
			t.Error("recovered: in doubt on another boot")
		}
		j.boot = "another"
		j.open()
		j.wantRead("d/x", "changed")
		if m := j.state().Lookup(path("d/x")); m == nil || m.Lost {
			t.Errorf("mark: %+v", m)
		}
	})
}

// TestRecoverAfterAPowerLossKeepsTheDoubt: what was in doubt is named, and stays so.
func TestRecoverAfterAPowerLossKeepsTheDoubt(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.boot = "this boot"
		j.put("d/x", "1")
		j.put("d/y", "1")
		j.open()
		j.write(j.mustID("d/x"), "changed")
		j.must(j.fs.Sync())
		j.write(j.mustID("d/y"), "changed")
		j.must(os.WriteFile(j.up("d/unknown"), nil, 0o600))
		j.must(os.Mkdir(j.up("strange"), 0o700))
		j.kill()
		for range 2 {
			j.recover("another")
			s := j.state()
			if s.Unsure("a third") {
				t.Error("still in doubt")
			}
			for p, lost := range map[string]bool{"d": false, "d/x": false, "d/y": true, "d/unknown": true, "strange": true} {
				if m := s.Lookup(path(p)); m == nil || m.Lost != lost {
					t.Errorf("%s: got %+v, want lost %v", p, m, lost)
				}
			}
			if b := s.Bases[path("d/unknown")]; !b.Lost || !s.Lookup(path("strange")).LostTree {
				t.Errorf("got base %+v", b)
			}
		}
	})
}
