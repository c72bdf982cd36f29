// Package bundle is the records of a Job: run.json, plan.json, bundle.json and the documents that
// review and apply print. It is pure data with one JSON form each; FORMAT.md explains every field
// and the files in schema/ are their JSON Schemas.
//
// Three laws hold for every document. Its version is read before anything else and an unknown
// version or key is refused with ErrNewer. Every key is always written; what is not known is null,
// and null never stands for 0 or for an empty list. What Encode writes, Decode reads, and encoding
// the same value twice gives the same bytes.
package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Version is the format version of every document this package writes.
const Version = 1

// Errors someone branches on.
var (
	// ErrNewer: the document has a version or a key that this stage does not know.
	ErrNewer = errors.New("written by a newer stage than this one (newer store, older binary)")
	// ErrMalformed: the document is not what any stage writes.
	ErrMalformed = errors.New("malformed record")
)

// Document is one of the documents of this package, each of which stands alone in a file or stream.
type Document interface {
	Run | Plan | Bundle | ReviewReport | ApplyReport
}

// checker is what every document knows to say about itself.
type checker interface{ Check() error }

// verifier is a document that carries a digest of itself.
type verifier interface{ verify() error }

// Encode returns the JSON form of d, indented, with a newline at its end. A document that breaks
// its own rules (Check) is refused: it is never written.
func Encode[D Document](d *D) ([]byte, error) {
	if err := any(d).(checker).Check(); err != nil {
		return nil, fmt.Errorf("encode %s: %w", docName(d), err)
	}
	return encode(d)
}

func encode(d any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(d); err != nil {
		return nil, fmt.Errorf("encode %s: %w", docName(d), err)
	}
	return b.Bytes(), nil
}

// Decode reads what Encode writes and refuses everything else: the version first, then unknown and
// missing keys, then a document that breaks its own rules.
func Decode[D Document](data []byte) (*D, error) {
	d := new(D)
	if err := decode(data, d); err != nil {
		return nil, fmt.Errorf("decode %s: %w", docName(d), err)
	}
	return d, nil
}

func decode(data []byte, d any) error {
	if err := checkVersion(data); err != nil {
		return err
	}
	if err := json.Unmarshal(data, d); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if err := checkKeys(data, d); err != nil {
		return err
	}
	if err := d.(checker).Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if v, ok := d.(verifier); ok {
		if err := v.verify(); err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
	}
	return nil
}

func checkVersion(data []byte) error {
	var v struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if v.Version == nil {
		return fmt.Errorf("no version: %w", ErrMalformed)
	}
	if *v.Version != Version {
		return fmt.Errorf("version %d, this stage knows %d: %w", *v.Version, Version, ErrNewer)
	}
	return nil
}

// checkKeys compares data with what d encodes to: encoding/json neither notices a missing key nor
// says at which place an unknown one stands, and takes "Job" for "job".
func checkKeys(data []byte, d any) error {
	again, err := encode(d)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if bytes.Equal(data, again) {
		return nil
	}
	in, err := generic(data)
	if err != nil {
		return err
	}
	out, err := generic(again)
	if err != nil {
		return err
	}
	return sameShape(in, out, "")
}

func generic(data []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return v, nil
}

// sameShape reports the first place where in, a document as found, differs from out, the same
// document as this stage writes it.
func sameShape(in, out any, at string) error {
	switch o := out.(type) {
	case map[string]any:
		i, ok := in.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is not an object: %w", place(at), ErrMalformed)
		}
		return sameObject(i, o, at)
	case []any:
		i, ok := in.([]any)
		if !ok || len(i) != len(o) {
			return fmt.Errorf("%s is not the list it was read as: %w", place(at), ErrMalformed)
		}
		for n := range o {
			if err := sameShape(i[n], o[n], fmt.Sprintf("%s[%d]", at, n)); err != nil {
				return err
			}
		}
		return nil
	}
	if in != out {
		return fmt.Errorf("%s has the value %v, which is not how a stage writes it: %w", place(at), in, ErrMalformed)
	}
	return nil
}

func sameObject(in, out map[string]any, at string) error {
	for key := range in {
		if _, ok := out[key]; !ok {
			return fmt.Errorf("unknown key %q in %s: %w", key, place(at), ErrNewer)
		}
	}
	for key, o := range out {
		i, ok := in[key]
		if !ok {
			return fmt.Errorf("missing key %q in %s: %w", key, place(at), ErrMalformed)
		}
		if err := sameShape(i, o, at+"."+key); err != nil {
			return err
		}
	}
	return nil
}

func place(at string) string {
	if at == "" {
		return "the document"
	}
	return at[1:]
}

func docName(d any) string {
	switch d.(type) {
	case *Run:
		return "run.json"
	case *Plan:
		return "plan.json"
	case *Bundle:
		return "bundle.json"
	case *ReviewReport:
		return "review report"
	case *ApplyReport:
		return "apply report"
	default:
		return "document"
	}
}
