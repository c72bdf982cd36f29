package session

import (
	"fmt"
	"sync"
	"time"

	"stage/fs/overlay"
)

// syncEvery is how long a recorded change may wait until it is durable.
const syncEvery = 5 * time.Second

// keeper makes the open overlays durable every few seconds and keeps what they report. It owns one
// goroutine, which stop waits for.
type keeper struct {
	done chan struct{}
	wg   sync.WaitGroup

	mu       sync.Mutex
	overlays []*overlay.FS   // guarded by mu
	events   []overlay.Event // guarded by mu
	err      error           // guarded by mu: the first failed sync
}

// maxEvents bounds what a Job can make stage remember.
const maxEvents = 1000

// maxTold bounds how many events a bundle tells one by one.
const maxTold = 20

func startKeeper() *keeper {
	k := &keeper{done: make(chan struct{})}
	k.wg.Add(1)
	go k.loop()
	return k
}

func (k *keeper) loop() {
	defer k.wg.Done()
	t := time.NewTicker(syncEvery)
	defer t.Stop()
	for {
		select {
		case <-k.done:
			return
		case <-t.C:
			k.sync()
		}
	}
}

func (k *keeper) sync() {
	k.mu.Lock()
	open := k.overlays
	k.mu.Unlock()
	for _, fs := range open {
		if err := fs.Sync(); err != nil {
			k.mu.Lock()
			if k.err == nil {
				k.err = err
			}
			k.mu.Unlock()
		}
	}
}

func (k *keeper) add(fs *overlay.FS) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.overlays = append(k.overlays[:len(k.overlays):len(k.overlays)], fs)
}

func (k *keeper) event(e overlay.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.events) < maxEvents {
		k.events = append(k.events, e)
	}
}

// stop ends the goroutine and waits for it.
func (k *keeper) stop() {
	close(k.done)
	k.wg.Wait()
}

// told is, in words, what went wrong or drifted under the overlays.
//
// Preconditions:
//   - stop was called.
func (k *keeper) told() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var l []string
	if k.err != nil {
		l = append(l, "staged changes could not be made durable in time: "+k.err.Error())
	}
	for i, e := range k.events {
		if i == maxTold {
			return append(l, fmt.Sprintf("%d or more further events of the overlay", len(k.events)-i))
		}
		l = append(l, fmt.Sprintf("overlay: %q: %v", e.Path, e.Err))
	}
	return l
}
