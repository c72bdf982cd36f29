package jail_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stage/jail"
	"stage/test/testenv"
)

// fails runs a script that must be refused, and returns what it said.
func fails(t *testing.T, c jail.Config, want string) {
	t.Helper()
	r := run(t, c)
	if r.exit.Code == 0 || !strings.Contains(r.out, want) {
		t.Errorf("%q: got code %d and %q, want a failure that says %q", c.Argv, r.exit.Code, r.out, want)
	}
}

func TestWritesToTheHostAreRefused(t *testing.T) {
	for _, script := range []string{"echo x > /usr/canary", "echo x > /etc/canary", "echo x > /canary", "mkdir /home/other",
		"echo x > /run/stage/canary", "mv /run/stage /run/other", "echo x > /sys/power/state"} {
		r := run(t, sh(t, "LC_ALL=C; "+script))
		if r.exit.Code == 0 {
			t.Errorf("%s: was not refused", script)
		}
	}
	fails(t, sh(t, "echo x > /usr/canary"), "Read-only file system")
}

func TestSysctlsCannotBeWritten(t *testing.T) {
	for _, knob := range []string{"kernel/panic_print", "vm/overcommit_memory", "fs/file-max"} {
		if r := run(t, sh(t, "cat /proc/sys/"+knob+" > /tmp/v && cat /tmp/v > /proc/sys/"+knob)); r.exit.Code == 0 {
			t.Errorf("%s could be written", knob)
		}
	}
	if r := run(t, sh(t, "echo h > /proc/sysrq-trigger")); r.exit.Code == 0 {
		t.Error("sysrq-trigger could be written")
	}
}

func TestHomesAreHidden(t *testing.T) {
	got := output(t, `ls -A $HOME /root /home 2>/dev/null; touch $HOME/x && echo writable`)
	for _, secret := range []string{".ssh", ".bashrc", ".profile", ".cache"} {
		if strings.Contains(got, secret) {
			t.Errorf("found %s in:\n%s", secret, got)
		}
	}
	if !strings.HasSuffix(got, "writable") {
		t.Errorf("the private home is not writable:\n%s", got)
	}
}

func TestPrivateDirectories(t *testing.T) {
	host, err := os.CreateTemp("", "jail-visible")
	if err != nil {
		t.Fatal(err)
	}
	host.Close()
	t.Cleanup(func() { os.Remove(host.Name()) })
	c := sh(t, `ls -A /tmp /run /dev/shm /var/run; ls -d $XDG_RUNTIME_DIR; touch /tmp/a /dev/shm/a $XDG_RUNTIME_DIR/a && echo writable`)
	c.Env = append(c.Env, "XDG_RUNTIME_DIR=/run/user/1001")
	r := run(t, c)
	if want := "/dev/shm:\n\n/run:\nstage\nuser\n\n/tmp:\n\n/var/run:\nstage\nuser\n/run/user/1001\nwritable\n"; r.out != want {
		t.Errorf("got:\n%s\nwant:\n%s", r.out, want)
	}
}

func TestHostVarDoesNotBringItsRun(t *testing.T) {
	c := sh(t, "ls -A /var/run/; touch /var/canary 2>/dev/null && echo writable; true")
	c.Mounts = append(c.Mounts, jail.Mount{Kind: jail.Bind, Source: "/var", Dest: "/var", ReadOnly: true})
	if r := run(t, c); r.out != "stage\n" {
		t.Errorf("got %q", r.out)
	}
}

