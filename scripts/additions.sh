#!/bin/bash
# Tests what is beside the server for its users: the SDK additions in sdk/, their examples, the guide's code and
# `pando mcp`. Starts a server unless the environment names one. Leaves nothing but packages below target/sdk.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly CACHE=$PWD/target/sdk LIST=sdk/python/requirements/test.txt
export PANDO=${PANDO:-$PWD/target/debug/pando} PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/sdk/python/src

say() { printf 'additions: %s\n' "$*" >&2; }

# The newest SDK with the tools of the tests. The older one is that of the conformance suite.
install() {
	if ! cmp -s "$2" "$CACHE/$1/installed"; then
		say "installing $2"
		rm -rf "${CACHE:?}/$1"
		python3 -m venv "$CACHE/$1"
		"$CACHE/$1/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$2"
		cp "$2" "$CACHE/$1/installed"
	fi
}

if [[ ${1:-} != --inside ]]; then
	install additions "$LIST"
	install old tests/sdk/python/requirements/old.txt
	"$CACHE/additions/bin/mypy" --config-file sdk/python/pyproject.toml --cache-dir "$CACHE/mypy"
	exec scripts/sdk.sh --exec "$PWD/scripts/additions.sh" --inside "$@"
fi
shift
say "the additions with the newest SDK"
"$CACHE/additions/bin/python" -m pytest -c sdk/python/pyproject.toml sdk/python/tests "$@"
say "the additions with the oldest SDK"
"$CACHE/old/bin/python" -m pytest -c sdk/python/pyproject.toml sdk/python/tests "$@"
