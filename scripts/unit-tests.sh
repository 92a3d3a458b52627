#!/bin/bash
# Runs every test program of the workspace but the host tests, three at a time: most of them wait more than they compute, and
# `cargo test` runs one after the other. Arguments are those of `cargo test`. What a program prints is shown if it fails.
set -euo pipefail
cd "$(dirname "$0")/.."

list=$(mktemp) results=$(mktemp -d)
trap 'rm -rf "$list" "$results"' EXIT

# One line a program: its package's directory, which it runs in, and its file.
"${CARGO:-cargo}" test "$@" --exclude pando-host-tests --no-run --message-format json-render-diagnostics |
    python3 -c '
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
        print(os.path.dirname(message["manifest_path"]), message["executable"])
' >"$list"
test -s "$list" || { echo "unit-tests: cargo named no test program" >&2; exit 1; }

run() {
    local output began=$SECONDS
    output=$results/$(basename "$2")
    if (cd "$1" && CARGO_MANIFEST_DIR=$1 "$2" >"$output" 2>&1); then
        echo "ok      $(basename "$2") ($((SECONDS - began)) s)"
    else
        cat "$output"
        echo "FAILED  $2"
        return 1
    fi
}
export -f run
export results
xargs -P 3 -L 1 bash -c 'run "$@"' run <"$list"
echo "all $(wc -l <"$list") test programs passed"
