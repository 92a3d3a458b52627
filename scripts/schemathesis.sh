#!/bin/bash
# Fuzzes the API of a server of its own with schemathesis, by docs/openapi.json: scripts/schemathesis.sh [--short]
# Needs root, and a network for schemathesis the first time. Leaves nothing but schemathesis below target/schemathesis.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly PANDO=${PANDO:-$PWD/target/debug/pando} INTO=$PWD/target/schemathesis LIST=tests/openapi/requirements.txt
# Seconds until a server must answer, and until it must have ended.
readonly START_SECONDS=120 STOP_SECONDS=30
# Seconds of each part: the control plane, the services in a sandbox, the content of a volume.
seconds=(300 120 60)

say() { printf 'schemathesis: %s\n' "$*" >&2; }
fail() {
	say "$*"
	exit 1
}

usage() {
	cat <<-END
		usage: scripts/schemathesis.sh [--short] [-- ARGUMENTS of schemathesis run]

		Starts a server, sends requests made from docs/openapi.json and judges the answers by it.

		    --short   ends within a minute, for the CI; otherwise it runs for ${seconds[*]} s

		Environment: PANDO is the binary ($PANDO); FUZZ_SEED repeats a run.
	END
}

install() {
	cmp -s "$LIST" "$INTO/installed" && return
	say "installing $(sed -n 's/^\(schemathesis==[^ ]*\).*/\1/p' "$LIST")"
	rm -rf "$INTO"
	python3 -m venv "$INTO" || fail "needs Python 3.11 or newer with venv: 'apt-get install python3-venv'"
	"$INTO/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$LIST"
	cp "$LIST" "$INTO/installed"
}

start_server() {
	local file=$scratch/env tries
	[[ $(id -u) == 0 ]] || fail "starting a server needs root"
	[[ -x $PANDO ]] || fail "$PANDO is missing: build it, or set PANDO"
	"$PANDO" serve --state "$scratch/state" --socket "$scratch/node.sock" --ephemeral --listen 127.0.0.1:0 \
		--base "$(scripts/base.sh --print-path)" --env-file "$file" 2>"$scratch/log" &
	server=$!
	for ((tries = 0; tries < START_SECONDS * 10; tries++)); do
		grep -q '^E2B_API_KEY=' "$file" 2>/dev/null && break
		kill -0 "$server" 2>/dev/null || fail "the server ended at once; the end of its log is below"
		sleep 0.1
	done
	[[ -s $file ]] || fail "no requests were taken within $START_SECONDS s"
	FUZZ_KEY=$(sed -n 's/^E2B_API_KEY=//p' "$file")
	FUZZ_URL=http://127.0.0.1:$(sed -n 's/^\(E2B_DOMAIN\|E2B_API_URL\)=.*:\([0-9]*\).*/\2/p' "$file" | head -n 1)
	export FUZZ_KEY FUZZ_URL
}

stop_server() {
	local tries
	[[ -n $server ]] || return 0
	kill -TERM "$server" 2>/dev/null || true
	for ((tries = 0; tries < STOP_SECONDS * 10; tries++)); do
		kill -0 "$server" 2>/dev/null || break
		sleep 0.1
	done
	kill -KILL "$server" 2>/dev/null || true
	wait "$server" 2>/dev/null || true
}

clean_up() {
	local status=$?
	trap - EXIT INT TERM HUP
	stop_server
	if ((status != 0)) && [[ -s ${scratch:-}/log ]]; then
		say "the end of the server's log:"
		tail -n 30 "$scratch/log" >&2
	fi
	rm -rf --one-file-system "$scratch"
	exit "$status"
}

call() { curl --silent --show-error --fail --max-time 60 -H "X-API-KEY: $FUZZ_KEY" "$@"; }

# Prints a sandbox's id and access token.
create() {
	call "$FUZZ_URL/v2/sandboxes" --json '{"templateID": "base", "timeout": 3600}' |
		python3 -c 'import json, sys; made = json.load(sys.stdin); print(made["sandboxID"], made["envdAccessToken"])'
}

# Prints a volume's id and token.
create_volume() {
	call "$FUZZ_URL/volumes" --json '{"name": "fuzzed"}' |
		python3 -c 'import json, sys; made = json.load(sys.stdin); print(made["volumeID"], made["token"])'
}

# Fuzzes one part of the document for so many seconds.
fuzz() {
	local most=$1
	shift
	"$INTO/bin/schemathesis" --config-file "$PWD/tests/openapi/schemathesis.toml" run docs/openapi.json \
		--url "$FUZZ_URL" --max-time "$most" --continue-on-failure --request-timeout 60 --generation-database none \
		${FUZZ_SEED:+--seed "$FUZZ_SEED"} --no-color "$@"
}

kill_all() {
	local id
	for id in $(call "$FUZZ_URL/v2/sandboxes?limit=100" | grep -o '"sandboxID":"[^"]*"' | cut -d '"' -f 4); do
		call -X DELETE "$FUZZ_URL/sandboxes/$id" >/dev/null || true
	done
	[[ $(call "$FUZZ_URL/v2/sandboxes") == '[]' ]] || fail "sandboxes stay"
	for id in $(call "$FUZZ_URL/volumes" | grep -o '"volumeID":"[^"]*"' | cut -d '"' -f 4); do
		call -X DELETE "$FUZZ_URL/volumes/$id" >/dev/null || true
	done
	[[ $(call "$FUZZ_URL/volumes") == '[]' ]] || fail "volumes stay"
}

server='' status=0
while (($# > 0)); do
	case $1 in
	--short) seconds=(30 10 10) FUZZ_SEED=${FUZZ_SEED:-1} ;;
	--)
		shift
		break
		;;
	-h | --help)
		usage
		exit
		;;
	*) fail "unknown argument $1; see --help" ;;
	esac
	shift
done
install
scratch=$(mktemp -d /var/tmp/pando-schemathesis.XXXXXX)
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
start_server
read -r FUZZ_SANDBOX token < <(create)
read -r FUZZ_VOLUME volume_token < <(create_volume)
export FUZZ_SANDBOX FUZZ_VOLUME PYTHONPATH=$PWD/tests/openapi PYTHONDONTWRITEBYTECODE=1
say "the control plane, ${seconds[0]} s"
fuzz "${seconds[0]}" --exclude-tag envd --exclude-tag "volume-content" "$@" || status=1
read -r FUZZ_SANDBOX token < <(create)
# The output of a program that runs has no end.
say "the services in a sandbox, ${seconds[1]} s"
fuzz "${seconds[1]}" --include-tag envd --exclude-operation-id readOutput -H "E2b-Sandbox-Id: $FUZZ_SANDBOX" \
	-H "E2b-Sandbox-Port: 49983" -H "X-Access-Token: $token" "$@" || status=1
say "the content of a volume, ${seconds[2]} s"
fuzz "${seconds[2]}" --include-tag "volume-content" -H "Authorization: Bearer $volume_token" "$@" || status=1
kill_all
if grep -q panicked "$scratch/log"; then
	fail "the server panicked"
fi
exit "$status"
