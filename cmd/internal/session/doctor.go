package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"stage/bundle"
	"stage/cmd/internal/render"
	"stage/jail"
)

// Diagnose builds a throw-away jail and tells, per control, what this machine can enforce for this
// user. missing is a *ControlError for the first control of require that it cannot.
func Diagnose(ctx context.Context, require []string) (findings []render.Finding, missing, err error) {
	for _, id := range require {
		if len(bundle.ControlID(id).Dimensions()) == 0 {
			return nil, nil, invalidf("--require %s: no such control: `stage doctor` lists them", id)
		}
	}
	needs := machineNeeds()
	in, perr := probe(ctx)
	for _, d := range bundle.Dimensions() {
		for _, id := range bundle.ControlsOf(d) {
			if id.Dimensions()[0] == d {
				findings = append(findings, finding(id, in, perr))
			}
		}
	}
	for _, f := range findings {
		if missing == nil && slices.Contains(require, f.Control) && f.Level == string(bundle.Unenforced) {
			missing = &ControlError{Control: f.Control, Why: f.Detail, Fix: f.Fix}
		}
	}
	return append(needs, findings...), missing, nil
}

// finding is what the probe says about one control.
func finding(id bundle.ControlID, in *jail.Installed, perr error) render.Finding {
	f := render.Finding{Control: string(id), Level: string(bundle.Unenforced)}
	if flag, ok := notYet[string(id)]; ok {
		f.Detail, f.Fix = "not built into this version", "do without "+flag
		return f
	}
	switch id {
	case bundle.FSRules, bundle.ResWall, bundle.FSStaged, bundle.NetMediator:
		f.Level, f.Detail = string(bundle.Enforced), "by stage itself, outside the jail"
		if perr == nil {
			return f
		}
	}
	if perr != nil {
		f.Level, f.Detail, f.Fix = string(bundle.Unenforced), "a jail cannot be built: "+perr.Error(), "see the needs above"
		return f
	}
	r, ok := in.Control(string(id))
	if !ok {
		f.Detail = "installed only when a run asks for it"
		return f
	}
	f.Level, f.Detail = string(r.Level), r.Reason
	if f.Detail == "" {
		f.Detail = readBackText(r)
	}
	return f
}

func readBackText(r jail.ControlReport) string {
	var parts []string
	for _, b := range r.ReadBack {
		parts = append(parts, b.Source+" = "+b.Got)
	}
	if r.Canary != nil {
		parts = append(parts, "canary "+r.Canary.Act+": "+r.Canary.GotErrno)
	}
	return strings.Join(parts, "; ")
}

// probe starts a jail around nothing up to the point where the command would run.
func probe(ctx context.Context) (in *jail.Installed, err error) {
	dir, err := os.MkdirTemp("", "stage-doctor-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(dir)) }() // rmdir: mount points hold no data
	cfg := jail.Config{
		Exe: "/proc/self/exe", Mode: jailMode(), UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Hostname: "stage",
		Net: jail.NetMediated, Listeners: []string{proxyAddr},
		Argv: []string{"true"}, Env: []string{"PATH=/usr/bin:/bin"}, Cwd: "/", WorkDir: dir,
	}
	for _, p := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"} {
		cfg.Mounts = append(cfg.Mounts, jail.Mount{Kind: jail.Bind, Source: p, Dest: p, ReadOnly: true, Optional: true})
	}
	j, err := jail.Prepare(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	return j.Start(ctx)
}

// machineNeeds are the things of this machine that every Job needs.
func machineNeeds() []render.Finding {
	return []render.Finding{needFUSE(), needUserns(), fuseTransport(os.ReadFile)}
}

// What decides whether mounts are served over io_uring.
const (
	uringParameter = "/sys/module/fuse/parameters/enable_uring"
	uringDisabled  = "/proc/sys/kernel/io_uring_disabled"
)

// fuseTransport tells how mounts are served, and what makes them faster. No Job needs that.
func fuseTransport(read func(path string) ([]byte, error)) render.Finding {
	f := render.Finding{Control: "FUSE over io_uring", Level: "off", Detail: "Jobs use the read loop, which takes two to three times as long per request"}
	on, err := read(uringParameter)
	if err != nil {
		f.Fix = "Linux 6.14 or newer has it"
		return f
	}
	disabled, err := read(uringDisabled)
	switch {
	case strings.TrimSpace(string(on)) != "Y":
		f.Fix = "as root: echo Y > " + uringParameter + "; to keep it: echo 'options fuse enable_uring=1' > /etc/modprobe.d/fuse.conf"
	case err == nil && strings.TrimSpace(string(disabled)) != "0" && !(strings.TrimSpace(string(disabled)) == "1" && os.Geteuid() == 0):
		f.Fix = "as root: sysctl kernel.io_uring_disabled=0"
	default:
		f.Level, f.Detail = "ok", "Jobs use it"
	}
	return f
}

func needFUSE() render.Finding {
	f := render.Finding{Control: "/dev/fuse", Level: "ok", Detail: "can be opened"}
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		f.Level, f.Detail = "missing", err.Error()
		f.Fix = "as root: modprobe fuse && chmod 0666 /dev/fuse (udev does so where the fuse3 package is installed)"
		return f
	}
	if err := dev.Close(); err != nil {
		f.Detail = err.Error()
	}
	return f
}

// usernsSwitches are the sysctls that turn user namespaces off for ordinary users, and the value
// that does.
var usernsSwitches = []struct{ path, off, fix string }{
	{"/proc/sys/user/max_user_namespaces", "0", "as root: sysctl user.max_user_namespaces=10000"},
	{"/proc/sys/kernel/unprivileged_userns_clone", "0", "as root: sysctl kernel.unprivileged_userns_clone=1"},
	{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
		"as root: install an AppArmor profile for stage with `userns,`, or sysctl kernel.apparmor_restrict_unprivileged_userns=0"},
}

func needUserns() render.Finding {
	f := render.Finding{Control: "user namespaces", Level: "ok", Detail: "allowed"}
	if os.Getuid() == 0 {
		f.Detail = "not needed by root"
		return f
	}
	for _, s := range usernsSwitches {
		text, err := os.ReadFile(s.path)
		if err == nil && strings.TrimSpace(string(text)) == s.off {
			f.Level, f.Detail, f.Fix = "missing", fmt.Sprintf("%s is %s", filepath.Base(s.path), s.off), s.fix
			return f
		}
	}
	return f
}
