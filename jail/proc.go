package jail

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// alive tells whether a process of this pid namespace runs, that is, exists and is no zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The state follows the name, which is in parentheses and may hold any byte.
	i := bytes.LastIndexByte(stat, ')')
	return i >= 0 && i+2 < len(stat) && stat[i+2] != 'Z' && stat[i+2] != 'X'
}

// processStatus returns the fields of the calling thread's /proc/thread-self/status.
func processStatus() (map[string]string, error) {
	text, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return nil, fmt.Errorf("read own status: %w", err)
	}
	fields := make(map[string]string)
	for _, line := range strings.Split(string(text), "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	return fields, nil
}
