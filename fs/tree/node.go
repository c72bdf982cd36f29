package tree

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is what a node is. The zero Kind is Absent.
type Kind uint8

// The kinds of node.
const (
	Absent Kind = iota
	File
	Dir
	Symlink
	FIFO
	Socket
	Char
	Block
)

var kindNames = [...]string{"absent", "file", "dir", "symlink", "fifo", "socket", "char", "block"}

// String returns the kind's name as records carry it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "kind" + strconv.Itoa(int(k))
}

// MarshalText writes the kind's name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads a kind's name and refuses an unknown one.
func (k *Kind) UnmarshalText(text []byte) error {
	i := slices.Index(kindNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown kind %q", text)
	}
	*k = Kind(i)
	return nil
}

// Mode is the permission bits of a node with setuid, setgid and sticky: st_mode & 07777.
type Mode uint32

// MarshalText writes the mode in octal, "0644".
func (m Mode) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%04o", uint32(m)), nil }

// UnmarshalText reads an octal mode of at most 07777.
func (m *Mode) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(string(text), 8, 12)
	if err != nil {
		return fmt.Errorf("mode %q: %w", text, err)
	}
	*m = Mode(v)
	return nil
}

// Time is an instant in nanoseconds since the epoch, as statx gives it. JSON: RFC 3339, UTC, nanoseconds.
type Time int64

// MarshalText writes the time as RFC 3339 in UTC with nine fractional digits.
func (t Time) MarshalText() ([]byte, error) {
	return t.append(nil), nil
}

func (t Time) append(b []byte) []byte {
	return time.Unix(0, int64(t)).UTC().AppendFormat(b, "2006-01-02T15:04:05.000000000Z07:00")
}

// UnmarshalText reads an RFC 3339 time between the years 1678 and 2261.
func (t *Time) UnmarshalText(text []byte) error {
	v, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return err
	}
	ns := v.UnixNano()
	if !time.Unix(0, ns).Equal(v) {
		return fmt.Errorf("time %q is out of range", text)
	}
	*t = Time(ns)
	return nil
}

// Digest is "sha256:" and 64 hex digits, or "" for content nobody has read. JSON: null when empty.
type Digest string

// NewHash returns the hash whose sum SumDigest turns into a Digest.
func NewHash() hash.Hash { return sha256.New() }

// SumDigest returns the Digest of what was written to h, a hash from NewHash.
func SumDigest(h hash.Hash) Digest { return Digest("sha256:" + hex.EncodeToString(h.Sum(nil))) }

// DigestBytes returns the Digest of b.
func DigestBytes(b []byte) Digest {
	h := NewHash()
	h.Write(b)
	return SumDigest(h)
}

// MarshalJSON writes the digest, or null when it is empty.
func (d Digest) MarshalJSON() ([]byte, error) {
	if d == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(d))
}

// UnmarshalJSON reads a digest or null and refuses any other form, upper-case digits too: digests
// are compared as text.
func (d *Digest) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		*d = ""
		return nil
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	x, ok := strings.CutPrefix(s, "sha256:")
	if b, err := hex.DecodeString(x); !ok || err != nil || len(b) != sha256.Size || hex.EncodeToString(b) != x {
		return fmt.Errorf("digest %q is not sha256:<64 hex digits>", s)
	}
	*d = Digest(s)
	return nil
}

// Node is the state of one path at one instant. The zero Node is an absent path. Which fields
// mean something follows from Kind: Target for symlinks, Rdev for devices, Digest for files.
type Node struct {
	Kind   Kind
	Mode   Mode
	UID    uint32
	GID    uint32
	Size   int64
	Mtime  Time
	Ctime  Time
	Dev    uint64
	Ino    uint64
	Nlink  uint32
	Rdev   uint64
	Xattrs Xattrs
	Digest Digest
	Target string
}

// wireNode is the JSON form of any other. Target is bytes so that every link target survives.
type wireNode struct {
	Kind   *Kind  `json:"kind"`
	Mode   Mode   `json:"mode"`
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Size   int64  `json:"size"`
	Mtime  Time   `json:"mtime"`
	Ctime  Time   `json:"ctime"`
	Dev    uint64 `json:"dev"`
	Ino    uint64 `json:"ino"`
	Nlink  uint32 `json:"nlink"`
	Rdev   uint64 `json:"rdev"`
	Xattrs Xattrs `json:"xattrs"`
	Digest Digest `json:"digest"`
	Target []byte `json:"target_b64"`
}

