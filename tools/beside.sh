#!/usr/bin/env bash
# Runs one command beside another, and waits for both:
# beside.sh LOG OTHER... -- COMMAND... (what OTHER says is in LOG, and shown at the end).
set -euo pipefail
log=$1
shift
other=()
while [[ $1 != -- ]]; do
    other+=("$1")
    shift
done
shift
mkdir -p "$(dirname "$log")"
# A group of its own, so that what it started ends with it.
setsid "${other[@]}" >"$log" 2>&1 &
beside=$!
trap 'kill -- -$beside "$beside" 2>/dev/null || true' EXIT
"$@"
if wait "$beside"; then
    tail -n 25 "$log"
else
    cat "$log"
    exit 1
fi
