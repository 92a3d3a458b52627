"""Files and directories."""

import io
import os

import e2b
import httpx
import pytest

from conftest import IS_NEW
from support import out, unique

ODD_NAMES = ("with space", "grün-日本", "plus+sign", "per%25cent", "new\nline", "-dash", "quote'\"", "a&b=c?d#e")
MEBIBYTE = 1 << 20


def read_some(box, path: str) -> int:
    """How much a read brings until it ends, fails, or is too long."""
    count = 0
    try:
        for chunk in box.files.read(path, format="stream", request_timeout=10, stream_idle_timeout=10):
            count += len(chunk)
            if count > 64 * MEBIBYTE:
                break
    except (e2b.SandboxException, httpx.HTTPError):
        pass
    return count


def test_write_and_read(box, directory) -> None:
    info = box.files.write(f"{directory}/a", "text\n")
    assert (info.name, info.path, info.type.value) == ("a", f"{directory}/a", "file")
    assert box.files.read(f"{directory}/a") == "text\n"
    box.files.write(f"{directory}/a", "x")
    assert out(box, f"cat {directory}/a; stat -c '%U %a' {directory}/a") == "xuser 644"


def test_relative_path_is_in_the_home(box) -> None:
    name = unique("relative")
    assert box.files.write(name, "here").path == f"/home/user/{name}"
    assert out(box, f"cat ~/{name}") == "here"


def test_read_formats(box, directory) -> None:
    data = bytes(range(256)) * 100
    box.files.write(f"{directory}/b", data)
    assert bytes(box.files.read(f"{directory}/b", format="bytes")) == data
    assert b"".join(box.files.read(f"{directory}/b", format="stream")) == data


