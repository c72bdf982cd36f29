package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The fixture is the same on every machine: a git repository with branches a and b, a large file, a
// module of 60 packages, and an archive of small files.
const (
	treeDirs  = 3500
	treeFiles = 8 * treeDirs
	smallDirs = 1000 // of 20 files
	bigSize   = 512 << 20
	changed   = 2200 // files that differ between the branches…
	removed   = 212  // …and that only a has
	seed      = 7
)

// fixture is a directory with the tree and what goes with it. A test makes everything fewer by scale.
type fixture struct {
	dir   string
	scale int
}

func (f fixture) at(name string) string { return filepath.Join(f.dir, name) }

// make makes the fixture unless it is there and complete.
func (f fixture) make() error {
	done := f.at("complete-1")
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	fmt.Fprintf(os.Stderr, "bench: making the fixture in %s, once\n", f.dir)
	for _, dir := range []string{"tree", "native", "small.tar", "gocache"} {
		if err := os.RemoveAll(f.at(dir)); err != nil {
			return err
		}
	}
	err := errors.Join(os.MkdirAll(f.at("tree"), 0o755), os.MkdirAll(f.at("mnt"), 0o755), os.MkdirAll(f.at("gocache"), 0o755))
	for _, step := range []func() error{f.sources, f.module, f.repository, f.big, f.lists, f.archive, f.copy} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		return fmt.Errorf("make fixture: %w", err)
	}
	return os.WriteFile(done, nil, 0o644)
}

