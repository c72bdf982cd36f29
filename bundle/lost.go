package bundle

import "slices"

// Measurement names one number that a control's control point counts.
type Measurement struct {
	Name string
	Unit string // "count", "bytes" or "ns"
}

// Measurements returns what can be observed at a control, for a run to fill in and for recovery to
// name what was lost.
func (c ControlID) Measurements() []Measurement {
	switch c {
	case FSRules:
		return []Measurement{{"files_served", "count"}, {"bytes_served", "bytes"}, {"denied_lookups", "count"}, {"opens", "count"}}
	case FSStaged:
		return []Measurement{{"write_requests", "count"}, {"bytes_written", "bytes"}, {"copy_ups", "count"}, {"denied", "count"}}
	case FSQuota:
		return []Measurement{{"quota_hits", "count"}}
	case NetMediator:
		return []Measurement{{"connections", "count"}, {"requests", "count"}, {"bytes", "bytes"}, {"denied", "count"}}
	case NetDNS:
		return []Measurement{{"names", "count"}}
	case ExecRules:
		return []Measurement{{"execs", "count"}, {"denied", "count"}}
	case NSPID:
		return []Measurement{{"survivors_killed", "count"}}
	case PidsLimit, ResPids:
		return []Measurement{{"peak", "count"}, {"limit_hits", "count"}}
	case EnvAllowlist:
		return []Measurement{{"names_passed", "count"}, {"names_dropped", "count"}}
	case SocketsAgents:
		return []Measurement{{"brokered_uses", "count"}}
	case ResMemory:
		return []Measurement{{"peak", "bytes"}, {"limit_hits", "count"}, {"oom_kills", "count"}}
	case ResCPU:
		return []Measurement{{"used", "ns"}, {"limit_hits", "count"}}
	case ResWall:
		return []Measurement{{"used", "ns"}, {"limit_hits", "count"}}
	case ResDisk, ResOutput:
		return []Measurement{{"peak", "bytes"}, {"limit_hits", "count"}}
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