def test_sizes(box, directory) -> None:
    """Check 8: 0 bytes, 1 byte, 18 KiB, 64 MiB: whole, by string, bytes and stream."""
    for size in (0, 1, 18 * 1024, 64 * MEBIBYTE):
        data = os.urandom(MEBIBYTE)[:size] * max(1, size // MEBIBYTE)
        box.files.write(f"{directory}/s", io.BytesIO(data), request_timeout=120)
        assert out(box, f"stat -c %s {directory}/s") == str(size)
        assert bytes(box.files.read(f"{directory}/s", format="bytes", request_timeout=120)) == data


@pytest.mark.slow
def test_ten_gibibytes(box, directory) -> None:
    """Check 8: 10 GiB by stream, all of it there when the call returns."""

    class Zeros(io.RawIOBase):
        left = 10 << 30

        def readable(self) -> bool:
            return True

        def readinto(self, buffer) -> int:
            count = min(len(buffer), self.left)
            buffer[:count] = bytes(count)
            self.left -= count
            return count

    box.files.write(f"{directory}/big", io.BufferedReader(Zeros(), MEBIBYTE), request_timeout=0)
    assert out(box, f"stat -c %s {directory}/big; rm {directory}/big") == str(10 << 30)


def test_gzip_both_ways(box, directory) -> None:
    """Check 9."""
    text = "compress me " * 50_000
    box.files.write(f"{directory}/g", text, gzip=True)
    assert out(box, f"wc -c < {directory}/g") == str(len(text))
    assert box.files.read(f"{directory}/g", gzip=True) == text


def test_octet_stream_and_multipart(box, directory) -> None:
    """Check 9: both forms of an upload."""
    for octets in (True, False):
        box.files.write(f"{directory}/o", b"\x00\xff", use_octet_stream=octets)
        assert bytes(box.files.read(f"{directory}/o", format="bytes")) == b"\x00\xff"


def test_odd_names(box, directory) -> None:
    for name in ODD_NAMES:
        box.files.write(f"{directory}/{name}", name)
        assert box.files.read(f"{directory}/{name}") == name
    assert {entry.name for entry in box.files.list(directory)} == set(ODD_NAMES)


def test_parents_are_made(box, directory) -> None:
    box.files.write(f"{directory}/x/y/z", "deep")
    assert out(box, f"stat -c '%U %a' {directory}/x/y") == "user 755"


def test_write_files(box, directory) -> None:
    files = [{"path": f"{directory}/m{number}", "data": f"{number}"} for number in range(50)]
    assert [info.path for info in box.files.write_files(files)] == [file["path"] for file in files]
    assert out(box, f"cat {directory}/m7 {directory}/m49") == "749"
    assert box.files.write_files([]) == []


def test_metadata(box, directory) -> None:
    box.files.write(f"{directory}/meta", "x", metadata={"origin": "suite"})
    assert box.files.get_info(f"{directory}/meta").metadata == {"origin": "suite"}
    box.files.write(f"{directory}/meta", "y", metadata={"other": "1"})
    assert box.files.get_info(f"{directory}/meta").metadata == {"other": "1"}


def test_list(box, directory) -> None:
    box.commands.run(f"cd {directory} && mkdir -p d/e && echo 1 > d/f && echo 2 > d/e/g && ln -s d/f l")
    assert {entry.name: entry.type.value for entry in box.files.list(directory)}.keys() == {"d", "l"}
    assert {entry.path for entry in box.files.list(directory, depth=3)} == {
        f"{directory}/{name}" for name in ("d", "d/e", "d/f", "d/e/g", "l")
    }
    with pytest.raises(e2b.InvalidArgumentException):
        box.files.list(directory, depth=0)


def test_list_of_what_is_no_directory(box, directory) -> None:
    box.files.write(f"{directory}/file", "")
    with pytest.raises(e2b.NotFoundException):
        box.files.list(f"{directory}/absent")
    with pytest.raises(e2b.SandboxException):
        box.files.list(f"{directory}/file")


def test_get_info(box, directory) -> None:
    box.commands.run(f"cd {directory} && echo 123 > f && chmod 640 f && ln -s f l")
    info = box.files.get_info(f"{directory}/f")
    assert (info.size, info.mode & 0o777, info.owner, info.group) == (4, 0o640, "user", "user")
    assert info.permissions.endswith("rw-r-----") and info.symlink_target is None
    assert box.files.get_info(f"{directory}/l").symlink_target == f"{directory}/f"
    assert box.files.get_info(directory).type.value == "dir"


def test_exists(box, directory) -> None:
    assert box.files.exists(directory) and not box.files.exists(f"{directory}/absent")


def test_make_dir(box, directory) -> None:
    assert box.files.make_dir(f"{directory}/n/m") is True
    assert box.files.make_dir(f"{directory}/n/m") is False
    box.files.write(f"{directory}/taken", "")
    with pytest.raises(e2b.SandboxException):
        box.files.make_dir(f"{directory}/taken")


def test_rename(box, directory) -> None:
    box.files.write(f"{directory}/old", "moved")
    info = box.files.rename(f"{directory}/old", f"{directory}/deep/er/new")
    assert info.path == f"{directory}/deep/er/new"
    assert box.files.read(f"{directory}/deep/er/new") == "moved"
    assert not box.files.exists(f"{directory}/old")
    with pytest.raises(e2b.NotFoundException):
        box.files.rename(f"{directory}/old", f"{directory}/x")


def test_remove(box, directory) -> None:
    box.files.write(f"{directory}/r/s/t", "")
    box.files.remove(f"{directory}/r")
    assert not box.files.exists(f"{directory}/r")


def test_read_errors(box, directory) -> None:
    with pytest.raises(e2b.NotFoundException):
        box.files.read(f"{directory}/absent")
    if IS_NEW:
        with pytest.raises(e2b.FileNotFoundException):
            box.files.read(f"{directory}/absent")
    with pytest.raises(e2b.InvalidArgumentException):
        box.files.read(directory)


def test_permission_is_the_users(box) -> None:
    """The kernel's own checks hold for the user that acts."""
    with pytest.raises(e2b.SandboxException):
        box.files.write("/etc/written", "no")
    with pytest.raises(e2b.SandboxException):
        box.files.read("/etc/shadow")


def test_root(box) -> None:
    """Root inside is nobody outside."""
    path = f"/root/{unique('file')}"
    box.files.write(path, "by root", user="root")
    assert box.files.read(path, user="root") == "by root"


def test_special_files_answer_at_once(box, directory) -> None:
    """FIFOs, devices, endless and sparse files: an error or bounded data, and nothing blocks."""
    box.commands.run(f"cd {directory} && mkfifo fifo && ln -s /dev/zero zero")
    for name in ("fifo", "zero"):
        assert read_some(box, f"{directory}/{name}") <= 64 * MEBIBYTE
    assert "MemTotal" in box.files.read("/proc/meminfo")
    assert box.files.exists(directory)


def test_links_do_not_lead_out(box, directory) -> None:
    """A link is resolved in the sandbox, never on the host."""
    box.commands.run(f"ln -s /etc/hostname {directory}/name; ln -s ../../../../../../etc/hostname {directory}/up")
    for name in ("name", "up"):
        assert box.files.read(f"{directory}/{name}").strip() == out(box, "cat /etc/hostname")


def test_disk_full(make) -> None:
    """Check 8: a full filesystem gives the SDK's own error, and the sandbox lives. That of /dev/shm has 256 MiB."""
    sandbox = make()
    with pytest.raises(e2b.NotEnoughSpaceException):
        for number in range(8):
            sandbox.files.write(f"/dev/shm/{number}", b"0" * (64 * MEBIBYTE), request_timeout=120)
    assert out(sandbox, "echo alive") == "alive"
