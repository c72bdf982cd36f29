package bundle

import (
	"testing"

	"stage/fs/tree"
)

const (
	jobID  ID = "01jz4q8k2v6w9xf3h5n7p1rtab"
	sessID ID = "01jz4q8k2v6w9xf3h5n7p1rtac"
	operID ID = "01jz4q8k2v6w9xf3h5n7p1rtad"
	attpID ID = "01jz4q8k2v6w9xf3h5n7p1rtae"

	noon tree.Time = 1_750_000_000_123_456_789
)

// addr is the address of a value, for what may be null.
func addr[T any](v T) *T { return &v }

func sampleRun() *Run {
	return &Run{
		Job: jobID, Session: sessID, Operation: operID, Attempt: attpID,
		Parent:    &Parent{Job: sessID, Kind: Fork},
		Workspace: Workspace{Path: MustHostPath("/home/u/caf\xe9"), Dev: 1<<64 - 1, Ino: 12},
		Roots: []Root{
			{Name: "workspace", Path: MustHostPath("/home/u/caf\xe9"), Kind: RootStaged},
			{Name: "r1", Path: MustHostPath("/srv/share <&>"), Kind: RootShare},
			{Name: "r2", Path: MustHostPath("/"), Kind: RootScratch},
		},
		Argv: Words([]string{"codex", "exec", "", "line\nbreak", "\xff\xfe"}), Cwd: MustHostPath("/home/u/caf\xe9/sub"), Preset: "codex",
		State: Ended, Publication: PublishedPartial, CreatedAt: noon, EndedAt: addr(noon + 5),
		PID: 4711, PIDStart: 99, BootID: "9f0c4d5e-0000-4000-8000-000000000001", UID: 1000,
		StorePath: MustHostPath("/home/u/.local/state/stage/jobs/" + string(jobID)), BundleDigest: tree.DigestBytes([]byte("bundle")),
	}
}

func samplePlan(t testing.TB) *Plan {
	t.Helper()
	allow := Rule{Verb: Allow, Object: "api.example.org", Value: addr("443"), Source: Source{Layer: SourceFlag}}
	deny := Rule{Verb: Deny, Object: "**/.env*", Source: Source{Layer: LayerWorkspace, File: addr(RawPath(".stage/policy.toml")), Line: addr(3)}}
	p := &Plan{
		Job:     jobID,
		Request: PerDimension[List[Rule]]{Network: []Rule{allow}},
		Layers: []PolicyLayer{
			{Name: LayerWorkspace, Path: addr(MustHostPath("/home/u/p/.stage/policy.toml")), Digest: tree.DigestBytes([]byte("x")), Rules: []Rule{deny}},
			{Name: LayerExecutor},
		},
		Plan: PerDimension[List[PlannedControl]]{
			FileReads:   []PlannedControl{{ID: MaskSecrets, Required: true, Level: PlanPlanned, Mechanism: "mount", Rules: []Rule{deny}}},
			Network:     []PlannedControl{{ID: NetMediator, Required: true, Requested: true, Level: PlanPlanned, Mechanism: "http proxy", Rules: []Rule{allow}}},
			Credentials: []PlannedControl{{ID: MaskSecrets, Requested: true, Level: PlanPlanned, Mechanism: "mount"}},
			Resources:   []PlannedControl{{ID: ResMemory, Level: PlanUnsupported}},
		},
		Preset: PresetUse{Name: "codex", Source: "argv[0] /usr/bin/codex", Files: []HostPath{MustHostPath("/home/u/.codex/auth.json")},
			Env: Words([]string{"CODEX_HOME"}), ConfigEdits: []ConfigEdit{{File: MustHostPath("/home/u/.codex/config.toml"), Key: "sandbox_mode", Value: `"danger-full-access"`}}},
		Env:             EnvPlan{Passed: Words([]string{"PATH"}), Dropped: Words([]string{"API_TOKEN", "B\xffD"})},
		DegradedAllowed: []ControlID{LandlockFS},
	}
	if err := p.SetDigest(); err != nil {
		t.Fatal(err)
	}
	return p
}

