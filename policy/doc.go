// Package policy says what a run may do: it parses policy files, narrows a request through them and
// decides about paths, hosts and names. It is pure: it opens nothing and asks nobody.
package policy
