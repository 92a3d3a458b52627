"""What all cases share: the SDK in both forms, sandboxes that are removed, and the states of docs/e2b-compat.md."""

import importlib.metadata
import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import compat
from adapter import Api

RUN = uuid.uuid4().hex[:12]
VERSION = importlib.metadata.version("e2b")
# The older generation is 2.45.1. `POST /v2/sandboxes` came with 2.51.
IS_NEW = tuple(map(int, VERSION.split(".")[:2])) >= (2, 51)


def pytest_report_header() -> str:
    return f"e2b {VERSION}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "new_only(what): the older SDK does not have it")
    config.addinivalue_line("markers", "slow: takes longer than ten seconds; PANDO_SDK_SLOW=1 runs it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    states = compat.states_of_tests()
    for item in items:
        name = compat.test_name(item)
        new_only = item.get_closest_marker("new_only")
        if new_only and not IS_NEW:
            item.add_marker(pytest.mark.skip(reason=f"e2b {VERSION} has no {new_only.args[0]}"))
        if item.get_closest_marker("slow") and not os.environ.get("PANDO_SDK_SLOW"):
            item.add_marker(pytest.mark.skip(reason="slow: set PANDO_SDK_SLOW=1"))
        state = states.get(name)
        if state and state != "works":
            item.add_marker(pytest.mark.xfail(reason=f"docs/e2b-compat.md: {state}", strict=False))


OUTCOMES: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test that passed in one form and failed in another has failed."""
    file, _, function = report.nodeid.partition(".py::")
    name = f"{file.removeprefix('test_')}::{function.partition('[')[0].removeprefix('test_')}"
    is_failure = report.failed or (report.skipped and hasattr(report, "wasxfail"))
    if is_failure:
        OUTCOMES[name] = "failed"
    elif report.when == "call" and report.passed:
        OUTCOMES.setdefault(name, "passed")


def pytest_sessionfinish() -> None:
    if os.environ.get("PANDO_SDK_RESULTS"):
        Path(os.environ["PANDO_SDK_RESULTS"], f"{VERSION}.json").write_text(json.dumps(OUTCOMES))


@pytest.fixture(scope="session")
def server() -> None:
    """Ends the run if no server is named: tests that are expected to fail would hide it.

    A key alone names none: it may be one of E2B's own service.
    """
    place = os.environ.get("E2B_DOMAIN") or os.environ.get("E2B_API_URL")
    if not (os.environ.get("E2B_API_KEY") and place):
        pytest.exit("no server: set E2B_API_KEY, and E2B_DOMAIN or E2B_API_URL; `make sdk-test` starts one", 2)


@pytest.fixture(scope="session", params=["sync", "async"])
def api(request: pytest.FixtureRequest, server: None) -> Iterator[Api]:
    api = Api(request.param)
    yield api
    if compat.state_of("Sandbox.list") != "works":
        return
    left = [info.sandbox_id for info in listed(api, {"run": RUN})]
    for sandbox_id in left:
        api.Sandbox.kill(sandbox_id)
    assert not left, f"the tests have left sandboxes: {left}"


def listed(api: Api, metadata: dict[str, str], **options: Any) -> list[Any]:
    """All pages of a list."""
    from e2b import SandboxQuery

    paginator = api.Sandbox.list(query=SandboxQuery(metadata=metadata), **options)
    found = []
    while paginator.has_next:
        found += paginator.next_items()
    return found


Make = Callable[..., Any]


@pytest.fixture
def make(api: Api) -> Iterator[Make]:
    """Makes sandboxes that the end of the test kills. `adopt` is for those that came by other ways."""
    made: list[str] = []

    def create(*args: Any, metadata: dict[str, str] | None = None, **options: Any) -> Any:
        sandbox = api.Sandbox.create(
            *args, metadata={"run": RUN, **(metadata or {})}, timeout=options.pop("timeout", 120), **options
        )
        made.append(sandbox.sandbox_id)
        return sandbox

    def adopt(sandbox: Any) -> Any:
        made.append(sandbox.sandbox_id)
        return sandbox

    create.adopt = adopt  # type: ignore[attr-defined]
    yield create
    for sandbox_id in made:
        api.Sandbox.kill(sandbox_id)


@pytest.fixture
def sandbox(make: Make) -> Any:
    """A sandbox of the test's own."""
    return make()


@pytest.fixture(scope="module")
def box(api: Api) -> Iterator[Any]:
    """A sandbox that the tests of a file share: they use files and commands of their own."""
    sandbox = api.Sandbox.create(timeout=600, metadata={"run": RUN})
    yield sandbox
    sandbox.kill()


@pytest.fixture
def directory(box: Any) -> str:
    """An empty directory of the shared sandbox."""
    path = f"/home/user/{uuid.uuid4().hex[:8]}"
    box.commands.run(f"mkdir {path}")
    return path
