"""Volumes: the SDK's classes, the content API, and mounts in sandboxes. Snapshots, forks and restores of volumes are
additions of the server.
"""

import io

import e2b
import pytest

import web
from support import out, unique
from test_pause import ask


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


def test_overwriting(volume) -> None:
    """A file that is there is replaced with `force` alone, and so are missing directories made."""
    volume.write_file("/f", "one")
    with pytest.raises(e2b.VolumeException):
        volume.write_file("/f", "two")
    with pytest.raises(e2b.VolumePathNotFoundException):
        volume.write_file("/absent/f", "two")
    with pytest.raises(e2b.VolumePathNotFoundException):
        volume.make_dir("/absent/d")
    assert volume.read_file("/f") == "one"
    volume.write_file("/f", "two", force=True)
    assert volume.read_file("/f") == "two"
    with pytest.raises(e2b.VolumeException):
        volume.write_file("/", "three", force=True)
    assert volume.make_dir("/d", mode=0o700).mode == volume.make_dir("/d", force=True).mode == 0o700


def test_odd_names(volume) -> None:
    for name in ("a b", "100%", "%41", "q?a=b&c#d", "plus+", "\u00e4/\u4e16", "'quote\"", "line\nbreak"):
        volume.write_file(f"/odd/{name}", name, force=True)
        assert volume.read_file(f"/odd/{name}") == name
        assert volume.get_info(f"/odd/{name}").path == f"/odd/{name}"
    assert "/odd/%41" in {entry.path for entry in volume.list("/odd", depth=2)}


def test_large_file(volume) -> None:
    """Bodies stream, in both directions."""
    data = bytes(range(256)) * 4096 * 24
    assert volume.write_file("/large", io.BytesIO(data)).size == len(data)
    read = 0
    for part in volume.read_file("/large", format="stream"):
        assert part == data[read : read + len(part)]
        read += len(part)
    assert read == len(data)
    with pytest.raises(e2b.VolumeException):
        volume.write_file("/large", io.BytesIO(data))


def test_disk_full(api) -> None:
    """A volume that is full keeps what it had."""
    made = web.api("POST", "/volumes", json={"name": unique("vol"), "sizeMB": 2}).json()
    volume = api.Volume.connect(made["volumeID"])
    try:
        volume.write_file("/f", "old")
        with pytest.raises(e2b.VolumeException) as full:
            volume.write_file("/f", b"x" * (3 << 20), force=True)
        assert "507" in str(full.value) or "space" in str(full.value).lower()
        assert volume.read_file("/f") == "old"
    finally:
        assert api.Volume.destroy(volume.volume_id)


def test_wrong_tokens(api, volume) -> None:
    other = api.Volume.create(unique("vol"))
    try:
        for token in ("", "x", other.token, volume.token[1:]):
            for path in ("path", "dir", "file"):
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                url = f"/volumecontent/{volume.volume_id}/{path}?path=/"
                assert web.api("GET", url, key="", headers=headers).status_code == 401
    finally:
        api.Volume.destroy(other.volume_id)


def test_mount(volume, make) -> None:
    """Check 17: both sides see one state; two sandboxes share it."""
    volume.write_file("/before", "1")
    mounts = {"/mnt/data": volume.name}
    one, other = make(volume_mounts=mounts), make(volume_mounts=mounts)
    assert out(one, "cat /mnt/data/before") == "1"
    out(one, "echo shared > /mnt/data/after")
    assert out(other, "cat /mnt/data/after") == "shared"
    assert volume.read_file("/after") == "shared\n"
    assert one.get_info().volume_mounts == [{"name": volume.name, "path": "/mnt/data"}]


def test_a_volume_outlives_its_sandboxes(volume, make) -> None:
    sandbox = make(volume_mounts={"/mnt/data": volume.name})
    out(sandbox, "echo kept > /mnt/data/file; sync")
    sandbox.kill()
    assert volume.read_file("/file") == "kept\n"


def test_an_unknown_volume(make) -> None:
    with pytest.raises(e2b.SandboxException):
        make(volume_mounts={"/mnt/data": unique("absent")})


def test_bad_mounts_are_refused(volume, make) -> None:
    single = [{path: volume.name} for path in ("relative", "/", "/proc/x", "/sys", "/dev/shm", "/a/../b", "/a/")]
    for mounts in [*single, dict.fromkeys(("/a", "/a/b"), volume.name)]:
        with pytest.raises(e2b.SandboxException):
            make(volume_mounts=mounts)


