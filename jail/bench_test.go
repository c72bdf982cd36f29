package jail_test

import (
	"context"
	"os/exec"
	"testing"

	"stage/jail"
)

// BenchmarkTrue is the time from Prepare to Close of a jail around /bin/true; BenchmarkNativeTrue is what there is
// to subtract.
func BenchmarkTrue(b *testing.B) {
	for b.Loop() {
		c := base(b, "/usr/bin/true")
		j, err := jail.Prepare(context.Background(), c)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := j.Start(context.Background()); err != nil {
			b.Fatal(err)
		}
		if err := j.Exec(); err != nil {
			b.Fatal(err)
		}
		if _, err := j.Wait(); err != nil {
			b.Fatal(err)
		}
		if err := j.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNativeTrue(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/usr/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
