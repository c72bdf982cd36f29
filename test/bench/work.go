package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sample is one row measured once.
type sample struct {
	Row      string
	Took     time.Duration
	Messages map[string]uint64 // to the server of the view, nil elsewhere
}

// worker does one workload in the current directory, the top of the tree.
type worker struct {
	task
	fix     fixture
	samples []sample
}

// workload is a set of rows that share a mount.
type workload struct {
	name string
	run  func(*worker) error
}

var workloads = []workload{
	{"status", func(w *worker) error { return w.twice("git status", w.tool("git", "status", "--porcelain")) }},
	{"listed", (*worker).listed},
	{"find", func(w *worker) error { return w.twice("find", w.tool("find", ".", "-type", "f")) }},
	{"stat", (*worker).stat},
	{"rg", (*worker).rg},
	{"grep", func(w *worker) error { return w.twice("git grep", w.tool("git", "grep", "-c", "-I", "func main")) }},
	{"tar", func(w *worker) error {
		return w.twice("tar", w.tool("tar", "cf", "-", "--exclude=./.git", "--exclude=./big.bin", "."))
	}},
	{"readers", (*worker).readers},
	{"seqread", func(w *worker) error {
		return w.twice("read 512M", w.tool("dd", "if=big.bin", "of=/dev/null", "bs=1M"))
	}},
	{"rand", (*worker).random},
	{"seqwrite", func(w *worker) error {
		return w.once("write 512M", w.tool("dd", "if=/dev/zero", "of=bench/big", "bs=1M", fmt.Sprintf("count=%d", w.fix.bigSize()>>20)))
	}},
	{"build", (*worker).build},
	{"untar", (*worker).untar},
	{"edit", (*worker).edit},
	{"append", (*worker).append500},
	{"sqlite", (*worker).sqlite},
	{"checkout", (*worker).checkout},
}

// work does the workload and prints the samples.
func (t *task) work() error {
	if err := os.Chdir(t.mnt()); err != nil {
		return err
	}
	if err := os.MkdirAll("bench", 0o755); err != nil {
		return err
	}
	if err := prime(); err != nil {
		return err
	}
	w := &worker{task: *t, fix: fixture{t.Fixture, t.Scale}}
	i := slices.IndexFunc(workloads, func(l workload) bool { return l.name == t.Workload })
	if i < 0 {
		return fmt.Errorf("no workload %q", t.Workload)
	}
	if err := workloads[i].run(w); err != nil {
		return err
	}
	if t.Target == native {
		if err := os.RemoveAll("bench"); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(w.samples)
}

// prime has the mount asked what is asked once for all files: whether opens need a message.
func prime() error {
	if _, err := os.ReadFile(".gitignore"); err != nil {
		return err
	}
	_, err := os.ReadDir("bench")
	return err
}

// tool returns what runs a program whose output nobody reads, though all of it is written to a pipe.
func (w *worker) tool(name string, arg ...string) func() error {
	return func() error {
		c := exec.Command(name, arg...)
		c.Env = append(toolEnv(), "GOCACHE="+w.fix.at("gocache"))
		var stderr bytes.Buffer
		c.Stdout, c.Stderr = onlyWriter{io.Discard}, &stderr
		if err := c.Run(); err != nil {
			return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(arg, " "), err, stderr.Bytes())
		}
		return nil
	}
}

// onlyWriter hides what lets os/exec hand a program /dev/null.
type onlyWriter struct{ io.Writer }

// timed runs act and returns how long it took and what it cost.
func (w *worker) timed(row string, act func() error) (sample, error) {
	s := sample{Row: row}
	var before map[string]uint64
	var err error
	if isView(w.Target) {
		if before, err = ask(); err != nil {
			return s, err
		}
	}
	begin := time.Now()
	if err := act(); err != nil {
		return s, fmt.Errorf("%s: %w", row, err)
	}
	s.Took = time.Since(begin)
	if !isView(w.Target) {
		return s, nil
	}
	if s.Messages, err = ask(); err != nil {
		return s, err
	}
	for op, n := range before {
		if s.Messages[op] -= n; s.Messages[op] == 0 {
			delete(s.Messages, op)
		}
	}
	return s, nil
}

// once measures act as row.
func (w *worker) once(row string, act func() error) error {
	s, err := w.timed(row, act)
	w.samples = append(w.samples, s)
	return err
}

// twice measures the first run of act, and the median of three more.
func (w *worker) twice(row string, act func() error) error {
	if err := w.once(row+" first", act); err != nil {
		return err
	}
	var again []sample
	for range 3 {
		s, err := w.timed(row+" again", act)
		if err != nil {
			return err
		}
		again = append(again, s)
	}
	slices.SortFunc(again, func(a, b sample) int { return int(a.Took - b.Took) })
	w.samples = append(w.samples, again[1])
	return nil
}

// listed measures the first git status of a tree that somebody listed before: what warming it would
// bring.
func (w *worker) listed() error {
	if err := w.tool("find", ".", "-type", "f")(); err != nil {
		return err
	}
	return w.once("git status listed", w.tool("git", "status", "--porcelain"))
}

