package jail

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// probe collects what the kernel says of one control.
type probe struct {
	report ControlReport
	failed []string
}

func newProbe(id string) *probe {
	return &probe{report: ControlReport{ID: id, Level: Enforced}}
}

// same reads a value back that must be exactly what was wanted.
func (p *probe) same(source, want, got string) { p.judge(source, want, got, want == got) }

// judge reads a value back of which the caller knows whether it will do.
func (p *probe) judge(source, want, got string, ok bool) {
	p.report.ReadBack = append(p.report.ReadBack, ReadBack{Source: source, Want: want, Got: got})
	if !ok {
		p.fail(fmt.Sprintf("%s: want %s, got %s", source, want, got))
	}
}

func (p *probe) fail(why string) {
	p.failed = append(p.failed, why)
	p.report.Level = Unenforced
	p.report.Reason = "not in force: " + strings.Join(p.failed, "; ")
}

// check fails the control when it could not even be read.
func (p *probe) check(err error) {
	if err != nil {
		p.fail(err.Error())
	}
}

// refused tries one forbidden act and wants one of the errors. Several acts make one canary.
func (p *probe) refused(act string, got error, want ...syscall.Errno) {
	ok := slices.ContainsFunc(want, func(e syscall.Errno) bool { return errors.Is(got, e) })
	c := &Canary{Act: act, WantErrno: unix.ErrnoName(want[0]), GotErrno: errnoName(got), Passed: ok}
	if old := p.report.Canary; old != nil {
		c.Act = old.Act + ", " + act
		if !old.Passed || c.Passed && old.WantErrno != c.WantErrno {
			c.WantErrno, c.GotErrno = old.WantErrno, old.GotErrno
		}
		c.Passed = c.Passed && old.Passed
	}
	p.report.Canary = c
	if !ok {
		p.fail(fmt.Sprintf("%s: want %s, got %s", act, unix.ErrnoName(want[0]), errnoName(got)))
	}
}

// limit says that the control is weaker than Enforced by choice, not by failure.
func (p *probe) limit(l Level, reason string) *probe {
	if len(p.failed) == 0 {
		p.report.Level, p.report.Reason = l, reason
	}
	return p
}

func errnoName(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "0"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	default:
		return err.Error()
	}
}

// Acts that canaries try. Each undoes what it may have done by mistake.

func tryCreate(file string) error {
	fd, err := unix.Open(file, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	unix.Close(fd)
	return unix.Unlink(file)
}

func tryOpen(file string, flags int) error {
	fd, err := unix.Open(file, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func trySocket(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func tryConnect(family int, to unix.Sockaddr) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, to)
}

func tryCall(number uintptr, a, b, c uintptr) error {
	if _, _, errno := unix.Syscall(number, a, b, c); errno != 0 {
		return errno
	}
	return nil
}

// tryList wants a directory that is not there, not readable or empty.
func tryList(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 1<<10)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil {
			return err
		}
		if n == 0 {
			return unix.ENOENT
		}
		if _, _, names := unix.ParseDirent(buf[:n], 1, nil); len(names) > 0 {
			return nil
		}
	}
}
