#!/bin/bash
# Starts `pando serve` from this checkout and prints what E2B's SDKs need. Ctrl-C ends the server; sandboxes run on.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly STATE=${PANDO_STATE:-/var/lib/pando} PANDO=$PWD/target/release/pando
# Seconds until the server must take requests.
readonly START_SECONDS=120

fail() {
	printf 'serve: %s\n' "$*" >&2
	exit 1
}

[[ $(id -u) == 0 ]] || fail "run this as root: the server makes namespaces and control groups"
base=$(scripts/base.sh --print-path)
rm -f "$STATE/env"
"$PANDO" serve --state "$STATE" --base "$base" "$@" &
server=$!
# A signal is for the server; its end ends this.
trap 'kill "$server" 2>/dev/null || true' INT TERM
for ((tries = 0; tries < START_SECONDS * 10; tries++)); do
	[[ -e $STATE/env ]] && break
	kill -0 "$server" 2>/dev/null || fail "the server ended at once: its log is above"
	sleep 0.1
done
[[ -e $STATE/env ]] || fail "the server takes no requests after $START_SECONDS s: its log is above"
cat <<END

The server runs. In another shell:

    eval "\$($PANDO env --state $STATE)"
    pip install e2b
    python -c 'from e2b import Sandbox; s = Sandbox.create(); print(s.commands.run("echo hello").stdout); s.kill()'

END
# The first wait ends with the signal, the second with the server.
wait "$server" || wait "$server"
