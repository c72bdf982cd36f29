package session

import (
	"errors"
	"net"
	"sync"

	"stage/bundle"
	"stage/jail/mediator"
	"stage/policy"
)

// network is what the supervisor serves on listeners inside the Job's network namespace.
type network struct {
	proxy    *mediator.Proxy // nil: the network is not mediated
	services []*mediator.Forwarder
	wg       sync.WaitGroup
	err      error // of the proxy's Serve, valid after close
}

// listenAddrs are the addresses the jail opens for startNetwork, the proxy's first.
func (a *Admission) listenAddrs() []string {
	if a.Plan.Net.Mode != policy.NetAllow {
		return nil
	}
	addrs := []string{proxyAddr}
	for _, s := range a.Plan.Net.Loopback {
		addrs = append(addrs, s.Listen)
	}
	return addrs
}

// startNetwork serves the listeners of listenAddrs, in their order.
func startNetwork(a *Admission, listeners []net.Listener) *network {
	n := &network{}
	if a.Plan.Net.Mode != policy.NetAllow || len(listeners) == 0 {
		return n
	}
	n.proxy = mediator.NewProxy(a.Plan.Hosts(), nil)
	n.wg.Add(1)
	go func() {
		defer n.wg.Done()
		n.err = ignoreClosed(n.proxy.Serve(listeners[0]))
	}()
	for i, s := range a.Plan.Net.Loopback {
		n.services = append(n.services, mediator.Forward(listeners[i+1], s.Dial, nil))
	}
	return n
}

// ignoreClosed takes an already closed listener for what it is: the jail closes its listeners before
// the mediator is told to end.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// close ends serving and hands over what was counted.
func (n *network) close(e *evidence) error {
	if n.proxy == nil {
		return nil
	}
	err := ignoreClosed(n.proxy.Close())
	n.wg.Wait()
	e.proxy = n.proxy.Stats()
	for _, s := range n.services {
		err = errors.Join(err, ignoreClosed(s.Close()))
		e.services = append(e.services, s.Stats())
	}
	return errors.Join(err, n.err)
}

// mediatorState is the evidence for the mediator: its listeners were made inside the Job's network
// namespace, which has no other way out, and are served from here.
func (a *Admission) mediatorState(listeners []net.Listener) bundle.Installed {
	in := bundle.Installed{Level: bundle.Enforced}
	for i, want := range a.listenAddrs() {
		got := "none"
		if i < len(listeners) {
			got = listeners[i].Addr().String()
		}
		in.ReadBack = append(in.ReadBack, bundle.ReadBack{Source: "listener", Want: want, Got: got})
		if got != want {
			in.Level, in.Reason = bundle.Unenforced, bundle.NotInstalled
		}
	}
	return in
}
