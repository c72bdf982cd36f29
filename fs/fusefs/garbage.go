package fusefs

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

const (
	// mostGarbage is how much garbage may gather in percent of what is in use while that is little:
	// collecting at every few MiB would cost a tenth of a short run.
	mostGarbage = 400
	// leastRoom is how many bytes of garbage may always gather.
	leastRoom = 24 << 20
)

// pacer sets, after each collection of garbage, how much may gather until the next: hundreds of
// megabytes in use, as with a million files known, must not become a gigabyte. It acts on the whole
// process; several agree, as all look at the same.
type pacer struct {
	stopped atomic.Bool
	percent int // set last; only the runtime's one goroutine for cleanups uses it
}

func startPacer() *pacer {
	p := &pacer{}
	p.arm()
	return p
}

func (p *pacer) stop() { p.stopped.Store(true) }

// arm lets the next collection find an object that nobody uses, after which it is time to look.
func (p *pacer) arm() {
	runtime.AddCleanup(&struct{ p *pacer }{}, func(p *pacer) {
		if !p.stopped.Load() {
			p.pace()
			p.arm()
		}
	}, p)
}

func (p *pacer) pace() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	percent := garbagePercent(live[0].Value.Uint64())
	if percent == p.percent {
		return
	}
	p.percent = percent
	debug.SetGCPercent(percent)
}

// garbagePercent returns the GC percentage for a heap of which live bytes are in use.
func garbagePercent(live uint64) int {
	room := leastRoom + live/8
	if live == 0 || room/live >= mostGarbage/100 {
		return mostGarbage
	}
	return int(room * 100 / live)
}
