"""The Python code of docs/guide: the blocks of each page, one after another, as one program."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(path for path in (ROOT / "docs" / "guide").glob("*.md") if BLOCK.search(path.read_text()))


def program(page: Path) -> str:
    """All blocks, with the line numbers of the page for tracebacks."""
    text = page.read_text()
    lines = [""] * text.count("\n")
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        code = block[1].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines) + "\n"


@pytest.mark.skipif("E2B_DOMAIN" not in os.environ, reason="names of sandboxes do not resolve here")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_page_runs(page: Path, tmp_path: Path) -> None:
    file = tmp_path / f"{page.stem}.py"
    file.write_text(program(page))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "sdk" / "python" / "src")}
    command = [sys.executable, str(file)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_each_block_is_of_a_kind_that_is_run() -> None:
    """A block in another language would be code that no test runs. Shell is indented instead."""
    kinds = {kind for page in (ROOT / "docs" / "guide").glob("*.md") for kind in fences(page.read_text())}
    assert kinds <= {"python"}


def fences(text: str) -> list[str]:
    return re.findall(r"^```(.+)$", text, re.MULTILINE)


def test_the_readme_of_the_package_runs(tmp_path: Path) -> None:
    test_each_page_runs(ROOT / "sdk" / "python" / "README.md", tmp_path)
