"""Metrics and logs."""

import datetime

import web
from support import eventually, out


def test_get_metrics(make, api) -> None:
    sandbox = make()
    out(sandbox, "head -c 50000000 /dev/zero | sha256sum")
    metrics = eventually(sandbox.get_metrics, 30, "the first metrics")
    last = metrics[-1]
    assert last.cpu_count > 0 and last.cpu_used_pct >= 0
    assert 0 < last.mem_used < last.mem_total and 0 < last.disk_used < last.disk_total
    assert api.Sandbox.get_metrics(sandbox.sandbox_id)


def test_a_span(make) -> None:
    """Only what lies between start and end."""
    sandbox = make()
    eventually(sandbox.get_metrics, 30, "the first metrics")
    now = datetime.datetime.now(datetime.UTC)
    assert sandbox.get_metrics(start=now + datetime.timedelta(hours=1), end=now + datetime.timedelta(hours=2)) == []
    assert sandbox.get_metrics(start=now - datetime.timedelta(hours=1), end=now)


def test_of_many(make) -> None:
    one, other = make(), make()
    ids = [one.sandbox_id, other.sandbox_id]
    reply = web.api("GET", "/sandboxes/metrics", params={"sandbox_ids": ",".join(ids)})
    assert reply.status_code == 200 and set(reply.json()["sandboxes"]) == set(ids)


def test_logs(make) -> None:
    """The rows of the command line."""
    sandbox = make()
    for path, names in (("sandboxes", {"logs", "logEntries"}), ("v2/sandboxes", {"logs"})):
        reply = web.api("GET", f"/{path}/{sandbox.sandbox_id}/logs", params={"limit": 10})
        assert reply.status_code == 200 and names <= reply.json().keys()
        assert any("created" in str(entry) for entry in reply.json()["logs"]), reply.json()


def test_health(server) -> None:
    assert web.api("GET", "/health", key="").status_code == 204