// sources writes text that looks like source code.
func (f fixture) sources() error {
	r := rand.New(rand.NewPCG(seed, 1))
	dirs := treeDirs / f.scale
	for i := range treeFiles / f.scale {
		d := i % dirs
		dir := f.at(fmt.Sprintf("tree/src/m%02d/p%04d", d/50, d))
		if i < dirs {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		size := 200 + int(min(r.ExpFloat64()*8000, 60_000))
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%d.go", i/dirs)), source(r, size), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(f.at("tree/.gitignore"), []byte("big.bin\nbench/\n"), 0o644)
}

var words = strings.Fields("func main return range string int error if nil err for append make map struct type package import const var defer close open read write node name path file lock state record")

func source(r *rand.Rand, size int) []byte {
	var b bytes.Buffer
	if r.IntN(20) == 0 {
		b.WriteString("func main() {\n")
	}
	for b.Len() < size {
		for range 3 + r.IntN(8) {
			b.WriteString(words[r.IntN(len(words))])
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%x\n", r.Uint32())
	}
	return b.Bytes()
}

// module writes 60 packages that each import the first.
func (f fixture) module() error {
	put := func(name, text string) error {
		name = f.at("tree/mod/" + name)
		return errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644))
	}
	if err := errors.Join(put("go.mod", "module bench\n\ngo 1.21\n"), put("base/base.go", baseSource(0))); err != nil {
		return err
	}
	for p := range 60 {
		for i := range 6 {
			var b strings.Builder
			fmt.Fprintf(&b, "package p%d\n\nimport (\n\t\"fmt\"\n\t\"strings\"\n\n\t\"bench/base\"\n)\n", p)
			for k := range 8 {
				fmt.Fprintf(&b, "\nfunc F%d_%d(a []string, m map[string]int) string {\n\ts := strings.Join(a, \",\")\n\tfor k, v := range m {\n\t\ts += fmt.Sprintf(\"%%s=%%d\", k, base.F(v*%d))\n\t}\n\treturn s\n}\n", i, k, k)
			}
			if err := put(fmt.Sprintf("p%d/f%d.go", p, i), b.String()); err != nil {
				return err
			}
		}
	}
	return nil
}

func baseSource(n int64) string {
	return fmt.Sprintf("package base\n\nconst N = %d\n\nfunc F(i int) int { return i + N }\n", n)
}

// repository commits the tree on branch a, and changes of it on branch b.
func (f fixture) repository() error {
	git := func(arg ...string) error { return command(f.at("tree"), "git", arg...) }
	err := errors.Join(git("init", "-q", "-b", "a"), git("config", "user.email", "bench@localhost"), git("config", "user.name", "bench"),
		git("config", "gc.auto", "0"), git("add", "-A"), git("commit", "-q", "-m", "a"), git("checkout", "-q", "-b", "b"))
	if err != nil {
		return err
	}
	dirs := treeDirs / f.scale
	for i := range (changed + removed) / f.scale {
		k := i * 11 // spread over the directories
		name := f.at(fmt.Sprintf("tree/src/m%02d/p%04d/file%d.go", k%dirs/50, k%dirs, k/dirs))
		if i >= changed/f.scale {
			err = os.Remove(name)
		} else {
			err = appendTo(name, "// changed\n")
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(git("add", "-A"), git("commit", "-q", "-m", "b"), git("checkout", "-q", "a"), git("repack", "-adq"))
}

func appendTo(name, text string) error {
	w, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = w.WriteString(text)
	return errors.Join(err, w.Close())
}

func (f fixture) bigSize() int64 { return bigSize / int64(f.scale) >> 20 << 20 }

func (f fixture) big() error {
	w, err := os.OpenFile(f.at("tree/big.bin"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	r := rand.NewChaCha8([32]byte{seed})
	buf := make([]byte, 1<<20)
	for range f.bigSize() >> 20 {
		if _, err := r.Read(buf); err != nil {
			return errors.Join(err, w.Close())
		}
		if _, err := w.Write(buf); err != nil {
			return errors.Join(err, w.Close())
		}
	}
	return w.Close()
}

// lists writes which files some rows are about.
func (f fixture) lists() error {
	out, err := exec.Command("git", "-C", f.at("tree"), "ls-files", "src").Output()
	if err != nil {
		return err
	}
	names := strings.Fields(string(out))
	return errors.Join(f.list("stat.lst", names, 2, 10_000), f.list("read.lst", names, 7, 4000), f.list("append.lst", names, 53, 500))
}

func (f fixture) list(name string, all []string, step, most int) error {
	var list []string
	for i := 0; i < len(all) && len(list) < most; i += step {
		list = append(list, all[i])
	}
	return os.WriteFile(f.at(name), []byte(strings.Join(list, "\n")), 0o644)
}

func (f fixture) archive() error {
	file, err := os.OpenFile(f.at("small.tar"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(seed, 2))
	w := tar.NewWriter(file)
	when := time.Unix(1_700_000_000, 0)
	for d := range smallDirs / f.scale {
		dir := fmt.Sprintf("d%d/p%d", d/50, d)
		if d%50 == 0 {
			err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("d%d/", d/50), Mode: 0o755, ModTime: when})
		}
		err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: when}))
		for i := range 20 {
			text := bytes.Repeat([]byte("x"), 200+r.IntN(1+r.IntN(8000)))
			err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%s/f%d.js", dir, i), Mode: 0o644, ModTime: when, Size: int64(len(text))}))
			if err != nil {
				return err
			}
			if _, err := w.Write(text); err != nil {
				return err
			}
		}
	}
	return errors.Join(w.Close(), file.Close())
}

// copy makes native's own tree: the rows change it and bring it back.
func (f fixture) copy() error {
	return command(f.dir, "cp", "-a", "tree", "native")
}

// spread gives each directory made in the fixture, and at the top of native, a block group of its own
// where the file system is ext4: there, making a file where many were deleted within the last minutes
// takes ten times as long (recently_deleted, fs/ext4/ialloc.c), and the rows delete a lot.
func (f fixture) spread() error {
	for _, name := range []string{f.dir, f.at("native")} {
		d, err := os.Open(name)
		if err != nil {
			return err
		}
		const topDir = 0x20000 // EXT4_TOPDIR_FL
		flags, err := unix.IoctlGetUint32(int(d.Fd()), unix.FS_IOC_GETFLAGS)
		if err == nil {
			err = unix.IoctlSetPointerInt(int(d.Fd()), unix.FS_IOC_SETFLAGS, int(flags|topDir))
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench: new directories may share a block group: %s: %v\n", name, err)
		}
		if err := d.Close(); err != nil {
			return err
		}
	}
	return nil
}

// warm reads both trees, so that no row reads from the disk, and has what was written go there.
func (f fixture) warm() error {
	if err := command(f.dir, "sync", "-f", "."); err != nil {
		return err
	}
	for _, top := range []string{"tree", "native"} {
		err := filepath.WalkDir(f.at(top), func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			_, err = os.ReadFile(p)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// command runs a program in dir with the environment that all rows have.
func command(dir, name string, arg ...string) error {
	c := exec.Command(name, arg...)
	c.Dir, c.Env = dir, toolEnv()
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(arg, " "), err, out)
	}
	return nil
}

func toolEnv() []string {
	return append(os.Environ(), "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*", "GOFLAGS=-buildvcs=false", "GOTOOLCHAIN=local", "GOTELEMETRY=off", "GOPROXY=off")
}
