#!/bin/bash
# Runs the tests of packages RUNS times, three packages at a time, beside two busy loops. Reads lines of a package and
# flags of go test for it. Prints a table: package, runs, failures and seconds. Started again with the same files, it
# goes on where it stopped.
# Usage: echo ./dispatch -race -short | tests/soak.sh RUNS
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 1 ] || { echo "usage: echo PACKAGE [FLAG...] | tests/soak.sh RUNS" >&2; exit 2; }
export RUNS=$1

tree=$(mkdir -p .cache/soak && export GIT_INDEX_FILE=.cache/soak/index && git add -A && git write-tree)
export RESULTS=.cache/soak/$tree
mkdir -p "$RESULTS"

# soak PACKAGE FLAG... adds a line to the results for each run: "green" or "failed", and the seconds.
soak() {
	trap 'exit 130' INT TERM
	local name=${*//[^a-zA-Z0-9]/_} start result
	[ "$(go list -f '{{len .TestGoFiles}}{{len .XTestGoFiles}}' "$1")" != 00 ] || return 0
	local results=$RESULTS/$name
	touch "$results"
	while [ "$(wc -l <"$results")" -lt "$RUNS" ]; do
		start=$SECONDS result=green
		go test -v -vet=off -count=1 -timeout 15m -parallel 8 -skip '^TestAccuracy' "${@:2}" "$1" \
			>"$results.log" 2>&1 || result=failed
		echo "$result $((SECONDS - start))" >>"$results"
		[ $result = green ] || { cp "$results.log" "$results.failed.$(wc -l <"$results")"; cat "$results.log"; }
	done
	echo "$*: $(wc -l <"$results") runs, $(grep -c failed "$results") failures"
}

export -f soak
(while :; do :; done) & busy=$!
(while :; do :; done) & busy="$busy $!"
trap 'kill $busy' EXIT
xargs -P 3 -L 1 bash -c 'soak "$@"' soak

echo
cd "$RESULTS"
for results in *; do
	case $results in *.*) continue ;; esac
	awk -v package="${results##*_throttle_}" '
		{ runs++; seconds += $2; failures += $1 == "failed" }
		END { printf "%-52s %4d runs %3d failures %6d s\n", package, runs, failures, seconds }' "$results"
done
! ls ./*.failed.* >/dev/null 2>&1
