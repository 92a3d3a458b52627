"""Checkpoints: states with names."""

import e2b
import pytest
from conftest import Make

from pando import Sandbox


def test_a_name_starts_the_state_that_was_kept(make: Make, unique: str) -> None:
    source = make()
    source.files.write("state", "kept")
    kept = source.checkpoint(unique)
    try:
        source.files.write("state", "later")
        assert kept.name == unique
        assert [one.checkpoint_id for one in Sandbox.checkpoints(unique)] == [kept.checkpoint_id]
        assert kept.checkpoint_id in {one.checkpoint_id for one in Sandbox.checkpoints()}
        for way in (unique, kept):
            started = Sandbox.from_checkpoint(way, timeout=60, metadata={"from": "checkpoint"})
            assert started.files.read("state") == "kept"
            assert started.kill()
    finally:
        assert Sandbox.delete_checkpoint(unique)
    assert not Sandbox.delete_checkpoint(unique)
    assert not Sandbox.delete_checkpoint(kept)


def test_a_name_means_the_newest_state(make: Make, unique: str) -> None:
    source = make()
    try:
        for state in ("first", "second"):
            source.files.write("state", state)
            source.checkpoint(unique)
        started = Sandbox.from_checkpoint(unique, timeout=60)
        assert started.files.read("state") == "second"
        started.kill()
    finally:
        assert Sandbox.delete_checkpoint(unique)


def test_a_deleted_checkpoint_starts_nothing(make: Make, unique: str) -> None:
    kept = make().checkpoint(unique)
    assert Sandbox.delete_checkpoint(kept)
    with pytest.raises(e2b.SandboxException):
        Sandbox.from_checkpoint(unique)
    assert Sandbox.checkpoints(unique) == []
