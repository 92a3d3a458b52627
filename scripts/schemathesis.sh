#!/bin/bash
# Fuzzes the API of a server of its own with schemathesis, by docs/openapi.json: scripts/schemathesis.sh [--short]
# Needs root, and a network for schemathesis the first time. Leaves nothing but schemathesis below target/schemathesis.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly INTO=$PWD/target/schemathesis LIST=tests/openapi/requirements.txt
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

		Environment: PANDO is the binary (target/debug/pando); FUZZ_SEED repeats a run.
	END
}

call() { curl --silent --show-error --fail --max-time 60 -H "X-API-KEY: $FUZZ_KEY" "$@"; }

# Prints a sandbox's id and access token.
create() {
	call "$FUZZ_URL/v2/sandboxes" --json '{"templateID": "base", "timeout": 3600}' |
		python3 -c 'import json, sys; made = json.load(sys.stdin); print(made["sandboxID"], made["envdAccessToken"])'
}

# Prints the id and token of a volume of this name.
create_volume() {
	call "$FUZZ_URL/volumes" --json "{\"name\": \"$1\"}" |
		python3 -c 'import json, sys; made = json.load(sys.stdin); print(made["volumeID"], made["token"])'
}

# Fuzzes one part of the document for so many seconds.
fuzz() {
	local most=$1
	shift
	# schemathesis resolves no variables in its dictionaries.
	sed "s/\${FUZZ_SANDBOX}/$FUZZ_SANDBOX/; s/\${FUZZ_VOLUME}/$FUZZ_VOLUME/" tests/openapi/schemathesis.toml >"$INTO/part.toml"
	"$INTO/bin/schemathesis" --config-file "$INTO/part.toml" run docs/openapi.json \
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

status=0 inside='' choice=("$@")
while (($# > 0)); do
	case $1 in
	--short) seconds=(20 8 8) FUZZ_SEED=${FUZZ_SEED:-1} ;;
	--inside) inside=yes ;;
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
if [[ -z $inside ]]; then
	scripts/venv.sh "$LIST" "$INTO"
	# It starts a server, and judges its log.
	exec env -u E2B_API_KEY scripts/sdk.sh --exec "$PWD/scripts/schemathesis.sh" --inside "${choice[@]}"
fi
FUZZ_KEY=$E2B_API_KEY FUZZ_URL=${E2B_API_URL:-http://127.0.0.1:${E2B_DOMAIN##*:}}
export FUZZ_KEY FUZZ_URL
read -r FUZZ_SANDBOX token < <(create)
read -r FUZZ_VOLUME FUZZ_VOLUME_TOKEN < <(create_volume fuzzed)
export FUZZ_SANDBOX FUZZ_VOLUME FUZZ_VOLUME_TOKEN PYTHONPATH=$PWD/tests/openapi PYTHONDONTWRITEBYTECODE=1
say "the control plane, ${seconds[0]} s"
fuzz "${seconds[0]}" --exclude-tag envd --exclude-tag "volume-content" "$@" || status=1
read -r FUZZ_SANDBOX token < <(create)
# The output of a program that runs has no end.
say "the services in a sandbox, ${seconds[1]} s"
fuzz "${seconds[1]}" --include-tag envd --exclude-operation-id readOutput -H "E2b-Sandbox-Id: $FUZZ_SANDBOX" \
	-H "E2b-Sandbox-Port: 49983" -H "X-Access-Token: $token" "$@" || status=1
# The requests before may have removed the first one.
read -r FUZZ_VOLUME FUZZ_VOLUME_TOKEN < <(create_volume content)
curl --silent --show-error --fail -X PUT --data-binary notes -H "Authorization: Bearer $FUZZ_VOLUME_TOKEN" \
	-H "Content-Type: application/octet-stream" "$FUZZ_URL/volumecontent/$FUZZ_VOLUME/file?path=notes.txt" >/dev/null
say "the content of a volume, ${seconds[2]} s"
fuzz "${seconds[2]}" --include-tag "volume-content" "$@" || status=1
kill_all
exit "$status"
