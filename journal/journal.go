// Package journal is an append-only log of JSON records, one per line, each with a sequence number
// and a checksum. The change log of a Job, the ledger of an apply and the Event Journal are three
// uses of it.
//
// The file, readable with any text tool:
//
//	{"version":1,"kind":"changes"}\n                  header: format version, what the log is for
//	{"n":1,"crc":"1c291ca3","r":{…record…}}\n         n counts from 1 without gaps;
//	{"n":2,"crc":"8f2b01aa","r":{…record…}}\n         crc: CRC-32C of the bytes of r, hex
//
// A record is recorded once Append returned: its write(2) is done, so it survives the death of
// every process. It is durable after Sync. A crash can leave only an unfinished last line, which
// Open cuts; damage anywhere else is ErrCorrupt and nothing is cut. Lines are compared byte for
// byte with what Append writes: there is no other way to write a record.
package journal

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"sync"
)

// Version is the format version this package writes.
const Version = 1

// Errors someone branches on.
var (
	ErrCorrupt = errors.New("journal is damaged")
	// ErrNoHeader comes with ErrCorrupt when not even the header is complete: nothing was recorded.
	ErrNoHeader = errors.New("journal was never begun")
	ErrVersion  = errors.New("journal version is newer than this stage")
	ErrKind     = errors.New("journal is of another kind")
)

// DamageError is the ErrCorrupt of a line that is not what Append wrote. A power loss makes such lines
// behind the last Sync; who can tell that one happened may go on with Resume.
type DamageError struct {
	End  int64  // where the intact part ends
	Last uint64 // its last record
	Err  error
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("record %d at byte %d: %v", e.Last+1, e.End, e.Err)
}

// Unwrap returns the cause, which is ErrCorrupt.
func (e *DamageError) Unwrap() error { return e.Err }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// File is what a journal is kept in; hostfs.File and *os.File satisfy it.
type File interface {
	io.Reader
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Close() error
}

type header struct {
	Version int    `json:"version"`
	Kind    string `json:"kind"`
}

// Writer appends records. It is safe for use by several goroutines.
type Writer struct {
	mu     sync.Mutex
	f      File   // guarded by mu, like all below
	off    int64  // where the next line begins
	n      uint64 // number of the last record
	synced uint64 // last record known durable
	mirror *Writer
	// switched counts calls of Switch: numbers of records mean something else after each.
	switched int
	err      error // first write error; later calls return it, since the end of the file is unknown
	buf      bytes.Buffer
}

// Create starts a journal of the given kind in f, which must be empty.
func Create(f File, kind string) (*Writer, error) {
	w := &Writer{f: f}
	h, err := headerLine(kind)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(h, 0); err != nil {
		return nil, fmt.Errorf("write journal header: %w", err)
	}
	w.off = int64(len(h))
	return w, nil
}

func headerLine(kind string) ([]byte, error) {
	h, err := json.Marshal(header{Version, kind})
	return append(h, '\n'), err
}

// Open reads the journal in f, calls replay for each record in order, cuts an unfinished last line,
// and returns a Writer that appends after it. An error of replay ends it.
//
// Preconditions:
//   - f's offset is at its start.
func Open(f File, kind string, replay func(n uint64, record json.RawMessage) error) (*Writer, error) {
	end, last, err := read(f, kind, replay)
	if err != nil {
		return nil, err
	}
	return Resume(f, end, last)
}

// Resume cuts the journal in f at end, behind record last, and returns a Writer that appends there.
func Resume(f File, end int64, last uint64) (*Writer, error) {
	if err := f.Truncate(end); err != nil {
		return nil, fmt.Errorf("cut unfinished journal line: %w", err)
	}
	return &Writer{f: f, off: end, n: last}, nil
}

// Read calls replay for each record of the journal in r, in order. An unfinished last line is
// passed over; nothing is written.
func Read(r io.Reader, kind string, replay func(n uint64, record json.RawMessage) error) error {
	_, _, err := read(r, kind, replay)
	return err
}

// read returns where the intact part ends and the number of its last record.
func read(r io.Reader, kind string, replay func(uint64, json.RawMessage) error) (end int64, last uint64, err error) {
	br := bufio.NewReaderSize(r, 1<<16)
	text, err := br.ReadBytes('\n')
	if err == io.EOF {
		return 0, 0, fmt.Errorf("header of %d bytes: %w: %w", len(text), ErrCorrupt, ErrNoHeader)
	}
	if err != nil {
		return 0, 0, err
	}
	if err := checkHeader(text, kind); err != nil {
		return 0, 0, err
	}
	return readLines(br, int64(len(text)), 0, replay)
}

// ReadTail is Read of the part of a journal that begins behind record last.
func ReadTail(r io.Reader, last uint64, replay func(n uint64, record json.RawMessage) error) error {
	_, _, err := readLines(bufio.NewReaderSize(r, 1<<16), 0, last, replay)
	return err
}

