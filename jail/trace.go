package jail

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stage/jail/enter"
)

// Step is a point that one of the processes of a run passed, for who looks for lost time.
type Step struct {
	Process string        `json:"process"`
	Name    string        `json:"name"`
	At      time.Duration `json:"at"` // of CLOCK_MONOTONIC, which all processes share
}

// Monotonic is the clock of a Step.
func Monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// Began is when this process was executed, as Step.At.
func Began() time.Duration { return enter.Began() }

// tracer collects the steps of a holder or shim until a message takes them along. The zero value collects none.
type tracer struct {
	process string // "" collects nothing

	mu    sync.Mutex
	steps []Step // guarded by mu
}

// newTracer returns one that has the process's beginning already.
func newTracer(process string, wanted bool) *tracer {
	if !wanted {
		return &tracer{}
	}
	return &tracer{process: process, steps: []Step{{process, "executed", Began()}}}
}

func (t *tracer) mark(name string) {
	if t.process == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.steps = append(t.steps, Step{t.process, name, Monotonic()})
}

// take returns what was collected since the last call.
func (t *tracer) take() []Step {
	t.mu.Lock()
	defer t.mu.Unlock()
	steps := t.steps
	t.steps = nil
	return steps
}

// step tells the caller a step of this process.
func (j *Jail) step(name string) {
	if j.cfg.OnStep != nil {
		j.cfg.OnStep(Step{"supervisor", name, Monotonic()})
	}
}

// pass tells the caller the steps of another process.
func (j *Jail) pass(steps []Step) {
	if j.cfg.OnStep == nil {
		return
	}
	for _, s := range steps {
		j.cfg.OnStep(s)
	}
}
