package fusefs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPassthrough(t *testing.T) {
	m := mountWith(t, Options{Name: "test", Passthrough: true})
	m.must(m.srv.Established(t.Context()))
	m.must(os.WriteFile(filepath.Join(m.dir, "lower", "big"), []byte(strings.Repeat("x", 1<<20)), 0o644))
	out, err := m.sh(`cat mnt/f && wc -c < mnt/big && cat mnt/big mnt/big > mnt/new && echo end >> mnt/new && tail -c 4 mnt/new && cmp -n 1048576 mnt/big mnt/new`)
	if out != "content1048576\nend\n" || err != nil {
		t.Errorf("got %q, %v", out, err)
	}
	got := m.srv.Messages()
	if got["READ"] != 0 || got["WRITE"] != 0 || got["OPEN"] == 0 {
		t.Errorf("got %v, want opens, and no READ nor WRITE", got)
	}
	if p := m.srv.Protocol(); !strings.Contains(p, " passthrough,") {
		t.Errorf("protocol %q lacks passthrough", p)
	}
	m.must(unix.Unmount(m.mnt(), 0))
	m.must(m.close())
}

// TestPassthroughReopens has a file open on the workspace's while it is opened for writing, again and
// again under several names: each open after the copy-up gets the upper file, and the reader keeps its own.
func TestPassthroughReopens(t *testing.T) {
	m := mountWith(t, Options{Name: "test", Passthrough: true})
	m.must(os.Link(filepath.Join(m.dir, "lower", "f"), filepath.Join(m.dir, "lower", "g")))
	script := `exec 3<mnt/f; exec 4<mnt/g
		echo more >> mnt/f
		cat mnt/f mnt/g; cat <&3; echo; cat <&4; echo
		mv mnt/g mnt/h; echo last >> mnt/h; cat mnt/f`
	want := "contentmore\ncontentmore\ncontent\ncontent\ncontentmore\nlast\n"
	if out, err := m.sh(script); out != want || err != nil {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
	m.srv.pass.mu.Lock()
	if n := len(m.srv.pass.open); n > 2 { // RELEASE may still be under way
		t.Errorf("%d files are registered", n)
	}
	m.srv.pass.mu.Unlock()
	until(t, "all files unregistered", func() bool {
		m.srv.pass.mu.Lock()
		defer m.srv.pass.mu.Unlock()
		return len(m.srv.pass.open) == 0
	})
	m.must(unix.Unmount(m.mnt(), 0))
	m.must(m.close())
}

// TestPassthroughEpochs: an open of an inode that is past is refused, whatever file it had.
func TestPassthroughEpochs(t *testing.T) {
	p := newPassthrough(-1)
	const n = 1<<55 + 5
	fd := int(tempFile(t).Fd())
	for epoch := range uint64(1 << 7) {
		node := epoch<<epochShift | n
		if got := p.wire(n); got != node || id(got) != n {
			t.Fatalf("epoch %d: told %#x, want %#x", epoch, got, node)
		}
		p.open[node] = &backing{dev: 1, opens: 1}
		_, err := p.hold(node, fd)
		want := error(unix.ESTALE)
		if epoch == 1<<7-1 {
			want = errEpochs
		}
		if err != want {
			t.Fatalf("epoch %d: got %v, want %v", epoch, err, want)
		}
		if epoch > 0 {
			if _, err := p.hold(n, fd); err != unix.ESTALE {
				t.Fatalf("first inode in epoch %d: got %v, want ESTALE", epoch, err)
			}
		}
	}
}

func tempFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
