#!/bin/sh
# Runs every fuzz target for FUZZTIME (default 10s), one after the other.
set -eu
cd "$(dirname "$0")/.."
grep -rlE --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file"); do
		echo "fuzz: $target in $(dirname "$file")"
		go test -tags seccomp -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-10s}" "$(dirname "$file")" </dev/null
	done
done
