"""Volumes: the SDK's classes, the content API, and mounts in sandboxes."""

import e2b
import pytest

from support import out, unique


@pytest.fixture
def volume(api):
    volume = api.Volume.create(unique("vol"))
    yield volume
    api.Volume.destroy(volume.volume_id)


def test_create(volume) -> None:
    assert volume.volume_id and volume.token and volume.name.startswith("vol-")


def test_a_name_is_taken_once(api, volume) -> None:
    with pytest.raises(Exception):  # noqa: B017 - VolumeException or a conflict of the API
        api.Volume.create(volume.name)


def test_list(api, volume) -> None:
    assert volume.volume_id in {info.volume_id for info in api.Volume.list()}


def test_get_info(api, volume) -> None:
    info = api.Volume.get_info(volume.volume_id)
    assert (info.name, bool(info.token)) == (volume.name, True)


def test_connect(api, volume) -> None:
    volume.write_file("/a", "kept")
    assert api.Volume.connect(volume.volume_id).read_file("/a") == "kept"
    with pytest.raises(e2b.NotFoundException):
        api.Volume.connect("absent")


def test_destroy(api) -> None:
    """The first is true; of what is gone, false."""
    volume = api.Volume.create(unique("vol"))
    assert api.Volume.destroy(volume.volume_id)
    assert not api.Volume.destroy(volume.volume_id)


def test_write_and_read(volume) -> None:
    data = bytes(range(256)) * 1000
    stat = volume.write_file("/deep/er/file", data, force=True)
    assert (stat.name, stat.size) == ("file", len(data))
    assert bytes(volume.read_file("/deep/er/file", format="bytes")) == data
    assert b"".join(volume.read_file("/deep/er/file", format="stream")) == data
    with pytest.raises(e2b.VolumePathNotFoundException):
        volume.read_file("/absent")


def test_owners_and_modes(volume) -> None:
    stat = volume.write_file("/f", "x", uid=1000, gid=1000, mode=0o600)
    assert (stat.uid, stat.gid, stat.mode & 0o777) == (1000, 1000, 0o600)
    changed = volume.update_metadata("/f", uid=0, gid=0, mode=0o644)
    assert (changed.uid, changed.gid, changed.mode & 0o777) == (0, 0, 0o644)


def test_make_dir(volume) -> None:
    assert volume.make_dir("/a").type.value == "directory"
    with pytest.raises(Exception):  # noqa: B017 - a conflict, of the SDK's kind
        volume.make_dir("/a")
    assert volume.make_dir("/a/b/c", force=True).path == "/a/b/c"


def test_entries(volume) -> None:
    volume.write_file("/d/one", "1", force=True)
    volume.write_file("/d/e/two", "2", force=True)
    assert {entry.path for entry in volume.list("/d")} == {"/d/one", "/d/e"}
    assert {entry.path for entry in volume.list("/d", depth=2)} == {"/d/one", "/d/e", "/d/e/two"}


def test_info_of_a_path(volume) -> None:
    volume.write_file("/f", "123")
    info = volume.get_info("/f")
    assert (info.name, info.path, info.size) == ("f", "/f", 3)


def test_exists(volume) -> None:
    volume.write_file("/f", "")
    assert volume.exists("/f") and not volume.exists("/g")


def test_remove(volume) -> None:
    volume.write_file("/d/f", "", force=True)
    volume.remove("/d")
    assert not volume.exists("/d")
    with pytest.raises(e2b.VolumePathNotFoundException):
        volume.remove("/d")


def test_paths_stay_inside(volume) -> None:
    for path in ("/../../etc/passwd", "../etc/passwd", "/a/../../etc/passwd"):
        assert not volume.exists(path)


def test_mount(make, volume) -> None:
    """Check 17: both sides see one state; two sandboxes share it."""
    volume.write_file("/before", "1")
    mounts = {"/mnt/data": volume.name}
    one, other = make(volume_mounts=mounts), make(volume_mounts=mounts)
    assert out(one, "cat /mnt/data/before") == "1"
    out(one, "echo shared > /mnt/data/after")
    assert out(other, "cat /mnt/data/after") == "shared"
    assert volume.read_file("/after") == "shared\n"
    assert one.get_info().volume_mounts == [{"name": volume.name, "path": "/mnt/data"}]


def test_a_volume_outlives_its_sandboxes(make, volume) -> None:
    sandbox = make(volume_mounts={"/mnt/data": volume.name})
    out(sandbox, "echo kept > /mnt/data/file; sync")
    sandbox.kill()
    assert volume.read_file("/file") == "kept\n"


def test_an_unknown_volume(make) -> None:
    with pytest.raises(e2b.SandboxException):
        make(volume_mounts={"/mnt/data": unique("absent")})