func (w *worker) names(list string) ([]string, error) {
	text, err := os.ReadFile(w.fix.at(list))
	return strings.Split(string(text), "\n"), err
}

func (w *worker) stat() error {
	names, err := w.names("stat.lst")
	if err != nil {
		return err
	}
	return w.twice("stat 10k", func() error {
		var st unix.Stat_t
		for _, name := range names {
			if err := unix.Lstat(name, &st); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *worker) rg() error {
	if _, err := exec.LookPath("rg"); err != nil {
		return w.twice("grep -r", w.tool("grep", "-rcI", "--exclude-dir=.git", "--exclude=big.bin", "func main", "."))
	}
	return w.twice("rg", w.tool("rg", "-c", "func main", "."))
}

func (w *worker) readers() error {
	return w.twice("8 readers", w.tool("xargs", "-P", "8", "-n", "250", "-a", w.fix.at("read.lst"), "cat"))
}

// random reads and writes 4 KiB at 20,000 places.
func (w *worker) random() error {
	pages, many := int64(16384/w.Scale), 20_000/w.Scale
	buf := make([]byte, 4096)
	in, err := os.Open("big.bin")
	if err != nil {
		return err
	}
	defer in.Close()
	r := rand.New(rand.NewPCG(5, 5))
	err = w.once("random read 4k", func() error {
		for range many {
			if _, err := in.ReadAt(buf, 4096*r.Int64N(w.fix.bigSize()/4096)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	out, err := os.OpenFile("bench/random", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := out.Write(make([]byte, 4096*pages)); err != nil {
		return err
	}
	return w.once("random write 4k", func() error {
		for range many {
			if _, err := out.WriteAt(buf, 4096*r.Int64N(pages)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *worker) build() error {
	if err := os.Chdir("mod"); err != nil {
		return err
	}
	build := w.tool("go", "build", "./...")
	if err := w.twice("go build unchanged", build); err != nil {
		return err
	}
	put := func(n int64) error { return os.WriteFile("base/base.go", []byte(baseSource(n)), 0o644) }
	if err := put(time.Now().UnixNano()); err != nil {
		return err
	}
	return errors.Join(w.once("go build edited", build), put(0), os.Chdir(".."))
}

func (w *worker) untar() error {
	if err := os.Mkdir("bench/u", 0o755); err != nil {
		return err
	}
	if err := w.once("untar 20k", w.tool("tar", "xf", w.fix.at("small.tar"), "-C", "bench/u", "--no-same-owner")); err != nil {
		return err
	}
	return w.once("rm -rf 20k", w.tool("rm", "-rf", "bench/u"))
}

// edit saves a file a thousand times as editors do, and reads it back.
func (w *worker) edit() error {
	return w.once("editor save x1000", func() error {
		for i := range 1000 / w.Scale {
			text := bytes.Repeat([]byte("line of text\n"), 600-i%7)
			if err := os.WriteFile("bench/e.tmp", text, 0o644); err != nil {
				return err
			}
			if err := os.Rename("bench/e.tmp", "bench/e.txt"); err != nil {
				return err
			}
			back, err := os.ReadFile("bench/e.txt")
			if err != nil {
				return err
			}
			if !bytes.Equal(text, back) {
				return errors.New("read back something else")
			}
		}
		return nil
	})
}

func (w *worker) append500() error {
	names, err := w.names("append.lst")
	if err != nil {
		return err
	}
	act := func() error {
		for _, name := range names {
			if err := appendTo(name, "// x\n"); err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(w.once("append to 500 first", act), w.once("append to 500 again", act)); err != nil {
		return err
	}
	return w.putBack("--pathspec-from-file=" + w.fix.at("append.lst"))
}

// putBack brings files of native's tree back as the index has them.
func (w *worker) putBack(what ...string) error {
	if w.Target != native {
		return nil
	}
	return w.tool("git", append([]string{"checkout", "-q"}, what...)...)()
}

// sqlite commits a hundred times, in both journal modes.
func (w *worker) sqlite() error {
	if _, err := exec.LookPath("sqlite3"); err != nil {
		return nil
	}
	for _, mode := range []string{"delete", "wal"} {
		db := filepath.Join("bench", mode+".db")
		var q strings.Builder
		fmt.Fprintf(&q, "PRAGMA journal_mode=%s; PRAGMA synchronous=FULL; create table t(a integer primary key, b text);\n", mode)
		for i := range 100 {
			fmt.Fprintf(&q, "insert into t(b) values('%d %s');\n", i, strings.Repeat("x", 60))
		}
		if err := w.once("sqlite "+mode, w.tool("sqlite3", db, q.String())); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) checkout() error {
	return errors.Join(w.once("git checkout first", w.tool("git", "checkout", "-q", "b")), w.once("git checkout again", w.tool("git", "checkout", "-q", "a")))
}
