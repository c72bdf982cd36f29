package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"stage/test/testenv"
)

// inNamespace runs script in dir as u, in a mount namespace of its own: in another a copy of the mount
// could outlive its unmount. An ordinary user is root of a user namespace there.
func inNamespace(t *testing.T, u testenv.User, dir, script string) string {
	t.Helper()
	args := []string{"--mount"}
	if !u.IsRoot() {
		testenv.Need(t, testenv.Userns)
		args = append(args, "--user", "--map-root-user")
	}
	c := u.Command("unshare", append(args, "timeout", "60", "sh", "-ec", script)...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return string(out)
}

// fixture makes the directories of a mount in a directory of u, and the programs in bin.
func fixture(t *testing.T, u testenv.User) string {
	t.Helper()
	testenv.Need(t, testenv.FUSE)
	dir := u.TempDir(t)
	for _, d := range []string{"bin", "lower", "lower/d", "upper", "work", "mnt"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(filepath.Join(dir, d), u.UID, u.GID); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "bin/stagefs"), ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	if err := os.Symlink("stagefs", filepath.Join(dir, "bin/umount.fuse")); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"f", "d/g"} {
		if err := os.WriteFile(filepath.Join(dir, "lower", f), []byte("lower\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(filepath.Join(dir, "lower", f), u.UID, u.GID); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const mountIt = "bin/stagefs X mnt -o lowerdir=lower,upperdir=upper,workdir=work\n"

func TestRemountShowsTheSameTree(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		dir := fixture(t, u)
		before := testenv.Snapshot(t, filepath.Join(dir, "lower"))
		look := "(cd mnt && find . -printf '%p %y %m %s %l\\n' | sort && cat e/g f)\n"
		got := inNamespace(t, u, dir, mountIt+`
			echo changed > mnt/f
			mv mnt/d mnt/e
			ln -s f mnt/link
			`+look+`
			bin/umount.fuse mnt
			test -z "$(ls mnt)"
			echo again
			`+mountIt+look+"bin/umount.fuse mnt")
		tree := ". d 755 4096 \n./e d 755 4096 \n./e/g f 644 6 \n./f f 644 8 \n./link l 777 1 f\nlower\nchanged\n"
		if want := tree + "again\n" + tree; got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
		if d := testenv.Untouched(before, testenv.Snapshot(t, filepath.Join(dir, "lower"))); d != "" {
			t.Errorf("the lower tree was touched:\n%s", d)
		}
	})
}

func TestUnmountLetsGoOfTheLayers(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := fixture(t, testenv.User{})
	for _, d := range []string{"fs1", "fs2"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	inNamespace(t, testenv.User{}, dir, `
		for i in 1 2 3 4 5 6 7 8; do
			mount -t tmpfs x fs1
			mount -t tmpfs x fs2
			mkdir fs1/d fs2/u fs2/w
			bin/stagefs X mnt -o lowerdir=fs1,upperdir=fs2/u,workdir=fs2/w
			echo new > mnt/d/f
			bin/umount.fuse mnt
			umount fs1 fs2
		done`)
}

func TestRootMayDoMoreThanAJob(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := fixture(t, testenv.User{})
	got := inNamespace(t, testenv.User{}, dir, mountIt+`
		mknod -m 600 mnt/null c 1 3
		stat -c '%F %t %T %a' mnt/null
		setpriv --reuid 12345 --clear-groups cat mnt/f
		bin/umount.fuse mnt`)
	if want := "character special file 1 3 600\nlower\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFixedDirectories(t *testing.T) {
	u := testenv.Ordinary(t)
	dir := fixture(t, u)
	got := inNamespace(t, u, dir, `
		bin/stagefs X mnt -o lowerdir=lower,upperdir=upper,workdir=work,redirect_dir=off
		mkdir mnt/new
		mv mnt/new mnt/newer
		python3 -c 'import os
for a, b in ("d", "e"), ("newer", "newest"):
    try: os.rename("mnt/" + a, "mnt/" + b)
    except OSError as e: print(a, e.strerror)'
		ls mnt
		bin/umount.fuse mnt`)
	if want := "d Invalid cross-device link\nd\nf\nnewest\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestErrorsReachTheCaller(t *testing.T) {
	dir := fixture(t, testenv.User{UID: os.Geteuid(), GID: os.Getegid()})
	c := exec.Command(filepath.Join(dir, "bin/stagefs"), "X", dir+"/mnt", "-o", "lowerdir="+dir+"/lower,upperdir=/proc,workdir="+dir+"/work")
	out, err := c.CombinedOutput()
	if err == nil {
		t.Errorf("an upper that cannot hold files was mounted; unmount: %v", unix.Unmount(dir+"/mnt", 0))
	}
	if want := "stagefs: open overlay: "; len(out) < len(want) || string(out[:len(want)]) != want {
		t.Errorf("got %q, want it to begin with %q", out, want)
	}
}
