#!/bin/bash
# Installs the tools that building, the demo and the tests need and that are missing. Changes nothing that is there, so it can be
# run again at any time; needs no terminal. With --demo first: without what only the tests need. More tools can be named as arguments:
# tool:package.
set -euo pipefail
cd "$(dirname "$0")/.."

# tool:package. Go builds a service of the demo, and the S3 service of scripts/s3.sh. scripts/base.sh needs mmdebstrap, and a node
# makes the filesystem of what sandboxes change by mkfs.btrfs.
tools=(gcc:gcc make:make curl:curl go:golang-go node:nodejs /usr/bin/python3:python3 mmdebstrap:mmdebstrap mkfs.btrfs:btrfs-progs)
# The languages are those of the programs that the tests fork. Debian keeps the server of PostgreSQL, of which tests start one of their own,
# out of the path: pg_ctlcluster says that the packages are there.
readonly TEST_TOOLS=(
	java:default-jre-headless javac:default-jdk-headless perl:perl setpriv:util-linux pg_ctlcluster:postgresql faketime:faketime
	busybox:busybox-static musl-gcc:musl-tools setfacl:acl docker-registry:docker-registry zstd:zstd redis-server:redis-server tmux:tmux
)

say() { printf 'setup: %s\n' "$*"; }
fail() {
	printf 'setup: %s\n' "$*" >&2
	exit 1
}

as_root() {
	if [[ $(id -u) == 0 ]]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo -n "$@"
	else
		fail "installing needs root: run this as root, or install yourself: $*"
	fi
}

find_missing() {
	local entry
	for entry in "${tools[@]}" "$@"; do
		if command -v "${entry%%:*}" >/dev/null; then
			continue
		fi
		say "${entry%%:*} is missing: package ${entry##*:}"
		missing+=("${entry##*:}")
	done
	# gcc without the C library's headers is there on some minimal images.
	if command -v gcc >/dev/null && ! echo '#include <stdio.h>' | gcc -E -x c - >/dev/null 2>&1; then
		say "the C library's headers are missing: package libc6-dev"
		missing+=(libc6-dev)
	fi
}

install_missing() {
	command -v apt-get >/dev/null || fail "no apt-get here: install by hand: ${missing[*]}"
	say "apt-get install ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	as_root apt-get update -q </dev/null
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" </dev/null
}

# Names of sandboxes (api.pando.localhost) for clients that ask glibc, such as Node.
install_names() {
	if getent ahosts api.pando.localhost >/dev/null; then
		return
	fi
	say "names below localhost do not resolve: package libnss-myhostname"
	missing=(libnss-myhostname)
	(install_missing) || say "without it, SDKs get plain addresses"
}

# The version is rust-toolchain.toml's; distributions have older ones, so this is not apt-get's business.
check_rust() {
	command -v cargo >/dev/null || fail "cargo is missing: install Rust by https://rustup.rs and run this again"
	cargo --version >/dev/null || fail "cargo does not start: does rustup have the toolchain of rust-toolchain.toml?"
	local component
	for component in "$@"; do
		if cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1; then
			continue
		fi
		command -v rustup >/dev/null || fail "$component is missing and there is no rustup to add it"
		say "rustup component add $component"
		rustup component add "$component"
	done
}

missing=() components=()
if [[ ${1-} == --demo ]]; then
	shift
else
	tools+=("${TEST_TOOLS[@]}") components=(clippy rustfmt)
fi
find_missing "$@"
if ((${#missing[@]} > 0)); then
	install_missing
fi
install_names
check_rust "${components[@]}"
say "everything is there"
