package hostfs

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotRegular is the cause when Open or OpenWrite meets something that is not a regular file.
var ErrNotRegular = errors.New("not a regular file")

// opError is what every operation returns: `act "name": errno`. It is a type of its own because
// negative lookups make one each, and formatting is left until somebody prints it.
type opError struct {
	act, name string
	err       error
}

func (e *opError) Error() string { return fmt.Sprintf("%s %q: %v", e.act, e.name, e.err) }

func (e *opError) Unwrap() error { return e.err }

// fail wraps err, and keeps nil nil.
func fail(act, name string, err error) error {
	if err == nil {
		return nil
	}
	return &opError{act, name, err}
}

// checkName refuses what is not the name of an entry: the kernel would resolve it as a path.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return unix.EINVAL
	}
	return nil
}

// checkSelf is checkName for operations where "." means the directory itself.
func checkSelf(name string) error {
	if name == "." {
		return nil
	}
	return checkName(name)
}

// retry calls f again while a signal interrupts it.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// retryInt is retry for calls that return a number: a descriptor or a count.
func retryInt(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}
