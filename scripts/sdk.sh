#!/bin/bash
# Runs the conformance suite of tests/sdk: the real Python SDKs (newest and 2.45.1, sync and async) and the real
# JavaScript SDK drive `pando serve`. Starts a server of its own unless the environment names one. Leaves nothing but the
# SDKs below target/sdk.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly CACHE=$PWD/target/sdk SUITES=(new old js)
readonly PANDO=${PANDO:-$PWD/target/debug/pando}
# For tests/sdk/python/test_real_work.py.
readonly REGISTRIES=(deb.debian.org pypi.org files.pythonhosted.org registry.npmjs.org)
# For tests/sdk/python/test_restart.py, which has a server of its own.
export PANDO
# Seconds until a server must answer, and until it must have ended.
readonly START_SECONDS=120 STOP_SECONDS=30

say() { printf 'sdk: %s\n' "$*" >&2; }
fail() {
	printf 'sdk: %s\n' "$*" >&2
	exit 1
}

usage() {
	cat <<-END
		usage: scripts/sdk.sh [--only new|old|js] [--collect] [-- ARGUMENTS of pytest]
		       scripts/sdk.sh --exec COMMAND...

		Drives a server with the real E2B SDKs: Python $(pinned new) and $(pinned old), JavaScript $(pinned_js).

		    --only SUITE   one of the three; may be repeated
		    --collect      only lists the tests; needs no server
		    --exec COMMAND instead of the tests: runs the command with the variables of the server

		Environment: E2B_API_KEY with E2B_DOMAIN, SSL_CERT_FILE and NODE_EXTRA_CA_CERTS, or with E2B_API_URL and
		E2B_SANDBOX_URL, names a server. A key alone does not: it may be one of E2B's own service. Without a server
		one is started, as root, from PANDO ($PANDO).
		PANDO_SDK_SLOW=1 also runs what takes minutes or needs a registry. PANDO_BLESS=1, without --only, says "works" in
		docs/e2b-compat.md where all tests of a row pass.
	END
}

pinned() { sed -n 's/^e2b==\([^ ]*\).*/\1/p' "tests/sdk/python/requirements/$1.txt"; }
pinned_js() { sed -n 's/.*"e2b": "\([^"]*\)".*/\1/p' tests/sdk/js/package.json; }

