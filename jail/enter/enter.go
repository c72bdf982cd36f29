// Package enter puts a re-executed process into the namespaces of its role before the Go runtime starts.
//
// Namespaces and credentials are entered by single threads; a Go program has several from its first line on.
// So a C constructor does it. It acts only when the variable Env is set and libcontainer's own constructor is
// not at work, and says what went wrong in one JSON message on descriptor ControlFD.
//
//	holder  unshare(NEWUSER|NEWNS), maps "0 <caller> 1"      rootless; as root unshare(NEWNS) alone
//	shim    unshare(NEWUSER), maps "<caller> 0 1"            rootless; gives the command its own uid back
//	        no core files, empty bounding set, no capability, no_new_privs, not dumpable
package enter

// #cgo CFLAGS: -Wall -Wextra -Werror
// #include <time.h>
// extern struct timespec stage_began;
import "C"

import (
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	// Env is the variable that carries a Role to the constructor.
	Env = "_STAGE_ENTER"
	// ControlFD is the descriptor on which both roles talk to their supervisor.
	ControlFD = 3
)

// Name is the part a re-executed process plays.
type Name string

const (
	// Holder keeps the mounts and starts the container.
	Holder Name = "holder"
	// Shim is the first process of the jail.
	Shim Name = "shim"
)

// Role is what the constructor does.
type Role struct {
	Name     Name
	Rootless bool
	UID, GID uint32
	Skip     string // test fault point: one step of the shim to leave out, named by its control
}

// Environ returns the environment entry that makes the constructor play r.
func (r Role) Environ() string {
	mode := "root"
	if r.Rootless {
		mode = "rootless"
	}
	skip := r.Skip
	if skip == "" {
		skip = "-"
	}
	return fmt.Sprintf("%s=%s %s %d %d %s", Env, r.Name, mode, r.UID, r.GID, skip)
}

// Began is when the constructor ran, by CLOCK_MONOTONIC: before the Go runtime started.
func Began() time.Duration {
	return time.Duration(C.stage_began.tv_sec)*time.Second + time.Duration(C.stage_began.tv_nsec)
}

// Current returns the role the constructor played in this process, or "" for an ordinary start.
func Current() Name {
	name, _, _ := strings.Cut(os.Getenv(Env), " ")
	return Name(name)
}
