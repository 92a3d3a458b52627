"""Two teams see nothing of each other. PANDO_OTHER_KEY is a key of a second team."""

import os

import e2b
import pytest

import web
from conftest import RUN, listed
from support import unique


@pytest.fixture
def other(server) -> str:
    key = os.environ.get("PANDO_OTHER_KEY")
    if not key:
        pytest.skip("PANDO_OTHER_KEY, a key of a second team, is not set")
    return key


def test_lists_are_apart(make, api, other) -> None:
    sandbox = make()
    assert sandbox.sandbox_id in {info.sandbox_id for info in listed(api, {"run": RUN})}
    assert listed(api, {"run": RUN}, api_key=other) == []


def test_sandboxes_are_apart(make, api, other) -> None:
    """For another team a sandbox does not exist, whatever it asks for."""
    sandbox_id = make().sandbox_id
    for call in (api.Sandbox.connect, api.Sandbox.get_info, api.Sandbox.pause):
        with pytest.raises(e2b.NotFoundException):
            call(sandbox_id, api_key=other)
    assert api.Sandbox.kill(sandbox_id, api_key=other) is False
    for path in ("timeout", "snapshots", "fork", "refreshes"):
        reply = web.api("POST", f"/sandboxes/{sandbox_id}/{path}", key=other, json={"timeout": 1})
        assert reply.status_code == 404, path
    assert api.Sandbox.get_info(sandbox_id).state.value == "running"


def test_volumes_are_apart(api, other) -> None:
    volume = api.Volume.create(unique("team"))
    try:
        assert volume.volume_id not in {info.volume_id for info in api.Volume.list(api_key=other)}
        assert api.Volume.destroy(volume.volume_id, api_key=other) is False
        with pytest.raises(e2b.NotFoundException):
            api.Volume.connect(volume.volume_id, api_key=other)
        with pytest.raises(e2b.SandboxException):
            api.Sandbox.create(volume_mounts={"/mnt": volume.name}, api_key=other)
    finally:
        assert api.Volume.destroy(volume.volume_id)


def test_snapshots_are_apart(make, api, other) -> None:
    snapshot = make().create_snapshot()
    try:
        with pytest.raises(e2b.SandboxException):
            api.Sandbox.create(snapshot.snapshot_id, api_key=other)
        assert api.Sandbox.delete_snapshot(snapshot.snapshot_id, api_key=other) is False
    finally:
        assert api.Sandbox.delete_snapshot(snapshot.snapshot_id)