def test_mount_in_a_warmed_template(volume, make) -> None:
    """The program that runs already finds the volume, too. A mount hides no files that it may have opened."""
    sandbox = make("python", volume_mounts={"/mnt/data": volume.name})
    ask(sandbox, 'open("/mnt/data/f", "w").write("by the program")')
    assert volume.read_file("/f") == "by the program"
    with pytest.raises(e2b.SandboxException):
        make("python", volume_mounts={"/usr/lib": volume.name})


def test_a_mounted_volume_is_kept(volume, make, api) -> None:
    """A volume is deleted when no sandbox needs it: none that runs, none that is paused."""
    sandbox = make(volume_mounts={"/mnt/data": volume.name})
    with pytest.raises(Exception, match="409|held|mounted|use"):
        api.Volume.destroy(volume.volume_id)
    out(sandbox, "echo 1 > /mnt/data/f")
    assert sandbox.pause()
    with pytest.raises(Exception, match="409|paused|need"):
        api.Volume.destroy(volume.volume_id)
    sandbox.connect()
    assert out(sandbox, "cat /mnt/data/f") == "1"
    sandbox.kill()
    assert api.Volume.destroy(volume.volume_id)


def test_copies_have_volumes_of_their_own(volume, make, api) -> None:
    """Forks, and sandboxes of a snapshot, have the volume as it was in that instant."""
    source = make(volume_mounts={"/mnt/data": volume.name})
    out(source, "echo before > /mnt/data/f")
    (fork,) = source.fork()
    snapshot = source.create_snapshot()
    later = make(snapshot.snapshot_id)
    own = []
    try:
        for copy in (make.adopt(fork), later):
            (mount,) = copy.get_info().volume_mounts
            assert (mount["path"], mount["name"]) == ("/mnt/data", f"{volume.name}-{copy.sandbox_id}")
            own += [info for info in api.Volume.list() if info.name == mount["name"]]
            out(copy, "echo copy > /mnt/data/f")
        assert out(source, "cat /mnt/data/f") == "before" == volume.read_file("/f").strip()
        for copy, info in zip((fork, later), own, strict=True):
            copy.kill()
            assert api.Volume.connect(info.volume_id).read_file("/f") == "copy\n"
    finally:
        api.Sandbox.delete_snapshot(snapshot.snapshot_id)
        for copy in (fork, later):
            copy.kill()
        assert len(own) == 2 and all(api.Volume.destroy(info.volume_id) for info in own)


def test_snapshots_forks_and_restores(volume, api) -> None:
    """Additions of the server, in the style of the others."""
    path = f"/volumes/{volume.volume_id}"
    volume.write_file("/f", "one")
    taken = web.api("POST", f"{path}/snapshots", json={"name": "first", "note": "all is well"})
    assert taken.status_code == 201 and taken.json()["name"] == "first"
    volume.write_file("/f", "two", force=True)
    volume.write_file("/g", "new")
    assert [found["name"] for found in web.api("GET", f"{path}/snapshots").json()] == ["first"]
    changes = {found["path"]: found["change"] for found in web.api("GET", f"{path}/changes?from=first").json()}
    assert (changes["/f"], changes["/g"]) == ("modified", "added")
    forked = web.api("POST", f"{path}/fork", json={"name": unique("fork"), "snapshot": "first"})
    assert forked.status_code == 201
    fork = api.Volume.connect(forked.json()["volumeID"])
    try:
        assert fork.read_file("/f") == "one" and not fork.exists("/g")
    finally:
        assert api.Volume.destroy(fork.volume_id)
    before = web.api("POST", f"{path}/restore", json={"snapshot": "first"}).json()["before"]
    assert volume.read_file("/f") == "one" and not volume.exists("/g")
    headers = {"Authorization": f"Bearer {volume.token}"}
    old = web.api("GET", f"/volumecontent/{volume.volume_id}/file?path=/f&snapshot={before}", key="", headers=headers)
    assert old.text == "two"
    assert web.api("DELETE", f"{path}/snapshots/first").status_code == 204
    assert web.api("DELETE", f"{path}/snapshots/first").status_code == 404
    assert web.api("POST", f"{path}/restore", json={"snapshot": "first"}).status_code == 404
