package conformance

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"

	"stage/test/testenv"
)

// notPosix is the one test of posixtest that a plain directory fails too: it wants two POSIX locks of
// one process to conflict. go-fuse leaves it out on plain directories (posixtest_test.go).
const notPosix = "FcntlFlockLocksFile"

// TestPosix runs go-fuse's posixtest.
func TestPosix(t *testing.T) {
	testenv.Users(t, func(t *testing.T, u testenv.User) { inModes(t, u, "posix") })
}

func insidePosix(t *testing.T, dir string) {
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		if name == notPosix {
			continue
		}
		t.Run(name, func(t *testing.T) {
			d := filepath.Join(dir, "mnt", "posix-"+name)
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
			posixtest.All[name](t, d)
		})
	}
}
