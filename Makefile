# The menu of this project: `make help`.
SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)
CARGO ?= cargo
SECONDS ?= 12
MINUTES ?= 10
ITERATIONS ?= 2000000
MIGRATIONS ?= 1000000
METHOD ?= Auto
ROUNDS ?= 5
SECONDS_EACH ?= 3
KERNEL ?= linux-image-amd64
TESTS ?= migration::http closes:: rescue:: refusal:: shim:: shutdown:: silence:: guards:: wire:: host_network:: modes:: memcached:: \
         ipv6:: forged::
# Tests build once, with all checks on (see [profile.ci] in Cargo.toml).
CI := --profile ci
PURE := -p baton-packet -p baton-api -p baton-guard -p baton-engine -p baton-model -p baton-sim \
        -p baton-index -p baton-crds -p baton-push -p baton-tls -p baton-operator
# The running kernel: LINUX=6.9 goes on without a look at it.
LINUX ?= $(shell uname -r)
ROOT := -p baton-xsk -p baton-adopter -p baton-sdk -p baton-sdk-c -p baton-tcp-repair -p host-shim -p lb-dataplane -p baton-lab -p baton-demo
# With the features of the whole workspace and its tests, so that nothing is built twice.
NS := $(CARGO) test $(CI) --workspace --test ns
MUTANTS := $(CARGO) test $(CI) --workspace --features baton-sim/mutants --test mutants
BINS := $(CARGO) build $(CI) --workspace --bins --test ns
# These wait for an API server nearly all the time, so that they run beside the others. By name: `-p` would have fewer
# features, and build all anew.
WAITING := $(CARGO) test $(CI) --workspace $(patsubst e2e/operator/tests/%,--test %,$(basename $(wildcard e2e/operator/tests/*)))
# Most wait most of the time, so two run at once: three at once, beside a load of 9, failed one test in 300, which is
# in `alone` since. Those in `alone` measure or judge by time, those in `quiet` bear only each other. Those in `gvisor`
# need runsc (`make test-gvisor`).
NS_THREADS ?= 2
define NS_TESTS
$(NS) -- --test-threads=$(NS_THREADS) --skip alone:: --skip quiet:: --skip gvisor::
$(NS) -- --test-threads=$(NS_THREADS) quiet::
$(NS) -- --test-threads=1 alone::
endef

.DEFAULT_GOAL := help
.PHONY: help setup linux build demo soak soak-path soak-tracked sim mutants test check test-root test-api test-vm test-ns test-gvisor e2e e2e-kind e2e-cluster \
        images lint deny \
        generate bench-engine bench-pause bench-compare bench-short bench-migration bench-placement bench-uploads bench-rescue \
        bench-operator fuzz clean

help: ## Show this menu
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install what build, demo and tests need (Debian packages, Rust)
	@tools/setup.sh

# Before minutes of building.
linux:
	@printf '6.9\n%s\n' '$(LINUX)' | sort -VC || { echo 'Linux $(LINUX): its pods cannot adopt connections, which needs Linux 6.9' \
	    'or newer (`make check` needs no such kernel)' >&2; exit 1; }

build: setup ## Build the binaries in target/release
	$(CARGO) build --release -p lb-dataplane -p host-shim -p baton-operator -p baton-demo -p baton-lab

demo: linux build ## The main job: live connections move between real servers, also off killed ones; report in target/demo
	target/release/baton-demo demo --seconds $(SECONDS)

soak: soak-path ## soak-path, then pods killed, frozen, drained at random for MINUTES; every answer checked
	target/release/baton-demo soak --minutes $(MINUTES)

# On a node that tracks connections and drops what is INVALID: TRACKED=49152, entries of its table that Baton may have.
soak-path: linux build ## MIGRATIONS by METHOD (Auto, Adoption, Translation) under loss and reordering, every byte checked
	target/release/baton-demo soak --migrations $(MIGRATIONS) --method $(METHOD) $(if $(TRACKED),--tracked $(TRACKED))

soak-tracked: linux build ## MINUTES of moves on a node that tracks connections and drops what is INVALID; report in target/soak
	target/release/baton-demo soak-tracked --minutes $(MINUTES)

sim: ## Deterministic simulation: 10,000 seeds; `cargo xtask sim --help` replays and explores
	$(CARGO) build $(CI) --workspace --bin xtask
	target/ci/xtask sim

mutants: ## Deliberate faults of the engine, each of which the simulation must find
	$(MUTANTS) -- --nocapture

test: linux setup lint ## Everything that is tested: pure, property, vectors, namespaces with real servers (root)
	$(CARGO) build $(CI) --workspace --bins --tests
	$(MUTANTS) --no-run
	tools/beside.sh target/operator.log $(WAITING) -- \
	    tools/beside.sh target/sim.log chrt --idle 0 $(MAKE) sim mutants -- \
	    $(CARGO) test $(CI) --workspace --exclude baton-ns --exclude baton-operator-tests --tests
	$(CARGO) test $(CI) --workspace --doc --quiet
	$(NS_TESTS)

check: lint ## What needs no root: formatting, clippy, unit and property tests, vectors, model, rules of the tree
	$(CARGO) test $(CI) $(PURE) -p baton-tidy

test-root: linux setup ## Tests of the crates that need root and namespaces, without the real servers
	$(BINS)
	$(CARGO) test $(CI) $(ROOT)

test-api: setup ## The custom resources and the operator against a real kube-apiserver (built once, with Go)
	$(CARGO) build $(CI) -p baton-operator -p lb-dataplane -p host-shim
	$(CARGO) test $(CI) -p baton-operator-tests -- --nocapture
	$(CARGO) test $(CI) -p kubectl-baton -- --nocapture

# Not those that count what comes late, as under emulation much does.
test-vm: setup ## Connections move under another Linux, in a virtual machine: KERNEL=linux-image-*.deb, or such a package; TESTS=
	$(BINS)
	tests=$$($(NS) --no-run 2>&1 | sed -n 's/.*Executable.*(\(.*\))/\1/p') && test -n "$$tests" && tools/vm.sh $(KERNEL) \
	    sh -c "target/ci/host-shim preflight; cd e2e/ns && exec $$(realpath $$tests) --test-threads=1 $(TESTS)"

# With the programs that the other tests build, all checks on; IMAGES=target/images for those that ship (`make images`).
e2e: setup ## Baton in a real cluster, all is replaced around 64 connections (root; BATON_E2E_DATAPLANE=DaemonSet: hostNetwork)
	$(BINS)
	$(if $(IMAGES),,target/ci/baton-images --programs target/ci --output target/e2e/images)
	BATON_IMAGES=$(abspath $(or $(IMAGES),target/e2e/images)) \
	    $(CARGO) test $(CI) --workspace --exclude baton-cluster --test cluster -- --nocapture

e2e-kind: images ## The same in a kind cluster, for machines with Docker and internet (KEEP=1 leaves the cluster)
	@tools/e2e-kind.sh

e2e-cluster: setup ## The real cluster that e2e tests run in: one node, two nodes, removal (root; slow the first time)
	$(CARGO) test $(CI) -p baton-cluster --test cluster -- --nocapture --test-threads=1

test-ns: linux setup ## Namespace tests with real nginx and redis
	$(BINS)
	$(NS_TESTS)

test-gvisor: ## Connections move between servers under gVisor's runsc (root; installs it)
	@tools/setup.sh gvisor
	$(BINS)
	$(NS) -- --test-threads=1 --nocapture gvisor::

# A newer Rust knows lints that nobody has seen here: it shows them.
lint: ## Formatting and clippy, warnings refused (of the Rust that Cargo.toml names)
	$(CARGO) fmt --all --check
	version=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) && $(CARGO) clippy $(CI) --workspace --all-targets -- \
	    $$($(CARGO) --version | grep -qF "cargo $$version." && echo -D warnings)

images: setup ## Container images, programs with the libraries they load, as OCI archives in target/images, no Docker, no registry
	$(CARGO) build --release -p lb-dataplane -p host-shim -p baton-operator
	$(CARGO) run --release -p baton-images -- --programs target/release \
	    --revision "$$(git rev-parse HEAD 2>/dev/null)"

deny: ## Licences, sources and duplicate crates (installs cargo-deny)
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	cargo-deny check bans licenses sources

generate: setup ## Write the generated files anew (docs/generated, crds/generated, the rendered chart, docs/adoption-vectors.json)
	BATON_GENERATE=1 $(CARGO) test -p baton-engine --test vectors
	BATON_GENERATE=1 $(CARGO) test -p baton-crds --test it generated::
	BATON_GENERATE=1 $(CARGO) test $(CI) --workspace --bins metric_reference
	BATON_GENERATE=1 $(CARGO) test $(CI) --workspace --test it -- crds:: values::the_charts
	cp crds/generated/*.yaml charts/baton/crds/
	BATON_GENERATE=1 $(CARGO) test $(CI) --workspace --test it what_helm
	BATON_GENERATE=1 $(CARGO) test -p baton-operator-tests --test together fields
	-BATON_GENERATE=1 $(CARGO) test $(CI) --workspace --bin kubectl-baton
	-BATON_UPDATE_VECTORS=1 $(CARGO) test -p baton-packet --test it vectors::

bench-engine: ## Nanoseconds and instructions per packet (criterion, callgrind)
	@tools/setup.sh bench
	$(CARGO) bench -p baton-packet --bench packet -- --quick --noplot
	$(CARGO) bench -p baton-guard --bench guard -- --quick --noplot
	$(CARGO) bench -p baton-engine --bench engine -- --quick --noplot
	$(CARGO) bench -p baton-engine --bench packets
	@tools/instructions.sh

bench-pause: ## The longest that packets wait while something changes: CPU time, clock and preemption of the worst call, one row each
	$(CARGO) bench -p baton-engine --bench pause

bench-compare: build ## Baton and HAProxy in the same layout and run; report in target/bench
	target/release/baton-demo compare

bench-short: build ## Connections that the server closes, SECONDS each: nftables, HAProxy, Baton, without and with tracking
	target/release/baton-demo short --seconds $(SECONDS)

bench-migration: build ## What a migrated request costs; report in target/bench
	target/release/baton-demo migration-cost

# A part of it: make bench-placement SERVERS=nginx,node SCENARIOS=identical,one-at-5 CONNECTIONS=32 MODES=Never,WhenBetter
# DIRECT=1: beside it, what a rule comes to where no load balancer is between.
bench-placement: build ## Rules of placing requests over a matrix of servers and conditions (FULL=1: all of it); report in target/bench
	target/release/baton-demo placement --rounds $(ROUNDS) --seconds $(SECONDS_EACH) $(if $(FULL),--full) \
	    $(if $(SEED),--seed $(SEED)) $(if $(SERVERS),--servers $(SERVERS)) $(if $(SCENARIOS),--scenarios $(SCENARIOS)) \
	    $(if $(CONNECTIONS),--connections $(CONNECTIONS)) $(if $(MODES),--modes $(MODES)) \
	    $(if $(RULE),--migration '$(RULE)') $(if $(DIRECT),--direct)

bench-uploads: build ## What moves cost uploads of 50 KB to 1 MB: staying, by choice, off a draining pod; report in target/bench
	target/release/baton-demo uploads

bench-pps: build ## Packets per second through 1, 2 and 4 workers: CPU time of engine and kernel for each; report in target/bench
	target/release/baton-demo pps

bench-rescue: setup ## What killed, frozen and draining pods cost their clients: the figures behind those namespace tests
	$(BINS)
	$(NS) -- --test-threads=1 --nocapture rescue posts drain:: silence closes

bench-operator: setup ## The operator with 5,000 policies and 50,000 endpoints: memory, start, delay, from manifests and a kube-apiserver
	$(CARGO) build --release -p baton-operator
	BATON_BIN_DIR=$(CURDIR)/target/release BATON_SCALE_POLICIES=5000 \
	    $(CARGO) test $(CI) -p baton-operator-tests --test scale -- --test-threads=1 --nocapture

fuzz: ## Longer fuzzing: ITERATIONS inputs for each target, three minutes each at most
	BOLERO_RANDOM_ITERATIONS=$(ITERATIONS) BOLERO_RANDOM_TEST_TIME_MS=180000 $(CARGO) test $(CI) --no-fail-fast \
	    -p baton-packet -p baton-guard -p baton-api -p baton-config -p baton-engine --test fuzz

clean: ## Remove what was built
	$(CARGO) clean
