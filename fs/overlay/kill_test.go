package overlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"stage/test/testenv"
)

// killEnv holds, for the process that is killed, the directory of its job and what it does.
const killEnv = "STAGE_OVERLAY_KILL"

// killActs are done by a process that is killed at its first, second, third… system call that changes
// something. Each is one operation of the Job.
var killActs = map[string]func(*job) error{
	"append":  func(j *job) error { return j.tryWrite("d/sub/f") },
	"chmod":   func(j *job) error { return j.trySetattr("d/sub/f", SetAttr{Set: SetMode, Mode: 0o400}) },
	"chdir":   func(j *job) error { return j.trySetattr("d/sub", SetAttr{Set: SetMode, Mode: 0o2551}) },
	"create":  func(j *job) error { return j.tryCreate("d/sub/new", 0o4751) },
	"closed":  func(j *job) error { return j.tryCreate("d/sub/new", 0o044) },
	"inherit": func(j *job) error { return j.tryCreate("acl/new", 0o640) },
	"group":   func(j *job) error { return j.tryCreate("setgid/new", 0o2640) },
	"mkdir":   func(j *job) error { return j.tryMkdir("d/sub/new", 0o555) },
	"mkdirg":  func(j *job) error { return j.tryMkdir("setgid/new", 0o1777) },
	"mkdira":  func(j *job) error { return j.tryMkdir("acl/new", 0o555) },
	"symlink": func(j *job) error {
		var e Entry
		return j.fs.Symlink(Caller{}, j.mustID("d/sub"), "new", "target", &e)
	},
	"mkfifo": func(j *job) error {
		var e Entry
		return j.fs.Mknod(Caller{}, j.mustID("setgid"), "new", unix.S_IFIFO|0o600, 0, &e)
	},
	"link": func(j *job) error {
		var e Entry
		return j.fs.Link(j.mustID("d/sub/f"), j.mustID("setgid"), "new", &e)
	},
	"unlink":  func(j *job) error { return j.fs.Unlink(j.mustID("d/sub"), "f") },
	"replace": func(j *job) error { return j.rename("d/sub/f", "acl/x", 0) },
	"rename":  func(j *job) error { return j.rename("d", "acl/moved", 0) },
	"rensym":  func(j *job) error { return j.rename("d/sub/s", "moved", 0) },
	"swap":    func(j *job) error { return j.rename("d", "setgid", unix.RENAME_EXCHANGE) },
	"xattr":   func(j *job) error { return j.fs.Setxattr(j.mustID("d/sub"), "user.new", []byte("v"), 0) },
}

func (j *job) tryWrite(path string) error {
	_, err := j.fs.Write(j.mustID(path), []byte("more"), 100, false)
	return err
}

func (j *job) trySetattr(path string, s SetAttr) error {
	var a Attr
	return j.fs.Setattr(j.mustID(path), &s, &a)
}

func (j *job) tryCreate(path string, mode uint32) error {
	p, name := j.parent(path)
	var e Entry
	return j.fs.Create(j.caller(), p, name, unix.O_EXCL, mode, &e)
}

func (j *job) tryMkdir(path string, mode uint32) error {
	p, name := j.parent(path)
	var e Entry
	return j.fs.Mkdir(j.caller(), p, name, mode, &e)
}

// caller is somebody else than the server where that is root.
func (j *job) caller() Caller {
	if os.Geteuid() == 0 {
		return Caller{UID: 4711, GID: 4712}
	}
	return Caller{}
}

