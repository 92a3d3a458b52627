#!/bin/bash
# Starts `pando serve` from this checkout, and prints its address, the key if it is a new one, and what E2B's SDKs need.
# Ctrl-C ends the server; sandboxes run on.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly STATE=${PANDO_STATE:-/var/lib/pando} PANDO=$PWD/target/release/pando
# Seconds until the server must take requests. The first start builds templates.
readonly START_SECONDS=180

fail() {
	printf 'serve: %s\n' "$*" >&2
	exit 1
}

[[ $(id -u) == 0 ]] || fail "run this as root: the server makes namespaces and control groups"
base=$(scripts/base.sh --print-path)
had_key=''
[[ ! -e $STATE/serve.key ]] || had_key=yes
# What is newer is of the server that starts here.
begun=$(mktemp)
"$PANDO" serve --state "$STATE" --base "$base" "$@" &
server=$!
# A signal is for the server; its end ends this.
trap 'kill "$server" 2>/dev/null || true' INT TERM
trap 'kill "$server" 2>/dev/null || true; rm -f "$begun"' EXIT
takes_requests() { [[ $STATE/env -nt $begun ]]; }
for ((tries = 0; tries < START_SECONDS * 10; tries++)); do
	takes_requests && break
	kill -0 "$server" 2>/dev/null || fail "the server ended at once: its log is above"
	sleep 0.1
done
takes_requests || fail "the server takes no requests after $START_SECONDS s: its log is above"
printf '\nThe server runs at %s.\n' "$(sed -n 's/^PANDO_URL=//p' "$STATE/env")"
if [[ -z $had_key ]]; then
	printf 'The key of this machine is %s. It is not printed again: %s has it.\n' "$(cat "$STATE/serve.key")" "$STATE/serve.key"
fi
cat <<END
In another shell:

    eval "\$($PANDO env --state $STATE)"
    pip install e2b
    python -c 'from e2b import Sandbox; s = Sandbox.create(); print(s.commands.run("echo hello").stdout); s.kill()'

END
trap 'rm -f "$begun"' EXIT
# The first wait ends with the signal, the second with the server.
wait "$server" || wait "$server"
