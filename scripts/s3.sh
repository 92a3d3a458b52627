#!/bin/bash
# Runs a command beside a real S3 service (VersityGW over a directory), for tests and benchmarks. The service is built once, by the Go
# toolchain and whatever module proxy it is configured with, below target/s3; nothing is installed. Needs no root.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly MODULE=github.com/versity/versitygw/cmd/versitygw
readonly VERSION=v1.8.0
readonly PREFIX=$PWD/target/s3
readonly SERVER=$PREFIX/$VERSION/versitygw
readonly BUCKET=pando

say() { printf 's3: %s\n' "$*" >&2; }
fail() {
	printf 's3: %s\n' "$*" >&2
	exit 1
}

usage() {
	cat <<-END
		usage: scripts/s3.sh [COMMAND [ARGUMENT...]]

		Runs COMMAND with PANDO_TEST_S3 naming an empty bucket and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY set; stops the
		service and removes the bucket at its end. Without a command it only makes sure that the service is built. For example:

		    scripts/s3.sh cargo test -p pando-store --test chunks -- --include-ignored
	END
}

build() {
	[[ ! -x $SERVER ]] || return 0
	command -v "${GO:-go}" >/dev/null || fail "needs Go (scripts/setup.sh)"
	say "building $MODULE@$VERSION"
	mkdir -p "$PREFIX"
	fresh=$(mktemp -d "$PREFIX/build.XXXXXX")
	CGO_ENABLED=0 GOBIN=$fresh "${GO:-go}" install "$MODULE@$VERSION"
	mkdir -p "$(dirname "$SERVER")"
	mv "$fresh/versitygw" "$SERVER"
}

answers() {
	(exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# Another program may take the port between the choice and the start: then the service exits, and another port is tried.
start() {
	for _ in {1..10}; do
		port=$((20000 + RANDOM % 12000))
		! answers $port || continue
		# Without keep-alive each request pays for a connection of its own, which no real service asks for.
		"$SERVER" --quiet --keep-alive --port "127.0.0.1:$port" --access "$AWS_ACCESS_KEY_ID" --secret "$AWS_SECRET_ACCESS_KEY" \
			posix --sidecar "$work/meta" "$work/data" >"$work/log" 2>&1 </dev/null &
		server=$!
		for _ in {1..100}; do
			kill -0 $server 2>/dev/null || break
			if answers $port; then
				return
			fi
			sleep 0.1
		done
		stop
	done
	cat "$work/log" >&2
	fail "the service does not start"
}

stop() {
	[[ -n ${server:-} ]] || return 0
	kill "$server" 2>/dev/null || true
	wait "$server" 2>/dev/null || true
	server=
}

clean_up() {
	stop
	rm -rf "${work:-}" "${fresh:-}"
}

case ${1:-} in
-h | --help)
	usage
	exit
	;;
esac
trap clean_up EXIT
build
[[ $# -gt 0 ]] || exit 0

work=$(mktemp -d "$PREFIX/run.XXXXXX")
# A folder at the top is a bucket.
mkdir -p "$work/data/$BUCKET" "$work/meta"
AWS_ACCESS_KEY_ID=pando
AWS_SECRET_ACCESS_KEY=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
start
export PANDO_TEST_S3="s3://$BUCKET?endpoint=http://127.0.0.1:$port&region=us-east-1&path_style=true"
"$@"
