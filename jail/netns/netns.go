// Package netns reads back what a network namespace holds.
package netns

import (
	"fmt"
	"net"
	"os"
	"sort"
	"syscall"

	"github.com/vishvananda/netlink"
)

// State is what the calling process's network namespace holds.
type State struct {
	Inode  uint64
	Links  []string // "lo up", sorted
	Routes []string // of the main tables, "10.0.0.0/8 dev eth0"; none in a namespace without a way out
}

// Inode returns the identity of the calling process's network namespace.
func Inode() (uint64, error) {
	info, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return 0, fmt.Errorf("identify network namespace: %w", err)
	}
	return info.Sys().(*syscall.Stat_t).Ino, nil
}

// Read asks the kernel for the links and routes of the calling process's network namespace.
func Read() (State, error) {
	var s State
	var err error
	if s.Inode, err = Inode(); err != nil {
		return State{}, err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return State{}, fmt.Errorf("list network links: %w", err)
	}
	names := make(map[int]string)
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		s.Links = append(s.Links, a.Name+" "+upOrDown(a.Flags))
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return State{}, fmt.Errorf("list network routes: %w", err)
	}
	for _, r := range routes {
		s.Routes = append(s.Routes, routeText(r, names))
	}
	sort.Strings(s.Links)
	sort.Strings(s.Routes)
	return s, nil
}

func upOrDown(f net.Flags) string {
	if f&net.FlagUp != 0 {
		return "up"
	}
	return "down"
}

func routeText(r netlink.Route, names map[int]string) string {
	dst := "default"
	if r.Dst != nil {
		dst = r.Dst.String()
	}
	return dst + " dev " + names[r.LinkIndex]
}
