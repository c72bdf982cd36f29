package session

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"stage/jail"
)

// Trace collects when the processes of a run reached which step. A nil Trace collects nothing.
type Trace struct {
	mu    sync.Mutex
	steps []jail.Step // guarded by mu
}

// NewTrace returns a Trace if _STAGE_TRACE asks for one. It has the start of this process already.
func NewTrace() *Trace {
	if os.Getenv("_STAGE_TRACE") == "" {
		return nil
	}
	t := &Trace{}
	t.add(jail.Step{Process: "supervisor", Name: "executed", At: jail.Began()})
	t.Mark("main")
	return t
}

// Mark notes that this process has come as far as name.
func (t *Trace) Mark(name string) {
	if t != nil {
		t.add(jail.Step{Process: "supervisor", Name: name, At: jail.Monotonic()})
	}
}

func (t *Trace) add(s jail.Step) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.steps = append(t.steps, s)
}

// onStep is what a jail reports its steps to.
func (t *Trace) onStep() func(jail.Step) {
	if t == nil {
		return nil
	}
	return t.add
}

// Write lists the steps by time: milliseconds since the first, since the one before, process, name.
func (t *Trace) Write(w io.Writer) error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.steps, func(a, b jail.Step) int { return int(a.At - b.At) })
	first, last := t.steps[0].At, t.steps[0].At
	for _, s := range t.steps {
		if _, err := fmt.Fprintf(w, "%8.3f %+8.3f  %-10s %s\n", ms(s.At-first), ms(s.At-last), s.Process, s.Name); err != nil {
			return err
		}
		last = s.At
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
