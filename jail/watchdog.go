package jail

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The supervisor says every beatEvery that it lives, and for how many beats its servers have worked on a request
// without progress; the holder looks as often. All bounds are counts of looks, not times: a holder that was
// frozen, on a machine that was suspended or a cgroup that was, has not looked, and so blames nobody.
const (
	beatEvery = time.Second

	maxSilent = 60  // beats missed until the views are given up
	maxStuck  = 600 // beats without progress of a request until they are

	// From so many on it is asked whether a process that was killed waits for an answer.
	suspect = 5
	// For how many looks it may wait: longer where the supervisor lives, as the disk may be slow.
	maxDoomedSilent = 5
	maxDoomedStuck  = 30
)

// watchdog decides when a supervisor that does not answer must not hold up the jail any longer.
type watchdog struct {
	doomed func() bool // whether a process of the jail was killed and does not end

	silent  int // looks since the last beat
	stuck   int // as the last beat said
	waiting int // looks in a row with a doomed process
	paused  bool
}

// beat notes that the supervisor lives.
func (w *watchdog) beat(stuck int) { w.silent, w.stuck, w.paused = 0, stuck, false }

// pause expects silence until the next beat: the user has stopped the supervisor as a terminal does.
func (w *watchdog) pause() { w.paused = true }

// look returns why the views must be given up now, or "".
func (w *watchdog) look() string {
	w.silent++
	if w.silent <= suspect && w.stuck < suspect || !w.doomed() {
		w.waiting = 0
	} else {
		w.waiting++
	}
	switch {
	case w.silent > suspect && w.waiting >= maxDoomedSilent:
		return fmt.Sprintf("stage did not answer for %v, and a process that was killed waited for it", time.Duration(w.silent)*beatEvery)
	case w.silent >= maxSilent && !w.paused:
		return fmt.Sprintf("stage did not answer for %v", time.Duration(w.silent)*beatEvery)
	case w.waiting >= maxDoomedStuck:
		return fmt.Sprintf("a file operation made no progress for %v, and a process that was killed waited for it", time.Duration(w.stuck)*beatEvery)
	case w.stuck >= maxStuck:
		return fmt.Sprintf("a file operation made no progress for %v", time.Duration(w.stuck)*beatEvery)
	}
	return ""
}

// task is what /proc says of a thread.
type task struct {
	parent int
	state  byte
	flags  uint64
}

// exiting is PF_EXITING (include/linux/sched.h).
const exiting = 0x4

// parseStat knows the format of proc_pid_stat(5). The name is in parentheses and may hold any byte.
func parseStat(stat []byte) (task, bool) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 7 || len(fields[0]) != 1 {
		return task{}, false
	}
	parent, perr := strconv.Atoi(string(fields[1]))
	flags, ferr := strconv.ParseUint(string(fields[6]), 10, 64)
	return task{parent: parent, state: fields[0][0], flags: flags}, perr == nil && ferr == nil
}

// anyDoomed tells whether a process below ancestor was killed and has not ended. Nothing that is read here waits
// for the process.
func anyDoomed(ancestor int) bool {
	for _, pid := range descendants(ancestor) {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			continue // it has just ended
		}
		for _, t := range tasks {
			if isDoomed(fmt.Sprintf("/proc/%d/task/%s", pid, t.Name())) {
				return true
			}
		}
	}
	return false
}

// isDoomed tells whether a thread has SIGKILL pending or is on its way out.
func isDoomed(dir string) bool {
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return false
	}
	t, ok := parseStat(stat)
	if !ok || t.state == 'Z' || t.state == 'X' {
		return false
	}
	if t.flags&exiting != 0 {
		return true
	}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return false
	}
	for _, line := range strings.Split(string(status), "\n") {
		name, value, _ := strings.Cut(line, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		pending, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err == nil && pending&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
}

// descendants returns the processes below ancestor. In a pid namespace orphans stay below its first process.
func descendants(ancestor int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := make(map[int][]int)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		if t, ok := parseStat(stat); ok {
			children[t.parent] = append(children[t.parent], pid)
		}
	}
	found := children[ancestor]
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found
}

// beat tells the holder every beatEvery that this process lives, until the holder is gone.
func (j *Jail) beat() {
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	for {
		select {
		case <-j.holder.done:
			return
		case <-j.closed:
			return
		case <-t.C:
		}
		stuck := 0
		if j.cfg.Stuck != nil {
			stuck = j.cfg.Stuck()
		}
		if j.control.send(message{Kind: kindBeat, Stuck: stuck}) != nil {
			return // it is gone, or told to end
		}
	}
}

// Pause lets the holder expect that this process does not answer from now on, because its user stops it. The next
// beat ends the pause.
func (j *Jail) Pause() error { return j.control.send(message{Kind: kindPause}) }

// AbandonedError says that the holder ended the jail because its views were not served.
type AbandonedError struct{ Reason string }

func (e *AbandonedError) Error() string { return "the job was ended: " + e.Reason }
