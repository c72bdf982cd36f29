// Package jail runs one command in Linux namespaces of its own.
package jail

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// Exit is how the command ended.
type Exit struct {
	Code      int // the command's own code; 128+n when signal n ended it
	Signal    int // the signal that ended it, or 0
	Survivors int // processes still alive at the end of the command, all killed; -1: not counted
	Rusage    Rusage
}

// Rusage is what all processes of the jail used together.
type Rusage struct {
	User, System time.Duration
	MaxRSS       int64 // bytes, of the largest process
}

// Jail is one confined command, from the first mount to the last process.
type Jail struct{}

var errUnbuilt = errors.New("jail is not built")

func Prepare(ctx context.Context, c Config) (*Jail, error)    { return nil, errUnbuilt }
func (j *Jail) Device(view int) *os.File                      { return nil }
func (j *Jail) Start(ctx context.Context) (*Installed, error) { return nil, errUnbuilt }
func (j *Jail) Listeners() []net.Listener                     { return nil }
func (j *Jail) Exec() error                                   { return errUnbuilt }
func (j *Jail) Signal(sig syscall.Signal) error               { return errUnbuilt }
func (j *Jail) Wait() (Exit, error)                           { return Exit{}, errUnbuilt }
func (j *Jail) Kill() error                                   { return errUnbuilt }
func (j *Jail) Close() error                                  { return errUnbuilt }
func Main() (handled bool)                                    { return false }
func (e *ExecError) Error() string {
	return "execute " + e.Path + ": " + syscall.Errno(e.Errno).Error()
}
