package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// options are what a mount is made of.
type options struct {
	source, mnt        string
	lower, upper, work string
	fixed              bool    // redirect_dir=off
	flags              uintptr // of mount(2)
}

// mountFlags are options that are bits of mount(2), and those that take a bit back.
var mountFlags = map[string]struct {
	bit uintptr
	off bool
}{
	"ro": {bit: unix.MS_RDONLY}, "rw": {bit: unix.MS_RDONLY, off: true},
	"nosuid": {bit: unix.MS_NOSUID}, "suid": {bit: unix.MS_NOSUID, off: true},
	"nodev": {bit: unix.MS_NODEV}, "dev": {bit: unix.MS_NODEV, off: true},
	"noexec": {bit: unix.MS_NOEXEC}, "exec": {bit: unix.MS_NOEXEC, off: true},
	"noatime": {bit: unix.MS_NOATIME}, "atime": {bit: unix.MS_NOATIME, off: true},
	"nodiratime": {bit: unix.MS_NODIRATIME}, "relatime": {bit: unix.MS_RELATIME},
	"sync": {bit: unix.MS_SYNCHRONOUS}, "dirsync": {bit: unix.MS_DIRSYNC},
}

// always holds for every mount of stagefs, so that asking for it changes nothing.
var always = []string{"defaults", "allow_other", "default_permissions"}

// parse reads the arguments of a mount helper: SOURCE, MNT, and options in any place. -t TYPE says
// nothing new.
func parse(args []string) (*options, error) {
	o := &options{}
	var words []string
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		switch {
		case arg == "-o" || arg == "-t":
			if len(args) == 0 {
				return nil, fmt.Errorf("%s without a value", arg)
			}
			if arg == "-o" {
				if err := o.set(args[0]); err != nil {
					return nil, err
				}
			}
			args = args[1:]
		case strings.HasPrefix(arg, "-o"):
			if err := o.set(arg[len("-o"):]); err != nil {
				return nil, err
			}
		case strings.HasPrefix(arg, "-"):
			return nil, fmt.Errorf("unknown flag %s", arg)
		default:
			words = append(words, arg)
		}
	}
	if len(words) != 2 {
		return nil, errors.New("usage: stagefs SOURCE MNT -o lowerdir=DIR,upperdir=DIR,workdir=DIR[,OPTION…]")
	}
	o.source, o.mnt = words[0], words[1]
	return o, o.resolve()
}

// set takes a list of options, of which the last of a kind holds.
func (o *options) set(list string) error {
	for _, opt := range split(list, ',') {
		name, value, _ := strings.Cut(opt, "=")
		dir := map[string]*string{"lowerdir": &o.lower, "upperdir": &o.upper, "workdir": &o.work}[name]
		flag, isFlag := mountFlags[opt]
		switch {
		case opt == "" || slices.Contains(always, opt):
		case dir != nil:
			layers := split(value, ':')
			if len(layers) != 1 {
				return fmt.Errorf("%s has %d layers; there can be one: mount the others over one another", name, len(layers))
			}
			*dir = strings.ReplaceAll(strings.ReplaceAll(layers[0], `\:`, ":"), `\,`, ",")
		case opt == "redirect_dir=on" || opt == "redirect_dir=off":
			o.fixed = value == "off"
		case isFlag && flag.off:
			o.flags &^= flag.bit
		case isFlag:
			o.flags |= flag.bit
		default:
			return fmt.Errorf("unknown option %q", opt)
		}
	}
	return nil
}

// split cuts list at every sep that no backslash stands before.
func split(list string, sep byte) []string {
	var parts []string
	start := 0
	for i := range len(list) {
		if list[i] == sep && (i == 0 || list[i-1] != '\\') {
			parts, start = append(parts, list[start:i]), i+1
		}
	}
	return append(parts, list[start:])
}

// resolve makes the paths absolute and free of links, as the server, which has another current
// directory and must not look through the mount, needs them.
func (o *options) resolve() error {
	for _, d := range []struct {
		name string
		path *string
	}{{"lowerdir", &o.lower}, {"upperdir", &o.upper}, {"workdir", &o.work}, {"mount point", &o.mnt}} {
		if *d.path == "" {
			return fmt.Errorf("no %s", d.name)
		}
		path, err := filepath.Abs(*d.path)
		if err == nil {
			path, err = filepath.EvalSymlinks(path)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		*d.path = path
	}
	return nil
}
