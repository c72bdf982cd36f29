package conformance

import "testing"

func insideModel(t *testing.T, dir string) {}
