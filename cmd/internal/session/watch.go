package session

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"stage/fs/fusefs"
)

// watches tell whether the servers of a run answer. Their lock is held over nothing that waits.
type watches struct {
	mu      sync.Mutex
	list    []*fusefs.Watch  // guarded by mu
	servers []*fusefs.Server // guarded by mu
}

func (w *watches) add(s *fusefs.Server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list, w.servers = append(w.list, s.Watch()), append(w.servers, s)
}

// stuck returns for how many calls in a row a request has been without progress.
func (w *watches) stuck() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	most := 0
	for _, s := range w.list {
		most = max(most, s.Look())
	}
	return most
}

func (w *watches) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.servers, (*fusefs.Server).Busy)
}

// How long a command that is told to stop is waited for: until it asked for nothing quietLooks times in a row.
const (
	quietPause = 10 * time.Millisecond
	quietLooks = 5
	quietTries = 100
)

// awaitQuiet lets processes that are to stop have the answers they wait for: one that waits cannot stop.
func (w *watches) awaitQuiet() {
	for try, quiet := 0, 0; try < quietTries && quiet < quietLooks; try++ {
		time.Sleep(quietPause)
		quiet++
		if w.busy() {
			quiet = 0
		}
	}
}

// suspend stops this process as the terminal asked for, the command first. It goes on when the process does.
func (s *run) suspend() error {
	// One that is gone already takes no signal.
	_ = s.jail.Signal(syscall.SIGTSTP)
	s.watches.awaitQuiet()
	if err := s.jail.Pause(); err != nil {
		return fmt.Errorf("suspend job: %w", err)
	}
	return stopSelf()
}

func stopSelf() error { return syscall.Kill(syscall.Getpid(), syscall.SIGSTOP) }
