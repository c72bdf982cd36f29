package tree

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Xattrs are extended attributes by full name ("user.x"). nil and empty mean the same: none.
type Xattrs map[string][]byte

// Digest returns the digest of the attributes, independent of order; "" for none.
func (x Xattrs) Digest() Digest {
	if len(x) == 0 {
		return ""
	}
	h := NewHash()
	for _, name := range slices.Sorted(maps.Keys(x)) {
		fmt.Fprintf(h, "%d:%s%d:", len(name), name, len(x[name]))
		h.Write(x[name])
	}
	return SumDigest(h)
}

// Equal reports whether x and y hold the same names and values.
func (x Xattrs) Equal(y Xattrs) bool { return maps.EqualFunc(x, y, bytes.Equal) }

// rawName stands in JSON before the base64 of a name that is not UTF-8. No attribute is called so:
// names begin with their name space, "user." and the like (xattr(7)).
const rawName = "b64:"

// MarshalJSON writes an object of name and base64 value, or null for none. A name that is not UTF-8
// is written as "b64:" and its base64.
func (x Xattrs) MarshalJSON() ([]byte, error) {
	if len(x) == 0 {
		return []byte("null"), nil
	}
	wire := make(map[string][]byte, len(x))
	for name, v := range x {
		if !utf8.ValidString(name) {
			name = rawName + base64.StdEncoding.EncodeToString([]byte(name))
		}
		wire[name] = append([]byte{}, v...) // an empty value is "", not null
	}
	return json.Marshal(wire)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (x *Xattrs) UnmarshalJSON(data []byte) error {
	var wire map[string][]byte
	if err := json.Unmarshal(data, &wire); err != nil {
		return fmt.Errorf("xattrs: %w", err)
	}
	*x = nil
	for name, v := range wire {
		if raw, ok := strings.CutPrefix(name, rawName); ok {
			b, err := base64.StdEncoding.DecodeString(raw)
			if err != nil {
				return fmt.Errorf("xattr name %q: %w", name, err)
			}
			name = string(b)
		}
		if *x == nil {
			*x = Xattrs{}
		}
		(*x)[name] = v
	}
	return nil
}
