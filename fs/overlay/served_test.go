package overlay

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/fs/tree"
)

// hostEdits makes the host change a file's content in place, at another time than it had.
func (j *job) hostEdits(path, content string) {
	j.t.Helper()
	j.must(os.WriteFile(j.low(path), []byte(content), 0o644))
	j.must(os.Chtimes(j.low(path), time.Time{}, time.Unix(1e9, 0)))
}

// hostReplaces makes the host put a new file in the place of one.
func (j *job) hostReplaces(path, content string) {
	j.t.Helper()
	j.must(os.WriteFile(j.low(path+".new"), []byte(content), 0o644))
	j.must(os.Rename(j.low(path+".new"), j.low(path)))
}

// lowerState returns what the lower has at path.
func (j *job) lowerState(path string) tree.Node {
	j.t.Helper()
	n, err := j.lower.Stat(path)
	j.must(err)
	return n
}

// wantBase checks that the recorded base of path is the state was, with the digest.
func (j *job) wantBase(path string, was tree.Node, digest tree.Digest) {
	j.t.Helper()
	b, ok := j.state().Bases[tree.MustParsePath(path)]
	if !ok {
		j.t.Fatalf("%s has no base", path)
	}
	if !b.Node.SameIdentity(was) || b.Node.Digest != digest {
		j.t.Errorf("base of %s: got %+v, want %+v with digest %q", path, b.Node, was, digest)
	}
}

// listener is a kernel that only listens.
type listener struct {
	said []string
	err  error
}

func (l *listener) DropEntry(dir uint64, name string) error {
	l.said = append(l.said, fmt.Sprintf("entry %d %s", dir, name))
	return l.err
}

func (l *listener) DeleteEntry(dir uint64, name string, node uint64) error {
	l.said = append(l.said, fmt.Sprintf("delete %d %s %d", dir, name, node))
	return l.err
}

func (l *listener) DropNode(node uint64, content bool) error {
	l.said = append(l.said, fmt.Sprintf("node %d %v", node, content))
	return l.err
}

func (j *job) wantStale(want uint64) {
	j.t.Helper()
	if got := j.fs.Stats().StaleCopyUps; got != want {
		j.t.Errorf("stale copy-ups: got %d, want %d", got, want)
	}
}

func TestBaseIsTheStateTheJobWasServed(t *testing.T) {
	acts := map[string]func(j *job, id uint64){
		"write":    func(j *job, id uint64) { j.write(id, "job") },
		"truncate": func(j *job, id uint64) { j.must(j.fs.Setattr(id, &SetAttr{Set: SetSize}, &Attr{})) },
		"chmod":    func(j *job, id uint64) { j.must(j.fs.Setattr(id, &SetAttr{Set: SetMode, Mode: 0o700}, &Attr{})) },
		"xattr":    func(j *job, id uint64) { j.must(j.fs.Setxattr(id, "user.a", []byte("1"), 0)) },
		"link":     func(j *job, id uint64) { j.must(j.fs.Link(id, RootID, "l", &Entry{})) },
		"unlink":   func(j *job, _ uint64) { j.must(j.fs.Unlink(RootID, "f")) },
		"move":     func(j *job, _ uint64) { j.must(j.fs.Rename(RootID, "f", RootID, "g", 0)) },
		"replace": func(j *job, _ uint64) {
			j.must(j.fs.Create(Caller{}, RootID, "new", unix.O_EXCL, 0o644, &Entry{}))
			j.must(j.fs.Rename(RootID, "new", RootID, "f", 0))
		},
	}
	hosts := map[string]func(j *job){
		"edits":    func(j *job) { j.hostEdits("f", "host") },
		"replaces": func(j *job) { j.hostReplaces("f", "host") },
	}
	for name, act := range acts {
		for hostName, host := range hosts {
			t.Run(hostName+", "+name, func(t *testing.T) {
				asUsers(t, func(t *testing.T, j *job) {
					j.put("f", "line")
					j.open()
					id := j.mustID("f")
					was := j.lowerState("f")
					host(j)
					act(j, id)
					j.wantBase("f", was, "")
					j.wantStale(1)
					j.close()
					if len(j.events) != 1 || j.events[0].Kind != EventDrift || j.events[0].Path != path("f") {
						t.Errorf("got events %v, want one drift of f", j.events)
					}
				})
			})
		}
	}
}

func TestReplacedNameDeletedByTheHostKeepsItsServedBase(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("f", "line")
		j.open()
		j.mustID("f")
		was := j.lowerState("f")
		j.must(os.Remove(j.low("f")))
		j.create("new", "job")
		j.must(j.fs.Rename(RootID, "new", RootID, "f", 0))
		j.wantBase("f", was, "")
		j.wantStale(1)
	})
}

