"""Create, connect, timeouts, kill."""

import datetime
import os
import re

import e2b
import pytest

import web
from support import eventually, out, unique


def seconds_left(sandbox) -> float:
    return (sandbox.get_info().end_at - datetime.datetime.now(datetime.UTC)).total_seconds()


def test_create(make) -> None:
    """A created sandbox runs and has the name, the owner and the variables it was given."""
    sandbox = make(envs={"GREETING": "good day"})
    assert sandbox.is_running()
    assert re.fullmatch(r"[a-z0-9]+", sandbox.sandbox_id)
    assert out(sandbox, "echo $GREETING; whoami; pwd") == "good day\nuser\n/home/user"


def test_create_of_a_template(make) -> None:
    sandbox = make("base")
    info = sandbox.get_info()
    assert "base" in (info.name, info.template_id)
    assert out(sandbox, "python -c 'print(1)'; node -e 'console.log(2)'; git --version | cut -c 1-3") == "1\n2\ngit"


def test_create_of_an_unknown_template(make) -> None:
    with pytest.raises(e2b.SandboxException):
        make(unique("absent"))


def test_get_info(make, api) -> None:
    sandbox = make(metadata={"purpose": "info"})
    for info in (sandbox.get_info(), api.Sandbox.get_info(sandbox.sandbox_id)):
        assert info.sandbox_id == sandbox.sandbox_id
        assert info.state.value == "running"
        assert info.metadata["purpose"] == "info"
        assert info.started_at < info.end_at
        assert info.cpu_count > 0 and info.memory_mb > 0
        assert tuple(map(int, info.envd_version.split("."))) >= (0, 6, 4)


def test_default_timeout(api, make) -> None:
    """Check 12: the server's default holds when the SDK sends none, and the SDK's own when it does: both are 300 s."""
    sandbox = make.adopt(api.Sandbox.create())
    assert 280 < seconds_left(sandbox) <= 300


def test_defaults_of_the_first_route(make) -> None:
    """Check 12: `POST /sandboxes` without a timeout means 15 s."""
    reply = web.api("POST", "/sandboxes", json={"templateID": "base"})
    assert reply.status_code == 201, reply.text
    sandbox_id = reply.json()["sandboxID"]
    try:
        detail = web.api("GET", f"/sandboxes/{sandbox_id}").json()
        started, end = (datetime.datetime.fromisoformat(detail[name]) for name in ("startedAt", "endAt"))
        assert 14 <= (end - started).total_seconds() <= 16
    finally:
        web.api("DELETE", f"/sandboxes/{sandbox_id}")


def test_create_and_connect_by_both_routes(make) -> None:
    """Check 17: v1 and v2 of create and connect answer alike."""
    for prefix in ("", "/v2"):
        reply = web.api("POST", f"{prefix}/sandboxes", json={"templateID": "base", "timeout": 60})
        assert reply.status_code == 201, reply.text
        made = reply.json()
        try:
            assert {"templateID", "sandboxID", "clientID", "envdVersion"} <= made.keys()
            for way in ("", "/v2"):
                again = web.api("POST", f"{way}/sandboxes/{made['sandboxID']}/connect", json={"timeout": 60})
                assert again.status_code == 200, again.text
                assert again.json()["sandboxID"] == made["sandboxID"]
        finally:
            assert web.api("DELETE", f"/sandboxes/{made['sandboxID']}").status_code == 204


def test_connect(sandbox, api) -> None:
    sandbox.files.write("/home/user/kept", "yes")
    again = api.Sandbox.connect(sandbox.sandbox_id)
    assert again.sandbox_id == sandbox.sandbox_id
    assert again.files.read("/home/user/kept") == "yes"
    assert sandbox.connect().sandbox_id == sandbox.sandbox_id


def test_connect_to_nothing(api) -> None:
    with pytest.raises(e2b.SandboxNotFoundException):
        api.Sandbox.connect("absent0000000000")


def test_connect_only_extends(make, api) -> None:
    """Check 12: a shorter timeout at connect changes nothing; a longer one counts."""
    sandbox = make(timeout=200)
    api.Sandbox.connect(sandbox.sandbox_id, timeout=20)
    assert seconds_left(sandbox) > 150
    api.Sandbox.connect(sandbox.sandbox_id, timeout=400)
    assert 350 < seconds_left(sandbox) <= 400


def test_set_timeout(make, api) -> None:
    """It sets the rest of the time exactly: longer and shorter."""
    sandbox = make(timeout=100)
    sandbox.set_timeout(300)
    assert 280 < seconds_left(sandbox) <= 300
    api.Sandbox.set_timeout(sandbox.sandbox_id, 30)
    assert 20 < seconds_left(sandbox) <= 30


def test_timeout_kills(make, api) -> None:
    """Nothing is left of a sandbox when its time is over."""
    sandbox = make(timeout=3)
    eventually(lambda: not sandbox.is_running(), 15, "the end of the sandbox")
    with pytest.raises(e2b.NotFoundException):
        sandbox.get_info()


def test_zero_timeout_kills_at_once(sandbox) -> None:
    sandbox.set_timeout(0)
    eventually(lambda: not sandbox.is_running(), 10, "the end of the sandbox")


def test_kill(make, api) -> None:
    """The first kill is true; of what is gone, false. Instance and class alike."""
    one, other = make(), make()
    assert one.kill() and not one.kill()
    assert api.Sandbox.kill(other.sandbox_id) and not api.Sandbox.kill(other.sandbox_id)
    assert not one.is_running()


def test_is_running(make) -> None:
    sandbox = make()
    assert sandbox.is_running() is True
    sandbox.kill()
    assert sandbox.is_running() is False


def test_twenty_at_once(api, make) -> None:
    """Twenty creates at once all succeed, with ids of their own."""
    found: list = []
    threads = [api.thread(lambda: found.append(make())) for _ in range(20)]
    for thread in threads:
        thread.join(120)
    assert len({sandbox.sandbox_id for sandbox in found}) == 20


def test_sandboxes_have_identities(make) -> None:
    """Two sandboxes share neither names, nor machine ids, nor boot ids, nor randomness."""
    question = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | base64"
    one, other = out(make(), question).split(), out(make(), question).split()
    assert all(mine != yours for mine, yours in zip(one, other, strict=True))


def test_domain_is_the_servers(sandbox) -> None:
    if os.environ.get("E2B_DOMAIN"):
        assert sandbox.sandbox_domain == os.environ["E2B_DOMAIN"]


def test_mcp(sandbox) -> None:
    """The address is made by the SDK; without a gateway inside there is no token."""
    assert sandbox.get_mcp_url().endswith("/mcp")
    with pytest.raises(Exception):  # noqa: B017 - the SDK's kind depends on its version
        sandbox.get_mcp_token()