// readLines reads the records behind number last; at is where in the file br is.
func readLines(br *bufio.Reader, at int64, last uint64, replay func(uint64, json.RawMessage) error) (int64, uint64, error) {
	for {
		text, err := br.ReadBytes('\n')
		if err == io.EOF {
			return at, last, nil // without a newline: unfinished
		}
		if err != nil {
			return at, last, err
		}
		rec, err := parseLine(text, last+1)
		if err != nil {
			return at, last, &DamageError{at, last, err}
		}
		if err := replay(last+1, rec); err != nil {
			return at, last, fmt.Errorf("record %d: %w", last+1, err)
		}
		last++
		at += int64(len(text))
	}
}

func checkHeader(text []byte, kind string) error {
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Errorf("header: %w: %w", ErrCorrupt, err)
	}
	if v.Version > Version {
		return fmt.Errorf("version %d, this stage knows %d: %w", v.Version, Version, ErrVersion)
	}
	var h header
	if err := json.Unmarshal(text, &h); err != nil {
		return fmt.Errorf("header: %w: %w", ErrCorrupt, err)
	}
	want, err := headerLine(h.Kind)
	if err != nil {
		return err
	}
	if !bytes.Equal(text, want) {
		return fmt.Errorf("header %q: %w", text, ErrCorrupt)
	}
	if h.Kind != kind {
		return fmt.Errorf("kind %q, want %q: %w", h.Kind, kind, ErrKind)
	}
	return nil
}

// parseLine returns the record in text, which must be line n.
func parseLine(text []byte, n uint64) (json.RawMessage, error) {
	rest, isN := bytes.CutPrefix(text, appendHead(nil, n))
	crc, rest, hasCRC := bytes.Cut(rest, []byte(`","r":`))
	r, ends := bytes.CutSuffix(rest, []byte("}\n"))
	if !isN || !hasCRC || !ends {
		return nil, fmt.Errorf("line %.80q: %w", text, ErrCorrupt)
	}
	if got := checksum(r); got != string(crc) {
		return nil, fmt.Errorf("checksum %s, line says %.8q: %w", got, crc, ErrCorrupt)
	}
	return r, nil
}

func appendHead(b []byte, n uint64) []byte {
	return append(strconv.AppendUint(append(b, `{"n":`...), n, 10), `,"crc":"`...)
}

func checksum(b []byte) string {
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], crc32.Checksum(b, castagnoli))
	return hex.EncodeToString(sum[:])
}

// Append writes records in order with one write(2) and returns the number of the last one. Either
// all are recorded or, after an error, the Writer refuses every further call: what reached the
// file is then found by reading it again.
func (w *Writer) Append(records ...any) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	w.buf.Reset()
	n := w.n
	for _, r := range records {
		n++
		if err := w.encodeLocked(n, r); err != nil {
			return 0, err
		}
	}
	if _, err := w.f.WriteAt(w.buf.Bytes(), w.off); err != nil {
		w.err = fmt.Errorf("append to journal: %w", err)
		return 0, w.err
	}
	w.off += int64(w.buf.Len())
	w.n = n
	if w.mirror != nil {
		if _, err := w.mirror.Append(records...); err != nil {
			w.err = fmt.Errorf("append to journal written anew: %w", err)
			return 0, w.err
		}
	}
	return n, nil
}

func (w *Writer) encodeLocked(n uint64, record any) error {
	r, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	w.buf.Write(appendHead(w.buf.AvailableBuffer(), n))
	w.buf.WriteString(checksum(r))
	w.buf.WriteString(`","r":`)
	w.buf.Write(r)
	w.buf.WriteString("}\n")
	return nil
}

// Position returns where the next line begins, and the number of the last record.
func (w *Writer) Position() (off int64, last uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.off, w.n
}

// Mirror makes w write everything to the journal of to as well, and sync both. A failure of either is one
// of w.
//
// Preconditions:
//   - to holds, in its own words, what w holds.
func (w *Writer) Mirror(to *Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mirror = to
}

// Unmirror takes Mirror back.
func (w *Writer) Unmirror() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mirror = nil
}

// Switch makes the mirror the journal of w and closes the file w had.
//
// Preconditions:
//   - Mirror was called, and what it was given is durable under the name of w's journal.
func (w *Writer) Switch() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	old, to := w.f, w.mirror
	w.f, w.off, w.n, w.synced, w.mirror = to.f, to.off, to.n, to.synced, nil
	w.switched++
	return old.Close()
}

// Sync makes every record appended so far durable. It costs nothing when none is new.
func (w *Writer) Sync() error {
	w.mu.Lock()
	f, n, mirror, err, switched := w.f, w.n, w.mirror, w.err, w.switched
	clean := w.synced == n && n > 0
	w.mu.Unlock()
	if err != nil || clean {
		return err
	}
	err = f.Sync()
	if err == nil && mirror != nil {
		err = mirror.Sync()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.switched != switched: // the file was closed; the mirror in its place was durable
		return w.err
	case err != nil:
		w.err = fmt.Errorf("sync journal: %w", err)
		return w.err
	}
	w.synced = max(w.synced, n)
	return nil
}

// Close closes the file without syncing it. Later calls fail.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = errors.New("journal is closed")
	}
	return w.f.Close()
}
