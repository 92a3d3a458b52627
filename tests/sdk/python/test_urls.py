"""Addresses that a program without the SDK uses: signed URLs of files, ports."""

import re
import time

import pytest

import web
from test_files import ODD_NAMES

DATA = b"by address\n"


def ask(sandbox, method: str, url: str, **options):
    """Without names, a URL of a file does not say which sandbox it is of: headers do."""
    options["headers"] = web.routing(sandbox) | options.get("headers", {})
    return web.request(method, url, **options)


def test_download(box, directory) -> None:
    box.files.write(f"{directory}/d", DATA)
    reply = ask(box, "GET", box.download_url(f"{directory}/d"))
    assert (reply.status_code, reply.content) == (200, DATA)


def test_upload(box, directory) -> None:
    reply = ask(box, "POST", box.upload_url(f"{directory}/u"), files={"file": ("u", DATA)})
    assert reply.status_code == 200, reply.text
    assert reply.json()[0]["path"] == f"{directory}/u"
    assert box.files.read(f"{directory}/u") == DATA.decode()


def test_ranges(box, directory) -> None:
    """Check 8: read by range."""
    box.files.write(f"{directory}/r", "0123456789")
    url = box.download_url(f"{directory}/r")
    for asked, status, body in (
        ("bytes=2-4", 206, "234"),
        ("bytes=-3", 206, "789"),
        ("bytes=8-", 206, "89"),
        ("bytes=50-", 416, None),
    ):
        reply = ask(box, "GET", url, headers={"Range": asked})
        assert reply.status_code == status
        assert body is None or reply.text == body


def test_odd_names(box, directory) -> None:
    """Check 9: non-ASCII, space, `+`, `%` and newline in the path of a signed URL."""
    for name in ODD_NAMES:
        path = f"{directory}/{name}"
        box.files.write(path, name)
        assert ask(box, "GET", box.download_url(path)).text == name
        assert ask(box, "POST", box.upload_url(path), files={"file": ("x", DATA)}).status_code == 200
        assert box.files.read(path) == DATA.decode()


def test_expiry(box, directory) -> None:
    """Check 9: an expired signature is 401."""
    box.files.write(f"{directory}/e", DATA)
    url = box.download_url(f"{directory}/e", use_signature_expiration=1)
    assert ask(box, "GET", url).status_code == 200
    time.sleep(2.1)
    reply = ask(box, "GET", url)
    assert reply.status_code == 401
    assert reply.json() == {"code": 401, "message": "signature is already expired"}


def test_altered_signatures(box, directory) -> None:
    """Check 9: an altered signature, path, operation or user is 401."""
    box.files.write(f"{directory}/s", DATA)
    url = box.download_url(f"{directory}/s")
    signature = re.search(r"signature=([^&]+)", url)
    assert signature, url
    altered = [
        url.replace(signature[1], signature[1][:-2] + "AA"),
        url.replace(signature[0], "signature="),
        re.sub(r"path=[^&]+", "path=%2Fetc%2Fpasswd", url),
        url + "&signature_expiration=99999999999",
    ]
    for changed in altered:
        assert ask(box, "GET", changed).status_code == 401, changed
    assert ask(box, "POST", url, files={"file": ("s", b"overwritten")}).status_code == 401
    assert box.files.read(f"{directory}/s") == DATA.decode()


def test_user(box, directory) -> None:
    box.files.write(f"{directory}/w", DATA)
    assert ask(box, "GET", box.download_url(f"{directory}/w", user="user")).content == DATA


def test_gzip(box, directory) -> None:
    """Check 9: gzip by Accept-Encoding."""
    text = "again and again " * 10_000
    box.files.write(f"{directory}/z", text)
    reply = ask(box, "GET", box.download_url(f"{directory}/z"), headers={"Accept-Encoding": "gzip"})
    assert reply.text == text and reply.headers.get("content-encoding") == "gzip"


def test_another_sandboxes_signature(make) -> None:
    """A signature is worth nothing at another sandbox."""
    one, other = make(), make()
    other.files.write("/home/user/secret", "s")
    url = one.download_url("/home/user/secret").replace(one.sandbox_id, other.sandbox_id)
    assert ask(other, "GET", url).status_code == 401


@pytest.mark.parametrize("header", ["", "wrong"])
def test_access_token(box, directory, header) -> None:
    """Files and commands need the sandbox's token."""
    url = box.envd_api_url + "/files"
    headers = {"X-Access-Token": header} if header else {}
    assert ask(box, "GET", url, params={"path": "/etc/passwd"}, headers=headers).status_code == 401


def test_an_upload_that_breaks_off(box, directory) -> None:
    """The client goes away in the middle: nothing blocks, and the file can be written again."""

    def parts():
        yield b"x" * 100_000
        raise InterruptedError

    url = box.upload_url(f"{directory}/half")
    with pytest.raises(InterruptedError):
        ask(box, "POST", url, content=parts(), headers={"Content-Type": "application/octet-stream"})
    assert ask(box, "POST", url, files={"file": ("half", DATA)}).status_code == 200
    assert box.files.read(f"{directory}/half") == DATA.decode()
