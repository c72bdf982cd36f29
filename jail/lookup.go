package jail

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ExecError says why the command did not start.
type ExecError struct {
	Path  string
	Errno syscall.Errno
	// Code is 127 when there is no such command, 126 when it cannot be executed.
	Code int
	// Interpreter is set when the file is there and what it names as its interpreter is not.
	Interpreter bool
}

func (e *ExecError) Error() string {
	if e.Interpreter {
		return fmt.Sprintf("execute %q: its interpreter is missing: %v", e.Path, e.Errno)
	}
	return fmt.Sprintf("execute %q: %v", e.Path, e.Errno)
}

func (e *ExecError) Unwrap() error { return e.Errno }

// orNil keeps a nil pointer from becoming an error.
func (e *ExecError) orNil() error {
	if e == nil {
		return nil
	}
	return e
}

const (
	codeNotExecutable = 126
	codeNotFound      = 127
	defaultPath       = "/bin:/usr/bin" // what execvp takes without PATH
)

// lookCommand finds the file a shell would execute for name, with the rules of execvp(3).
func lookCommand(name string, env []string) (string, *ExecError) {
	if strings.Contains(name, "/") {
		return name, nil // execve says what is wrong with it
	}
	if name == "" {
		return "", &ExecError{Path: name, Errno: unix.ENOENT, Code: codeNotFound}
	}
	list := lookupEnv(env, "PATH")
	if list == "" {
		list = defaultPath
	}
	denied := ""
	for _, dir := range strings.Split(list, ":") {
		if dir == "" {
			dir = "."
		}
		file := path.Join(dir, name)
		if !strings.Contains(file, "/") {
			file = "./" + file
		}
		switch err := executable(file); {
		case err == nil:
			return file, nil
		case errors.Is(err, unix.EACCES):
			denied = file
		}
	}
	if denied != "" {
		return "", &ExecError{Path: denied, Errno: unix.EACCES, Code: codeNotExecutable}
	}
	return "", &ExecError{Path: name, Errno: unix.ENOENT, Code: codeNotFound}
}

func executable(file string) error {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.ENOENT // a directory of that name hides nothing further on in PATH
	}
	return unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS)
}

// execError sorts what execve(2) said of file as a shell would.
func execError(file string, errno syscall.Errno) *ExecError {
	e := &ExecError{Path: file, Errno: errno, Code: codeNotExecutable}
	switch errno {
	case unix.ENOENT, unix.ENOTDIR:
		var st unix.Stat_t
		if unix.Stat(file, &st) == nil {
			e.Interpreter = true
		} else {
			e.Code = codeNotFound
		}
	}
	return e
}
