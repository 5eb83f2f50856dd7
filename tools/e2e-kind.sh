#!/usr/bin/env bash
# Runs the tests of e2e/suite in a kind cluster that it makes and removes: for machines with Docker and internet. Nodes share
# this machine's kernel, which must be Linux 6.9 or newer for connections to move. KEEP=1 leaves the cluster; an existing one
# of the name CLUSTER is not touched.
set -euo pipefail

cluster=${CLUSTER:-baton-e2e}
images=${IMAGES:-target/images}
cd "$(dirname "$0")/.."

say() { printf 'e2e-kind: %s\n' "$*"; }
die() { printf 'e2e-kind: %s\n' "$*" >&2; exit 1; }

for tool in docker kind kubectl helm cargo; do
  command -v "$tool" >/dev/null || die "$tool is missing: see https://kind.sigs.k8s.io/docs/user/quick-start and https://helm.sh/docs/intro/install"
done
docker info >/dev/null 2>&1 || die "Docker does not answer: start it, or use \`make e2e\`, which needs no Docker"
if kind get clusters 2>/dev/null | grep -qx "$cluster"; then
  die "there is a kind cluster $cluster already: \`kind delete cluster --name $cluster\`, or choose another with CLUSTER=NAME"
fi
for name in baton-operator lb-dataplane host-shim; do
  [ -f "$images/$name.tar" ] || die "$images/$name.tar is missing: run \`make images\`"
done

work=$(mktemp -d)
clean() {
  if [ "${KEEP:-0}" = 1 ]; then
    say "left as it is: KUBECONFIG=$work/kubeconfig, kind delete cluster --name $cluster"
  else
    kind delete cluster --name "$cluster" >/dev/null 2>&1 || true
    rm -rf "$work"
  fi
}
trap clean EXIT

say "the programs of the tests, and the images of their server and client"
# With the features of the whole workspace, so that nothing is built twice.
cargo build --profile ci --workspace --bins
"${CARGO_TARGET_DIR:-target}/ci/baton-cluster" images --output "$work/images" \
  --program "${CARGO_TARGET_DIR:-target}/ci/baton-files" >/dev/null

say "a cluster with two nodes for Pods"
cat > "$work/kind.yaml" <<YAML
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
  - role: control-plane
  - role: worker
  - role: worker
YAML
kind create cluster --name "$cluster" --config "$work/kind.yaml" --kubeconfig "$work/kubeconfig" --wait 180s
for node in $(kind get nodes --name "$cluster"); do
  # Docker before 23 gives CAP_PERFMON and CAP_BPF (38, 39) not even to privileged containers (moby/moby#41563), so that the
  # node cannot give them to lb-dataplane: "unable to apply caps: operation not permitted".
  bounds=$(docker exec "$node" sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status)
  (((0x$bounds >> 38 & 3) == 3)) || die "the node $node lacks CAP_BPF and CAP_PERFMON: use Docker 23 or newer"
  # host-shim keeps its programs there; kind's nodes do not mount it by themselves.
  docker exec "$node" sh -c 'mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf'
done
for archive in "$images"/{baton-operator,lb-dataplane,host-shim}.tar "$work"/images/*.tar; do
  say "loading $archive"
  kind load image-archive "$archive" --name "$cluster"
done

say "the tests"
BATON_E2E_KUBECONFIG="$work/kubeconfig" \
  cargo test --profile ci --workspace --exclude baton-cluster --test cluster -- --nocapture

# The tests look there only in clusters of their own.
for node in $(kind get nodes --name "$cluster"); do
  left=$(docker exec "$node" sh -c 'ls /sys/fs/bpf/baton 2>/dev/null || true')
  [ -z "$left" ] || die "after helm uninstall there is left in /sys/fs/bpf/baton of $node: $left"
done
