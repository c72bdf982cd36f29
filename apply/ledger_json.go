package apply

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"stage/fs/tree"
	"stage/journal"
)

// Lists in a ledger name each path by what differs from the one before: a deep tree of long names
// would else be written down with the whole way to each of them. What a step says of paths that are
// its own Path, or lie beside it, is left out.

// states is a list of published states.
type states []published

// stateWire is the JSON of one of states.
type stateWire struct {
	Keep  int        `json:"keep,omitempty"` // names that Path begins with like the path before
	Path  tree.Path  `json:"path"`           // the rest of it
	Node  tree.Node  `json:"node"`
	Stays bool       `json:"stays,omitempty"` // From is Path
	From  *tree.Path `json:"from,omitempty"`

	Staged *tree.Node `json:"staged,omitempty"`
	Forget bool       `json:"forget,omitempty"`
}

// MarshalJSON writes the list.
func (l states) MarshalJSON() ([]byte, error) {
	out := make([]stateWire, len(l))
	var c chain
	for i, p := range l {
		w := stateWire{Node: p.Node, From: p.From, Staged: p.Staged, Forget: p.Forget}
		if p.From != nil && *p.From == p.Path {
			w.Stays, w.From = true, nil
		}
		var err error
		if w.Keep, w.Path, err = c.shorten(p.Path); err != nil {
			return nil, err
		}
		out[i] = w
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (l *states) UnmarshalJSON(data []byte) error {
	var in []stateWire
	if err := decodeStrict(data, &in); err != nil {
		return err
	}
	*l = nil
	var c chain
	for _, w := range in {
		p, err := c.restore(w.Keep, w.Path)
		if err != nil {
			return err
		}
		s := published{Path: p, Node: w.Node, From: w.From, Staged: w.Staged, Forget: w.Forget}
		if w.Stays {
			s.From = &p
		}
		*l = append(*l, s)
	}
	return nil
}

// dirList is the directories of a batch.
type dirList []dir

// dirWire is the JSON of one of dirList. Rest is nil where it is Path.
type dirWire struct {
	Keep    int        `json:"keep,omitempty"`
	Path    tree.Path  `json:"path"`
	Rest    *tree.Path `json:"rest,omitempty"`
	Gone    bool       `json:"gone"`
	Covered bool       `json:"covered"`
	Old     tree.Node  `json:"old"`
	Mode    tree.Mode  `json:"mode"`
	Mtime   tree.Time  `json:"mtime"`
}

// MarshalJSON writes the list.
func (l dirList) MarshalJSON() ([]byte, error) {
	out := make([]dirWire, len(l))
	var c chain
	for i, d := range l {
		w := dirWire{Rest: unless(d.Rest, d.Path), Gone: d.Gone, Covered: d.Covered, Old: d.Old, Mode: d.Mode, Mtime: d.Mtime}
		var err error
		if w.Keep, w.Path, err = c.shorten(d.Path); err != nil {
			return nil, err
		}
		out[i] = w
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (l *dirList) UnmarshalJSON(data []byte) error {
	var in []dirWire
	if err := decodeStrict(data, &in); err != nil {
		return err
	}
	*l = nil
	var c chain
	for _, w := range in {
		p, err := c.restore(w.Keep, w.Path)
		if err != nil {
			return err
		}
		*l = append(*l, dir{Path: p, Rest: orElse(w.Rest, p), Gone: w.Gone, Covered: w.Covered, Old: w.Old, Mode: w.Mode, Mtime: w.Mtime})
	}
	return nil
}

// stepList is the steps of a batch.
type stepList []step

// stepWire is the JSON of one of stepList. Temp is the name beside Path, nil for none. A path that
// is nil is Path: but Made and Rest, which are then Temp.
type stepWire struct {
	Act   act        `json:"act"`
	Keep  int        `json:"keep,omitempty"`
	Path  tree.Path  `json:"path"`
	From  *tree.Path `json:"from,omitempty"`
	Temp  *tree.Path `json:"temp,omitempty"`
	Made  *tree.Path `json:"made,omitempty"`
	Rest  *tree.Path `json:"rest,omitempty"`
	Known *tree.Path `json:"known,omitempty"`
	End   *tree.Path `json:"end,omitempty"`
	Fetch int        `json:"fetch,omitempty"`
	In    *tree.Node `json:"in,omitempty"`
	Out   *tree.Node `json:"out,omitempty"`
	Since tree.Time  `json:"since,omitempty"`
	New   *tree.Node `json:"new,omitempty"`
}

// MarshalJSON writes the list.
func (l stepList) MarshalJSON() ([]byte, error) {
	out := make([]stepWire, len(l))
	var c chain
	for i := range l {
		s := &l[i]
		w := stepWire{
			Act: s.Act, Made: unless(s.Made, s.Temp), Rest: unless(s.Rest, s.Temp), Known: unless(s.Known, s.Path), End: unless(s.End, s.Path),
			Fetch: s.Fetch, In: s.In, Out: s.Out, Since: s.Since, New: s.New,
		}
		var err error
		if w.Keep, w.Path, err = c.shorten(s.Path); err != nil {
			return nil, err
		}
		if !s.hasTemp() {
			w.From = unless(s.From, s.Path)
		} else if w.Temp, err = beside(s.Temp, s.Path); err != nil {
			return nil, err
		}
		out[i] = w
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (l *stepList) UnmarshalJSON(data []byte) error {
	var in []stepWire
	if err := decodeStrict(data, &in); err != nil {
		return err
	}
	*l = nil
	var c chain
	for _, w := range in {
		p, err := c.restore(w.Keep, w.Path)
		if err != nil {
			return err
		}
		s := step{Act: w.Act, Path: p, Known: orElse(w.Known, p), End: orElse(w.End, p), Fetch: w.Fetch, In: w.In, Out: w.Out, Since: w.Since, New: w.New}
		if s.hasTemp() {
			if w.Temp == nil {
				return fmt.Errorf("step at %q has no temporary name: %w", p, journal.ErrCorrupt)
			}
			if s.Temp, err = p.Parent().Child(w.Temp.String()); err != nil {
				return err
			}
		} else {
			s.From = orElse(w.From, p)
		}
		s.Made, s.Rest = orElse(w.Made, s.Temp), orElse(w.Rest, s.Temp)
		*l = append(*l, s)
	}
	return nil
}

// chain shortens each path of a list by the names it shares with the one before.
type chain struct{ last []string }

func (c *chain) shorten(p tree.Path) (keep int, rest tree.Path, err error) {
	names := p.Names()
	for keep < len(names) && keep < len(c.last) && names[keep] == c.last[keep] {
		keep++
	}
	c.last = names
	rest, err = join(names[keep:])
	return keep, rest, err
}

func (c *chain) restore(keep int, rest tree.Path) (p tree.Path, err error) {
	if keep < 0 || keep > len(c.last) {
		return p, fmt.Errorf("path %q goes on from %d names of %d: %w", rest, keep, len(c.last), journal.ErrCorrupt)
	}
	c.last = append(c.last[:keep:keep], rest.Names()...)
	return join(c.last)
}

func join(names []string) (tree.Path, error) { return tree.ParsePath(strings.Join(names, "/")) }

// beside returns the name of p, which lies beside q.
func beside(p, q tree.Path) (*tree.Path, error) {
	if p.Parent() != q.Parent() || p.IsRoot() {
		return nil, fmt.Errorf("temporary name %q is not beside %q", p, q)
	}
	name, err := tree.ParsePath(p.Base())
	return &name, err
}

// unless returns p, nil where it is q.
func unless(p, q tree.Path) *tree.Path {
	if p == q {
		return nil
	}
	return &p
}

func orElse(p *tree.Path, q tree.Path) tree.Path {
	if p == nil {
		return q
	}
	return *p
}

// decodeStrict is json.Unmarshal that refuses unknown keys, which an UnmarshalJSON method does not
// inherit.
func decodeStrict(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(v)
}