func TestNothingIsInherited(t *testing.T) {
	leak, err := os.Open("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	if _, err := leak.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	clearCloexec(t, leak)
	if got := output(t, `echo /proc/self/fd/*`); got != "/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/3" {
		t.Errorf("descriptors: got %s, want 0, 1, 2 and the shell's own", got)
	}
	t.Setenv("SECRET_TOKEN", "x")
	if got := output(t, `env | cut -d= -f1 | sort | tr '\n' ' '`); got != "HOME LANG PATH PWD" {
		t.Errorf("environment: got %s", got)
	}
}

func TestFirstProcessCannotBeReached(t *testing.T) {
	got := output(t, `for f in exe fd environ mem cwd root; do ls -l /proc/1/$f >/dev/null 2>&1 && cat /proc/1/$f >/dev/null 2>&1 && echo $f; done
		kill -TERM 1; kill -KILL 1; kill -STOP 1; kill -QUIT 1; kill -SEGV 1; sleep 0.1; echo alive`)
	if got != "alive" {
		t.Errorf("got %q, want only that the jail lives", got)
	}
}

func TestNetworkNamespace(t *testing.T) {
	got := output(t, `cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '; cat /proc/net/route | wc -l`)
	if got != "lo\n1" {
		t.Errorf("links and routes: got %q, want loopback alone", got)
	}
}

func TestHostNetworkWhenAsked(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := base(t, "/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/"+port(l)+" && echo connected")
	c.Net = jail.NetHost
	r := run(t, c)
	if !strings.Contains(r.out, "connected") {
		t.Errorf("got %q, want a connection", r.out)
	}
	for _, id := range []string{"net.netns", "net.unix"} {
		if report, _ := r.installed.Control(id); report.Level == jail.Enforced || report.Reason == "" {
			t.Errorf("%s: got level %q reason %q with the host's network", id, report.Level, report.Reason)
		}
	}
}

func port(l net.Listener) string {
	_, p, _ := net.SplitHostPort(l.Addr().String())
	return p
}

func TestMediatedListeners(t *testing.T) {
	c := base(t, "/bin/bash", "-c", `
		exec 3<>/dev/tcp/127.0.0.1/443 && echo question >&3 && read -r line <&3 && echo "$line"
		exec 4<>/dev/tcp/::1/3128 && read -r line <&4 && echo "$line"
		exec 5<>/dev/tcp/192.0.2.1/80 || echo away`)
	c.Net = jail.NetMediated
	c.Listeners = []string{"127.0.0.1:443", "[::1]:3128"}
	c.Stderr, _ = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	r, err := tryWith(t, c, func(j *jail.Jail) {
		l := j.Listeners()
		go answer(l[0], "answer 4\n", true)
		go answer(l[1], "answer 6\n", false)
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.out != "answer 4\nanswer 6\naway\n" {
		t.Errorf("got %q", r.out)
	}
	report, ok := r.installed.Control("net.mediator")
	if !ok || len(report.ReadBack) != 2 {
		t.Errorf("net.mediator: got %+v", report)
	}
}

func answer(l net.Listener, text string, listen bool) {
	c, err := l.Accept()
	if err != nil {
		return
	}
	defer c.Close()
	if listen {
		if _, err := c.Read(make([]byte, 100)); err != nil {
			return
		}
	}
	_, _ = c.Write([]byte(text))
}

func TestUnixSocketsOfTheHostCannotBeConnected(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := base(t, "/usr/bin/python3", "-c", `
import socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1]); print("connected")
except OSError as e: print(e.strerror)`, filepath.Join(dir, "s"))
	testenv.Need(t, testenv.Tool("python3"))
	c.Mounts = append(c.Mounts, jail.Mount{Kind: jail.Bind, Source: dir, Dest: dir, ReadOnly: true})
	r := run(t, c)
	if r.out != "Connection refused\n" {
		t.Errorf("got %q", r.out)
	}
	report, _ := r.installed.Control("net.unix")
	if report.Level != jail.Enforced || report.Canary == nil || !strings.Contains(report.Canary.Act, dir) {
		t.Errorf("net.unix: got %+v", report)
	}
}

func TestSecretsAreMasked(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"keys", "open"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"keys/id", "token", "open/file"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("secret "+f), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := sh(t, `cd `+dir+`; cat open/file; for f in keys/id token; do cat $f 2>/dev/null && echo READ $f; done; ls keys 2>/dev/null && echo LISTED
		chmod 777 keys token 2>/dev/null && echo CHANGED; rm -f token 2>/dev/null && echo REMOVED; true`)
	c.Mounts = append(c.Mounts, jail.Mount{Kind: jail.Bind, Source: dir, Dest: dir, ReadOnly: true},
		jail.Mount{Kind: jail.Mask, Dest: dir + "/keys"}, jail.Mount{Kind: jail.Mask, Dest: dir + "/token"},
		jail.Mount{Kind: jail.Mask, Dest: dir + "/absent"})
	r := run(t, c)
	if r.out != "secret open/file" {
		t.Errorf("got %q", r.out)
	}
	if report, ok := r.installed.Control("mask.secrets"); !ok || report.Level != jail.Enforced {
		t.Errorf("mask.secrets: got %+v", report)
	}
}

func TestMountKinds(t *testing.T) {
	share, scratch := t.TempDir(), t.TempDir()
	if err := os.WriteFile(share+"/old", []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	name := "odd \t\xff:,\\name"
	if err := os.Mkdir(filepath.Join(scratch, name), 0o755); err != nil {
		t.Fatal(err)
	}
	c := sh(t, `set -e; cat /work/share/old; echo new > /work/share/new; echo x > /cache/x; df -k /cache | tail -1 | tr -s ' ' | cut -d' ' -f2
		stat -c %a /cache /work; ls -d "$ODD"; echo y > "$ODD/y"; test ! -e /gone`)
	c.Env = append(c.Env, "ODD=/work/"+name)
	c.Mounts = append(c.Mounts,
		jail.Mount{Kind: jail.Bind, Source: share, Dest: "/work/share"},
		jail.Mount{Kind: jail.Bind, Source: filepath.Join(scratch, name), Dest: "/work/" + name},
		jail.Mount{Kind: jail.Tmpfs, Dest: "/cache", Mode: 0o700, Size: 1 << 20},
		jail.Mount{Kind: jail.Bind, Source: "/no/such/place", Dest: "/gone", Optional: true})
	r := run(t, c)
	if want := "old1024\n700\n755\n/work/" + name + "\n"; r.out != want || r.exit.Code != 0 {
		t.Errorf("got %q code %d, want %q", r.out, r.exit.Code, want)
	}
	for _, f := range []string{share + "/new", filepath.Join(scratch, name, "y")} {
		if _, err := os.Stat(f); err != nil {
			t.Errorf("a share did not reach the host: %v", err)
		}
	}
	report, _ := r.installed.Control("mount.shares")
	if report.Level != jail.Enforced || !strings.Contains(report.ReadBack[0].Got, "/work/share") {
		t.Errorf("mount.shares: got %+v", report)
	}
	c.Mounts = append(c.Mounts, jail.Mount{Kind: jail.Bind, Source: "/no/such/place", Dest: "/gone"})
	if _, err := try(t, c); err == nil || !strings.Contains(err.Error(), "/no/such/place") {
		t.Errorf("a required mount that is missing: got %v", err)
	}
}

func TestMountsBelowADirectoryAreShown(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	for _, d := range []string{"sub", "file"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("tmpfs", dir+"/sub", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir+"/sub", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(dir+"/sub/inside", []byte("inside"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := sh(t, "cat "+dir+"/sub/inside; touch "+dir+"/sub/new 2>&1")
	c.Mounts = append(c.Mounts, jail.Mount{Kind: jail.Bind, Source: dir, Dest: dir, ReadOnly: true})
	if r := run(t, c); !strings.HasPrefix(r.out, "inside") || !strings.Contains(r.out, "Read-only file system") {
		t.Errorf("got %q", r.out)
	}
}

func TestForbiddenSystemCalls(t *testing.T) {
	testenv.Need(t, testenv.Tool("python3"))
	c := base(t, "/usr/bin/python3", "-c", `
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(name, nr, *args):
    ctypes.set_errno(0)
    r = libc.syscall(nr, *args)
    print(name, "ok" if r >= 0 else errno.errorcode[ctypes.get_errno()])
null = ctypes.c_void_p(0)
call("io_uring_setup", 425, 1, null)
call("clone3", 435, null, 0)
call("clone", 56, 0x10000000|17, null, null, null, null)
call("unshare", 272, 0x10000000)
call("setns", 308, -1, 0)
call("mount", 165, null, b"/tmp", b"tmpfs", 0, null)
call("open_tree", 428, -100, b"/", 0)
call("keyctl", 250, 0, -3, 0)
call("bpf", 321, 0, null, 0)
call("perf_event_open", 298, null, 0, -1, -1, 0)
call("userfaultfd", 323, 0)
call("open_by_handle_at", 304, -100, null, 0)
call("finit_module", 313, -1, b"", 0)
call("tiocsti", 16, 0, ctypes.c_ulong(0x5412), null)
call("tiocsti high bits", 16, 0, ctypes.c_ulong(0xff00005412), null)
call("setgroups", 116, 0, null)
call("chroot", 161, b"/")
for name, family, proto in [("unix", 1, 0), ("inet", 2, 0), ("inet6", 10, 0), ("route", 16, 0), ("uevent", 16, 15), ("vsock", 40, 0), ("alg", 38, 0), ("packet", 17, 0), ("ax25", 3, 0)]:
    try:
        socket.socket(family, socket.SOCK_DGRAM if family != 38 else socket.SOCK_SEQPACKET, proto).close(); print(name, "ok")
    except OSError as e: print(name, errno.errorcode[e.errno])
`)
	want := `io_uring_setup ENOSYS
clone3 ENOSYS
clone EPERM
unshare EPERM
setns EPERM
mount EPERM
open_tree EPERM
keyctl EPERM
bpf EPERM
perf_event_open EPERM
userfaultfd EPERM
open_by_handle_at EPERM
finit_module EPERM
tiocsti EPERM
tiocsti high bits EPERM
setgroups EPERM
chroot EPERM
unix ok
inet ok
inet6 ok
route ok
uevent EAFNOSUPPORT
vsock EAFNOSUPPORT
alg EAFNOSUPPORT
packet EAFNOSUPPORT
ax25 EAFNOSUPPORT
`
	got := run(t, c).out
	if got != want {
		for i, line := range strings.Split(got, "\n") {
			if w := strings.Split(want, "\n"); i >= len(w) || w[i] != line {
				t.Errorf("line %d: got %q", i, line)
			}
		}
	}
}

func TestDebuggersWork(t *testing.T) {
	testenv.Need(t, testenv.Tool("strace"))
	if r := run(t, base(t, "/usr/bin/strace", "-f", "-e", "trace=execve", "/bin/sh", "-c", "true; exit 4")); r.exit.Code != 4 {
		t.Errorf("got %+v: %s", r.exit, r.out)
	}
}

func TestUserNamespacesWhenAllowed(t *testing.T) {
	testenv.Need(t, testenv.Tool("unshare"))
	fails(t, sh(t, "LC_ALL=C unshare --user true"), "Operation not permitted")
	if os.Geteuid() == 0 {
		return // an uid 0 without CAP_SETFCAP may map nothing: JAIL.md
	}
	c := sh(t, "unshare --user --map-current-user --mount true && echo nested")
	c.AllowUserns = true
	if r := run(t, c); r.out != "nested\n" {
		t.Errorf("got %q", r.out)
	}
}

func TestForeignSystemCallsKill(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name string
		code []byte
	}{
		// mov eax, 20 (i386 getpid); int 0x80
		{"i386", []byte{0xb8, 20, 0, 0, 0, 0xcd, 0x80}},
		// mov eax, 0x40000027 (x32 getpid); syscall
		{"x32", []byte{0xb8, 0x27, 0, 0, 0x40, 0x0f, 0x05}},
	} {
		// then: mov edi, 7; mov eax, 60 (exit); syscall
		code := append(slices.Clone(c.code), 0xbf, 7, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05)
		file := filepath.Join(dir, c.name)
		if err := os.WriteFile(file, elf(code), 0o755); err != nil {
			t.Fatal(err)
		}
		cfg := base(t, file)
		cfg.Mounts = append(cfg.Mounts, jail.Mount{Kind: jail.Bind, Source: dir, Dest: dir, ReadOnly: true})
		if r := run(t, cfg); r.exit.Code != 159 {
			t.Errorf("%s: got %d, want 159 (SIGSYS)", c.name, r.exit.Code)
		}
	}
}

// elf makes the smallest x86-64 program of some machine code.
func elf(code []byte) []byte {
	const base, head = 0x400000, 64 + 56
	size := uint64(head + len(code))
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	le := binary.LittleEndian
	b = le.AppendUint16(b, 2) // executable
	b = le.AppendUint16(b, 62)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+head) // entry
	b = le.AppendUint64(b, 64)        // program headers
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1) // load
	b = le.AppendUint32(b, 5) // read, execute
	for _, v := range []uint64{0, base, base, size, size, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...)
}

func TestOpenFilesAreLimited(t *testing.T) {
	c := sh(t, "ulimit -n; ulimit -Hn; ulimit -c; ulimit -Hc")
	c.Nofile, c.NofileSet = 99, true
	r := run(t, c)
	if r.out != "99\n99\n0\n0\n" {
		t.Errorf("limits: got %q", r.out)
	}
	if report, ok := r.installed.Control("res.nofile"); !ok || report.Level != jail.Enforced {
		t.Errorf("res.nofile: got %+v", report)
	}
}

func TestEveryControlIsReported(t *testing.T) {
	dir := t.TempDir()
	c := sh(t, "true")
	if err := os.Mkdir(dir+"/secret", 0o755); err != nil {
		t.Fatal(err)
	}
	c.Mounts = append(c.Mounts, jail.Mount{Kind: jail.Bind, Source: dir, Dest: dir, ReadOnly: true}, jail.Mount{Kind: jail.Mask, Dest: dir + "/secret"})
	c.Nofile, c.NofileSet = 256, true
	c.Net = jail.NetMediated
	r := run(t, c)
	var got []string
	for _, c := range r.installed.Controls {
		got = append(got, c.ID)
		wantLevel := jail.Enforced
		if c.ID == "ns.user" && os.Geteuid() == 0 {
			wantLevel = jail.Unenforced
		}
		if c.Level != wantLevel {
			t.Errorf("%s: got %q (%s)", c.ID, c.Level, c.Reason)
		}
		if c.Canary != nil && !c.Canary.Passed {
			t.Errorf("%s: canary %+v", c.ID, c.Canary)
		}
	}
	want := []string{"mount.root", "mount.home", "mask.secrets", "mount.readonly", "mount.shares", "net.netns", "net.families",
		"net.unix", "net.mediator", "ns.pid", "ns.user", "ns.mount", "ns.ipc", "ns.uts", "seccomp.filter", "caps.none", "nnp",
		"env.allowlist", "keyring", "core", "res.nofile"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// TestLeftOutStepIsDetected proves every read-back and canary: where its step is missing, the command never runs.
func TestLeftOutStepIsDetected(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/secret", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	shared := t.TempDir()
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	steps := []string{"mount.root", "mount.home", "mask.secrets", "mount.readonly", "mount.shares", "net.netns", "net.families",
		"net.unix", "ns.pid", "ns.mount", "ns.ipc", "ns.uts", "seccomp.filter", "caps.none", "nnp", "env.allowlist", "keyring",
		"core", "res.nofile"}
	if os.Geteuid() != 0 {
		steps = append(steps, "ns.user")
	}
	for _, step := range steps {
		c := sh(t, "echo ran")
		c.Skip = step
		c.Nofile, c.NofileSet = 256, true
		c.Mounts = append(c.Mounts, jail.Mount{Kind: jail.Bind, Source: dir, Dest: dir, ReadOnly: true},
			jail.Mount{Kind: jail.Mask, Dest: dir + "/secret"}, jail.Mount{Kind: jail.Bind, Source: shared, Dest: "/shared"})
		r, err := try(t, c)
		byKernel := os.Geteuid() != 0 && (step == "ns.pid" || step == "ns.mount") // it mounts and unshares less without them
		if err == nil || !byKernel && !namesControl(err, step) {
			t.Errorf("%s: got %v", step, err)
		}
		if r.out != "" {
			t.Errorf("%s: the command ran: %q", step, r.out)
		}
	}
}

// namesControl looks through joined errors for an InstallError of a control.
func namesControl(err error, id string) bool {
	var install *jail.InstallError
	if errors.As(err, &install) && install.Control == id {
		return true
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(many.Unwrap(), func(e error) bool { return namesControl(e, id) })
	}
	return false
}

func TestWrongConfigurationsAreRefused(t *testing.T) {
	for name, change := range map[string]func(*jail.Config){
		"no command":        func(c *jail.Config) { c.Argv = nil },
		"another uid":       func(c *jail.Config) { c.UID++ },
		"relative path":     func(c *jail.Config) { c.Mounts = append(c.Mounts, jail.Mount{Kind: jail.Empty, Dest: "x"}) },
		"unclean path":      func(c *jail.Config) { c.Mounts = append(c.Mounts, jail.Mount{Kind: jail.Empty, Dest: "/x/../y"}) },
		"over the root":     func(c *jail.Config) { c.Mounts = append(c.Mounts, jail.Mount{Kind: jail.Empty, Dest: "/"}) },
		"zero byte":         func(c *jail.Config) { c.Env = append(c.Env, "A=\x00") },
		"stray listener":    func(c *jail.Config) { c.Listeners = []string{"127.0.0.1:1"} },
		"no work directory": func(c *jail.Config) { c.WorkDir = "/no/such/dir" },
		"unknown kind":      func(c *jail.Config) { c.Mounts = append(c.Mounts, jail.Mount{Kind: 99, Dest: "/x"}) },
	} {
		c := sh(t, "echo ran")
		change(&c)
		if r, err := try(t, c); err == nil || r.out != "" {
			t.Errorf("%s: got %v, output %q", name, err, r.out)
		}
	}
}

func TestArgumentsAndEnvironmentPassByteForByte(t *testing.T) {
	c := base(t, "/usr/bin/printf", "%s|", "a b", "\xff\xfe", "", "\n", strings.Repeat("long", 20000))
	c.Env = append(c.Env, "RAW=\xff")
	if r := run(t, c); r.out != "a b|\xff\xfe||\n|"+strings.Repeat("long", 20000)+"|" {
		t.Errorf("got %d bytes", len(r.out))
	}
	c = base(t, "/usr/bin/printenv", "RAW")
	c.Env = append(c.Env, "RAW=\xff")
	if r := run(t, c); r.out != "\xff\n" {
		t.Errorf("environment: got %q", r.out)
	}
}

func TestGroupsStay(t *testing.T) {
	got := output(t, "id -G")
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 && len(strings.Fields(got)) < len(groups) {
		t.Errorf("got groups %s, want %v", got, groups)
	}
	if !strings.HasPrefix(got, fmt.Sprint(os.Getegid())) {
		t.Errorf("got groups %s, want %d first", got, os.Getegid())
	}
}
