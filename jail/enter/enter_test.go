package enter_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stage/jail/enter"
	"stage/test/testenv"
)

// TestMain prints, in a re-executed process, what the constructor did to it.
func TestMain(m *testing.M) {
	if enter.Current() == "" {
		os.Exit(m.Run())
	}
	for _, link := range []string{"user", "mnt"} {
		target, _ := os.Readlink("/proc/self/ns/" + link)
		fmt.Println(target)
	}
	for _, file := range []string{"uid_map", "gid_map", "setgroups"} {
		text, _ := os.ReadFile("/proc/self/" + file)
		fmt.Println(strings.Join(strings.Fields(string(text)), " "))
	}
	status, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(status), "\n") {
		if strings.HasPrefix(line, "Cap") || strings.HasPrefix(line, "NoNewPrivs") {
			fmt.Println(line)
		}
	}
	dumpable, _ := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	fmt.Println("dumpable", dumpable)
}

// play starts this program in a role as the ordinary user and returns what it printed.
func play(t *testing.T, r enter.Role, env ...string) []string {
	t.Helper()
	testenv.Need(t, testenv.Userns)
	u := testenv.Ordinary(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary := u.TempDir(t) + "/enter.test"
	if out, err := exec.Command("cp", self, binary).CombinedOutput(); err != nil {
		t.Fatalf("copy test binary: %v %s", err, out)
	}
	r.UID, r.GID = uint32(u.UID), uint32(u.GID)
	cmd := u.Command(binary)
	cmd.Env = append([]string{r.Environ()}, env...)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{os.Stderr} // where the constructor complains
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.Split(string(out), "\n")
}

func own(t *testing.T, ns string) string {
	t.Helper()
	target, err := os.Readlink("/proc/self/ns/" + ns)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestHolderEntersUserAndMountNamespace(t *testing.T) {
	got := play(t, enter.Role{Name: enter.Holder, Rootless: true})
	u := testenv.Ordinary(t)
	if got[0] == own(t, "user") || got[1] == own(t, "mnt") {
		t.Errorf("namespaces %v are the caller's", got[:2])
	}
	if want := fmt.Sprintf("0 %d 1", u.UID); got[2] != want {
		t.Errorf("uid_map: got %q, want %q", got[2], want)
	}
	if want := fmt.Sprintf("0 %d 1", u.GID); got[3] != want {
		t.Errorf("gid_map: got %q, want %q", got[3], want)
	}
	if got[4] != "deny" {
		t.Errorf("setgroups: got %q, want deny", got[4])
	}
}

func TestRootHolderEntersMountNamespaceOnly(t *testing.T) {
	testenv.Need(t, testenv.Root)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = []string{enter.Role{Name: enter.Holder}.Environ()}
	cmd.ExtraFiles = []*os.File{os.Stderr}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := strings.Split(string(out), "\n")
	if got[0] != own(t, "user") || got[1] == own(t, "mnt") {
		t.Errorf("got namespaces %v", got[:2])
	}
}

func TestShimDropsEverything(t *testing.T) {
	testenv.Need(t, testenv.Root) // alone, without the holder's namespace, only root's capabilities can be dropped
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = []string{enter.Role{Name: enter.Shim}.Environ()}
	cmd.ExtraFiles = []*os.File{os.Stderr}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000",
		"CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "dumpable 0"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

func TestConstructorLeavesLibcontainerAlone(t *testing.T) {
	got := play(t, enter.Role{Name: enter.Holder, Rootless: true}, "_LIBCONTAINER_INITPIPE=9")
	if got[0] != own(t, "user") || got[1] != own(t, "mnt") {
		t.Errorf("namespaces %v are not the caller's", got[:2])
	}
}
