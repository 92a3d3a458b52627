"""Errors: bodies, kinds, keys."""

import e2b
import pytest

import web

ROUTES = [
    ("GET", "/v2/sandboxes"),
    ("POST", "/v2/sandboxes"),
    ("GET", "/sandboxes/x"),
    ("DELETE", "/sandboxes/x"),
    ("GET", "/volumes"),
]
WRONG_KEY = "e2b_" + "0" * 40


def test_wrong_key(api) -> None:
    with pytest.raises(e2b.AuthenticationException):
        api.Sandbox.create(api_key=WRONG_KEY)


@pytest.mark.parametrize("key", ["", WRONG_KEY, "nonsense"])
def test_every_route_wants_a_key(server, key) -> None:
    for method, path in ROUTES:
        reply = web.api(method, path, key=key, json={} if method == "POST" else None)
        assert reply.status_code == 401, (method, path)
        assert reply.json()["code"] == 401 and reply.json()["message"]


def test_absent_things(server) -> None:
    rows = [("GET", "/sandboxes/absent"), ("DELETE", "/sandboxes/absent"), ("POST", "/sandboxes/absent/pause")]
    rows += [("GET", "/volumes/absent"), ("DELETE", "/templates/absent"), ("GET", "/templates/aliases/absent")]
    for method, path in rows:
        reply = web.api(method, path, json={} if method == "POST" else None)
        assert reply.status_code == 404, (method, path)
        assert reply.json()["code"] == 404 and reply.json()["message"]


def test_unknown_route(server) -> None:
    assert web.api("GET", "/no/such/route").status_code == 404


def test_bad_bodies(server) -> None:
    for body in (
        b"",
        b"{",
        b"[]",
        b'{"templateID": 7}',
        b'{"templateID": "base", "timeout": "long"}',
        b'{"templateID":"base","timeout":-1}',
    ):
        reply = web.api("POST", "/v2/sandboxes", content=body, headers={"Content-Type": "application/json"})
        assert 400 <= reply.status_code < 500, body
        assert {"code", "message"} <= reply.json().keys(), body


def test_unknown_fields_are_ignored(server) -> None:
    """A newer SDK may send more."""
    reply = web.api("POST", "/v2/sandboxes", json={"templateID": "base", "timeout": 30, "fromTheFuture": {"a": 1}})
    assert reply.status_code == 201, reply.text
    web.api("DELETE", f"/sandboxes/{reply.json()['sandboxID']}")


def test_an_old_sdk_is_told(server) -> None:
    """An SDK version that is not supported gets an error that says so."""
    headers = {"User-Agent": "e2b-python-sdk/0.17.1", "package_version": "0.17.1", "lang": "python"}
    reply = web.api("POST", "/sandboxes", json={"templateID": "base", "timeout": 30}, headers=headers)
    if reply.status_code == 201:
        web.api("DELETE", f"/sandboxes/{reply.json()['sandboxID']}")
    assert reply.status_code == 400 and "0.17.1" in reply.json()["message"]


def test_options_that_nothing_applies(server) -> None:
    """A sandbox never lacks in silence what its creator asked for."""
    for options in (
        {"iam": {"tokens": {"cloud": {"audience": "a", "tokenType": "jwt"}}}},
        {"mcp": {"exa": {}}},
        {"network": {"egressProxy": {"address": "10.0.0.1:1080"}}},
    ):
        reply = web.api("POST", "/v2/sandboxes", json={"templateID": "base", **options})
        assert reply.status_code == 400 and "not supported" in reply.json()["message"], (options, reply.text)


def test_unknown_rpc(box) -> None:
    """Connect's own error for a method that is not there."""
    headers = {"Content-Type": "application/json"} | box.connection_config.sandbox_headers
    reply = web.request("POST", box.envd_api_url + "/process.Process/Absent", headers=headers, json={})
    assert reply.status_code in (404, 501)


def test_client_timeout(box) -> None:
    """Check 5: the client's own timeout fires."""
    with pytest.raises((e2b.TimeoutException, e2b.SandboxException)):
        box.commands.run("sleep 30", request_timeout=1, timeout=1)
