package jail

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"stage/jail/netns"
)

// Addresses that documentation reserves: nobody is there even if a packet got out.
var (
	outside4 = &unix.SockaddrInet4{Port: 9, Addr: [4]byte{192, 0, 2, 1}}
	outside6 = &unix.SockaddrInet6{Port: 9, Addr: [16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1}}
)

func (w *world) netNetns() *probe {
	p := w.probe("net.netns")
	if w.cfg.Net == NetHost {
		return p.limit(Unenforced, "the host's network was asked for")
	}
	w.otherNamespace(p, "net", w.order.Host.Namespaces["net"])
	state, err := netns.Read()
	p.check(err)
	p.same("network links", "lo up", list(state.Links))
	away := slices.DeleteFunc(slices.Clone(state.Routes), func(r string) bool { return strings.HasSuffix(r, " dev lo") })
	p.same("routes to other links", "none", list(away))
	p.refused("connect 192.0.2.1:9", tryConnect(unix.AF_INET, outside4), unix.ENETUNREACH)
	p.refused("connect [2001:db8::1]:9", tryConnect(unix.AF_INET6, outside6), unix.ENETUNREACH, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT)
	return p
}

func (w *world) netFamilies() *probe {
	p := w.probe("net.families")
	p.same("socket(AF_UNIX)", "0", errnoName(trySocket(unix.AF_UNIX, unix.SOCK_STREAM, 0)))
	p.same("socket(AF_NETLINK, ROUTE)", "0", errnoName(trySocket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)))
	for _, s := range []struct {
		name             string
		family, protocol int
	}{
		{"socket(AF_VSOCK)", unix.AF_VSOCK, 0},
		{"socket(AF_PACKET)", unix.AF_PACKET, 0},
		{"socket(AF_NETLINK, KOBJECT_UEVENT)", unix.AF_NETLINK, unix.NETLINK_KOBJECT_UEVENT},
	} {
		p.refused(s.name, trySocket(s.family, unix.SOCK_DGRAM, s.protocol), unix.EAFNOSUPPORT)
	}
	return p
}

// netUnix proves that sockets of host processes cannot be connected: not by an abstract name, and not by a path
// that is visible in the jail.
func (w *world) netUnix() *probe {
	p := w.probe("net.unix")
	shares := w.socketShares()
	p.judge("directories whose sockets can be connected", "none", list(slices.Concat(w.facts.Unsealed, shares)), true)
	if len(w.order.Host.Reachable) > 0 {
		p.judge("listening sockets in them", "none", list(strs(w.order.Host.Reachable)), true)
	}
	for _, file := range w.order.Host.Sockets {
		if isSocket(string(file)) && !w.inShare(string(file), shares) {
			p.refused("connect "+string(file), tryConnect(unix.AF_UNIX, &unix.SockaddrUnix{Name: string(file)}),
				unix.ECONNREFUSED, unix.EACCES, unix.ENOENT)
		}
	}
	if w.cfg.Net == NetHost {
		return p.limit(Cooperative, "the host's network was asked for: abstract unix sockets can be connected")
	}
	abstract := &unix.SockaddrUnix{Name: "@" + w.order.Host.Abstract}
	p.refused("connect an abstract socket of the host", tryConnect(unix.AF_UNIX, abstract), unix.ECONNREFUSED)
	var why []string
	if len(shares) > 0 {
		why = append(why, "sockets of the host in what is shared can be connected: "+list(shares))
	}
	if len(w.facts.Unsealed) > 0 {
		why = append(why, "no overlay of these directories could be mounted: "+list(w.facts.Unsealed))
	}
	if len(why) > 0 {
		return p.limit(Cooperative, strings.Join(why, "; "))
	}
	return p
}

// socketShares are the binds in which a socket is the one of the host: only a read-only directory is sealed.
func (w *world) socketShares() []string {
	var shares []string
	for i, m := range w.cfg.Mounts {
		if m.Kind != Bind || slices.Contains(w.facts.Absent, i) || slices.Contains(w.facts.Links, i) {
			continue
		}
		if isSocket(m.Dest) || !m.ReadOnly && isDirectoryAt(m.Dest) {
			shares = append(shares, m.Dest)
		}
	}
	return shares
}

func isSocket(name string) bool {
	var st unix.Stat_t
	return unix.Stat(name, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

func (w *world) netMediator(listeners []*os.File) *probe {
	if w.cfg.Net != NetMediated {
		return nil
	}
	p := w.probe("net.mediator")
	for i, want := range w.cfg.Listeners {
		if i >= len(listeners) {
			p.fail(fmt.Sprintf("no listener for %s", want))
			continue
		}
		got, err := listenerAddress(listeners[i])
		p.check(err)
		p.judge("listener", want, got, want == got || strings.HasSuffix(want, ":0"))
	}
	return p
}
