#!/bin/bash
# scripts/venv.sh LIST DIR: makes DIR a Python environment with the packages of LIST, once for each content of LIST.
set -euo pipefail

readonly LIST=$1 INTO=$2
if cmp -s "$LIST" "$INTO/installed"; then
	exit
fi
printf 'venv: installing %s\n' "$LIST" >&2
rm -rf "${INTO:?}"
python3 -m venv "$INTO" || {
	printf "venv: needs Python 3.11 or newer with venv: 'apt-get install python3-venv'\n" >&2
	exit 1
}
"$INTO/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$LIST"
cp "$LIST" "$INTO/installed"
