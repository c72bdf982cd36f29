package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stage/bundle"
)

// bootID returns the random id of this boot (random(4)).
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// process is what /proc/PID/stat says of a process: its state letter and its start, in clock ticks
// after boot, which tells it from a later process of the same number.
type process struct {
	state byte
	start uint64
}

// readProcess returns fs.ErrNotExist for a process that is gone.
func readProcess(pid int) (process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, unix.ESRCH) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return process{}, err
	}
	return parseStat(b)
}

// parseStat reads proc_pid_stat(5). The second field is the command's name in parentheses and may
// hold anything, so the fields are counted after the last parenthesis: state is 3, starttime 22.
func parseStat(b []byte) (process, error) {
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 {
		return process{}, fmt.Errorf("process stat has %d fields", len(fields))
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return process{}, fmt.Errorf("process start: %w", err)
	}
	return process{state: fields[0][0], start: start}, nil
}

// supervisorAlive reports whether the very process that run.json names still runs. A zombie does not.
func supervisorAlive(r *bundle.Run) (bool, error) {
	boot, err := bootID()
	if err != nil {
		return false, err
	}
	if r.BootID != boot || r.PID <= 0 {
		return false, nil
	}
	p, err := readProcess(r.PID)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return p.start == r.PIDStart && p.state != 'Z' && p.state != 'X', nil
}
