package policy

import (
	"cmp"
	"fmt"
)

// Dimension is one of the six areas in which a run is restricted.
type Dimension string

// The dimensions, in the order in which records and messages show them.
const (
	FileReads    Dimension = "file_reads"
	FileWrites   Dimension = "file_writes"
	Network      Dimension = "network"
	Subprocesses Dimension = "subprocesses"
	Credentials  Dimension = "credentials"
	Resources    Dimension = "resources"
)

// Dimensions returns all dimensions in their order.
func Dimensions() []Dimension {
	return []Dimension{FileReads, FileWrites, Network, Subprocesses, Credentials, Resources}
}

// Verb is what a rule does to its object.
type Verb string

// The verbs. Allow lists intersect, Deny and Hide lists unite, of Limits the lowest holds.
const (
	Allow Verb = "allow"
	Deny  Verb = "deny"
	Hide  Verb = "hide"
	Limit Verb = "limit"
)

// LayerName says which layer a rule comes from.
type LayerName string

// The parties of a request, and the layers in the order in which they are listed.
const (
	FromFlag   LayerName = "flag"
	FromPreset LayerName = "preset"

	User      LayerName = "user"
	Workspace LayerName = "workspace"
	Session   LayerName = "session"
	Executor  LayerName = "executor"
)

// Source is where a rule was written: a layer's file and line, or for a request the flag
// ("--read") or preset ("codex") in File and no line.
type Source struct {
	Layer LayerName
	File  string
	Line  int
}

// String returns the source as messages show it: "policy.toml:3", "--read", "preset codex".
func (s Source) String() string {
	switch {
	case s.Line > 0:
		return fmt.Sprintf("%s:%d", s.File, s.Line)
	case s.Layer == FromPreset:
		return "preset " + s.File
	case s.File != "":
		return s.File
	default:
		return string(s.Layer)
	}
}

func (s Source) compare(o Source) int {
	return cmp.Or(cmp.Compare(s.Layer, o.Layer), cmp.Compare(s.File, o.File), cmp.Compare(s.Line, o.Line))
}

// Rule is one statement of a request or layer. Object is the key of the policy file it stands for
// ("allow", "stage", "host", "env", "timeout" …), Value what it says, in canonical form: bytes and
// nanoseconds as decimal numbers, hosts with their ports. An Allow with an empty Value is an empty
// allow list: the layer has an opinion, and nothing is allowed.
type Rule struct {
	Dimension Dimension
	Verb      Verb
	Object    string
	Value     string
	Source    Source
}

// String returns the rule as messages show it, with its source: `hide ~/.ssh (policy.toml:3)`.
// The zero Rule, which decides where nothing was requested, is "not requested".
func (r Rule) String() string {
	switch {
	case r.Verb == "":
		return "not requested"
	case r.Verb == Allow && r.Value == "":
		return fmt.Sprintf("%s is not in the allow list (%s)", r.Object, r.Source)
	case r.Verb == Limit:
		return fmt.Sprintf("limit %s %s (%s)", r.Object, r.Value, r.Source)
	default:
		return fmt.Sprintf("%s %s (%s)", r.Verb, r.Value, r.Source)
	}
}

func (r Rule) compare(o Rule) int {
	return cmp.Or(cmp.Compare(r.Dimension, o.Dimension), cmp.Compare(r.Verb, o.Verb), cmp.Compare(r.Object, o.Object),
		cmp.Compare(r.Value, o.Value), r.Source.compare(o.Source))
}

// Error is a policy or flag that cannot be admitted. Line is 0 where File is a flag. Msg names the
// rule that is broken, Next what to do about it.
type Error struct {
	File string
	Line int
	Msg  string
	Next string
}

// Error returns "file:line: what is wrong: what to do".
func (e *Error) Error() string {
	s := e.File
	if e.Line > 0 {
		s = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	s += ": " + e.Msg
	if e.Next != "" {
		s += ": " + e.Next
	}
	return s
}

func (s Source) errorf(next, format string, args ...any) *Error {
	return &Error{File: s.File, Line: s.Line, Msg: fmt.Sprintf(format, args...), Next: next}
}
