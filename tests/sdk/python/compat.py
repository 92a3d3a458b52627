"""The tables of docs/e2b-compat.md: what is said to work, and the tests that show it."""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parents[2] / "docs" / "e2b-compat.md"
# From good to bad: a test of several rows has the worst of their states.
STATES = ("works", "in part", "not yet", "not ours")


@dataclass(frozen=True)
class Row:
    """A line of a table: a method (`Sandbox.create`) or an acceptance check (`12`)."""

    name: str
    state: str
    tests: tuple[str, ...]
    note: str


def rows() -> list[Row]:
    found = []
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
        if line.startswith("|") and len(cells) == 4 and cells[1] in STATES:
            tests = tuple(re.findall(r"[\w]+::[\w]+", cells[2]))
            found.append(Row(cells[0].strip("`"), cells[1], tests, cells[3]))
    return found


def state_of(name: str) -> str:
    return next(row.state for row in rows() if row.name == name)


def states_of_tests() -> dict[str, str]:
    states: dict[str, str] = {}
    for row in rows():
        for test in row.tests:
            states[test] = max(row.state, states.get(test, STATES[0]), key=STATES.index)
    return states


def test_name(item: Any) -> str:
    """`commands::prints` for `test_prints` in test_commands.py."""
    function = getattr(item, "originalname", None) or item.name
    return f"{item.path.stem.removeprefix('test_')}::{function.removeprefix('test_')}"


def names_of_tests() -> set[str]:
    """Of all test files, without importing them."""
    found = set()
    for path in HERE.glob("test_*.py"):
        for function in re.findall(r"^def test_(\w+)", path.read_text(), re.MULTILINE):
            found.add(f"{path.stem.removeprefix('test_')}::{function}")
    return found


def ready_rows(results: Path) -> set[str]:
    """Rows that are "not yet", although each of their tests that ran passed, in every suite.

    `scripts/sdk.sh` collects the results.
    """
    outcomes: dict[str, set[str]] = {}
    failed_methods: set[str] = set()
    for path in results.glob("*.json"):
        for test, outcome in json.loads(path.read_text()).items():
            outcomes.setdefault(test, set()).add(outcome)
    if (results / "js.failed").exists():
        failed_methods = set((results / "js.failed").read_text().split())

    def is_ready(row: Row) -> bool:
        seen: set[str] = set().union(*(outcomes.get(test, set()) for test in row.tests))
        return row.state == "not yet" and "passed" in seen and "failed" not in seen and row.name not in failed_methods

    return {row.name for row in rows() if is_ready(row)}


def bless(results: Path) -> None:
    """Says "works" in the rows that are ready. What a row's note says of versions and of acceptance checks stays."""
    ready = ready_rows(results)
    lines = DOCUMENT.read_text().splitlines()
    for number, line in enumerate(lines):
        cells = line.split("|")
        if line.startswith("|") and len(cells) == 6 and cells[1].strip("`") in ready and cells[2] == "not yet":
            cells[2], cells[4] = "works", re.sub(r"^issue \d+(; )?", "", cells[4])
            lines[number] = "|".join(cells)
    DOCUMENT.write_text("\n".join(lines) + "\n")
    print(f"now works: {', '.join(sorted(ready)) or 'nothing new'}")


if __name__ == "__main__":
    bless(Path(sys.argv[1]))
