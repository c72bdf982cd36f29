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
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
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
	err    error  // first write error; later calls return it, since the end of the file is unknown
	buf    bytes.Buffer
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
	end = int64(len(text))
	for {
		text, err := br.ReadBytes('\n')
		if err == io.EOF {
			return end, last, nil // without a newline: unfinished
		}
		if err != nil {
			return end, last, err
		}
		rec, err := parseLine(text, last+1)
		if err != nil {
			return end, last, fmt.Errorf("record %d at byte %d: %w", last+1, end, err)
		}
		if err := replay(last+1, rec); err != nil {
			return end, last, fmt.Errorf("record %d: %w", last+1, err)
		}
		last++
		end += int64(len(text))
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

func appendHead(b []byte, n uint64) []byte { return fmt.Appendf(b, `{"n":%d,"crc":"`, n) }

func checksum(b []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(b, castagnoli)) }

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
	return n, nil
}

func (w *Writer) encodeLocked(n uint64, record any) error {
	r, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	w.buf.Write(appendHead(w.buf.AvailableBuffer(), n))
	fmt.Fprintf(&w.buf, `%s","r":%s}`+"\n", checksum(r), r)
	return nil
}

// Sync makes every record appended so far durable. It costs nothing when none is new.
func (w *Writer) Sync() error {
	w.mu.Lock()
	n, err := w.n, w.err
	clean := w.synced == n && n > 0
	w.mu.Unlock()
	if err != nil || clean {
		return err
	}
	if err := w.f.Sync(); err != nil {
		w.mu.Lock()
		w.err = fmt.Errorf("sync journal: %w", err)
		w.mu.Unlock()
		return w.err
	}
	w.mu.Lock()
	w.synced = max(w.synced, n)
	w.mu.Unlock()
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