// killSetup makes the lower of a Job that is killed.
func killSetup(j *job) {
	j.t.Helper()
	for _, d := range []string{"lower", "upper", "orphans"} {
		j.must(os.Mkdir(filepath.Join(j.dir, d), 0o755))
	}
	j.put("d/sub/f", "content")
	j.put("d/sub/g", "content")
	j.put("acl/x", "x")
	j.put("setgid/y", "y")
	j.must(os.Symlink("target", j.low("d/sub/s")))
	j.must(unix.Setxattr(j.low("d/sub"), "user.old", []byte("v"), 0))
	j.must(unix.Setxattr(j.low("d/sub/f"), "user.old", []byte("v"), 0))
	acl := []byte{2, 0, 0, 0}
	for _, e := range [][3]uint32{{1, 7, ^uint32(0)}, {2, 7, 4713}, {4, 5, ^uint32(0)}, {16, 7, ^uint32(0)}, {32, 0, ^uint32(0)}} {
		acl = binary.LittleEndian.AppendUint16(acl, uint16(e[0]))
		acl = binary.LittleEndian.AppendUint16(acl, uint16(e[1]))
		acl = binary.LittleEndian.AppendUint32(acl, e[2])
	}
	if err := unix.Setxattr(j.low("acl"), aclDefault, acl, 0); err != nil && err != unix.EOPNOTSUPP {
		j.t.Fatal(err)
	}
	j.must(unix.Chmod(j.low("setgid"), unix.S_ISGID|0o755))
	j.must(unix.Chmod(j.low("d/sub"), 0o750))
	if os.Geteuid() == 0 {
		j.must(os.Chown(j.low("d/sub"), 4711, 4712))
		j.must(os.Lchown(j.low("d/sub/s"), 4711, 4712))
	}
	past := time.Unix(1_000_000_000, 0)
	for _, p := range []string{"d/sub/f", "d/sub/g", "acl/x", "setgid/y", "d/sub", "d"} {
		j.must(os.Chtimes(j.low(p), past, past))
	}
}

// look describes the view: all of it but inode numbers, what time it is, and times of directories, of
// which an entry that came or went sets one.
func (j *job) look() []string {
	j.t.Helper()
	var list []string
	var walk func(id uint64, at string)
	walk = func(id uint64, at string) {
		kids := map[string]Entry{}
		j.must(j.fs.Readdir(id, 0, true, func(e *DirEntry) bool {
			if e.Entry != nil {
				kids[e.Name] = *e.Entry
			}
			return true
		}))
		for name, e := range kids {
			p := filepath.Join(at, name)
			list = append(list, p+" "+j.describe(&e))
			if e.Mode&unix.S_IFMT == unix.S_IFDIR {
				walk(e.ID, p)
			}
		}
	}
	walk(RootID, "")
	slices.Sort(list)
	return list
}

func (j *job) describe(e *Entry) string {
	j.t.Helper()
	s := fmt.Sprintf("%o %d:%d", e.Mode, e.UID, e.GID)
	buf := make([]byte, 4096)
	n, err := j.fs.Listxattr(e.ID, buf)
	j.must(err)
	names := strings.Split(string(buf[:n]), "\x00")
	slices.Sort(names)
	for _, name := range names {
		if name != "" {
			n, err := j.fs.Getxattr(e.ID, name, buf)
			j.must(err)
			s += fmt.Sprintf(" %s=%x", name, buf[:n])
		}
	}
	if e.Mode&unix.S_IFMT == unix.S_IFDIR {
		return s
	}
	s += fmt.Sprintf(" nlink %d size %d", e.Nlink, e.Size)
	if e.Mtime.Sec < 1_000_000_001 {
		s += " old"
	}
	if e.Mode&unix.S_IFMT == unix.S_IFREG {
		c, err := j.fs.Content(e.ID)
		j.must(err)
		defer c.Done(0, false)
		n, err := unix.Pread(c.FD(), buf, 0)
		j.must(err)
		s += fmt.Sprintf(" %q", buf[:n])
	}
	return s
}

