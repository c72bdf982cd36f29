package testenv

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Mounts returns the mount points at or below dir in this process's mount namespace.
func Mounts(t testing.TB, dir string) []string {
	t.Helper()
	m, err := mounts(dir)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func mounts(dir string) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var found []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			return nil, fmt.Errorf("mountinfo line %q", line)
		}
		if p := unescape.Replace(f[4]); p == dir || strings.HasPrefix(p, dir+"/") {
			found = append(found, p)
		}
	}
	return found, nil
}

func checkNoMount(dir string) error {
	m, err := mounts(dir)
	if err != nil {
		return err
	}
	if len(m) > 0 {
		return fmt.Errorf("%s is still mounted: nothing below %s is removed", m[0], dir)
	}
	return nil
}
