#!/bin/bash
# Tests what is beside the server for its users: the SDK additions in sdk/, their examples, the guide's code and
# `pando mcp`. Starts a server unless the environment names one. Leaves nothing but packages below target/sdk.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly CACHE=$PWD/target/sdk LIST=sdk/python/requirements/test.txt
export PANDO=${PANDO:-$PWD/target/debug/pando} PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/sdk/python/src

say() { printf 'additions: %s\n' "$*" >&2; }

# The package is built beside its packages, where Node looks for them.
build_typescript() {
	local into=$CACHE/typescript
	mkdir -p "$into"
	if ! cmp -s sdk/typescript/package-lock.json "$into/installed"; then
		say "installing sdk/typescript/package-lock.json"
		cp sdk/typescript/package{,-lock}.json "$into/"
		(cd "$into" && npm ci --no-audit --no-fund --ignore-scripts --silent)
		cp sdk/typescript/package-lock.json "$into/installed"
	fi
	rm -rf "$into"/{src,tests,dist}
	cp -r sdk/typescript/{src,tests,tsconfig.json} "$into/"
	"$into/node_modules/.bin/tsc" --project "$into"
}

if [[ ${1:-} != --inside ]]; then
	# The newest SDK with the tools of the tests. The older one is that of the conformance suite.
	scripts/venv.sh "$LIST" "$CACHE/additions"
	scripts/venv.sh tests/sdk/python/requirements/old.txt "$CACHE/old"
	(cd sdk/python && "$CACHE/additions/bin/mypy" --cache-dir "$CACHE/mypy")
	build_typescript
	exec scripts/sdk.sh --exec "$PWD/scripts/additions.sh" --inside "$@"
fi
shift
# A choice of cases may leave one of them with none: status 5.
run() {
	local status=0
	say "$1"
	"$CACHE/$2/bin/python" -m pytest -c sdk/python/pyproject.toml --rootdir . "${@:3}" || status=$?
	((status == 0 || (status == 5 && $# > 3))) || failed=yes
}

failed=''
run "the additions with the newest SDK" additions sdk/python/tests "$@"
run "the additions with the oldest SDK" old sdk/python/tests "$@"
run "pando mcp" additions tests/mcp "$@"
say "the additions for TypeScript"
# A choice of cases is one for pytest.
(($# > 0)) || node --test "$CACHE"/typescript/tests/*.test.mjs || failed=yes
[[ -z $failed ]]
