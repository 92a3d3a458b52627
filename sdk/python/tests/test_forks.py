"""Forks, all or none."""

import e2b
import pytest
from conftest import Make

from pando import Sandbox


def test_children_have_the_files_of_the_source(make: Make) -> None:
    source = make()
    source.files.write("common", "1")
    children = source.fork_all(3, timeout=60)
    try:
        assert {child.files.read("common") for child in children} == {"1"}
        assert len({child.sandbox_id for child in children} | {source.sandbox_id}) == 4
        assert all(isinstance(child, Sandbox) for child in children)
    finally:
        for child in children:
            child.kill()


def test_a_paused_sandbox_is_forked_and_stays_paused(make: Make) -> None:
    source = make()
    source.files.write("kept", "yes")
    assert source.pause()
    (child,) = source.fork_all()
    try:
        assert child.files.read("kept") == "yes"
        assert source.get_info().state == e2b.SandboxState.PAUSED
    finally:
        child.kill()


def test_one_failed_child_ends_the_others(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make()
    forked = source.fork(count=2)
    failure = e2b.SandboxException("no memory")
    monkeypatch.setattr(type(source), "fork", lambda *_, **__: [*forked, failure])
    with pytest.raises(e2b.SandboxException, match="no memory"):
        source.fork_all(3)
    assert not any(child.is_running() for child in forked if not isinstance(child, Exception))
    assert source.is_running()


def test_an_id_gives_the_same_sandbox(make: Make) -> None:
    source = make()
    source.files.write("mark", "1")
    found = Sandbox.attach(source.sandbox_id)
    assert not found.diff(source)
    assert found.files.read("mark") == "1"
