package conformance

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"stage/test/testenv"
)

// fileSystem is where a workspace and a store may lie. mount makes it in DIR and DIR/lower.
type fileSystem struct {
	name   string
	suites []string
	mount  func(t *testing.T, u testenv.User, dir string)
}

var fileSystems = []fileSystem{
	{"tmpfs", []string{"cases", "posix"}, func(t *testing.T, u testenv.User, dir string) {
		mountOn(t, u, dir, "tmpfs", "")
	}},
	{"btrfs", []string{"cases", "posix"}, func(t *testing.T, u testenv.User, dir string) {
		mountImage(t, u, dir, "mkfs.btrfs", "-q")
	}},
	// Without clones: where a little is written to one, XFS shows 128 KiB of data until all is on the
	// disk (the hint for copy on write, xfs_ioctl(2)).
	{"xfs", []string{"cases", "posix"}, func(t *testing.T, u testenv.User, dir string) {
		mountImage(t, u, dir, "mkfs.xfs", "-q", "-m", "reflink=0")
	}},
	{"workspace-on-tmpfs", []string{"cases"}, func(t *testing.T, u testenv.User, dir string) {
		mountOn(t, u, filepath.Join(dir, "lower"), "tmpfs", "")
	}},
	{"store-on-tmpfs", []string{"cases"}, func(t *testing.T, u testenv.User, dir string) {
		lower := u.TempDir(t)
		mountOn(t, u, dir, "tmpfs", "")
		bind(t, u, lower, filepath.Join(dir, "lower"))
	}},
	{"workspace-on-overlayfs", []string{"cases"}, func(t *testing.T, u testenv.User, dir string) {
		layers := u.TempDir(t)
		for _, name := range []string{"lower", "upper", "work"} {
			must(os.Mkdir(filepath.Join(layers, name), 0o755))
		}
		mountOn(t, u, filepath.Join(dir, "lower"), "overlay", "lowerdir="+layers+"/lower,upperdir="+layers+"/upper,workdir="+layers+"/work")
	}},
	{"mounts-in-the-workspace", []string{"mounts"}, func(t *testing.T, u testenv.User, dir string) {
		for _, top := range []string{"lower", "plain"} {
			for _, c := range mountCases {
				at := func(name string) string { return filepath.Join(dir, top, c.name, name) }
				mountOn(t, u, at("m"), "tmpfs", "")
				mountOn(t, u, at("d/m2"), "tmpfs", "")
				must(os.WriteFile(at("d/f"), []byte("f of d"), 0o644))
				must(os.WriteFile(at("over"), nil, 0o644))
				must(unix.Mount(at("d/f"), at("over"), "", unix.MS_BIND, ""))
				for _, name := range []string{"..", "", "d", "d/f", "over"} {
					must(os.Lchown(at(name), u.UID, u.GID))
				}
			}
		}
	}},
}

// TestOtherFileSystems runs cases and posixtest with the workspace, the store or both on other file
// systems. Its mounts are made in a mount namespace of its own: they cannot outlive it.
func TestOtherFileSystems(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE, testenv.Userns, testenv.Loop, testenv.Tool("mkfs.btrfs"), testenv.Tool("mkfs.xfs"))
	if os.Getenv(roleEnv) == "" {
		inOwnMounts(t)
		return
	}
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	for _, f := range fileSystems {
		t.Run(f.name, func(t *testing.T) {
			testenv.Users(t, func(t *testing.T, u testenv.User) {
				dir := u.TempDir(t)
				t.Cleanup(func() { unmountAll(t, dir) })
				f.mount(t, u, dir)
				tr := newTrialIn(t, u, dir, f.suites[0])
				for _, s := range f.suites {
					tr.run(s)
				}
				tr.check()
			})
		})
	}
}

// inOwnMounts runs the current test again, in a mount namespace of its own.
func inOwnMounts(t *testing.T) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), roleEnv+"=mounts")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	out, err := c.CombinedOutput()
	if err != nil || testing.Verbose() {
		t.Logf("%s", out)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// mountOn mounts on dir, which it makes where it is not there, and gives the root to u.
func mountOn(t *testing.T, u testenv.User, dir, kind, opts string) {
	t.Helper()
	must(os.MkdirAll(dir, 0o755))
	must(unix.Mount("stage-test", dir, kind, 0, opts))
	mounted(t, u, dir)
}

func bind(t *testing.T, u testenv.User, from, dir string) {
	t.Helper()
	must(os.MkdirAll(dir, 0o755))
	must(unix.Mount(from, dir, "", unix.MS_BIND, ""))
	mounted(t, u, dir)
}

// mountImage mounts a file made a file system by mkfs on dir. The loop device goes with the mount.
func mountImage(t *testing.T, u testenv.User, dir string, mkfs ...string) {
	t.Helper()
	image := filepath.Join(testenv.User{}.TempDir(t), "image")
	must(os.WriteFile(image, nil, 0o600))
	must(os.Truncate(image, 512<<20))
	for _, c := range []*exec.Cmd{exec.Command(mkfs[0], append(mkfs[1:], image)...), exec.Command("mount", "-o", "loop", image, dir)} {
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", c, err, out)
		}
	}
	mounted(t, u, dir)
}

func mounted(t *testing.T, u testenv.User, dir string) {
	t.Helper()
	must(os.Chmod(dir, 0o755))
	must(os.Lchown(dir, u.UID, u.GID))
}

// unmountAll unmounts what is mounted on or below dir, wherever a rename took it.
func unmountAll(t *testing.T, dir string) {
	t.Helper()
	for _, m := range slices.Backward(testenv.Mounts(t, dir)) {
		if err := unix.Unmount(m, unix.UMOUNT_NOFOLLOW); err != nil {
			t.Errorf("unmount %s: %v", m, err)
		}
	}
}
