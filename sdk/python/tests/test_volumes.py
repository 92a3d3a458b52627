"""Snapshots, forks, restores and changes of volumes, sync and async."""

import asyncio
from collections.abc import Iterator

import e2b
import pytest

from pando import AsyncVolume, Volume


@pytest.fixture
def volume(unique: str) -> Iterator[Volume]:
    """A volume with one file, which is destroyed at the end."""
    made = Volume.create(unique)
    made.write_file("/state", "first")
    yield made
    Volume.destroy(made.volume_id)


def test_a_snapshot_stays_what_it_was(volume: Volume) -> None:
    taken = volume.snapshot("before")
    volume.write_file("/state", "second", force=True)
    volume.write_file("/new", "1")
    assert [kept.name for kept in volume.snapshots()] == ["before"] == [taken.name]
    assert {(one.path, one.change) for one in volume.changes("before")} >= {("/state", "modified"), ("/new", "added")}
    undone = volume.restore("before")
    assert volume.read_file("/state") == "first"
    assert not volume.exists("/new")
    assert volume.restore(undone)
    assert volume.read_file("/new") == "1"
    assert {one.change for one in volume.changes("before", undone)} >= {"added"}
    assert volume.delete_snapshot("before")
    assert not volume.delete_snapshot("before")


def test_a_fork_goes_its_own_way(volume: Volume, unique: str) -> None:
    volume.snapshot("before")
    volume.write_file("/state", "second", force=True)
    forks = [volume.fork(f"{unique}-now"), volume.fork(f"{unique}-then", snapshot="before")]
    try:
        assert [fork.read_file("/state") for fork in forks] == ["second", "first"]
        assert all(isinstance(fork, Volume) for fork in forks)
        forks[0].write_file("/state", "third", force=True)
        assert volume.read_file("/state") == "second"
    finally:
        for fork in forks:
            Volume.destroy(fork.volume_id)


def test_what_is_not_there_is_told(volume: Volume) -> None:
    for call in (volume.restore, volume.changes, lambda name: volume.fork("another", name)):
        with pytest.raises(e2b.VolumeNotFoundException):
            call("absent")
    gone = Volume(volume_id="absent0000000000", name="gone")
    with pytest.raises(e2b.VolumeNotFoundException):
        gone.snapshot("any")


def test_the_async_volume_does_the_same(volume: Volume, unique: str) -> None:
    async def scenario() -> None:
        same = await AsyncVolume.connect(volume.volume_id)
        await same.snapshot("before")
        await same.write_file("/state", "second", force=True)
        assert [kept.name for kept in await same.snapshots()] == ["before"]
        assert ("/state", "modified") in {(one.path, one.change) for one in await same.changes("before")}
        fork = await same.fork(unique + "-fork", snapshot="before")
        try:
            assert await fork.read_file("/state") == "first"
        finally:
            await AsyncVolume.destroy(fork.volume_id)
        assert await same.restore("before")
        assert await same.read_file("/state") == "first"
        assert await same.delete_snapshot("before")
        assert not await same.delete_snapshot("before")

    asyncio.run(scenario())
