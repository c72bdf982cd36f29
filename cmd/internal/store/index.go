package store

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stage/bundle"
	"stage/fs/hostfs"
	"stage/fs/tree"
)

// Ref is what the index knows of a Job: what never changes during its life.
type Ref struct {
	ID        bundle.ID
	Workspace bundle.Workspace
	Created   tree.Time
}

// The index is a text file, a header and then a line for each Job:
//
//	stage index 1
//	<crc32c of the rest, hex> TAB <id> TAB <created, ns> TAB <dev> TAB <ino> TAB <quoted path>
//
// Lines are only appended, under a flock of the file. It is trusted only for Jobs whose directory
// is there, and lacks nothing that matters: a directory without a line is read and given one. A
// damaged index is thrown away and made again.
const indexHeader = "stage index 1\n"

// maxIndex bounds what is read as an index, far above what any number of Jobs needs.
const maxIndex = 1 << 30

var errIndex = errors.New("index is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendRef(b []byte, r Ref) []byte {
	text := fmt.Sprintf("%s\t%d\t%d\t%d\t%s", r.ID, int64(r.Created), r.Workspace.Dev, r.Workspace.Ino, strconv.Quote(r.Workspace.Path.String()))
	return fmt.Appendf(b, "%08x\t%s\n", crc32.Checksum([]byte(text), castagnoli), text)
}

func parseRef(line string) (Ref, error) {
	sum, text, _ := strings.Cut(line, "\t")
	if fmt.Sprintf("%08x", crc32.Checksum([]byte(text), castagnoli)) != sum {
		return Ref{}, errIndex
	}
	f := strings.Split(text, "\t")
	if len(f) != 5 {
		return Ref{}, errIndex
	}
	id, err1 := bundle.ParseID(f[0])
	created, err2 := strconv.ParseInt(f[1], 10, 64)
	dev, err3 := strconv.ParseUint(f[2], 10, 64)
	ino, err4 := strconv.ParseUint(f[3], 10, 64)
	raw, err5 := strconv.Unquote(f[4])
	path, err6 := bundle.ParseHostPath(raw)
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		return Ref{}, fmt.Errorf("%w: %w", errIndex, err)
	}
	return Ref{id, bundle.Workspace{Path: path, Dev: dev, Ino: ino}, tree.Time(created)}, nil
}

// parseIndex returns errIndex for anything but a whole and intact index.
func parseIndex(data []byte) (map[bundle.ID]Ref, error) {
	body, ok := bytes.CutPrefix(data, []byte(indexHeader))
	if !ok || data[len(data)-1] != '\n' {
		return nil, errIndex
	}
	refs := make(map[bundle.ID]Ref, bytes.Count(body, []byte{'\n'}))
	for line := range strings.Lines(string(body)) {
		r, err := parseRef(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, err
		}
		refs[r.ID] = r
	}
	return refs, nil
}

// readIndex returns an empty map where there is no index or a damaged one: it is a cache.
func (s *Store) readIndex() (map[bundle.ID]Ref, error) {
	data, err := readFile(s.root, indexName, maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return map[bundle.ID]Ref{}, nil
	}
	if err != nil {
		return nil, err
	}
	refs, err := parseIndex(data)
	if errors.Is(err, errIndex) {
		return map[bundle.ID]Ref{}, nil
	}
	return refs, err
}

// extendIndex adds refs to the index, unless another process is at it. A damaged index is replaced
// by what all knows.
func (s *Store) extendIndex(all map[bundle.ID]Ref, added []Ref) error {
	f, err := s.root.OpenWrite(indexName)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = s.root.Create(indexName, fileMode)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := flock(f.OSFile(), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	known, err := parseIndex(data)
	if err != nil {
		return writeIndex(f, all)
	}
	var text []byte
	for _, r := range added {
		if _, ok := known[r.ID]; !ok {
			text = appendRef(text, r)
		}
	}
	_, err = f.WriteAt(text, int64(len(data)))
	return err
}

func writeIndex(f hostfs.File, all map[bundle.ID]Ref) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	text := []byte(indexHeader)
	for _, r := range sorted(all) {
		text = appendRef(text, r)
	}
	_, err := f.WriteAt(text, 0)
	return err
}

// sorted returns refs, the newest last.
func sorted(refs map[bundle.ID]Ref) []Ref {
	l := make([]Ref, 0, len(refs))
	for _, r := range refs {
		l = append(l, r)
	}
	slices.SortFunc(l, compareRefs)
	return l
}

// compareRefs orders by creation; ids, which hold the millisecond, decide between equal instants.
func compareRefs(a, b Ref) int {
	if a.Created != b.Created {
		return int(max(-1, min(1, int64(a.Created-b.Created))))
	}
	return strings.Compare(string(a.ID), string(b.ID))
}
