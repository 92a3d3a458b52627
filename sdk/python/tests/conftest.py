"""What the cases share: names of their own, and sandboxes that are killed at the end."""

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pando import Sandbox

SECONDS = 120

Make = Callable[..., Sandbox]


@pytest.fixture(scope="session", autouse=True)
def server() -> Iterator[None]:
    """Fails without a server, and if a case leaves a sandbox."""
    if not (os.environ.get("E2B_API_KEY") and (os.environ.get("E2B_DOMAIN") or os.environ.get("E2B_API_URL"))):
        pytest.exit('no server: `eval "$(pando env)"`, or scripts/additions.sh starts one', 2)
    before = running()
    yield
    assert running() <= before, "the tests have left sandboxes"


def running() -> set[str]:
    pages, found = Sandbox.list(), set()
    while pages.has_next:
        found |= {info.sandbox_id for info in pages.next_items()}
    return found


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes sandboxes, and kills them and their children at the end."""
    made: list[Sandbox] = []

    def create(template: str | None = None, **options: Any) -> Sandbox:
        sandbox = Sandbox.create(template, timeout=SECONDS, **options)
        made.append(sandbox)
        return sandbox

    yield create
    for sandbox in made:
        sandbox.kill()


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"test-{uuid.uuid4().hex[:10]}"
