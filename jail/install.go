package jail

import (
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"stage/jail/seccomp"
)

// install does what only the jail's first process can do and sends the report on everything that is in force.
// It never runs anything of the command.
func (s *shim) install() error {
	if err := unix.Chdir(s.cfg.Cwd); err != nil {
		return fmt.Errorf("change to working directory %q: %w", s.cfg.Cwd, err)
	}
	if s.cfg.NofileSet && s.cfg.Skip != "res.nofile" {
		// Not unix.Setrlimit: the Go runtime would give the command the limit it had before.
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: s.cfg.Nofile, Max: s.cfg.Nofile}); err != nil {
			return fmt.Errorf("limit open files to %d: %w", s.cfg.Nofile, err)
		}
	}
	listeners, err := s.openListeners()
	if err != nil {
		return err
	}
	defer func() { closeAll(listeners) }()
	if err := s.openTerminal(); err != nil {
		return err
	}
	s.trace.mark("listeners open")
	filter := s.loadFilter()
	s.trace.mark("filter loaded")
	m := s.inspect(filter, listeners)
	s.trace.mark("controls inspected")
	m.Steps = s.trace.take()
	files := listeners
	if s.master != nil {
		files = append(slices.Clone(listeners), s.master)
		defer s.master.Close()
	}
	return s.control.send(m, files...)
}

type filterResult struct {
	digest string
	err    error
}

// loadFilter comes last of all steps: what follows runs under it. It filters every thread of the shim.
func (s *shim) loadFilter() filterResult {
	if s.cfg.Skip == "seccomp.filter" {
		return filterResult{}
	}
	rules := seccomp.Profile(s.cfg.AllowUserns)
	switch s.cfg.Skip { // a rule less, for the tests of its control
	case "keyring":
		rules = withoutCall(rules, "keyctl")
	case "net.families":
		rules = withoutCall(rules, "socket")
	}
	digest, err := seccomp.Load(rules)
	return filterResult{digest, err}
}

func withoutCall(rules []seccomp.Rule, name string) []seccomp.Rule {
	return slices.DeleteFunc(rules, func(r seccomp.Rule) bool { return slices.Contains(r.Calls, name) })
}

// inspect asks the kernel for every control and tries the canaries.
func (s *shim) inspect(filter filterResult, listeners []*os.File) message {
	w := s.look()
	probes := []*probe{
		w.mountRoot(), w.mountHome(), w.maskSecrets(),
		w.fsStaged(), w.mountReadonly(), w.mountShares(),
		w.netNetns(), w.netFamilies(), w.netUnix(), w.netMediator(listeners),
		w.nsPid(), w.nsUser(), w.nsMount(), w.nsIpc(), w.nsUts(),
		w.seccompFilter(filter), w.capsNone(), w.nnp(),
		w.envAllowlist(), w.keyring(), w.core(), w.resNofile(),
	}
	m := message{Kind: kindInstalled, Installed: &Installed{}}
	for _, p := range probes {
		if p == nil {
			continue // nothing of the kind was asked for
		}
		m.Installed.Controls = append(m.Installed.Controls, p.report)
		if len(p.failed) > 0 {
			m.Failed = append(m.Failed, InstallError{Control: p.report.ID, Detail: p.failed})
		}
	}
	return m
}

// world is what the shim sees, read once for all probes.
type world struct {
	*shim
	rows   []mountRow
	status map[string]string
	ns     map[string]uint64
	err    error // of the reading; every probe that needs the part then fails on its empty values
}

func (s *shim) look() *world {
	w := &world{shim: s}
	var errs [3]error
	w.rows, errs[0] = readMounts()
	w.status, errs[1] = processStatus()
	w.ns, errs[2] = namespaces()
	for _, err := range errs {
		if err != nil {
			w.err = err
		}
	}
	return w
}

// probe starts the report of a control.
func (w *world) probe(id string) *probe {
	p := newProbe(id)
	p.check(w.err)
	return p
}

// otherNamespace wants the namespace of the jail to be none of the others.
func (w *world) otherNamespace(p *probe, name string, others ...uint64) {
	want := "not"
	for _, o := range others {
		want += fmt.Sprintf(" %d", o)
	}
	got := w.ns[name]
	p.judge("/proc/self/ns/"+name, want, fmt.Sprint(got), got != 0 && !slices.Contains(others, got))
}

func listenerAddress(f *os.File) (string, error) {
	l, err := net.FileListener(f)
	if err != nil {
		return "", fmt.Errorf("read back listener: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
