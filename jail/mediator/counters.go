package mediator

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// HostStats counts what one host and port saw.
type HostStats struct {
	Host        string
	Port        uint16
	Connections uint64 // established to the host
	Requests    uint64 // let through; a CONNECT is one
	BytesIn     uint64 // from the host to the Job
	BytesOut    uint64
	Failed      uint64 // allowed, but could not be resolved or connected to
	Denied      uint64
	Reason      string // of the last denial
	Rule        string // that decided it
}

// Overflow is the Host under which everything is counted that came after maxHosts different ones,
// so that a Job that invents names does not fill the supervisor's memory.
const Overflow = "(other hosts)"

const maxHosts = 4096

type counter struct {
	connections, requests, in, out, failed, denied atomic.Uint64

	mu           sync.Mutex
	reason, rule string // mu
}

func (c *counter) deny(reason, rule string) {
	c.denied.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reason, c.rule = reason, rule
}

func (c *counter) stats(t target) HostStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return HostStats{t.host, t.port, c.connections.Load(), c.requests.Load(), c.in.Load(), c.out.Load(), c.failed.Load(),
		c.denied.Load(), c.reason, c.rule}
}

// counters holds one counter for each target.
type counters struct {
	mu sync.Mutex
	m  map[target]*counter // mu
}

func (cs *counters) of(t target) *counter {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.m == nil {
		cs.m = map[target]*counter{}
	}
	if c, ok := cs.m[t]; ok {
		return c
	}
	if len(cs.m) >= maxHosts {
		t = target{host: Overflow}
		if c, ok := cs.m[t]; ok {
			return c
		}
	}
	c := new(counter)
	cs.m[t] = c
	return c
}

// stats returns all counts, ordered by host and port.
func (cs *counters) stats() []HostStats {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	out := make([]HostStats, 0, len(cs.m))
	for t, c := range cs.m {
		out = append(out, c.stats(t))
	}
	slices.SortFunc(out, func(a, b HostStats) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port)) })
	return out
}
