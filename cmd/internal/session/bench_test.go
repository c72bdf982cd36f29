package session

import (
	"testing"

	"stage/bundle"
	"stage/policy"
)

// BenchmarkRecordPlan is what writing plan.json costs every run.
func BenchmarkRecordPlan(b *testing.B) {
	a := admission(b, policy.Flags{})
	for b.Loop() {
		p, err := a.record("01hzzzzzzzzzzzzzzzzzzzzzzz")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := bundle.EncodePlan(p); err != nil {
			b.Fatal(err)
		}
	}
}
