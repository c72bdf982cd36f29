package session

import (
	"fmt"
	"os"
	"syscall"
)

// Point returns what an apply calls at each durable step, for tests: with _STAGE_LOG_POINTS it
// names the step on stderr, and at the step that _STAGE_KILL_AT names it ends this process by
// SIGKILL. It is nil without them.
func Point() func(name string) {
	at, log := os.Getenv("_STAGE_KILL_AT"), os.Getenv("_STAGE_LOG_POINTS") != ""
	if at == "" && !log {
		return nil
	}
	return func(name string) {
		if log {
			fmt.Fprintf(os.Stderr, "point: %s\n", name)
		}
		if name == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // does not return
		}
	}
}
