package bundle

import "slices"

// Measurement names one number that is counted at a control.
type Measurement struct {
	Name string
	Unit string // "count", "bytes" or "ns"
}

// Measurements returns what is counted at a control: what recovery has to name as lost.
func (c ControlID) Measurements() []Measurement {
	switch c {
	case FSRules:
		return []Measurement{{"files_served", "count"}, {"bytes_served", "bytes"}, {"denied_lookups", "count"}, {"opens", "count"}}
	case FSStaged:
		return []Measurement{{"write_requests", "count"}, {"bytes_written", "bytes"}, {"copy_ups", "count"}, {"denied", "count"}, {"quota_hits", "count"}}
	case NetNetns:
		return []Measurement{{"attempts", "count"}}
	case NetMediator:
		return []Measurement{{"connections", "count"}, {"requests", "count"}, {"bytes_in", "bytes"}, {"bytes_out", "bytes"}, {"denied", "count"}}
	case SeccompFilter:
		return []Measurement{{"denied", "count"}}
	case NSPID:
		return []Measurement{{"execs", "count"}, {"survivors_killed", "count"}}
	case EnvAllowlist:
		return []Measurement{{"names_passed", "count"}, {"names_dropped", "count"}}
	case ResMemory:
		return []Measurement{{"max_rss", "bytes"}}
	case ResCPU:
		return []Measurement{{"cpu_time", "ns"}}
	case ResWall:
		return []Measurement{{"wall", "ns"}}
	default:
		return nil
	}
}

// lostReason is the outcome's reason of a Job that nobody saw end.
const lostReason = "the supervisor died"

// Lost returns the bundle of a Job whose supervisor died, as far as run.json and plan.json tell: the
// outcome is interrupted, no control is known to have been in force, nothing was observed. A nil p
// means that the run died before it had a plan. SealedAt, Stage, Host, Changes and Artifacts are
// the caller's to fill in.
func Lost(r *Run, p *Plan) *Bundle {
	why := lostReason
	b := &Bundle{
		Job: r.Job, Session: r.Session, Operation: r.Operation, Attempt: r.Attempt,
		SealedBy: SealedByRecovery,
		Outcome:  Outcome{Kind: OutcomeInterrupted, Reason: &why},
	}
	for _, root := range r.Roots {
		if root.Kind == RootShare {
			b.Shares = append(b.Shares, root.Path)
		}
	}
	if p != nil {
		b.PlanDigest = p.Digest
		b.Controls = lostControls(p)
	}
	b.Dimensions = Summarize(b.Controls)
	return b
}

func lostControls(p *Plan) List[Control] {
	var l List[Control]
	for _, d := range dimensions {
		for _, c := range *p.Plan.At(d) {
			i := slices.IndexFunc(l, func(o Control) bool { return o.ID == c.ID })
			if i < 0 {
				l = append(l, lostControl(c))
				continue
			}
			l[i].Required = l[i].Required || c.Required
			l[i].Requested = l[i].Requested || c.Requested
		}
	}
	return l
}

func lostControl(c PlannedControl) Control {
	lost := Control{
		ID: c.ID, Dimension: c.ID.Dimensions()[0], Required: c.Required, Requested: c.Requested,
		Planned:   Planned{Level: c.Level, Mechanism: c.Mechanism},
		Installed: Installed{Level: Unenforced, Reason: ObserverLost},
	}
	for _, m := range c.ID.Measurements() {
		lost.Observed = append(lost.Observed, Observed{Name: m.Name, Unit: m.Unit, Value: Unseen(ObserverLost), Source: "none", Scope: "job"})
	}
	return lost
}
