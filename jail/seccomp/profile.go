package seccomp

import "golang.org/x/sys/unix"

// Rule refuses a group of system calls, or some of their uses.
type Rule struct {
	Calls  []string
	When   []Condition // all must hold; none: always
	Errno  unix.Errno
	Userns bool   // dropped when user namespaces are allowed
	Reason string // why a command has no need of it, or what it would reach
}

// Condition compares the 64-bit value of one argument. High bits that the kernel ignores count as different.
type Condition struct {
	Arg   uint
	Op    Op
	Value uint64
	Mask  uint64 // Masked only
}

// Op is how a Condition compares.
type Op uint8

const (
	// Equal matches the exact value.
	Equal Op = iota
	// NotEqual matches every other value.
	NotEqual
	// Greater matches larger values.
	Greater
	// Masked matches when the bits of Mask have those of Value.
	Masked
)

// numbers knows the calls that are younger than libseccomp 2.5; they are the same on every 64-bit architecture.
func numbers(name string) (int, bool) {
	switch name {
	case "open_tree_attr":
		return 467, true
	default:
		return 0, false
	}
}

// Profile returns the refused calls. What is not named is allowed: the profile closes doors that
// namespaces, mounts and empty capability sets leave open, and must not break compilers, debuggers or agents.
func Profile(allowUserns bool) []Rule {
	var p []Rule
	for _, r := range profile() {
		if !r.Userns || !allowUserns {
			p = append(p, r)
		}
	}
	return append(p, families()...)
}

func profile() []Rule {
	low32 := func(v uint64) []Condition { return []Condition{{Arg: 1, Op: Masked, Mask: 0xffffffff, Value: v}} }
	newuser := []Condition{{Arg: 0, Op: Masked, Mask: unix.CLONE_NEWUSER, Value: unix.CLONE_NEWUSER}}
	return []Rule{
		{
			Calls: []string{"io_uring_setup", "io_uring_enter", "io_uring_register"}, Errno: unix.ENOSYS,
			Reason: "its operations pass no system call filter; programs fall back on ENOSYS",
		}, {
			Calls: []string{"ioctl"}, When: low32(unix.TIOCSTI), Errno: unix.EPERM,
			Reason: "pushes key strokes into the terminal the caller goes on using",
		}, {
			Calls: []string{"ioctl"}, When: low32(unix.TIOCLINUX), Errno: unix.EPERM,
			Reason: "pastes into a virtual console",
		}, {
			Calls: []string{"add_key", "request_key", "keyctl"}, Errno: unix.EPERM,
			Reason: "user keyrings belong to the host's uid and are in no namespace",
		}, {
			Calls: []string{"bpf"}, Errno: unix.EPERM,
			Reason: "code in the kernel",
		}, {
			Calls: []string{"perf_event_open"}, Errno: unix.EPERM,
			Reason: "observes other processes of the host's uid; large attack surface",
		}, {
			Calls: []string{"userfaultfd"}, Errno: unix.EPERM,
			Reason: "stops the kernel in the middle of a copy; a tool of exploits",
		}, {
			Calls: []string{"kexec_load", "kexec_file_load"}, Errno: unix.EPERM,
			Reason: "replaces the kernel",
		}, {
			Calls: []string{"init_module", "finit_module", "delete_module"}, Errno: unix.EPERM,
			Reason: "code in the kernel",
		}, {
			Calls: []string{"open_by_handle_at", "name_to_handle_at"}, Errno: unix.EPERM,
			Reason: "reaches files by handle, past the mounts that hide them",
		}, {
			Calls: []string{"clone"}, When: newuser, Errno: unix.EPERM, Userns: true,
			Reason: "a user namespace gives capabilities over new namespaces and widens the reachable kernel",
		}, {
			Calls: []string{"unshare"}, When: newuser, Errno: unix.EPERM, Userns: true,
			Reason: "as clone",
		}, {
			Calls: []string{"clone3"}, Errno: unix.ENOSYS, Userns: true,
			Reason: "its flags lie in memory, where a filter cannot look; the C library falls back on clone",
		}, {
			Calls: []string{"setns"}, Errno: unix.EPERM, Userns: true,
			Reason: "enters other namespaces",
		}, {
			Calls: []string{"mount", "umount2", "pivot_root", "fsopen", "fspick", "fsconfig", "fsmount", "open_tree",
				"open_tree_attr", "move_mount", "mount_setattr"},
			Errno: unix.EPERM, Userns: true,
			Reason: "the mounts of the jail are what hides the host",
		},
	}
}

// families leaves sockets of AF_UNIX, AF_INET, AF_INET6 and, of AF_NETLINK, routing alone. Others reach past
// the network namespace (AF_VSOCK, AF_ALG) or into rarely used kernel code. socket(2) takes an int, so a
// value above 32 bits is refused as well although the kernel would cut it.
func families() []Rule {
	const reason = "only unix, inet, inet6 and routing netlink sockets respect the network namespace"
	refuse := func(when ...Condition) Rule {
		return Rule{Calls: []string{"socket", "socketpair"}, When: when, Errno: unix.EAFNOSUPPORT, Reason: reason}
	}
	rules := []Rule{
		refuse(Condition{Arg: 0, Op: Greater, Value: unix.AF_NETLINK}),
		refuse(Condition{Arg: 0, Op: Equal, Value: unix.AF_NETLINK}, Condition{Arg: 2, Op: NotEqual, Value: unix.NETLINK_ROUTE}),
	}
	for f := uint64(0); f < unix.AF_NETLINK; f++ {
		switch f {
		case unix.AF_UNIX, unix.AF_INET, unix.AF_INET6:
		default:
			rules = append(rules, refuse(Condition{Arg: 0, Op: Equal, Value: f}))
		}
	}
	return rules
}
