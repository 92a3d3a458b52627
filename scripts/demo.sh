#!/bin/bash
# The demo: builds, starts a node of its own, warms three services, forks each, asks every copy, prints the
# comparison, and leaves nothing behind - also when it fails or is interrupted.
#
#   COPIES=N   copies of each service (default 5)
#   BENCH=0    leave out the comparison at the end (its short form; `make bench` runs the long one)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly COPIES=${COPIES:-5} PORT=8080
readonly PANDO=$PWD/target/release/pando
scratch='' services='' socket='' node_pid=''

say() { printf '\n== %s\n' "$*"; }
fail() {
	printf 'demo: %s\n' "$*" >&2
	exit 1
}

pando() { "$PANDO" --socket "$socket" "$@"; }

clean_up() {
	local status=$?
	trap - EXIT INT TERM HUP
	set +e
	if [[ -n $node_pid ]] && kill -0 "$node_pid" 2>/dev/null; then
		pando kill --all --force >/dev/null 2>&1
		kill -TERM "$node_pid"
		wait "$node_pid"
	fi
	if ((status != 0)) && [[ -s $scratch/node.log ]]; then
		printf 'demo: the end of the log of the node:\n' >&2
		tail -n 20 "$scratch/node.log" >&2
	fi
	[[ -z $scratch ]] || rm -rf --one-file-system "$scratch"
	[[ -z $services || $services == "$PWD" ]] || rm -rf --one-file-system "$services"
	exit "$status"
}

# Home directories and scratch directories are masked in a sandbox: services of a checkout there have to be copied.
place_services() {
	services=$PWD
	case $PWD/ in
	/root/* | /home/* | /tmp/* | /var/tmp/* | /run/* | /srv/* | /mnt/* | /media/*)
		services=$(mktemp -d /opt/pando-demo.XXXXXX)
		mkdir -p "$services/target"
		cp -r examples "$services/"
		cp -r target/examples "$services/target/"
		chmod -R a+rX "$services"
		;;
	esac
}

start_node() {
	scratch=$(mktemp -d /var/tmp/pando-demo.XXXXXX)
	socket=$scratch/node.sock
	"$PANDO" node --ephemeral --state "$scratch/state" --socket "$socket" 2>"$scratch/node.log" &
	node_pid=$!
	local tries
	for ((tries = 0; tries < 200; tries++)); do
		if pando ls >/dev/null 2>&1; then
			return
		fi
		kill -0 "$node_pid" 2>/dev/null || fail "the node ended at once; see its log below"
		sleep 0.05
	done
	fail "the node does not answer on $socket"
}

ask() { pando exec "$1" -- curl --silent --show-error --fail --max-time 10 "${@:3}" "http://127.0.0.1:$PORT$2"; }

# The ids in the answer of `pando create --json`, which must be as many as asked for; their times go to stderr.
read_ids() {
	/usr/bin/python3 -c '
import json, sys
sandboxes = json.load(open(sys.argv[1]))["sandboxes"]
for sandbox in sandboxes:
    print(sandbox["id"])
    print("   {id}: started in {start_us} us".format(**sandbox), file=sys.stderr)
sys.exit(len(sandboxes) != int(sys.argv[2]))
' "$1" "$COPIES"
}

# warm_and_fork NAME COMMAND...: a template, $COPIES copies of it, and a question to each.
warm_and_fork() {
	local name=$1 id ids
	say "$name: warming it up"
	pando template build "$name" -- "${@:2}"
	# As on a node in use: blank sandboxes are made in the background once a template is ready.
	sleep 1
	say "$name: $COPIES copies"
	pando create "$name" -n "$COPIES" --json >"$scratch/run.json"
	ids=$(read_ids "$scratch/run.json") || fail "fewer than $COPIES copies of $name"
	ask "${ids%%$'\n'*}" '/write?key=written&value=here%20only' -X POST >/dev/null
	for id in $ids; do
		ask "$id" /state
		echo
	done >"$scratch/states"
	/usr/bin/python3 scripts/judge.py <"$scratch/states" || fail "the copies of $name are not as they should be"
	pando kill --all --force >/dev/null
}

[[ $(id -u) == 0 ]] || fail "run this as root: sandboxes need namespaces, mounts and cgroups"
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say "building"
make --no-print-directory build
place_services
start_node
warm_and_fork geo /usr/bin/python3 "$services/examples/geo.py" --port "$PORT"
warm_and_fork geo-go "$services/target/examples/geo-go" --port "$PORT"
warm_and_fork geo-node "$(command -v node)" "$services/examples/node/server.js" --port "$PORT"
if [[ ${BENCH:-1} != 0 ]]; then
	say "the comparison"
	pando bench start --quick
fi
say "done"
