package gitview

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Errors of reading an index.
var (
	ErrIndex = errors.New("damaged git index")
	// ErrIndexForm: the index is whole, but needs an extension that is not read here (a split
	// index, for one).
	ErrIndexForm = errors.New("git index of an unknown form")
)

// Bounds on what an index may ask for.
const (
	maxIndex = 256 << 20 // bytes of the file
	maxNames = 512 << 20 // bytes of all names, which version 4 stores compressed
)

// Entry is one entry of an index without its stat data.
type Entry struct {
	Path  string
	Mode  uint32 // 0100644, 0100755, 0120000, 0160000; 0040000 for a directory of a sparse index
	ID    string // the object's name, raw bytes
	Stage uint8  // 0, or 1 to 3 in a conflict
	Flags uint32 // assume-valid (1<<15), and skip-worktree (1<<30) and intent-to-add (1<<29)
}

// Index is what a git index says, sorted by path.
type Index struct {
	Entries []Entry
	resolve []byte // the extension REUC: conflicts that were resolved
}

// Has reports whether path is in the index, by itself or below a directory of a sparse index.
func (x *Index) Has(path string) bool {
	if _, ok := slices.BinarySearchFunc(x.Entries, path, func(e Entry, p string) int { return strings.Compare(e.Path, p) }); ok {
		return true
	}
	for i := strings.LastIndexByte(path, '/'); i > 0; i = strings.LastIndexByte(path[:i], '/') {
		dir := path[:i+1] // a sparse directory's name ends with a slash
		if _, ok := slices.BinarySearchFunc(x.Entries, dir, func(e Entry, p string) int { return strings.Compare(e.Path, p) }); ok {
			return true
		}
	}
	return false
}

// Len returns the number of tracked paths; the stages of a conflict count once.
func (x *Index) Len() int {
	n := 0
	for i, e := range x.Entries {
		if i == 0 || x.Entries[i-1].Path != e.Path {
			n++
		}
	}
	return n
}

// ReadIndex reads an index of version 2, 3 or 4:
//
//	DIRC | version | count | entry … | extension … | checksum
//	entry: stat data 40 | object name 20 or 32 | flags 2 | (extended flags 2) | name | NULs
//	extension: signature 4 | size 4 | data; one whose signature is in lower case must be understood
//
// In version 4 a name is a number of bytes to cut from the name before, and what to add, and ends
// with one NUL; otherwise NULs fill the entry to a multiple of eight. Numbers are big-endian.
func ReadIndex(r io.Reader) (*Index, error) {
	data, err := readAll(r, maxIndex)
	if err != nil {
		return nil, fmt.Errorf("read git index: %w", err)
	}
	return parseIndex(data)
}

