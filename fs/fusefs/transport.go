package fusefs

import "fmt"

// Transport says how requests come from the kernel and replies go back. Notifications, FORGET and
// INTERRUPT always pass over /dev/fuse.
type Transport uint8

// The transports.
const (
	Auto  Transport = iota // io_uring where the kernel offers it, else the read loop
	Loop                   // read(2) and write(2) of /dev/fuse
	Uring                  // io_uring, or the mount is dead
)

// transports are the names of the transports, in their order.
var transports = [...]string{"auto", "loop", "uring"}

// String returns the name that ParseTransport takes.
func (t Transport) String() string {
	if int(t) < len(transports) {
		return transports[t]
	}
	return fmt.Sprintf("transport %d", uint8(t))
}

// ParseTransport returns the transport of a name; "" is Auto.
func ParseTransport(name string) (Transport, error) {
	for i, t := range transports {
		if t == name {
			return Transport(i), nil
		}
	}
	if name == "" {
		return Auto, nil
	}
	return Auto, fmt.Errorf("transport %q: want auto, loop or uring", name)
}
