"""Compares the files of two sandboxes: one command in each lists and hashes them, and the lists are compared here.

Names of files may have any bytes but NUL, so fields end with NUL. Output of commands is text, so it travels in base64.
"""

import base64
import gzip
import os
from typing import NamedTuple

from .models import FileDiff

DIRECTORY = "PANDO_DIFF_PATH"
"""The variable that has the directory, so that no shell reads its name."""

SCRIPT = rf"""
set -euo pipefail
pack() {{ gzip -1 | base64 -w 0; echo; }}
cd -- "${DIRECTORY}"
find . -mindepth 1 -printf '%P\0%y\0%m\0%U:%G\0%l\0' | pack
find . -type f -print0 | xargs -0r sha256sum -z -- | pack
"""
"""Lists path, kind, mode, owner and link of each entry, then the hash of each file."""

FIELDS = 5
HASH_CHARACTERS = 64


class Entry(NamedTuple):
    """What is compared of a path."""

    kind: str
    mode: str
    owner: str
    target: str
    digest: str


def parse(output: str) -> dict[str, Entry]:
    """The entries that `SCRIPT` has printed."""
    # A profile of the login shell may have printed something before.
    listed, hashed = (unpack(line) for line in output.split()[-2:])
    digests = {line[HASH_CHARACTERS + len("  ./") :]: line[:HASH_CHARACTERS] for line in hashed}
    rows = [listed[start : start + FIELDS] for start in range(0, len(listed), FIELDS)]
    return {path: Entry(kind, mode, owner, target, digests.get(path, "")) for path, kind, mode, owner, target in rows}


def unpack(line: str) -> list[str]:
    """The fields of one packed line."""
    return os.fsdecode(gzip.decompress(base64.b64decode(line))).split("\0")[:-1]


def compare(first: dict[str, Entry], second: dict[str, Entry]) -> FileDiff:
    """How the second list differs from the first."""
    both = first.keys() & second.keys()
    return FileDiff(
        added=tuple(sorted(second.keys() - first.keys())),
        removed=tuple(sorted(first.keys() - second.keys())),
        modified=tuple(sorted(path for path in both if first[path] != second[path])),
    )
