// Package mediator is the only way out of a Job's network namespace: an HTTP proxy and plain
// forwarders that run outside it, ask the policy about every target and count what passes.
//
//	command ──CONNECT, GET http://…──▶ Proxy ──Decide──▶ lookup ──DecideAddr──▶ dial that address ──▶ host
//	command ──TCP to a named loopback service──▶ Forwarder ──────────────────▶ the same service on the host
//
// Locks: Proxy.mu, Forwarder.mu and counters.mu are leaves; nothing is called with one held.
package mediator
