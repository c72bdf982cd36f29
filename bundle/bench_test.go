package bundle

import "testing"

func BenchmarkDecodeRun(b *testing.B) {
	text, err := Encode(sampleRun())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Decode[Run](text); err != nil {
			b.Fatal(err)
		}
	}
}