func TestCreatedNameTheHostMadeMeanwhileHasAnAbsentBase(t *testing.T) {
	acts := map[string]func(j *job) error{
		"create": func(j *job) error { return j.fs.Create(Caller{}, RootID, "f", unix.O_TRUNC, 0o644, &Entry{}) },
		"append": func(j *job) error {
			var e Entry
			if err := j.fs.Create(Caller{}, RootID, "f", 0, 0o644, &e); err != nil {
				return err
			}
			if e.Size != 4 {
				t.Errorf("got size %d, want the host's 4", e.Size)
			}
			j.write(e.ID, "job")
			return nil
		},
		"rename": func(j *job) error { return j.fs.Rename(RootID, "mine", RootID, "f", 0) },
	}
	for name, act := range acts {
		t.Run(name, func(t *testing.T) {
			asUsers(t, func(t *testing.T, j *job) {
				j.open()
				j.create("mine", "job")
				j.wantAbsent("f")
				j.put("f", "host")
				j.must(act(j))
				if b, ok := j.state().Bases[path("f")]; !ok || b.Node.Kind != tree.Absent {
					t.Errorf("base: got %v, %v, want absent", b, ok)
				}
				j.wantStale(1)
			})
		})
	}
}

func TestNameTheHostMadeMeanwhileIsTaken(t *testing.T) {
	acts := map[string]func(j *job) error{
		"create": func(j *job) error { return j.fs.Create(Caller{}, RootID, "f", unix.O_EXCL, 0o644, &Entry{}) },
		"mkdir":  func(j *job) error { return j.fs.Mkdir(Caller{}, RootID, "f", 0o755, &Entry{}) },
		"link":   func(j *job) error { return j.fs.Link(j.mustID("mine"), RootID, "f", &Entry{}) },
	}
	for name, act := range acts {
		t.Run(name, func(t *testing.T) {
			asUsers(t, func(t *testing.T, j *job) {
				j.open()
				j.create("mine", "job")
				j.wantAbsent("f")
				j.put("f", "host")
				if err := act(j); err != unix.EEXIST {
					t.Errorf("got %v, want EEXIST", err)
				}
			})
		})
	}
}

func TestNameServedAbsentAfterItWasThereHasAnAbsentBase(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("f", "line")
		j.open()
		j.mustID("f")
		j.must(os.Remove(j.low("f")))
		j.wantAbsent("f")
		j.put("f", "host")
		j.must(j.fs.Create(Caller{}, RootID, "f", unix.O_TRUNC, 0o644, &Entry{}))
		if b := j.state().Bases[path("f")]; b.Node.Kind != tree.Absent {
			t.Errorf("base: got %v, want absent", b)
		}
	})
}

func TestForgottenOrServedAnewCountsAsServedNow(t *testing.T) {
	again := map[string]func(j *job, id uint64){
		"forget": func(j *job, id uint64) { j.fs.Forget(id, 1); j.mustID("f") },
		"lookup": func(j *job, _ uint64) { j.mustID("f") },
		"stat":   func(j *job, id uint64) { j.must(j.fs.Getattr(id, &Attr{})) },
	}
	for name, act := range again {
		t.Run(name, func(t *testing.T) {
			asUsers(t, func(t *testing.T, j *job) {
				j.put("f", "line")
				j.open()
				id := j.mustID("f")
				j.hostEdits("f", "host")
				act(j, id)
				was := j.lowerState("f")
				j.write(j.mustID("f"), "job")
				j.wantBase("f", was, digest("host"))
				j.wantStale(0)
			})
		})
	}
}

// While the kernel may hold pages of the old content, new attributes alone do not make a new state.
// Afterwards the Job is shown the new one, and still is held to the state whose content it read.
func TestReadContentIsServedUntilTheKernelForgot(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("f", "line")
		j.put("g", "line")
		j.open()
		f, g := j.mustID("f"), j.mustID("g")
		j.read("f")
		j.read("g")
		was, wasG := j.lowerState("f"), j.lowerState("g")
		j.hostEdits("f", "longer content")
		j.hostEdits("g", "longer content")
		if got := j.stat("f").Size; got != 4 {
			t.Errorf("size while the kernel holds content: got %d, want 4", got)
		}
		j.write(f, "job")
		j.wantBase("f", was, "")
		j.wantStale(1)

		j.stat("g")
		j.must(j.fs.tellAll(&listener{}))
		if got := j.stat("g").Size; got != 14 {
			t.Errorf("size after the kernel forgot: got %d, want 14", got)
		}
		j.write(g, "job")
		j.wantBase("g", wasG, "")
		j.wantStale(2)
	})
}

func TestFailedInvalidationKeepsTheServedState(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("f", "line")
		j.open()
		id := j.mustID("f")
		j.read("f")
		was := j.lowerState("f")
		j.hostEdits("f", "host")
		j.stat("f")
		failed := errors.New("no")
		if err := j.fs.tellAll(&listener{err: failed}); !errors.Is(err, failed) {
			t.Fatalf("got %v, want %v", err, failed)
		}
		j.stat("f")
		j.write(id, "job")
		j.wantBase("f", was, "")
	})
}

func TestDirectoryBaseIsAsServed(t *testing.T) {
	asUsers(t, func(t *testing.T, j *job) {
		j.put("d/f", "x")
		j.put("e/f", "x")
		j.open()
		d, e := j.mustID("d"), j.mustID("e")
		j.must(os.Chmod(j.low("d"), 0o700))
		j.put("e/other", "x") // a time is no drift
		j.must(j.fs.Create(Caller{}, d, "new", 0, 0o644, &Entry{}))
		j.must(j.fs.Create(Caller{}, e, "new", 0, 0o644, &Entry{}))
		if b := j.state().Bases[path("d")]; b.Node.Mode != 0o755 {
			t.Errorf("base of d has mode %o, want 755", b.Node.Mode)
		}
		j.wantStale(1)
	})
}
