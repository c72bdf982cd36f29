package fusefs

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stage/test/testenv"
)

func TestParseTransport(t *testing.T) {
	for _, tr := range []Transport{Auto, Loop, Uring} {
		if got, err := ParseTransport(tr.String()); got != tr || err != nil {
			t.Errorf("%v: got %v, %v", tr, got, err)
		}
	}
	if got, err := ParseTransport(""); got != Auto || err != nil {
		t.Errorf("no name: got %v, %v, want auto", got, err)
	}
	if _, err := ParseTransport("pipe"); err == nil {
		t.Error("pipe: got no error")
	}
}

func TestCountCPUs(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-1": 2, "0-3,8-9,12": 7} {
		if got, err := countCPUs(list); got != want || err != nil {
			t.Errorf("%q: got %d, %v, want %d", list, got, err, want)
		}
	}
	for _, list := range []string{"", "a", "3-1", "0-", "-1", "0-99999"} {
		if got, err := countCPUs(list); err == nil {
			t.Errorf("%q: got %d, want an error", list, got)
		}
	}
}

// TestQueuesOfForbiddenCPUs: every queue of the kernel is served, by threads that run where they may.
func TestQueuesOfForbiddenCPUs(t *testing.T) {
	queues, err := distribute(5, func(cpu int) bool { return cpu == 1 || cpu == 3 })
	if err != nil {
		t.Fatal(err)
	}
	served := map[uint16]int{}
	for _, q := range queues {
		if q.cpu != 1 && q.cpu != 3 || int(q.ids[0]) != q.cpu {
			t.Errorf("queue %d first serves %d", q.cpu, q.ids[0])
		}
		for _, id := range q.ids {
			served[id]++
		}
	}
	for id := range uint16(5) {
		if served[id] != 1 {
			t.Errorf("queue %d is served %d times", id, served[id])
		}
	}
	if _, err := distribute(2, func(int) bool { return false }); err == nil {
		t.Error("no CPU at all: got no error")
	}
}

func TestForcedTransportFails(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE)
	init := make([]byte, inInitFlags2+4)
	s := &Server{transport: Uring}
	if _, err := s.openUring(init); err != errNotOffered {
		t.Errorf("got %v, want %v", err, errNotOffered)
	}
	s.transport = Loop
	if _, err := s.openUring(init); err != errUnwanted {
		t.Errorf("got %v, want %v", err, errUnwanted)
	}
}

func TestProtocolTellsTransport(t *testing.T) {
	onTransports(t, func(t *testing.T, m *mounted) {
		if out, err := m.sh("cat mnt/f"); err != nil {
			t.Fatalf("cat: %q, %v", out, err)
		}
		want := "; read loop, no io_uring: not asked for"
		if m.srv.transport == Uring {
			want = "; io_uring, "
		}
		if p := m.srv.Protocol(); !strings.Contains(p, want) {
			t.Errorf("protocol %q lacks %q", p, want)
		}
		m.must(unix.Unmount(m.mnt(), 0))
		m.must(m.close())
	})
}

// TestThreadsEnd mounts and unmounts often: the pinned threads must go with each.
func TestThreadsEnd(t *testing.T) {
	const rounds = 16
	start := threads(t)
	for i := range rounds {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			m := mountOverlay(t, Uring)
			if out, err := m.sh("cat mnt/f && ls mnt"); err != nil {
				t.Fatalf("got %q, %v", out, err)
			}
			m.must(unix.Unmount(m.mnt(), 0))
			m.must(m.close())
		})
	}
	until(t, "threads ended", func() bool { return threads(t) < start+rounds })
}

func threads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}

// until waits for something another process or the kernel does.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestSlowRequestsLeaveTheCPUServed blocks one fsync after the other from one CPU, and reads from it.
func TestSlowRequestsLeaveTheCPUServed(t *testing.T) {
	testenv.Need(t, testenv.Tool("taskset"))
	onTransports(t, func(t *testing.T, m *mounted) {
		const n = 8
		if out, err := m.sh(fmt.Sprintf("for i in $(seq 0 %d); do echo > mnt/n$i; done", n)); err != nil {
			t.Fatalf("got %q, %v", out, err)
		}
		m.log.block()
		done := make(chan string, n)
		for i := range uint64(n) {
			go func() {
				out, err := m.sh(fmt.Sprintf("taskset -c 0 sync mnt/n%d", i))
				done <- fmt.Sprint(out, err)
			}()
			until(t, "fsync arrived", func() bool { return m.srv.Messages()["FSYNC"] == i+1 })
			if u := m.srv.uring; u != nil {
				until(t, "a worker is idle", func() bool { return u.queues[0].idle.Load() > 0 })
			}
			if out, err := m.sh("taskset -c 0 sh -c 'cat mnt/f; test ! -e mnt/absent'"); out != "content" || err != nil {
				t.Errorf("beside %d fsyncs: got %q, %v", i+1, out, err)
			}
		}
		m.log.free()
		for range n {
			if got := <-done; got != "<nil>" {
				t.Errorf("fsync: %s", got)
			}
		}
		m.must(unix.Unmount(m.mnt(), 0))
		m.must(m.close())
	})
}

// TestSignalsWhileWaiting interrupts requests all the time.
func TestSignalsWhileWaiting(t *testing.T) {
	onTransports(t, func(t *testing.T, m *mounted) {
		out, err := m.sh(`dd if=/dev/zero of=mnt/big bs=64k count=160 iflag=fullblock oflag=sync conv=fsync 2>/dev/null & p=$!
			until [ -s mnt/big ]; do kill -0 $p || exit 1; done
			while kill -USR1 $p; do ls mnt > /dev/null; done 2>/dev/null
			wait $p && stat -c %s mnt/big`)
		if out != "10485760\n" || err != nil {
			t.Errorf("got %q, %v", out, err)
		}
		m.must(unix.Unmount(m.mnt(), 0))
		m.must(m.close())
	})
}

func TestManyAtOnce(t *testing.T) {
	onTransports(t, func(t *testing.T, m *mounted) {
		out, err := m.sh(`for i in $(seq 64); do
				(mkdir mnt/d$i && for j in 1 2 3; do echo $i.$j > mnt/d$i/t && mv mnt/d$i/t mnt/d$i/f$j; done && cat mnt/d$i/f? | sort -c && rm mnt/d$i/f2) &
			done; wait; cat mnt/d*/f* | wc -l; ls mnt/d* | grep -c f2`)
		if out != "128\n0\n" {
			t.Errorf("got %q, %v", out, err)
		}
		m.must(unix.Unmount(m.mnt(), 0))
		m.must(m.close())
	})
}