func sampleBundle() *Bundle {
	b := &Bundle{
		Job: jobID, Session: sessID, Operation: operID, Attempt: attpID,
		SealedAt: noon + 9, SealedBy: SealedByRun, PlanDigest: tree.DigestBytes([]byte("plan")),
		Stage: Build{Version: "0.1.0", Commit: "abc"},
		Host:  Host{Kernel: "6.18.0", UID: 1000, Mode: ModeRootless, BootID: "9f0c4d5e-0000-4000-8000-000000000001"},
		Outcome: Outcome{Kind: Exited, ExitCode: addr(3), StageExit: addr(3),
			StartedAt: addr(noon), EndedAt: addr(noon + 5), WallNs: addr(int64(5))},
		Changes: Changes{Complete: true, Roots: []RootChanges{{Name: "workspace", Added: 1, Bytes: 7,
			Flags: map[Class]int{ClassGitHook: 1}, Drift: addr(0), Digest: tree.DigestBytes([]byte("changes"))}}},
		Controls: []Control{
			{ID: MaskSecrets, Dimension: FileReads, Required: true,
				Planned:   Planned{PlanPlanned, "mount"},
				Installed: Installed{Level: Enforced, ReadBack: []ReadBack{{"mountinfo", "masked", "masked"}}, Canary: &Canary{"open", "ENOENT", "ENOENT", true}}},
			{ID: FSRules, Dimension: FileReads, Required: true, Planned: Planned{PlanPlanned, "fuse"},
				Installed: Installed{Level: Cooperative, Reason: NotObservable},
				Observed: []Observed{
					{Name: "denied_lookups", Value: Seen(0), Unit: "count", Source: "fuse", Scope: "workspace"},
					{Name: "opens", Value: Unseen(NotObservable), Unit: "count", Source: "fuse", Scope: "workspace"},
					{Name: "bytes_served", Value: AtLeast(12, ObserverLost), Unit: "bytes", Source: "fuse", Scope: "workspace"},
				}},
			{ID: NetNetns, Dimension: Network, Required: true, Degraded: true, Requested: true, Planned: Planned{PlanPlanned, "netns"},
				Installed: Installed{Level: Unenforced, Reason: NotInstalled}},
		},
		Artifacts: []Artifact{{Name: "stdout", Path: tree.MustParsePath("out/std\xffout"), Bytes: 0}},
		Shares:    []HostPath{MustHostPath("/srv/share")},
		Limits:    []string{"staging is no proof of network isolation"},
	}
	b.Dimensions = Summarize(b.Controls)
	return b
}

func sampleReview() *ReviewReport {
	file := tree.Node{Kind: tree.File, Mode: 0o644, UID: 1000, GID: 1000, Size: 3, Mtime: noon,
		Xattrs: tree.Xattrs{"user.x": {0, 255}}, Digest: tree.DigestBytes([]byte("abc"))}
	link := tree.Node{Kind: tree.Symlink, Mode: 0o777, Size: 4, Mtime: noon, Target: "../\xff"}
	return &ReviewReport{Job: jobID, Root: "workspace", Drifted: true, Changes: []ReviewChange{
		{Path: tree.MustParsePath("a/b"), Base: StateOf(tree.Node{}), New: NodeState(file), RenameFrom: addr(tree.MustParsePath("o\xffld")),
			LinkGroup: addr(1), Flags: []Flag{{ClassGitHook, "runs on commit"}}, CollapsedIn: addr(tree.MustParsePath("a")), Verdict: VerdictClean},
		{Path: tree.MustParsePath("l"), Base: StateOf(file), New: NodeState(link), Verdict: VerdictConflict, Drift: true},
		{Path: tree.MustParsePath("u"), New: NodeState(tree.Node{}), Verdict: VerdictUnknownBase},
	}}
}

func sampleApply() *ApplyReport {
	file := tree.Node{Kind: tree.File, Mode: 0o644, Mtime: noon}
	return &ApplyReport{Job: jobID, Batch: addr(1), Result: ResultGated,
		Paths: []ApplyPath{
			{Path: tree.MustParsePath("a"), Verdict: VerdictClean},
			{Path: tree.MustParsePath("b"), Verdict: VerdictConflict, Why: addr("content differs"), Base: StateOf(tree.Node{}), Found: StateOf(file)},
		},
		Gated: map[Class]List[tree.Path]{ClassGitHook: {tree.MustParsePath(".git/hooks/x")}},
	}
}
