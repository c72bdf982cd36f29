package jail

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWatchdog(t *testing.T) {
	type looks struct {
		beats  bool // the supervisor beats before each
		stuck  int  // as it then says
		doomed bool
		paused bool
		n      int // so many looks
	}
	for _, c := range []struct {
		name string
		do   []looks
		at   int // look at which it gives up, 0: never
		why  string
	}{
		{"a supervisor that beats", []looks{{beats: true, n: 10000}}, 0, ""},
		{"processes that take long to end", []looks{{beats: true, doomed: true, n: 10000}}, 0, ""},
		{"silence", []looks{{beats: true, n: 7}, {n: 1000}}, 7 - 1 + 1 + maxSilent - 1, "did not answer"},
		{"short silences", []looks{{n: maxSilent - 1}, {beats: true, n: 1}, {n: maxSilent - 2}, {beats: true, n: 1}}, 0, ""},
		{"silence of a paused supervisor", []looks{{paused: true, n: 10000}}, 0, ""},
		{"a paused supervisor and a killed process", []looks{{paused: true, n: 100}, {doomed: true, n: 100}}, 100 + maxDoomedSilent, "killed"},
		{"silence and a killed process", []looks{{doomed: true, n: 100}}, suspect + maxDoomedSilent, "killed"},
		{"a killed process that ends in time", []looks{{doomed: true, n: suspect + 2}, {n: 3}, {doomed: true, n: maxDoomedSilent - 1}, {n: 1}}, 0, ""},
		{"a slow operation", []looks{{beats: true, stuck: maxStuck - 1, n: 1000}}, 0, ""},
		{"a stuck operation", []looks{{beats: true, stuck: maxStuck, n: 1}}, 1, "no progress"},
		{"a slow operation and a killed process", []looks{{beats: true, stuck: suspect, doomed: true, n: 100}}, maxDoomedStuck, "killed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var now looks
			w := watchdog{doomed: func() bool { return now.doomed }}
			at, why, n := 0, "", 0
			for _, now = range c.do {
				if now.paused {
					w.pause()
				}
				for range now.n {
					if now.beats {
						w.beat(now.stuck)
					}
					n++
					if why = w.look(); why != "" && at == 0 {
						at = n
						break
					}
				}
				if at > 0 {
					break
				}
			}
			if at != c.at || !strings.Contains(why, c.why) {
				t.Errorf("gave up at look %d for %q, want %d for %q", at, why, c.at, c.why)
			}
		})
	}
}

func TestDescendantsAndDoomed(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 1008 & wait")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait()
	}()
	for len(descendants(os.Getpid())) < 2 {
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
	if anyDoomed(os.Getpid()) {
		t.Error("a process that sleeps is taken for a killed one")
	}
	if _, ok := parseStat([]byte("1 (a) b) c")); ok {
		t.Error("a stat line that is cut was taken")
	}
	got, ok := parseStat([]byte("7 (a) Z (b) D 42 1 1 0 -1 4194564 0"))
	if want := (task{parent: 42, state: 'D', flags: 4194564}); !ok || got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