// MarshalJSON writes {"kind":"absent"} for an absent path, every field otherwise.
func (n Node) MarshalJSON() ([]byte, error) {
	if n.Kind == Absent {
		return []byte(`{"kind":"absent"}`), nil
	}
	if len(n.Xattrs) == 0 && n.Kind != Symlink && int(n.Kind) < len(kindNames) {
		return n.appendJSON(make([]byte, 0, 384)), nil
	}
	w := wireNode{&n.Kind, n.Mode, n.UID, n.GID, n.Size, n.Mtime, n.Ctime, n.Dev, n.Ino, n.Nlink, n.Rdev, n.Xattrs, n.Digest, nil}
	if n.Kind == Symlink {
		w.Target = []byte(n.Target)
	}
	return json.Marshal(w)
}

// appendJSON appends the JSON form of what is neither absent nor a symlink and has no xattrs, as
// wireNode would be written: a change log holds one for each path that a Job changes.
func (n *Node) appendJSON(b []byte) []byte {
	number := func(key string, v uint64) {
		b = append(append(append(b, `,"`...), key...), `":`...)
		b = strconv.AppendUint(b, v, 10)
	}
	b = append(append(append(b, `{"kind":"`...), kindNames[n.Kind]...), `","mode":"`...)
	b = append(fmt.Appendf(b, "%04o", uint32(n.Mode)), '"')
	number("uid", uint64(n.UID))
	number("gid", uint64(n.GID))
	b = strconv.AppendInt(append(b, `,"size":`...), n.Size, 10)
	b = n.Mtime.append(append(b, `,"mtime":"`...))
	b = n.Ctime.append(append(b, `","ctime":"`...))
	b = append(b, '"')
	number("dev", n.Dev)
	number("ino", n.Ino)
	number("nlink", uint64(n.Nlink))
	number("rdev", n.Rdev)
	b = append(b, `,"xattrs":null,"digest":`...)
	if n.Digest == "" {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendQuote(b, string(n.Digest))
	}
	return append(b, `,"target_b64":null}`...)
}

// UnmarshalJSON reads what MarshalJSON writes; an unknown key or a missing kind is refused.
func (n *Node) UnmarshalJSON(data []byte) error {
	var w wireNode
	if err := decodeStrict(data, &w); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if w.Kind == nil {
		return errors.New("node has no kind")
	}
	*n = Node{*w.Kind, w.Mode, w.UID, w.GID, w.Size, w.Mtime, w.Ctime, w.Dev, w.Ino, w.Nlink, w.Rdev, w.Xattrs, w.Digest, string(w.Target)}
	return nil
}

// SameIdentity reports whether n and o are, as far as stat can tell, the same inode in the same
// state: device, inode, kind, size, mtime and ctime agree. It needs no content.
func (n Node) SameIdentity(o Node) bool {
	return n.Kind == o.Kind && n.Dev == o.Dev && n.Ino == o.Ino && n.Size == o.Size && n.Mtime == o.Mtime && n.Ctime == o.Ctime
}

// SameMeta reports whether kind, mode, owner and extended attributes agree; times are not compared.
// A symlink's mode means nothing on Linux and is not compared.
func (n Node) SameMeta(o Node) bool {
	return n.Kind == o.Kind && (n.Kind == Symlink || n.Mode == o.Mode) && n.UID == o.UID && n.GID == o.GID && n.Xattrs.Equal(o.Xattrs)
}

// Equality is the answer to "do two nodes hold the same content?".
type Equality uint8

// Unknown means a digest is missing on one side and sizes do not already differ.
const (
	Unknown Equality = iota
	Same
	Different
)

// SameContent compares what n and o hold: digests of files, targets of links, device numbers.
// Directories hold nothing of their own and are always Same.
func (n Node) SameContent(o Node) Equality {
	if n.Kind != o.Kind {
		return Different
	}
	same := true
	switch n.Kind {
	case File:
		if n.Size == o.Size && (n.Digest == "" || o.Digest == "") {
			return Unknown
		}
		same = n.Size == o.Size && n.Digest == o.Digest
	case Symlink:
		same = n.Target == o.Target
	case Char, Block:
		same = n.Rdev == o.Rdev
	case Absent, Dir, FIFO, Socket:
	default:
		return Unknown
	}
	if same {
		return Same
	}
	return Different
}