// TestMain lets the test binary be the process that is killed.
func TestMain(m *testing.M) {
	dir, act, ok := strings.Cut(os.Getenv(killEnv), ":")
	if !ok {
		os.Exit(m.Run())
	}
	unix.Umask(0o022)
	j := &job{t: &testing.T{}, dir: dir}
	j.open()
	_, _ = unix.Getsid(0) // from here on
	if err := killActs[act](j); err != nil {
		fmt.Fprintln(os.Stderr, act, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// TestKilledAnywhere kills a process at each system call with which an operation changes something: the
// next session shows the tree before or the one after.
func TestKilledAnywhere(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) {
		top := u.TempDir(t)
		u.Become(t)
		unix.Umask(0o022)
		points := 0
		for name, act := range killActs {
			dir := filepath.Join(top, name)
			before, after := killStates(t, dir+".whole", act)
			for n := 1; ; n++ {
				j := &job{t: t, dir: fmt.Sprint(dir, n)}
				j.must(os.Mkdir(j.dir, 0o755))
				killSetup(j)
				killed := killAt(t, j.dir, name, n)
				j.open()
				got := j.look()
				if !slices.Equal(got, after) && (!killed || !slices.Equal(got, before)) {
					t.Errorf("%s, killed at call %d (%v):\n%s\nbefore:\n%s\nafter:\n%s", name, n, killed,
						strings.Join(got, "\n"), strings.Join(before, "\n"), strings.Join(after, "\n"))
				}
				if left, err := os.ReadDir(filepath.Join(j.dir, "orphans")); err != nil || len(left) > 0 {
					t.Errorf("%s, killed at call %d: orphans %v, %v", name, n, left, err)
				}
				j.close()
				if !killed {
					break
				}
				points++
			}
		}
		t.Logf("killed at %d points of %d operations", points, len(killActs))
	})
}

// killStates returns the views before and after an act nobody is killed in.
func killStates(t *testing.T, dir string, act func(*job) error) (before, after []string) {
	t.Helper()
	j := &job{t: t, dir: dir}
	j.must(os.Mkdir(dir, 0o755))
	killSetup(j)
	j.open()
	before = j.look()
	j.reopen()
	j.must(act(j))
	j.reopen()
	after = j.look()
	j.close()
	return before, after
}

// killAt runs an act in a process of its own and kills it as it enters the n-th changing system call. It
// reports false when there were fewer.
func killAt(t *testing.T, dir, act string, n int) bool {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), killEnv+"="+dir+":"+act)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: unix.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	pid := c.Process.Pid
	var ws unix.WaitStatus
	if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil || !ws.Stopped() {
		t.Fatalf("wait for the start: %v, %v", ws, err)
	}
	const options = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_EXITKILL
	if err := errors.Join(unix.PtraceSetOptions(pid, options), unix.PtraceSyscall(pid, 0)); err != nil {
		t.Fatal(err)
	}
	killed, err := traceTo(pid, n)
	if err != nil {
		t.Fatal(err)
	}
	return killed
}

// traceTo lets the traced process pid run until it enters the n-th changing system call, and kills it.
func traceTo(pid, n int) (killed bool, err error) {
	counting := false
	for {
		var ws unix.WaitStatus
		tid, err := unix.Wait4(-1, &ws, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return killed, err
		case (ws.Exited() || ws.Signaled()) && tid == pid:
			if ws.Exited() && ws.ExitStatus() != 0 {
				return killed, fmt.Errorf("exit status %d", ws.ExitStatus())
			}
			return killed, nil
		case !ws.Stopped():
			continue
		}
		sig := 0
		switch stop := ws.StopSignal(); {
		case stop == unix.SIGTRAP|0x80:
			nr, args, entry := syscallOf(tid)
			if entry && nr == unix.SYS_GETSID {
				counting = true
			}
			if entry && counting && !killed && changes(nr, args) {
				if n--; n == 0 {
					killed = true
					if err := unix.Kill(pid, unix.SIGKILL); err != nil {
						return true, err
					}
					continue
				}
			}
		case stop != unix.SIGTRAP && stop != unix.SIGSTOP:
			sig = int(stop)
		}
		if err := unix.PtraceSyscall(tid, sig); err != nil && err != unix.ESRCH {
			return killed, err
		}
	}
}

// syscallOf returns the system call that tid stops at, and whether it only enters it.
func syscallOf(tid int) (nr uint64, args [6]uint64, entry bool) {
	var info struct { // struct ptrace_syscall_info (ptrace(2))
		op      uint8
		_       [3]byte
		arch    uint32
		ip, sp  uint64
		nr      uint64
		args    [6]uint64
		_, _, _ uint64
	}
	const getSyscallInfo = 0x420e
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	return info.nr, info.args, errno == 0 && info.op == 1
}

// changes reports whether a system call changes files.
func changes(nr uint64, args [6]uint64) bool {
	switch nr {
	case unix.SYS_OPENAT:
		return args[2]&(unix.O_CREAT|unix.O_TMPFILE&^unix.O_DIRECTORY) != 0
	case unix.SYS_MKDIRAT, unix.SYS_MKNODAT, unix.SYS_SYMLINKAT, unix.SYS_LINKAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2,
		unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT, unix.SYS_SETXATTR,
		unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR,
		unix.SYS_PWRITE64, unix.SYS_FTRUNCATE, unix.SYS_COPY_FILE_RANGE, unix.SYS_IOCTL:
		return true
	}
	return false
}
