"""The services in a sandbox as other clients of the Connect protocol speak to them: the SDKs use JSON only."""

import json
import time
from typing import Any

import httpx

import web
from support import out

SOON = 10.0


def ask(sandbox: Any, method: str, path: str, **options: Any) -> httpx.Response:
    url, headers = web.port_url(sandbox, 49983, path)
    headers |= {"X-Access-Token": sandbox._envd_access_token} | options.pop("headers", {})  # noqa: SLF001
    return web.request(method, url, headers=headers, **options)


def field(number: int, value: bytes) -> bytes:
    """A field of a protobuf message that has a length of less than 128 bytes."""
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


def envelope(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def envelopes(body: bytes) -> list[tuple[int, bytes]]:
    found = []
    while body:
        length = int.from_bytes(body[1:5], "big")
        assert len(body) >= 5 + length, "the last message is not whole"
        found.append((body[0], body[5 : 5 + length]))
        body = body[5 + length :]
    return found


def start(command: str) -> dict[str, Any]:
    return {"process": {"cmd": "/bin/sh", "args": ["-c", command]}}


def test_binary_calls(box) -> None:
    binary = {"Content-Type": "application/proto", "Connect-Protocol-Version": "1"}
    reply = ask(box, "POST", "/filesystem.Filesystem/Stat", headers=binary, content=field(1, b"/etc/hostname"))
    assert reply.status_code == 200 and reply.headers["content-type"] == "application/proto"
    assert field(1, b"hostname") in reply.content and field(3, b"/etc/hostname") in reply.content
    missing = ask(box, "POST", "/filesystem.Filesystem/Stat", headers=binary, content=field(1, b"/nowhere"))
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


def test_binary_streams(box) -> None:
    process = field(1, b"/bin/echo") + field(2, b"said")
    headers = {"Content-Type": "application/connect+proto", "Connect-Protocol-Version": "1"}
    reply = ask(box, "POST", "/process.Process/Start", headers=headers, content=envelope(field(1, process)))
    assert reply.status_code == 200 and reply.headers["content-type"] == "application/connect+proto"
    *messages, (flags, end) = envelopes(reply.content)
    assert any(b"said\n" in message for _, message in messages)
    assert flags == 2 and "error" not in json.loads(end)


def test_signs_of_life(box) -> None:
    """A silent command: the stream says within the wanted time that it lives."""
    headers = {"Content-Type": "application/connect+json", "Keepalive-Ping-Interval": "1"}
    content = envelope(json.dumps(start("sleep 2.5")).encode())
    reply = ask(box, "POST", "/process.Process/Start", headers=headers, content=content)
    events = [json.loads(message)["event"] for flags, message in envelopes(reply.content) if not flags]
    assert [name for event in events for name in event].count("keepalive") == 2


def test_cut_messages(box) -> None:
    """Check 6: a message that ends before its length, or within its head, is an error at once."""
    headers = {"Content-Type": "application/connect+json"}
    whole = envelope(json.dumps(start("echo no")).encode())
    for cut in (whole[:3], whole[:-4], b"\0\xff\xff\xff\xff{}"):
        began = time.monotonic()
        reply = ask(box, "POST", "/process.Process/Start", headers=headers, content=cut)
        assert time.monotonic() - began < SOON
        (flags, end) = envelopes(reply.content)[-1]
        assert flags == 2 and json.loads(end)["error"]["code"], cut
    assert out(box, "echo it goes on") == "it goes on"


def test_variables(make) -> None:
    sandbox = make(envs={"COLOUR": "blue"})
    assert ask(sandbox, "GET", "/envs").json()["COLOUR"] == "blue"


def test_usage(box) -> None:
    used = ask(box, "GET", "/metrics").json()
    assert used["cpu_count"] > 0 and 0 < used["mem_used"] < used["mem_total"] and used["disk_total"] > 0
    assert abs(used["ts"] - time.time()) < 60


def test_compose(box, directory) -> None:
    parts = [f"{directory}/part-{number}" for number in range(3)]
    for number, part in enumerate(parts):
        box.files.write(part, f"{number}\n")
    body = {"sources": parts, "destination": f"{directory}/whole"}
    reply = ask(box, "POST", "/files/compose", json=body)
    assert reply.status_code == 200, reply.text
    assert box.files.read(f"{directory}/whole") == "0\n1\n2\n"
    assert not any(box.files.exists(part) for part in parts)
