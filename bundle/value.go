package bundle

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// V1 is the version of a document. It has one value, so that no document can carry a wrong one.
type V1 struct{}

// MarshalJSON writes 1.
func (V1) MarshalJSON() ([]byte, error) { return json.Marshal(Version) }

// UnmarshalJSON refuses every other version.
func (*V1) UnmarshalJSON(data []byte) error {
	if string(data) != "1" {
		return fmt.Errorf("version %s, this stage knows %d: %w", data, Version, ErrNewer)
	}
	return nil
}

// List is a JSON array: a nil List is written [], never null, and null is refused.
type List[T any] []T

// MarshalJSON writes an array.
func (l List[T]) MarshalJSON() ([]byte, error) {
	if l == nil {
		return []byte("[]"), nil
	}
	return json.Marshal([]T(l))
}

// UnmarshalJSON reads an array.
func (l *List[T]) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return fmt.Errorf("null is not a list")
	}
	return json.Unmarshal(data, (*[]T)(l))
}

// Map is a JSON object with free keys: a nil Map is written {}, never null, and null is refused.
type Map[K ~string, V any] map[K]V

// MarshalJSON writes an object, keys in order.
func (m Map[K, V]) MarshalJSON() ([]byte, error) {
	if m == nil {
		return []byte("{}"), nil
	}
	return json.Marshal(map[K]V(m))
}

// UnmarshalJSON reads an object.
func (m *Map[K, V]) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return fmt.Errorf("null is not an object")
	}
	return json.Unmarshal(data, (*map[K]V)(m))
}

// ID names a Job, session, operation or attempt: a ULID in lower case. IDs made later sort later.
type ID string

// idAlphabet is Crockford's base 32 in lower case.
const idAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// IDLen is the length of an ID.
const IDLen = 26

// ParseID returns the ID written as s, or an error when s is not a lower-case ULID.
func ParseID(s string) (ID, error) {
	if len(s) != IDLen || strings.Trim(s, idAlphabet) != "" || s[0] > '7' {
		return "", fmt.Errorf("%q is not a lower-case ULID", s)
	}
	return ID(s), nil
}

// MarshalText refuses to write what is not an ID.
func (i ID) MarshalText() ([]byte, error) {
	if _, err := ParseID(string(i)); err != nil {
		return nil, err
	}
	return []byte(i), nil
}

// UnmarshalText reads an ID.
func (i *ID) UnmarshalText(text []byte) error {
	id, err := ParseID(string(text))
	if err != nil {
		return err
	}
	*i = id
	return nil
}

// HostPath is an absolute path on the host, in its shortest form: no "." or "..", no double slash.
// It is bytes and need not be UTF-8. JSON: {"path":"/a/b"}, or {"path_b64":"…"} when not UTF-8. The
// zero HostPath is no path and is not written; what may be absent is a *HostPath.
type HostPath struct{ s string }

// ParseHostPath returns the HostPath written as s.
func ParseHostPath(s string) (HostPath, error) {
	if !path.IsAbs(s) || path.Clean(s) != s || strings.Contains(s, "\x00") {
		return HostPath{}, fmt.Errorf("%q is not an absolute path in its shortest form", s)
	}
	return HostPath{s}, nil
}

// MustHostPath is ParseHostPath for constants in tests; it panics on an error.
func MustHostPath(s string) HostPath {
	p, err := ParseHostPath(s)
	if err != nil {
		panic(err)
	}
	return p
}

// String returns the path's bytes, "" for the zero HostPath. It is not safe for a terminal.
func (p HostPath) String() string { return p.s }

// MarshalJSON writes the path object.
func (p HostPath) MarshalJSON() ([]byte, error) {
	if p.s == "" {
		return nil, fmt.Errorf("empty host path")
	}
	return marshalPath(p.s)
}

// UnmarshalJSON reads a path object.
func (p *HostPath) UnmarshalJSON(data []byte) error {
	s, err := unmarshalPath(data)
	if err != nil {
		return err
	}
	q, err := ParseHostPath(s)
	if err != nil {
		return err
	}
	*p = q
	return nil
}

// RawPath is a path exactly as somebody wrote it: a link's target, a file named in a message. It is
// bytes; JSON as HostPath.
type RawPath string

// MarshalJSON writes the path object.
func (p RawPath) MarshalJSON() ([]byte, error) { return marshalPath(string(p)) }

// UnmarshalJSON reads a path object.
func (p *RawPath) UnmarshalJSON(data []byte) error {
	s, err := unmarshalPath(data)
	*p = RawPath(s)
	return err
}

// Word is an argument or the name of a variable: bytes. JSON: a string, or {"b64":"…"} when it is
// not UTF-8.
type Word string

// MarshalJSON writes the word.
func (w Word) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(w)) {
		return marshalString(string(w))
	}
	return json.Marshal(struct {
		B64 []byte `json:"b64"`
	}{[]byte(w)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (w *Word) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, (*string)(w))
	}
	var j struct {
		B64 *[]byte `json:"b64"`
	}
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	if j.B64 == nil {
		return fmt.Errorf("want a string or an object with b64 in %s", data)
	}
	*w = Word(*j.B64)
	return nil
}

// Words turns strings, such as an argument vector, into Words.
func Words(s []string) List[Word] {
	l := make(List[Word], len(s))
	for i := range s {
		l[i] = Word(s[i])
	}
	return l
}

// Strings turns Words back into strings.
func Strings(l List[Word]) []string {
	s := make([]string, len(l))
	for i := range l {
		s[i] = string(l[i])
	}
	return s
}

type pathObject struct {
	Path *string `json:"path,omitempty"`
	B64  *string `json:"path_b64,omitempty"`
}

func marshalPath(s string) ([]byte, error) {
	if utf8.ValidString(s) {
		return json.Marshal(pathObject{Path: &s})
	}
	b := base64.StdEncoding.EncodeToString([]byte(s))
	return json.Marshal(pathObject{B64: &b})
}

func unmarshalPath(data []byte) (string, error) {
	var j pathObject
	if err := json.Unmarshal(data, &j); err != nil {
		return "", err
	}
	switch {
	case j.Path != nil && j.B64 == nil:
		return *j.Path, nil
	case j.B64 != nil && j.Path == nil:
		b, err := base64.StdEncoding.DecodeString(*j.B64)
		if err != nil {
			return "", fmt.Errorf("path_b64: %w", err)
		}
		return string(b), nil
	default:
		return "", fmt.Errorf("want exactly one of path and path_b64 in %s", data)
	}
}

func marshalString(s string) ([]byte, error) { return json.Marshal(s) }

// oneOf is the rule of every enumeration here: a value outside it is neither written nor read.
func oneOf[E ~string](what string, v E, all []E) error {
	if !slices.Contains(all, v) {
		return fmt.Errorf("unknown %s %q", what, v)
	}
	return nil
}
