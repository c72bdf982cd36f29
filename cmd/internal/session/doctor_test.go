package session

import (
	"os"
	"strings"
	"testing"
)

func TestFUSETransport(t *testing.T) {
	for _, c := range []struct {
		name, enabled, disabled string
		level, fix              string
	}{
		{"on", "Y\n", "0\n", "ok", ""},
		{"off", "N\n", "0\n", "off", "echo Y > " + uringParameter},
		{"no parameter", "", "0\n", "off", "Linux 6.14"},
		{"no io_uring for anybody", "Y\n", "2\n", "off", "io_uring_disabled=0"},
		{"kernel without the sysctl", "Y\n", "", "ok", ""},
	} {
		f := fuseTransport(func(path string) ([]byte, error) {
			text := map[string]string{uringParameter: c.enabled, uringDisabled: c.disabled}[path]
			if text == "" {
				return nil, os.ErrNotExist
			}
			return []byte(text), nil
		})
		if f.Level != c.level || !strings.Contains(f.Fix, c.fix) || (f.Fix == "") != (c.fix == "") {
			t.Errorf("%s: got %+v, want level %s and fix %q", c.name, f, c.level, c.fix)
		}
	}
}
