package jail

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// mountRow is one line of /proc/self/mountinfo.
type mountRow struct {
	Point   string
	Options []string // of the mount
	Type    string
}

func (r mountRow) has(option string) bool { return slices.Contains(r.Options, option) }

// readMounts returns the mounts of the calling process in the order they were made.
func readMounts() ([]mountRow, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	var rows []mountRow
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		row, err := parseMountRow(lines.Text())
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return rows, nil
}

// parseMountRow knows the format of proc_pid_mountinfo(5): six fields, optional ones, "-", type, source, options.
func parseMountRow(line string) (mountRow, error) {
	before, after, ok := strings.Cut(line, " - ")
	left, right := strings.Split(before, " "), strings.Split(after, " ") // not Fields: names may hold other blanks
	if !ok || len(left) < 6 || len(right) < 1 {
		return mountRow{}, fmt.Errorf("list mounts: unknown line %q", line)
	}
	return mountRow{Point: unescapeMount(left[4]), Options: strings.Split(left[5], ","), Type: right[0]}, nil
}

// unescapeMount undoes the octal escapes of blanks and backslashes.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountAt returns the topmost mount at point.
func mountAt(rows []mountRow, point string) (mountRow, bool) {
	for i := len(rows) - 1; i >= 0; i-- {
		if rows[i].Point == point {
			return rows[i], true
		}
	}
	return mountRow{}, false
}
