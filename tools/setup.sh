#!/usr/bin/env bash
# Installs what Baton's build, demo and tests need, on Debian 12 or newer and Ubuntu 24.04. Does nothing, quickly,
# where all is there. Never starts a service and never touches one that was there before.
set -euo pipefail

build=(build-essential clang llvm libelf-dev zlib1g-dev pkg-config linux-libc-dev git ca-certificates curl)
lab=(iproute2 iputils-ping ethtool nftables iptables procps util-linux nginx-light redis-server redis-tools memcached wrk
     haproxy nodejs openssl postgresql)
bench=(valgrind)
# What the project is built and tested with; older ones may do, nobody has tried.
rust_minor=95

# Nothing that is there is removed for it.
install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-remove "$@" >/dev/null; }
say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

packages=("${build[@]}" "${lab[@]}")
[ "${1:-}" = bench ] && packages+=("${bench[@]}")
[ "${1:-}" = gvisor ] && packages+=(runsc)
missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done

if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || die "these Debian packages are needed, and there is no apt-get here: ${missing[*]}"
  [ "$(id -u)" = 0 ] || die "run as root once: these packages are missing: ${missing[*]}"
  say "installing ${missing[*]}"
  # Newly installed servers must not start by themselves: the lab starts its own, in its own namespaces.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
  fi
  apt-get update -qq
  install "${missing[@]}"
fi

export PATH="$HOME/.cargo/bin:$PATH"
new_enough() { command -v cargo >/dev/null && [ "$(cargo --version | sed -E 's/cargo 1\.([0-9]+).*/\1/')" -ge $rust_minor ]; }
if ! new_enough; then
  # Debian's rustup takes the place of its cargo and rustc, and so is no choice where these are.
  if command -v rustup >/dev/null || { [ "$(id -u)" = 0 ] && install rustup 2>/dev/null; }; then
    say "installing Rust (stable) with rustup"
    rustup toolchain install stable --profile default
    rustup default stable
  else
    say "installing Rust (stable) with the official installer"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile default >/dev/null
    say 'Rust is in ~/.cargo/bin: for `cargo` in this shell run `. ~/.cargo/env`'
  fi
  new_enough || die "cargo 1.$rust_minor or newer is needed: install Rust from https://rustup.rs"
fi
# The API server of the tests is built from Go modules (e2e/testbed/kubernetes). Debian's Go is too old for it, but fetches a newer one.
go_version=1.26.8 go_minor=26 cache=${XDG_CACHE_HOME:-$HOME/.cache}/baton
go_new_enough() { [ "$("$1" env GOVERSION 2>/dev/null | sed -nE 's/^go1\.([0-9]+).*/\1/p')" -ge $go_minor ] 2>/dev/null; }
if ! go_new_enough go && ! go_new_enough "$cache/go/bin/go"; then
  if ! command -v go >/dev/null; then
    [ "$(id -u)" = 0 ] || die "run as root once: Go is missing"
    install golang-go
  fi
  say "fetching Go $go_version (70 MB)"
  folder=$(cd / && go mod download -json "golang.org/toolchain@v0.0.1-go$go_version.linux-$(go env GOARCH)" | sed -nE 's/^\t"Dir": "(.*)",?$/\1/p')
  [ -d "$folder" ] || die "Go $go_version could not be fetched: install Go 1.$go_minor or newer"
  rm -rf "$cache/go"
  mkdir -p "$cache"
  cp -r "$folder" "$cache/go"
  chmod -R u+w "$cache/go"
  chmod -R a+x "$cache/go/bin" "$cache/go/pkg/tool"
fi

for tool in clippy fmt; do
  cargo $tool --version >/dev/null 2>&1 || rustup component add clippy rustfmt >/dev/null 2>&1 ||
    die "cargo $tool is missing: install Rust's clippy and rustfmt"
done
