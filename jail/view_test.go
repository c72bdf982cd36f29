package jail_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/jail"
	"stage/test/testenv"
)

// Opcodes of linux/fuse.h that the toy server answers.
const (
	fuseLookup      = 1
	fuseForget      = 2
	fuseGetattr     = 3
	fuseInit        = 26
	fuseInterrupt   = 36
	fuseBatchForget = 42
)

// serveToy serves a view that holds an empty directory "sub" and a name "stuck", which is never answered.
func serveToy(dev *os.File) {
	buf := make([]byte, 1<<17)
	for {
		n, err := unix.Read(int(dev.Fd()), buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return // the mount is gone
		}
		reply(dev, buf[:n])
	}
}

func reply(dev *os.File, request []byte) {
	le := binary.NativeEndian
	opcode, unique, node := le.Uint32(request[4:]), le.Uint64(request[8:]), le.Uint64(request[16:])
	var body []byte
	errno := unix.Errno(0)
	switch opcode {
	case fuseInit:
		body = make([]byte, 64)
		le.PutUint32(body[0:], 7)
		le.PutUint32(body[4:], 31)
		le.PutUint32(body[20:], 1<<16) // max_write
	case fuseGetattr:
		body = append(make([]byte, 16), toyDirectory(node)...)
	case fuseLookup:
		switch name, _, _ := strings.Cut(string(request[40:]), "\x00"); name {
		case "sub":
			body = append(le.AppendUint64(nil, 2), make([]byte, 32)...)
			body = append(body, toyDirectory(2)...)
		case "stuck":
			return
		default:
			errno = unix.ENOENT
		}
	case fuseForget, fuseBatchForget, fuseInterrupt:
		return
	default:
		errno = unix.ENOSYS
	}
	head := le.AppendUint32(nil, uint32(16+len(body)))
	head = le.AppendUint32(head, uint32(-int32(errno)))
	head = le.AppendUint64(head, unique)
	_, _ = unix.Write(int(dev.Fd()), append(head, body...))
}

// toyDirectory is a struct fuse_attr.
func toyDirectory(ino uint64) []byte {
	attr := make([]byte, 88)
	binary.NativeEndian.PutUint64(attr[0:], ino)
	binary.NativeEndian.PutUint32(attr[60:], unix.S_IFDIR|0o755)
	binary.NativeEndian.PutUint32(attr[64:], 2)
	return attr
}

const viewOptions = "rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"

// withView runs c with one toy view at dest.
func withView(t *testing.T, c jail.Config, dest string, running func(*jail.Jail, *recorder)) (r result, err error) {
	t.Helper()
	testenv.Need(t, testenv.FUSE)
	out, err := newRecorder()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { r.out = out.finish() }()
	c.Stdout, c.Stderr = out.w, out.w
	c.Views = append(c.Views, jail.View{Name: "workspace", Dest: dest, Options: viewOptions})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	j, err := jail.Prepare(ctx, c)
	if err != nil {
		return r, err
	}
	dev := j.Device(0)
	served := make(chan struct{})
	go func() {
		serveToy(dev)
		close(served)
	}()
	defer func() {
		err = errors.Join(err, j.Close())
		<-served // the mount must be gone everywhere
		dev.Close()
	}()
	if r.installed, err = j.Start(ctx); err != nil {
		return r, err
	}
	if err = j.Exec(); err != nil {
		return r, err
	}
	if running != nil {
		running(j, out)
	}
	r.exit, err = j.Wait()
	return r, err
}

func TestViewIsMountedAtItsPlace(t *testing.T) {
	for _, dest := range []string{"/work", "/tmp/deep/work", os.Getenv("HOME") + "/work"} {
		c := sh(t, `stat -c '%F %u' . sub; stat missing 2>&1; ls /proc/self/fd | wc -l`)
		c.Cwd = dest
		r, err := withView(t, c, dest, nil)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(r.out, "\n")
		if len(lines) != 5 || !strings.HasPrefix(lines[0], "directory ") || lines[1] != lines[0] || !strings.HasSuffix(lines[2], "No such file or directory") {
			t.Errorf("%s: got %q", dest, r.out)
		}
		if report, ok := r.installed.Control("fs.staged"); !ok || report.Level != jail.Enforced {
			t.Errorf("fs.staged: got %+v", report)
		}
	}
}

func TestMountInsideAView(t *testing.T) {
	share := t.TempDir()
	c := sh(t, "echo x > /work/sub/file && ls /work/sub")
	c.Mounts = append(c.Mounts, jail.Mount{Kind: jail.Bind, Source: share, Dest: "/work/sub"})
	r, err := withView(t, c, "/work", nil)
	if err != nil || r.out != "file\n" {
		t.Errorf("got %q, %v", r.out, err)
	}
	if _, err := os.Stat(share + "/file"); err != nil {
		t.Error(err)
	}
}

func TestViewThatIsLeftOutIsDetected(t *testing.T) {
	c := sh(t, "echo ran")
	c.Skip = "fs.staged"
	r, err := withView(t, c, "/work", nil)
	if !namesControl(err, "fs.staged") || r.out != "" {
		t.Errorf("got %v and %q", err, r.out)
	}
}

func TestKillFreesWhoWaitsForAView(t *testing.T) {
	c := sh(t, "echo ready; cat /work/stuck; echo survived")
	start := time.Now()
	r, err := withView(t, c, "/work", func(j *jail.Jail, out *recorder) {
		out.await(t, "ready\n")
		if err := j.Kill(); err != nil {
			t.Error(err)
		}
	})
	if err != nil || r.exit.Code != 137 || r.out != "ready\n" {
		t.Errorf("got %+v, %q, %v", r.exit, r.out, err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestEndOfTheCommandFreesWhoWaitsForAView(t *testing.T) {
	r, err := withView(t, sh(t, "cat /work/stuck & sleep 0.1; exit 6"), "/work", nil)
	if err != nil || r.exit.Code != 6 || r.exit.Survivors != 1 {
		t.Errorf("got %+v, %v", r.exit, err)
	}
}

func TestCloseBeforeTheViewIsServed(t *testing.T) {
	testenv.Need(t, testenv.FUSE)
	c := sh(t, "true")
	c.Cwd = "/work"
	c.Views = []jail.View{{Name: "workspace", Dest: "/work", Options: viewOptions}}
	j, err := jail.Prepare(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := j.Start(ctx); err == nil {
		t.Error("started without a server")
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}
