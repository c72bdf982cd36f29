package bundle

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// controlsOfSPEC is the table "Controls and evidence" of the specification, copied by hand.
const controlsOfSPEC = `
file_reads    mount.root mount.home mask.secrets fs.rules landlock.fs
file_writes   fs.staged mount.readonly mount.shares fs.quota
network       net.netns net.mediator net.dns net.families net.unix
subprocesses  ns.pid ns.user ns.mount ns.ipc ns.uts seccomp.filter caps.none nnp exec.rules pids.limit
credentials   env.allowlist mask.secrets sockets.agents keyring core
resources     res.memory res.cpu res.pids res.wall res.disk res.nofile res.output
`

func TestControlsAreThoseOfTheSpecification(t *testing.T) {
	var got strings.Builder
	got.WriteByte('\n')
	for _, d := range Dimensions() {
		got.WriteString((string(d) + strings.Repeat(" ", 14))[:14])
		for i, c := range ControlsOf(d) {
			if i > 0 {
				got.WriteByte(' ')
			}
			got.WriteString(string(c))
		}
		got.WriteByte('\n')
	}
	if diff := cmp.Diff(controlsOfSPEC, got.String()); diff != "" {
		t.Errorf("controls (-want +got):\n%s", diff)
	}
}

func TestControlOfTwoDimensionsCountsInBoth(t *testing.T) {
	if diff := cmp.Diff([]Dimension{FileReads, Credentials}, MaskSecrets.Dimensions()); diff != "" {
		t.Errorf("dimensions of mask.secrets (-want +got):\n%s", diff)
	}
	s := Summarize([]Control{{ID: MaskSecrets, Dimension: FileReads, Required: true,
		Planned: Planned{Level: PlanCooperative}, Installed: Installed{Level: Cooperative}}})
	for _, d := range []Dimension{FileReads, Credentials} {
		if got := s.At(d); got.Planned != PlanCooperative || got.Installed != Cooperative || len(got.Controls) != 1 {
			t.Errorf("%s is %+v", d, got)
		}
	}
}

func TestDimensionIsAsWeakAsItsWeakestRequiredControl(t *testing.T) {
	control := func(id ControlID, required bool, p PlannedLevel, i InstalledLevel) Control {
		return Control{ID: id, Dimension: Network, Required: required, Planned: Planned{Level: p}, Installed: Installed{Level: i}}
	}
	for _, c := range []struct {
		name      string
		controls  []Control
		planned   PlannedLevel
		installed InstalledLevel
	}{
		{"none", nil, PlanUnsupported, Unenforced},
		{"none required", []Control{control(NetNetns, false, PlanPlanned, Enforced)}, PlanUnsupported, Unenforced},
		{"all strong", []Control{control(NetNetns, true, PlanPlanned, Enforced), control(NetUnix, true, PlanPlanned, Enforced)}, PlanPlanned, Enforced},
		{"one weak", []Control{control(NetNetns, true, PlanPlanned, Enforced), control(NetUnix, true, PlanPlanned, Cooperative)}, PlanPlanned, Cooperative},
		{"one missing", []Control{control(NetUnix, true, PlanUnsupported, Unenforced), control(NetNetns, true, PlanPlanned, Enforced)}, PlanUnsupported, Unenforced},
		{"optional one missing", []Control{control(NetUnix, false, PlanUnsupported, Unenforced), control(NetNetns, true, PlanPlanned, Enforced)}, PlanPlanned, Enforced},
		{"unknown level", []Control{control(NetNetns, true, "", "")}, PlanUnsupported, Unenforced},
	} {
		got := Summarize(c.controls).Network
		if got.Planned != c.planned || got.Installed != c.installed {
			t.Errorf("%s: got %s/%s, want %s/%s", c.name, got.Planned, got.Installed, c.planned, c.installed)
		}
	}
}