# The tests are copied beside their packages, where Node looks for them.
install_js() {
	local into=$CACHE/js
	mkdir -p "$into"
	if ! cmp -s tests/sdk/js/package-lock.json "$into/installed"; then
		say "installing e2b $(pinned_js) for JavaScript"
		cp tests/sdk/js/package{,-lock}.json "$into/"
		(cd "$into" && npm ci --no-audit --no-fund --ignore-scripts --silent) || fail "npm ci failed in $into"
		cp tests/sdk/js/package-lock.json "$into/installed"
	fi
	rm -f "$into"/*.mjs
	cp tests/sdk/js/*.mjs "$into/"
}

start_server() {
	local file line tries
	[[ $(id -u) == 0 ]] || fail "starting a server needs root; or name one, as --help says"
	[[ -x $PANDO ]] || fail "$PANDO is missing: build it, or set PANDO"
	"$PANDO" serve --help >/dev/null 2>&1 || fail "$PANDO has no 'serve' yet"
	scratch=$(mktemp -d /var/tmp/pando-sdk.XXXXXX)
	file=$scratch/env
	say "starting a server"
	mapfile -t way_out < <(way_out)
	"$PANDO" serve --state "$scratch/state" --socket "$scratch/node.sock" --ephemeral --listen 127.0.0.1:0 \
		--env-file "$file" "${way_out[@]}" 2>"$scratch/log" &
	server=$!
	for ((tries = 0; tries < START_SECONDS * 10; tries++)); do
		grep -q '^E2B_API_KEY=' "$file" 2>/dev/null && break
		kill -0 "$server" 2>/dev/null || fail "the server ended at once; the end of its log is below"
		sleep 0.1
	done
	[[ -s $file ]] || fail "no requests were taken within $START_SECONDS s"
	unset "${!E2B_@}" SSL_CERT_FILE NODE_EXTRA_CA_CERTS
	while IFS= read -r line; do
		[[ $line != *=* || $line == '#'* ]] || export "${line?}"
	done <"$file"
	# Of a second team, for the tests that two teams see nothing of each other.
	PANDO_OTHER_KEY=$("$PANDO" key create --state "$scratch/state" --team other sdk-test)
	export PANDO_OTHER_KEY
}

# What sandboxes need to reach package registries as this machine does: the authorities that it trusts, and addresses that may
# be closed to sandboxes otherwise.
way_out() {
	local name authorities=/etc/ssl/certs/ca-certificates.crt
	for name in "${REGISTRIES[@]}"; do
		getent ahostsv4 "$name" || true
	done | awk '!seen[$1]++ { print "--network-allow"; print $1 }'
	[[ -r $authorities ]] || return 0
	printf '%s\n' --sandbox-file "$authorities"
	for name in PIP_CERT NODE_EXTRA_CA_CERTS; do
		printf '%s\n' --sandbox-env "$name=$authorities"
	done
}

# The templates that the tests use, unless the server has them by itself.
make_templates() {
	local root name program
	root=$(scripts/base.sh --print-path)
	for name in base python node; do
		if "$PANDO" --socket "$scratch/node.sock" template inspect "$name" >/dev/null 2>&1; then
			continue
		fi
		program=()
		[[ $name == base ]] || mapfile -t program < <(spec "images/$name.json")
		"$PANDO" --socket "$scratch/node.sock" template build "$name" --image "$root" --cwd /home/user \
			--on-fork /usr/local/lib/pando/on-fork --env NODE_OPTIONS=--require=/usr/local/lib/pando/on_fork.js "${program[@]}" >&2
	done
	# For the suites' tests of the code interpreter.
	[[ " ${only[*]} " == *' new '* || " ${only[*]} " == *' js '* ]] || return 0
	name=code-interpreter-v1
	say "building $name"
	"$PANDO" --socket "$scratch/node.sock" template build "$name" -f images/code-interpreter/Dockerfile \
		--context images/code-interpreter >"$scratch/$name" 2>&1 || {
		tail -n 5 "$scratch/$name" >&2
		say "$name cannot be built: its tests are skipped"
	}
}

# A template's program as arguments of `pando template build`.
spec() {
	python3 -c '
import json, sys
spec = json.load(open(sys.argv[1]))
print("--port", spec["ready"]["port"], "--", *spec["command"], sep="\n")
' "$1"
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
	# An interrupt from a terminal does not reach what runs in the background.
	((${#running[@]} == 0)) || kill -TERM "${running[@]}" 2>/dev/null || true
	stop_server
	if grep -qs panicked "${scratch:-}/log"; then
		say "the server panicked"
		status=1
	fi
	if ((status != 0)) && [[ -s ${scratch:-}/log ]]; then
		say "the end of the server's log:"
		tail -n 30 "$scratch/log" >&2
	fi
	rm -rf "$PANDO_SDK_RESULTS"
	if [[ -n $scratch ]]; then
		rm -rf --one-file-system "$scratch"
	fi
	exit "$status"
}

# Each is the whole of a subshell: what is started there must be what a signal to it ends.
run_python() {
	cd tests/sdk/python
	PYTHONDONTWRITEBYTECODE=1 exec "$CACHE/$1/bin/python" -m pytest "${pytest[@]}"
}

run_js() {
	local file
	cd "$CACHE/js"
	if [[ -n $collect ]]; then
		for file in *.mjs; do
			node --check "$file"
		done
		return
	fi
	PANDO_COMPAT="$OLDPWD/docs/e2b-compat.md" exec node --test --test-reporter=./report.mjs ./*.test.mjs
}

only=() pytest=() command=() collect='' scratch='' server='' status=0
declare -A running=() results=()
while (($# > 0)); do
	case $1 in
	--only)
		[[ " ${SUITES[*]} " == *" ${2-} "* ]] || fail "--only needs one of: ${SUITES[*]}"
		only+=("$2")
		shift
		;;
	--collect) collect=yes ;;
	--exec)
		shift
		command=("$@")
		break
		;;
	--)
		shift
		pytest=("$@")
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
((${#only[@]} > 0)) || only=("${SUITES[@]}")
[[ -z $collect ]] || pytest+=(--collect-only)
((${#command[@]} == 0)) || only=()
for suite in "${only[@]}"; do
	[[ $suite == js ]] && install_js || scripts/venv.sh "tests/sdk/python/requirements/$suite.txt" "$CACHE/$suite"
done

PANDO_SDK_RESULTS=$(mktemp -d)
export PANDO_SDK_RESULTS
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
if [[ -z $collect && ( -z ${E2B_API_KEY:-} || -z ${E2B_DOMAIN:-}${E2B_API_URL:-} ) ]]; then
	start_server
	make_templates
fi
if ((${#command[@]} > 0)); then
	"${command[@]}"
	exit
fi
# All at once: most of their time is waiting. The output of one is shown as it comes, that of the others after it.
for suite in "${only[@]}"; do
	(if [[ $suite == js ]]; then run_js; else run_python "$suite"; fi) >"$PANDO_SDK_RESULTS/$suite.out" 2>&1 &
	running[$suite]=$!
done
for suite in "${only[@]}"; do
	say "suite $suite"
	tail -n +1 -s 0.2 -f --pid="${running[$suite]}" "$PANDO_SDK_RESULTS/$suite.out"
	outcome=passed
	wait "${running[$suite]}" || outcome=failed status=1
	unset "running[$suite]"
	results[$suite]="$outcome: $(tail -n 1 "$PANDO_SDK_RESULTS/$suite.out")"
done
for suite in "${only[@]}"; do
	say "$suite ${results[$suite]}"
done
if [[ -n ${PANDO_BLESS:-} ]] && ((${#only[@]} == ${#SUITES[@]})); then
	PYTHONDONTWRITEBYTECODE=1 python3 tests/sdk/python/compat.py "$PANDO_SDK_RESULTS" >&2
fi
exit "$status"
