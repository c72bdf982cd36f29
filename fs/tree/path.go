// Package tree describes file trees: paths, the state of one node, content digests and the change
// between two states. It is pure data: nothing here touches a file system.
package tree

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// NameMax is the longest name Linux file systems accept, in bytes (NAME_MAX, linux/limits.h).
const NameMax = 255

// ErrPath is the cause of every error ParsePath and Child return.
var ErrPath = errors.New("not a relative path")

// Path names a node below a root: names joined by slashes, no empty name, no "." or "..", no NUL.
// Names are bytes and need not be UTF-8. The zero Path is the root itself. A Path with content
// comes only from ParsePath and Child, so whoever holds one need not check it again.
type Path struct{ s string }

// ParsePath returns the Path written as s; "" and "." are the root.
func ParsePath(s string) (Path, error) {
	if s == "" || s == "." {
		return Path{}, nil
	}
	for name := range strings.SplitSeq(s, "/") {
		if err := checkName(name); err != nil {
			return Path{}, fmt.Errorf("path %q: %w", s, err)
		}
	}
	return Path{s}, nil
}

// MustParsePath is ParsePath for constants in tests; it panics on an error.
func MustParsePath(s string) Path {
	p, err := ParsePath(s)
	if err != nil {
		panic(err)
	}
	return p
}

func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("empty name: %w", ErrPath)
	case name == "." || name == "..":
		return fmt.Errorf("name %q: %w", name, ErrPath)
	case strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("name %q holds a slash or NUL: %w", name, ErrPath)
	}
	return nil
}

// String returns the path's bytes as they are, "." for the root. It is not safe for a terminal.
func (p Path) String() string {
	if p.s == "" {
		return "."
	}
	return p.s
}

// IsRoot reports whether p is the root itself.
func (p Path) IsRoot() bool { return p.s == "" }

// Child returns p/name. name must be one name.
func (p Path) Child(name string) (Path, error) {
	if err := checkName(name); err != nil {
		return Path{}, err
	}
	if p.s == "" {
		return Path{name}, nil
	}
	return Path{p.s + "/" + name}, nil
}

// Base returns the last name of p, "" for the root.
func (p Path) Base() string {
	return p.s[strings.LastIndexByte(p.s, '/')+1:]
}

// Parent returns the path p lies in; the root's parent is the root.
func (p Path) Parent() Path {
	i := strings.LastIndexByte(p.s, '/')
	if i < 0 {
		return Path{}
	}
	return Path{p.s[:i]}
}

// Names returns the names of p from the root down; none for the root.
func (p Path) Names() []string {
	if p.s == "" {
		return nil
	}
	return strings.Split(p.s, "/")
}

// Contains reports whether q is p or lies below p.
func (p Path) Contains(q Path) bool {
	return p.s == "" || p.s == q.s || strings.HasPrefix(q.s, p.s+"/")
}

// Rebase returns p with its prefix from replaced by to.
//
// Preconditions:
//   - from contains p.
func (p Path) Rebase(from, to Path) Path {
	if !from.Contains(p) {
		panic(fmt.Sprintf("rebase %q: not below %q", p, from))
	}
	rest := strings.TrimPrefix(p.s[len(from.s):], "/")
	switch {
	case rest == "":
		return to
	case to.s == "":
		return Path{rest}
	}
	return Path{to.s + "/" + rest}
}

// Compare orders paths so that a directory stands right before everything below it.
func (p Path) Compare(q Path) int {
	a, b := p.s, q.s
	for i := 0; i < len(a) && i < len(b); i++ {
		if a[i] == b[i] {
			continue
		}
		switch {
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		case a[i] < b[i]:
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}

// pathJSON is {"path":"a/b"}, or {"path_b64":"…"} where the bytes are not UTF-8.
type pathJSON struct {
	Path *string `json:"path,omitempty"`
	B64  *string `json:"path_b64,omitempty"`
}

// MarshalJSON writes {"path":"a/b"}, or {"path_b64":"…"} when the path is not UTF-8.
func (p Path) MarshalJSON() ([]byte, error) {
	s := p.String()
	if isPlain(s) {
		return append(append(append(make([]byte, 0, len(s)+11), `{"path":"`...), s...), `"}`...), nil
	}
	if utf8.ValidString(s) {
		return json.Marshal(pathJSON{Path: &s})
	}
	b := base64.StdEncoding.EncodeToString([]byte(s))
	return json.Marshal(pathJSON{B64: &b})
}

// isPlain reports whether s stands in JSON as it is.
func isPlain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c > '~', c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// UnmarshalJSON reads what MarshalJSON writes and refuses everything else, so that one path has one
// form.
func (p *Path) UnmarshalJSON(data []byte) error {
	var j pathJSON
	if err := decodeStrict(data, &j); err != nil {
		return fmt.Errorf("path %s: %w", data, err)
	}
	s, err := j.text()
	if err != nil {
		return fmt.Errorf("path %s: %w", data, err)
	}
	q, err := ParsePath(s)
	if err != nil {
		return err
	}
	if q.String() != s {
		return fmt.Errorf("path %q: want %q: %w", s, q, ErrPath)
	}
	*p = q
	return nil
}

// text returns the bytes of the one form that is there.
func (j pathJSON) text() (string, error) {
	switch {
	case j.Path != nil && j.B64 == nil:
		return *j.Path, nil
	case j.B64 == nil || j.Path != nil:
		return "", fmt.Errorf("want exactly one of path and path_b64: %w", ErrPath)
	}
	b, err := base64.StdEncoding.Strict().DecodeString(*j.B64)
	if err != nil {
		return "", err
	}
	if utf8.Valid(b) {
		return "", fmt.Errorf("path_b64 holds UTF-8, which path is for: %w", ErrPath)
	}
	return string(b), nil
}

// decodeStrict is json.Unmarshal that refuses unknown keys. An UnmarshalJSON method does not
// inherit that from the decoder it is called by.
func decodeStrict(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(v)
}
