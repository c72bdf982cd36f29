package hostfs

import (
	"fmt"
	"testing"
)

func benchRoot(b *testing.B) Dir {
	d, err := OpenRoot(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { d.Close() })
	for i := range 100 {
		f, err := d.Create(fmt.Sprintf("file%d", i), 0o644)
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
	return d
}

func BenchmarkStat(b *testing.B) {
	d := benchRoot(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Stat("file7"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStatAbsent(b *testing.B) {
	d := benchRoot(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Stat("absent"); err == nil {
			b.Fatal("there it is")
		}
	}
}

func BenchmarkXattrsOfNone(b *testing.B) {
	d := benchRoot(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Xattrs("file7"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	d := benchRoot(b)
	b.ReportAllocs()
	for b.Loop() {
		f, err := d.Open("file7")
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

func BenchmarkReadDir100(b *testing.B) {
	d := benchRoot(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.ReadDir(); err != nil {
			b.Fatal(err)
		}
	}
}
