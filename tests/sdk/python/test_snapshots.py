"""Snapshots: a running sandbox as a template."""

import e2b
import pytest

from support import out, unique


@pytest.fixture
def keep(api):
    """Deletes snapshots at the end."""
    kept: list[str] = []

    def note(info):
        kept.append(info.snapshot_id)
        return info

    yield note
    for snapshot_id in kept:
        api.Sandbox.delete_snapshot(snapshot_id)


def listed(api, **options) -> set[str]:
    paginator = api.Sandbox.list_snapshots(**options)
    found: set[str] = set()
    while paginator.has_next:
        found |= {info.snapshot_id for info in paginator.next_items()}
    return found


def test_create_snapshot(make, keep) -> None:
    """Check 17: its id makes sandboxes; the source runs on."""
    source = make()
    source.files.write("/home/user/kept", "yes")
    snapshot = keep(source.create_snapshot())
    source.files.write("/home/user/kept", "later")
    assert make(snapshot.snapshot_id).files.read("/home/user/kept") == "yes"
    assert source.files.read("/home/user/kept") == "later"


def test_names(make, keep, api) -> None:
    """Check 17: each of its names makes sandboxes, too."""
    name = unique("snap")
    snapshot = keep(make().create_snapshot(name=name))
    assert any(name in full for full in snapshot.names)
    for way in (snapshot.snapshot_id, *snapshot.names):
        assert out(make(way), "echo alive") == "alive"


def test_by_id(make, keep, api) -> None:
    assert keep(api.Sandbox.create_snapshot(make().sandbox_id)).snapshot_id


@pytest.mark.new_only("mode")
def test_filesystem_only(make, keep) -> None:
    source = make()
    source.files.write("/home/user/kept", "yes")
    snapshot = keep(source.create_snapshot(mode="filesystem"))
    assert make(snapshot.snapshot_id).files.read("/home/user/kept") == "yes"


def test_list_snapshots(make, keep, api) -> None:
    source, other = make(), make()
    mine = {keep(source.create_snapshot()).snapshot_id for _ in range(3)}
    theirs = keep(other.create_snapshot()).snapshot_id
    assert listed(api, sandbox_id=source.sandbox_id, limit=1) == mine
    assert listed(api) >= mine | {theirs}
    paginator = source.list_snapshots()
    assert {info.snapshot_id for info in paginator.next_items()} == mine


def test_list_by_name(make, keep, api) -> None:
    name = unique("named")
    snapshot = keep(make().create_snapshot(name=name))
    assert listed(api, name=name) == {snapshot.snapshot_id}


def test_delete_snapshot(make, api) -> None:
    """The first is true; of what is gone, false. Sandboxes of it run on."""
    snapshot = make().create_snapshot()
    child = make(snapshot.snapshot_id)
    assert api.Sandbox.delete_snapshot(snapshot.snapshot_id)
    assert not api.Sandbox.delete_snapshot(snapshot.snapshot_id)
    assert child.is_running()
    with pytest.raises(e2b.SandboxException):
        make(snapshot.snapshot_id)


def test_outlives_its_source(make, keep) -> None:
    source = make()
    source.files.write("/home/user/kept", "yes")
    snapshot = keep(source.create_snapshot())
    source.kill()
    assert make(snapshot.snapshot_id).files.read("/home/user/kept") == "yes"
