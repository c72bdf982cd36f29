package policy

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// units of sizes. A unit without B or i is binary, as docker reads it.
var units = map[string]uint64{
	"": 1, "B": 1,
	"K": 1 << 10, "KIB": 1 << 10, "KB": 1e3,
	"M": 1 << 20, "MIB": 1 << 20, "MB": 1e6,
	"G": 1 << 30, "GIB": 1 << 30, "GB": 1e9,
	"T": 1 << 40, "TIB": 1 << 40, "TB": 1e12,
}

// parseSize reads "10GiB", "64M", "1.5GB" or a number of bytes.
func parseSize(s string) (uint64, error) {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	unit, ok := units[strings.ToUpper(strings.TrimSpace(s[len(digits):]))]
	if !ok {
		return 0, fmt.Errorf("size %q: unknown unit", s)
	}
	if strings.Trim(digits, "0123456789.") != "" {
		return 0, fmt.Errorf("size %q is not a positive size", s)
	}
	if n, err := strconv.ParseUint(digits, 10, 64); err == nil {
		if n == 0 || n > math.MaxInt64/unit {
			return 0, fmt.Errorf("size %q is out of range", s)
		}
		return n * unit, nil
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || !(f*float64(unit) >= 1) || f*float64(unit) >= math.MaxInt64 {
		return 0, fmt.Errorf("size %q is not a positive size", s)
	}
	return uint64(f * float64(unit)), nil
}

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("duration %q is not a positive duration such as 30m or 1h30m", s)
	}
	return d, nil
}

func parseCount(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a positive whole number", s)
	}
	return n, nil
}

func parseCPU(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f > 0) || math.IsInf(f, 0) {
		return 0, fmt.Errorf("%q is not a positive number of CPUs", s)
	}
	return f, nil
}

func parseMode(s string) (NetMode, error) {
	switch m := NetMode(s); m {
	case NetNone, NetAllow, NetHost:
		return m, nil
	default:
		return "", fmt.Errorf("network mode %q is none of none, allow, host", s)
	}
}

// canonicalLimit returns what a Limit rule on object says, in the form of Rule.Value.
func canonicalLimit(object, s string) (string, error) {
	switch object {
	case "disk", "memory", "max_output":
		n, err := parseSize(s)
		return strconv.FormatUint(n, 10), err
	case "pids", "nofile":
		n, err := parseCount(s)
		return strconv.FormatUint(n, 10), err
	case "cpu":
		f, err := parseCPU(s)
		return strconv.FormatFloat(f, 'g', -1, 64), err
	case "timeout":
		d, err := parseDuration(s)
		return strconv.FormatInt(int64(d), 10), err
	case "mode":
		m, err := parseMode(s)
		return string(m), err
	case "userns":
		b, err := strconv.ParseBool(s)
		return strconv.FormatBool(b), err
	default:
		return "", errors.New("unknown limit " + object)
	}
}

// compareLimits orders the canonical values of one limit: the lower permits less.
func compareLimits(object, a, b string) int {
	switch object {
	case "mode":
		rank := map[string]int{"allow": 1, "host": 2}
		return cmp.Compare(rank[a], rank[b])
	case "userns":
		return cmp.Compare(a, b) // "false" < "true"
	case "cpu":
		x, _ := strconv.ParseFloat(a, 64)
		y, _ := strconv.ParseFloat(b, 64)
		return cmp.Compare(x, y)
	default: // decimal numbers without leading zeros
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	}
}
