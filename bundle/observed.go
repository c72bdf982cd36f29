package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Observed is one measurement at a control point.
type Observed struct {
	Name   string
	Value  Value
	Unit   string // "count", "bytes", "ns"
	Source string // what counted
	Scope  string // what was counted: a root's name, a host
}

// Value is a number that was observed, or the reason why none was. 0 is an observation; null is
// none. It is made only by Seen, AtLeast and Unseen; the zero Value is neither and is not written.
type Value struct {
	n, lower *int64
	reason   Reason
}

// Seen returns the Value of what was observed to be n.
func Seen(n int64) Value { return Value{n: &n} }

// Unseen returns the Value of what was not observed.
func Unseen(why Reason) Value { return Value{reason: why} }

// AtLeast returns the Value of what was observed only in part, n of it.
func AtLeast(n int64, why Reason) Value { return Value{lower: &n, reason: why} }

// Number returns the number observed; ok is false where there is none.
func (v Value) Number() (n int64, ok bool) {
	if v.n == nil {
		return 0, false
	}
	return *v.n, true
}

// LowerBound returns what is known of a Value that was observed only in part.
func (v Value) LowerBound() (n int64, ok bool) {
	if v.lower == nil {
		return 0, false
	}
	return *v.lower, true
}

// Reason returns why nothing was observed, "" where something was.
func (v Value) Reason() Reason { return v.reason }

// Equal reports whether v and w say the same.
func (v Value) Equal(w Value) bool {
	return same(v.n, w.n) && same(v.lower, w.lower) && v.reason == w.reason
}

func same(a, b *int64) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func (v Value) check() error {
	if (v.n == nil) == (v.reason == "") {
		return errors.New("want exactly one of value and reason")
	}
	if v.n != nil && v.lower != nil {
		return errors.New("a value has no lower bound beside it")
	}
	return nil
}

// Reason is why something is null or not enforced. The zero Reason is none, null in JSON.
type Reason string

// The reasons.
const (
	NotObservable Reason = "not_observable" // no control point sees it
	NotInstalled  Reason = "not_installed"  // the control is not there
	ObserverLost  Reason = "observer_lost"  // what counted it died
	NotRequested  Reason = "not_requested"  // nobody asked for it
)

var reasons = []Reason{NotObservable, NotInstalled, ObserverLost, NotRequested}

// MarshalJSON writes the reason, null for none.
func (r Reason) MarshalJSON() ([]byte, error) {
	if r == "" {
		return []byte("null"), nil
	}
	if err := oneOf("reason", r, reasons); err != nil {
		return nil, err
	}
	return json.Marshal(string(r))
}

// UnmarshalJSON reads a reason or null.
func (r *Reason) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		*r = ""
		return nil
	}
	if err := json.Unmarshal(data, (*string)(r)); err != nil {
		return err
	}
	return oneOf("reason", *r, reasons)
}

type observedJSON struct {
	Name       string `json:"name"`
	Value      *int64 `json:"value"`
	Unit       string `json:"unit"`
	LowerBound *int64 `json:"lower_bound"`
	Reason     Reason `json:"reason"`
	Source     string `json:"source"`
	Scope      string `json:"scope"`
}

// MarshalJSON writes the measurement and refuses one without value and reason.
func (o Observed) MarshalJSON() ([]byte, error) {
	if err := o.Value.check(); err != nil {
		return nil, fmt.Errorf("observed %s: %w", o.Name, err)
	}
	return json.Marshal(observedJSON{o.Name, o.Value.n, o.Unit, o.Value.lower, o.Value.reason, o.Source, o.Scope})
}

// UnmarshalJSON reads a measurement and refuses one that has both value and reason, or neither.
func (o *Observed) UnmarshalJSON(data []byte) error {
	var j observedJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*o = Observed{j.Name, Value{j.Value, j.LowerBound, j.Reason}, j.Unit, j.Source, j.Scope}
	if err := o.Value.check(); err != nil {
		return fmt.Errorf("observed %s: %w", o.Name, err)
	}
	return nil
}