func TestOutcomeRules(t *testing.T) {
	ran := func(o Outcome) Outcome {
		o.StartedAt, o.EndedAt, o.WallNs = addr(noon), addr(noon), addr(int64(0))
		return o
	}
	why := addr("why")
	for _, c := range []struct {
		name string
		ok   bool
		o    Outcome
	}{
		{"zero", false, Outcome{}},
		{"exited 0", true, ran(Outcome{Kind: Exited, ExitCode: addr(0), StageExit: addr(0)})},
		{"exited without a code", false, ran(Outcome{Kind: Exited, StageExit: addr(0)})},
		{"exited with a signal", false, ran(Outcome{Kind: Exited, ExitCode: addr(0), Signal: addr(9), StageExit: addr(0)})},
		{"exited, other stage exit", false, ran(Outcome{Kind: Exited, ExitCode: addr(1), StageExit: addr(0)})},
		{"exited, never started", false, Outcome{Kind: Exited, ExitCode: addr(0), StageExit: addr(0)}},
		{"signaled 15", true, ran(Outcome{Kind: Signaled, Signal: addr(15), StageExit: addr(143)})},
		{"signaled, plain exit", false, ran(Outcome{Kind: Signaled, Signal: addr(15), StageExit: addr(15)})},
		{"signaled without a signal", false, ran(Outcome{Kind: Signaled, StageExit: addr(143)})},
		{"timed out", true, ran(Outcome{Kind: TimedOut, Signal: addr(9), Reason: why, StageExit: addr(124)})},
		{"timed out without a reason", false, ran(Outcome{Kind: TimedOut, StageExit: addr(124)})},
		{"killed, code and signal", false, ran(Outcome{Kind: Killed, ExitCode: addr(1), Signal: addr(9), Reason: why, StageExit: addr(137)})},
		{"not started", true, Outcome{Kind: NotStarted, Reason: why, StageExit: addr(127)}},
		{"not started with a start", false, Outcome{Kind: NotStarted, Reason: why, StageExit: addr(127), StartedAt: addr(noon)}},
		{"interrupted", true, Outcome{Kind: OutcomeInterrupted, Reason: why}},
		{"interrupted with a guess", false, Outcome{Kind: OutcomeInterrupted, Reason: why, ExitCode: addr(0)}},
	} {
		if err := c.o.Check(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestEnforcedNeedsProof(t *testing.T) {
	good := ReadBack{"status", "0", "0"}
	for _, c := range []struct {
		name string
		ok   bool
		i    Installed
	}{
		{"no read-back", false, Installed{Level: Enforced}},
		{"read back", true, Installed{Level: Enforced, ReadBack: []ReadBack{good}}},
		{"read back otherwise", false, Installed{Level: Enforced, ReadBack: []ReadBack{good, {"status", "0", "1"}}}},
		{"another namespace", true, Installed{Level: Enforced, ReadBack: []ReadBack{{"netns", "not net:[1]", "net:[2]"}}}},
		{"none of two namespaces", true, Installed{Level: Enforced, ReadBack: []ReadBack{{"netns", "not 1 22", "2"}}}},
		{"one of two namespaces", false, Installed{Level: Enforced, ReadBack: []ReadBack{{"netns", "not 1 22", "22"}}}},
		{"the same namespace", false, Installed{Level: Enforced, ReadBack: []ReadBack{{"netns", "not net:[1]", "net:[1]"}}}},
		{"no namespace", false, Installed{Level: Enforced, ReadBack: []ReadBack{{"netns", "not net:[1]", ""}}}},
		{"canary failed", false, Installed{Level: Enforced, ReadBack: []ReadBack{good}, Canary: &Canary{Act: "mount"}}},
		{"reason beside it", false, Installed{Level: Enforced, ReadBack: []ReadBack{good}, Reason: NotInstalled}},
		{"missing without a reason", false, Installed{Level: Unenforced}},
		{"missing", true, Installed{Level: Unenforced, Reason: NotInstalled}},
		{"cooperative", true, Installed{Level: Cooperative}},
	} {
		if err := c.i.Check(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestNullAndZeroAreNeverSwapped(t *testing.T) {
	seen, unseen := Seen(0), Unseen(NotInstalled)
	if n, ok := seen.Number(); n != 0 || !ok {
		t.Errorf("Seen(0) is %d, %t", n, ok)
	}
	if _, ok := unseen.Number(); ok {
		t.Error("Unseen has a number")
	}
	for _, text := range []string{
		`{"name":"n","value":0,"unit":"count","lower_bound":null,"reason":"not_installed","source":"s","scope":"s"}`,
		`{"name":"n","value":null,"unit":"count","lower_bound":null,"reason":null,"source":"s","scope":"s"}`,
		`{"name":"n","value":1,"unit":"count","lower_bound":0,"reason":null,"source":"s","scope":"s"}`,
		`{"name":"n","value":null,"unit":"count","lower_bound":null,"reason":"forgot","source":"s","scope":"s"}`,
	} {
		if err := new(Observed).UnmarshalJSON([]byte(text)); err == nil {
			t.Errorf("accepted %s", text)
		}
	}
	if _, err := (Observed{Name: "n"}).MarshalJSON(); err == nil {
		t.Error("an observation with neither value nor reason was written")
	}
}

func TestLostBundleClaimsNothing(t *testing.T) {
	b := Lost(sampleRun(), samplePlan(t))
	if b.Outcome.Kind != OutcomeInterrupted || b.Outcome.ExitCode != nil {
		t.Errorf("outcome is %+v", b.Outcome)
	}
	if len(b.Controls) != 3 {
		t.Fatalf("%d controls, want 3: mask.secrets once, net.mediator, res.memory", len(b.Controls))
	}
	if c := b.Controls[0]; c.ID != MaskSecrets || !c.Required || !c.Requested {
		t.Errorf("mask.secrets of two dimensions is %+v", c)
	}
	for _, c := range b.Controls {
		if c.Installed.Level != Unenforced || c.Installed.Reason != ObserverLost {
			t.Errorf("%s is installed %+v", c.ID, c.Installed)
		}
		for _, o := range c.Observed {
			if o.Value.Reason() != ObserverLost {
				t.Errorf("%s observed %s: %+v", c.ID, o.Name, o.Value)
			}
		}
	}
	if diff := cmp.Diff([]string{"/srv/share <&>"}, []string{b.Shares[0].String()}); diff != "" {
		t.Errorf("shares (-want +got):\n%s", diff)
	}
}
