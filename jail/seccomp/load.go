// Package seccomp holds the jail's system call filter, as data, and puts it into force.
package seccomp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// Load filters all threads of the process with rules and returns the digest of the loaded program.
// A call through a foreign ABI (i386, x32) kills the process: its numbers mean other calls.
//
// Preconditions:
//   - no_new_privs is set, or the caller has CAP_SYS_ADMIN.
func Load(rules []Rule) (digest string, err error) {
	f, err := compile(rules)
	if err != nil {
		return "", err
	}
	defer f.Release()
	if digest, err = digestOf(f); err != nil {
		return "", err
	}
	if err := f.Load(); err != nil {
		return "", fmt.Errorf("load seccomp filter: %w", err)
	}
	return digest, nil
}

// Digest returns the digest of the program that Load would load.
func Digest(rules []Rule) (string, error) {
	f, err := compile(rules)
	if err != nil {
		return "", err
	}
	defer f.Release()
	return digestOf(f)
}

func compile(rules []Rule) (*libseccomp.ScmpFilter, error) {
	f, err := libseccomp.NewFilter(libseccomp.ActAllow)
	if err != nil {
		return nil, fmt.Errorf("create seccomp filter: %w", err)
	}
	if err := fill(f, rules); err != nil {
		f.Release()
		return nil, err
	}
	return f, nil
}

func fill(f *libseccomp.ScmpFilter, rules []Rule) error {
	if err := f.SetBadArchAction(libseccomp.ActKillProcess); err != nil {
		return fmt.Errorf("set seccomp action for foreign ABIs: %w", err)
	}
	if err := f.SetNoNewPrivsBit(false); err != nil {
		return fmt.Errorf("leave no_new_privs to the caller: %w", err)
	}
	for _, r := range rules {
		for _, name := range r.Calls {
			if err := add(f, name, r); err != nil {
				return fmt.Errorf("add seccomp rule for %s: %w", name, err)
			}
		}
	}
	return nil
}

func add(f *libseccomp.ScmpFilter, name string, r Rule) error {
	nr, err := libseccomp.GetSyscallFromName(name)
	if err != nil {
		n, ok := numbers(name)
		if !ok {
			return err
		}
		nr = libseccomp.ScmpSyscall(n)
	}
	action := libseccomp.ActErrno.SetReturnCode(int16(r.Errno))
	if len(r.When) == 0 {
		return f.AddRuleExact(nr, action)
	}
	var conds []libseccomp.ScmpCondition
	for _, c := range r.When {
		cond, err := condition(c)
		if err != nil {
			return err
		}
		conds = append(conds, cond)
	}
	return f.AddRuleConditionalExact(nr, action, conds)
}

func condition(c Condition) (libseccomp.ScmpCondition, error) {
	switch c.Op {
	case Equal:
		return libseccomp.MakeCondition(c.Arg, libseccomp.CompareEqual, c.Value)
	case NotEqual:
		return libseccomp.MakeCondition(c.Arg, libseccomp.CompareNotEqual, c.Value)
	case Greater:
		return libseccomp.MakeCondition(c.Arg, libseccomp.CompareGreater, c.Value)
	case Masked:
		return libseccomp.MakeCondition(c.Arg, libseccomp.CompareMaskedEqual, c.Mask, c.Value)
	default:
		return libseccomp.ScmpCondition{}, fmt.Errorf("unknown comparison %d", c.Op)
	}
}

// digestOf exports to memory through a memfd: libseccomp before 2.6 writes to descriptors only.
func digestOf(f *libseccomp.ScmpFilter) (string, error) {
	fd, err := unix.MemfdCreate("stage-seccomp", unix.MFD_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("create memory for the seccomp program: %w", err)
	}
	mem := os.NewFile(uintptr(fd), "seccomp program")
	defer mem.Close()
	if err := f.ExportBPF(mem); err != nil {
		return "", fmt.Errorf("export seccomp program: %w", err)
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(mem, 0, 1<<20)); err != nil {
		return "", fmt.Errorf("read seccomp program: %w", err)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}