// parseIndex reads an index with names of the size its checksum agrees with.
func parseIndex(data []byte) (*Index, error) {
	var err error
	for _, size := range []int{sha1.Size, sha256.Size} {
		if !sumOK(data, size) {
			continue
		}
		p := indexParser{data: data[:len(data)-size], idSize: size}
		var x *Index
		if x, err = p.parse(); err == nil {
			return x, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("checksum does not agree: %w", ErrIndex)
	}
	return nil, fmt.Errorf("read git index: %w", err)
}

// sumOK reports whether data ends with its checksum, or with zeros as index.skipHash has it.
func sumOK(data []byte, size int) bool {
	if len(data) < 12+size {
		return false
	}
	body, sum := data[:len(data)-size], data[len(data)-size:]
	if size == sha1.Size {
		want := sha1.Sum(body)
		return bytes.Equal(sum, want[:]) || bytes.Equal(sum, make([]byte, size))
	}
	want := sha256.Sum256(body)
	return bytes.Equal(sum, want[:]) || bytes.Equal(sum, make([]byte, size))
}

// indexParser reads the parts of an index in order.
type indexParser struct {
	data    []byte
	off     int
	idSize  int
	version uint32
	names   int // bytes of names so far
}

func (p *indexParser) take(n int) ([]byte, error) {
	if n < 0 || n > len(p.data)-p.off {
		return nil, fmt.Errorf("ends early at byte %d: %w", p.off, ErrIndex)
	}
	b := p.data[p.off : p.off+n]
	p.off += n
	return b, nil
}

func (p *indexParser) parse() (*Index, error) {
	h, err := p.take(12)
	if err != nil {
		return nil, err
	}
	if string(h[:4]) != "DIRC" {
		return nil, fmt.Errorf("no DIRC: %w", ErrIndex)
	}
	p.version = binary.BigEndian.Uint32(h[4:])
	if p.version < 2 || p.version > 4 {
		return nil, fmt.Errorf("version %d: %w", p.version, ErrIndexForm)
	}
	count := int(binary.BigEndian.Uint32(h[8:]))
	if count > len(p.data)/p.entryMin() {
		return nil, fmt.Errorf("%d entries in %d bytes: %w", count, len(p.data), ErrIndex)
	}
	x := &Index{Entries: make([]Entry, 0, count)}
	name := ""
	for range count {
		e, err := p.entry(name)
		if err != nil {
			return nil, err
		}
		if n := len(x.Entries); n > 0 && !before(x.Entries[n-1], e) {
			return nil, fmt.Errorf("entry %q is out of order: %w", e.Path, ErrIndex)
		}
		name = e.Path
		x.Entries = append(x.Entries, e)
	}
	return x, p.extensions(x)
}

// entryMin is the size of the smallest entry.
func (p *indexParser) entryMin() int { return 40 + p.idSize + 2 + 1 }

func before(a, b Entry) bool {
	if a.Path != b.Path {
		return a.Path < b.Path
	}
	return a.Stage < b.Stage
}

func (p *indexParser) entry(last string) (Entry, error) {
	start := p.off
	fixed, err := p.take(40 + p.idSize + 2)
	if err != nil {
		return Entry{}, err
	}
	flags := binary.BigEndian.Uint16(fixed[40+p.idSize:])
	e := Entry{
		Mode:  binary.BigEndian.Uint32(fixed[24:]),
		ID:    string(fixed[40 : 40+p.idSize]),
		Stage: uint8(flags >> 12 & 3),
		Flags: uint32(flags & 0x8000),
	}
	if flags&0x4000 != 0 {
		if p.version < 3 {
			return Entry{}, fmt.Errorf("extended entry in version 2: %w", ErrIndex)
		}
		more, err := p.take(2)
		if err != nil {
			return Entry{}, err
		}
		e.Flags |= uint32(binary.BigEndian.Uint16(more)&0x6000) << 16
	}
	if e.Path, err = p.name(last); err != nil {
		return Entry{}, err
	}
	if e.Path == "" {
		return Entry{}, fmt.Errorf("entry without a name, as a split index has: %w", ErrIndexForm)
	}
	if p.names += len(e.Path); p.names > maxNames {
		return Entry{}, fmt.Errorf("names too long: %w", ErrIndex)
	}
	if p.version < 4 { // the NUL that ended the name is the first of one to eight
		_, err = p.take((8 - (p.off-start)%8) % 8)
	}
	return e, err
}

// name reads a name up to its NUL.
func (p *indexParser) name(last string) (string, error) {
	keep := ""
	if p.version == 4 {
		cut, err := p.varint()
		if err != nil {
			return "", err
		}
		if cut > uint64(len(last)) {
			return "", fmt.Errorf("name cuts %d of %d bytes: %w", cut, len(last), ErrIndex)
		}
		keep = last[:len(last)-int(cut)]
	}
	n := bytes.IndexByte(p.data[p.off:], 0)
	if n < 0 {
		return "", fmt.Errorf("name without an end at byte %d: %w", p.off, ErrIndex)
	}
	rest, err := p.take(n + 1)
	if err != nil {
		return "", err
	}
	return keep + string(rest[:n]), nil
}

// varint reads git's offset encoding: seven bits a byte, the high ones first, each continuation
// adding one.
func (p *indexParser) varint() (uint64, error) {
	var v uint64
	for i := 0; ; i++ {
		b, err := p.take(1)
		if err != nil {
			return 0, err
		}
		if i == 5 {
			return 0, fmt.Errorf("number too long at byte %d: %w", p.off, ErrIndex)
		}
		v = v<<7 | uint64(b[0]&0x7f)
		if b[0]&0x80 == 0 {
			return v, nil
		}
		v++
	}
}

func (p *indexParser) extensions(x *Index) error {
	for p.off < len(p.data) {
		h, err := p.take(8)
		if err != nil {
			return err
		}
		body, err := p.take(int(binary.BigEndian.Uint32(h[4:])))
		if err != nil {
			return err
		}
		switch sig := string(h[:4]); {
		case sig == "REUC":
			x.resolve = body
		case sig == "sdir": // a sparse index: its directories are entries
		case sig[0] < 'A' || sig[0] > 'Z':
			return fmt.Errorf("extension %q: %w", sig, ErrIndexForm)
		}
	}
	return nil
}

// SameEntries reports whether two indexes say the same: they may differ in stat data, in version
// and in what git derives again (cached trees, untracked cache, fsmonitor). An error means that
// nothing can be said; the caller then takes them as different.
func SameEntries(a, b io.Reader) (bool, error) {
	x, err := ReadIndex(a)
	if err != nil {
		return false, err
	}
	y, err := ReadIndex(b)
	if err != nil {
		return false, err
	}
	return slices.Equal(x.Entries, y.Entries) && bytes.Equal(x.resolve, y.resolve), nil
}

// StatOnly reports whether c is a change of a git index (.git/index, or one of a linked worktree or
// a submodule below .git) in stat data alone, which is no change. What cannot be read, or is no longer
// what the Job started from, counts as changed.
func StatOnly(c tree.Change, contents Contents) (bool, error) {
	names := c.Path.Names()
	if len(names) < 2 || names[0] != ".git" || c.Path.Base() != "index" || c.Base.Kind != tree.File || !c.Base.SameMeta(c.New) {
		return false, nil
	}
	before, err := readContent(c.Path, contents.OpenBase, maxIndex)
	if err != nil || c.Base.Digest != "" && c.Base.Digest != tree.DigestBytes(before) || int64(len(before)) != c.Base.Size {
		return false, unlessAbsent(err)
	}
	after, err := readContent(c.Path, contents.OpenNew, maxIndex)
	if err != nil {
		return false, err
	}
	same, err := SameEntries(bytes.NewReader(before), bytes.NewReader(after))
	if errors.Is(err, ErrIndex) || errors.Is(err, ErrIndexForm) {
		return false, nil
	}
	return same, err
}

// Alike reports whether two contents of a git index say the same beside stat data. Paths that are no
// index below .git, and contents that are none, are not alike.
func Alike(p tree.Path, a, b func() (hostfs.File, error)) (bool, error) {
	if names := p.Names(); len(names) < 2 || !slices.Contains(names[:len(names)-1], ".git") || p.Base() != "index" {
		return false, nil
	}
	x, err := a()
	if err != nil {
		return false, err
	}
	defer x.Close() // read only
	y, err := b()
	if err != nil {
		return false, err
	}
	defer y.Close() // read only
	same, err := SameEntries(io.LimitReader(x, maxIndex), io.LimitReader(y, maxIndex))
	if errors.Is(err, ErrIndex) || errors.Is(err, ErrIndexForm) {
		return false, nil
	}
	return same, err
}

func unlessAbsent(err error) error {
	if absent(err) {
		return nil
	}
	return err
}
