package jail

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"strconv"
	"unicode/utf8"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"stage/jail/enter"
)

const containerID = "jail"

// containerConfig describes the container to libcontainer. What it leaves out is done elsewhere: the root file
// system is ready, and the shim drops the last capability, sets no_new_privs and loads the seccomp filter.
func (h *holder) containerConfig() *configs.Config {
	cfg := h.order.Config.config()
	rootless := cfg.Mode == Rootless
	c := &configs.Config{
		Rootfs:       path.Join(cfg.WorkDir, rootName),
		Readonlyfs:   cfg.Skip != "mount.root",
		Umask:        &h.umask,
		Hostname:     cfg.Hostname,
		Namespaces:   containerNamespaces(cfg),
		Mounts:       h.containerMounts(cfg),
		Capabilities: shimCapabilities(cfg),
		// No limits, no cgroup: the first join of one waits some 10 ms for RCU. libcontainer does without when it
		// may not make any, which holder.prepare sees to.
		RootlessCgroups: true,
		Cgroups:         &cgroups.Cgroup{Name: CgroupName(cfg.WorkDir), Rootless: true, Resources: &cgroups.Resources{}},
		NoNewKeyring:    true, // keyctl is refused as a whole; a ring per Job would use up the user's quota
	}
	if cfg.Skip == "ns.uts" {
		c.Hostname = ""
	}
	if c.Namespaces.Contains(configs.NEWNET) {
		c.Networks = []*configs.Network{{Type: "loopback"}}
		c.Sysctl = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
	}
	if !rootless && c.Namespaces.Contains(configs.NEWNS) {
		// Sysctls and the like are checked by owner: uid 0 without capabilities could write them.
		c.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/mtrr", "/proc/sys", "/proc/sysrq-trigger"}
		c.MaskPaths = []string{"/proc/acpi", "/proc/kallsyms", "/proc/kcore", "/proc/key-users", "/proc/keys", "/proc/kpagecgroup", "/proc/kpagecount",
			"/proc/kpageflags", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/slabinfo", "/proc/timer_list",
			"/proc/timer_stats", "/proc/vmallocinfo", "/sys/firmware"}
	}
	return c
}

// CgroupName is the name of a jail's cgroup where it has one: the same WorkDir gives it to who cleans up.
func CgroupName(workDir string) string {
	sum := sha256.Sum256([]byte(workDir))
	return "stage-" + hex.EncodeToString(sum[:8])
}

func containerNamespaces(cfg Config) configs.Namespaces {
	all := []struct {
		kind    configs.NamespaceType
		control string
	}{
		{configs.NEWNS, "ns.mount"}, {configs.NEWPID, "ns.pid"}, {configs.NEWIPC, "ns.ipc"},
		{configs.NEWUTS, "ns.uts"}, {configs.NEWNET, "net.netns"}, {configs.NEWCGROUP, ""},
	}
	var ns configs.Namespaces
	for _, n := range all {
		if n.kind == configs.NEWNET && cfg.Net == NetHost || cfg.Skip != "" && cfg.Skip == n.control {
			continue
		}
		ns = append(ns, configs.Namespace{Type: n.kind})
	}
	return ns
}

func (h *holder) containerMounts(cfg Config) []*configs.Mount {
	const kernel = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	mounts := []*configs.Mount{{Source: "proc", Destination: "/proc", Device: "proc", Flags: kernel}}
	if cfg.Net != NetHost && cfg.Skip != "net.netns" {
		mounts = append(mounts, &configs.Mount{Source: "sysfs", Destination: "/sys", Device: "sysfs", Flags: kernel | unix.MS_RDONLY})
	}
	for i, dest := range h.root.later {
		source := path.Join(cfg.WorkDir, laterName, strconv.Itoa(i))
		mounts = append(mounts, &configs.Mount{Source: source, Destination: dest, Device: "bind", Flags: unix.MS_BIND | unix.MS_REC})
	}
	return mounts
}

// shimCapabilities is the one capability the shim still needs: to map its own uid back into a user namespace of
// its own (rootless), or to empty its bounding set (root).
func shimCapabilities(cfg Config) *configs.Capabilities {
	one := []string{"CAP_SETPCAP"}
	if cfg.Mode == Rootless && cfg.Skip != "ns.user" {
		one = []string{"CAP_SETFCAP"}
	}
	return &configs.Capabilities{Bounding: one, Effective: one, Permitted: one}
}

// containerProcess is the shim. Its standard streams are not the command's: libcontainer changes the owner of
// what it is given there, which may be a file of the user's.
func (h *holder) containerProcess(facts string) (*libcontainer.Process, error) {
	cfg := h.order.Config
	role := enter.Role{Name: enter.Shim, Rootless: cfg.Mode == Rootless, UID: cfg.UID, GID: cfg.GID, Skip: cfg.Skip}
	env := []string{role.Environ(), "HOME=/"}
	if cfg.Skip == "env.allowlist" {
		env = append(env, "STAGE_TEST_LEAK=1")
	}
	p := &libcontainer.Process{
		Args:       []string{shimPath, facts},
		Env:        env,
		Cwd:        "/",
		ExtraFiles: h.shimFiles,
		Init:       true,
	}
	if cfg.Mode == Root {
		groups, err := os.Getgroups()
		if err != nil {
			return nil, fmt.Errorf("list groups: %w", err)
		}
		p.AdditionalGroups = groups
	}
	return p, nil
}

// startContainer returns when the shim is being executed.
func (h *holder) startContainer(facts string) (*libcontainer.Process, error) {
	for _, dest := range h.root.later {
		if !utf8.ValidString(dest) {
			return nil, fmt.Errorf("mount at %q: a mount inside a view needs a UTF-8 name", dest)
		}
	}
	process, err := h.containerProcess(facts)
	if err != nil {
		return nil, err
	}
	state := path.Join(string(h.order.Config.WorkDir), stateName)
	if h.container, err = libcontainer.Create(state, containerID, h.containerConfig()); err != nil {
		return nil, fmt.Errorf("create container: %w", err)
	}
	if err := h.container.Run(process); err != nil {
		return nil, fmt.Errorf("run container: %w", err)
	}
	return process, nil
}
