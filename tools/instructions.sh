#!/usr/bin/env bash
# Instructions that the engine spends on one packet, counted by callgrind: the same whatever else the machine does.
# Two runs of different length, so that the set-up cancels out. `make bench-engine` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(cargo bench -p baton-engine --bench instructions --no-run --message-format=json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*instructions[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$program" ] || { echo "the benchmark did not build" >&2; exit 1; }
count() { valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$@" 2>&1 | sed -n 's/.*Collected : //p'; }
short=10000 long=30000
printf '%-10s %-6s %s\n' segment family 'instructions per packet'
for kind in ack request response; do
  for family in 4 6; do
    printf '%-10s IPv%-3s %d\n' "$kind" "$family" $((($(count $kind $family $long) - $(count $kind $family $short)) / (long - short)))
  done
done
