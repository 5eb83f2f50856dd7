#!/usr/bin/env bash
# Instructions that the engine spends on one packet, counted by callgrind: the same whatever else the machine does.
# `make bench-engine` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(cargo bench -p baton-engine --bench instructions --no-run --message-format=json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*instructions[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$program" ] || { echo "the benchmark did not build" >&2; exit 1; }
flows=1024 exchanges=4
count() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
    --toggle-collect='*forward_counted*' "$program" "$@" "$exchanges" 2>&1 | sed -n 's/.*Collected : //p'
}
printf '%-12s %-6s %-6s %-10s %s\n' frame guard family leg 'instructions per packet'
row() { printf '%-12s %-6s IPv%-3s %-10s %d\n' "$@" $(($(count "$@") / (flows * exchanges))); }
for kind in request 'backend ack' head body ack end 'last ack'; do
  for guard in none http1; do
    for family in 4 6; do
      row "$kind" "$guard" "$family" own
    done
  done
  # Where the numbers of the pod are others than the client's.
  row "$kind" http1 4 translated
  # Without an engine: parsed, judged by its checksums, readdressed. Nothing takes less.
  row "$kind" none 4 none
done
# A request, its answer in one segment, and what else that comes to: of flows that stay, and of flows
# whose every request goes to another pod on a leg that another flow had.
printf '\n%-12s %-6s %-6s %-10s %s\n' '' guard family leg 'instructions per exchange'
row exchange http1 4 own
row exchange http1 4 shared
