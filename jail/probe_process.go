package jail

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"stage/jail/enter"
)

func (w *world) nsPid() *probe {
	p := w.probe("ns.pid")
	w.otherNamespace(p, "pid", w.order.Host.Namespaces["pid"])
	p.same("getpid", "1", fmt.Sprint(os.Getpid()))
	p.same("processes in /proc besides the first", "0", fmt.Sprint(countProcesses()))
	p.refused("signal the supervisor", unix.Kill(w.order.Host.Pid, 0), unix.ESRCH)
	return p
}

func (w *world) nsUser() *probe {
	p := w.probe("ns.user")
	if w.cfg.Mode == Root {
		return p.limit(Unenforced, "started as root: no user namespace, uid 0 without capabilities")
	}
	w.otherNamespace(p, "user", w.order.Host.Namespaces["user"])
	for name, id := range map[string]uint32{"uid_map": w.cfg.UID, "gid_map": w.cfg.GID} {
		text, err := os.ReadFile("/proc/self/" + name)
		p.check(err)
		p.same("/proc/self/"+name, fmt.Sprintf("%d 0 1", id), strings.Join(strings.Fields(string(text)), " "))
	}
	if !w.cfg.AllowUserns {
		p.refused("unshare(CLONE_NEWUSER)", unix.Unshare(unix.CLONE_NEWUSER), unix.EPERM)
	}
	return p
}

func (w *world) nsMount() *probe {
	p := w.probe("ns.mount")
	w.otherNamespace(p, "mnt", w.order.Host.Namespaces["mnt"], w.facts.MountNamespace)
	return p
}

func (w *world) nsIpc() *probe {
	p := w.probe("ns.ipc")
	w.otherNamespace(p, "ipc", w.order.Host.Namespaces["ipc"])
	return p
}

func (w *world) nsUts() *probe {
	p := w.probe("ns.uts")
	w.otherNamespace(p, "uts", w.order.Host.Namespaces["uts"])
	name, err := os.Hostname()
	p.check(err)
	if w.cfg.Hostname != "" {
		p.same("hostname", w.cfg.Hostname, name)
	}
	return p
}

// seccompFilter: the kernel shows that a filter is loaded, not which; the supervisor compares the digest of the
// loaded program with the planned one.
func (w *world) seccompFilter(f filterResult) *probe {
	p := w.probe("seccomp.filter")
	p.check(f.err)
	p.same("/proc/thread-self/status Seccomp", "2", w.status["Seccomp"])
	p.report.ReadBack = append(p.report.ReadBack, ReadBack{Source: seccompProgram, Got: f.digest})
	p.refused("io_uring_setup", tryCall(unix.SYS_IO_URING_SETUP, 0, 0, 0), unix.ENOSYS)
	if !w.cfg.AllowUserns {
		p.refused("clone3", tryCall(unix.SYS_CLONE3, 0, 0, 0), unix.ENOSYS)
	}
	return p
}

// seccompProgram is the source of the read-back that holds the filter's digest.
const seccompProgram = "seccomp program"

func (w *world) capsNone() *probe {
	p := w.probe("caps.none")
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		p.same("/proc/thread-self/status "+set, "0000000000000000", w.status[set])
	}
	p.refused("chroot /", unix.Chroot("/"), unix.EPERM)
	return p
}

func (w *world) nnp() *probe {
	p := w.probe("nnp")
	p.same("/proc/thread-self/status NoNewPrivs", "1", w.status["NoNewPrivs"])
	return p
}

func (w *world) envAllowlist() *probe {
	p := w.probe("env.allowlist")
	var names []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	p.same("environment of the jail's first process", "HOME "+enter.Env, list(names))
	return p
}

func (w *world) keyring() *probe {
	p := w.probe("keyring")
	_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	p.same("keyctl(GET_KEYRING_ID)", "EPERM", errnoName(err))
	p.refused("keyctl(GET_KEYRING_ID)", err, unix.EPERM)
	return p
}

func (w *world) core() *probe {
	p := w.probe("core")
	var l unix.Rlimit
	p.check(unix.Getrlimit(unix.RLIMIT_CORE, &l))
	p.same("RLIMIT_CORE", "0 0", fmt.Sprintf("%d %d", l.Cur, l.Max))
	p.refused("raise RLIMIT_CORE", unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}), unix.EPERM)
	return p
}

func (w *world) resNofile() *probe {
	if !w.cfg.NofileSet {
		return nil
	}
	p := w.probe("res.nofile")
	var l unix.Rlimit
	p.check(unix.Getrlimit(unix.RLIMIT_NOFILE, &l))
	p.same("RLIMIT_NOFILE", fmt.Sprintf("%d %d", w.cfg.Nofile, w.cfg.Nofile), fmt.Sprintf("%d %d", l.Cur, l.Max))
	return p
}
