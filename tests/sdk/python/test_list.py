"""Lists of sandboxes: pages, order, filters."""

import datetime

import e2b
import pytest

import web
from conftest import listed
from support import unique

ODD = {"equals": "a=b", "and": "c&d", "space": "e f", "letters": "grün 日本", "plus": "1+1", "percent": "100%25"}


def test_metadata_with_odd_characters(make, api) -> None:
    """Check 16: metadata with `=`, `&`, spaces and Unicode comes back unchanged and filters."""
    sandbox = make(metadata=ODD)
    assert {name: sandbox.get_info().metadata[name] for name in ODD} == ODD
    for name, value in ODD.items():
        found = [info.sandbox_id for info in listed(api, {name: value})]
        assert sandbox.sandbox_id in found
    assert not listed(api, ODD | {"equals": "a=c"})


def test_pages(make, api) -> None:
    """Check 16: `limit=1` shows each exactly once, while others come and go."""
    group = {"group": unique("pages")}
    made = [make(metadata=group).sandbox_id for _ in range(5)]
    paginator = api.Sandbox.list(query=e2b.SandboxQuery(metadata=group), limit=1)
    seen: list[str] = []
    while paginator.has_next:
        page = paginator.next_items()
        assert len(page) <= 1
        seen += [info.sandbox_id for info in page]
        make(metadata={"group": "other"}).kill()
    assert sorted(seen) == sorted(made)
    assert int(web.api("GET", "/v2/sandboxes").headers["x-total-running"]) >= len(made)


def test_next_token_starts_anew(make, api) -> None:
    group = {"group": unique("token")}
    made = {make(metadata=group).sandbox_id for _ in range(3)}
    query = e2b.SandboxQuery(metadata=group)
    first = api.Sandbox.list(query=query, limit=2)
    seen = {info.sandbox_id for info in first.next_items()}
    assert first.has_next and first.next_token
    rest = api.Sandbox.list(query=query, limit=2, next_token=first.next_token)
    assert seen | {info.sandbox_id for info in rest.next_items()} == made
    assert not rest.has_next


def test_order(make, api) -> None:
    """Check 16: newest first unless asked otherwise."""
    group = {"group": unique("order")}
    made = [make(metadata=group).sandbox_id for _ in range(3)]
    assert [info.sandbox_id for info in listed(api, group)] == made[::-1]
    assert [info.sandbox_id for info in listed(api, group, order="asc")] == made


@pytest.mark.new_only("SandboxQuery.started_after")
def test_started_after(make, api) -> None:
    """Check 16."""
    group = {"group": unique("after")}
    make(metadata=group)
    second = make(metadata=group)
    query = e2b.SandboxQuery(metadata=group, started_after=second.get_info().started_at)
    assert [info.sandbox_id for info in api.Sandbox.list(query=query).next_items()] == [second.sandbox_id]
    later = e2b.SandboxQuery(
        metadata=group, started_after=datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    )
    assert api.Sandbox.list(query=later).next_items() == []


@pytest.mark.new_only("SandboxQuery.template")
def test_template_filter(make, api) -> None:
    """Check 16."""
    group = {"group": unique("template")}
    sandbox = make("base", metadata=group)
    for name, count in ((sandbox.get_info().template_id, 1), ("absent", 0)):
        found = api.Sandbox.list(query=e2b.SandboxQuery(metadata=group, template=name)).next_items()
        assert len(found) == count


def test_states(make, api) -> None:
    """Running and paused ones are listed together, and apart when asked for."""
    group = {"group": unique("states")}
    running, paused = make(metadata=group), make(metadata=group)
    assert paused.pause()
    assert len(listed(api, group)) == 2
    for state, expected in ((e2b.SandboxState.RUNNING, running), (e2b.SandboxState.PAUSED, paused)):
        query = e2b.SandboxQuery(metadata=group, state=[state])
        assert [info.sandbox_id for info in api.Sandbox.list(query=query).next_items()] == [expected.sandbox_id]


def test_killed_is_not_listed(make, api) -> None:
    group = {"group": unique("killed")}
    make(metadata=group).kill()
    assert listed(api, group) == []


def test_bad_limits_are_refused(api) -> None:
    for limit in ("0", "101", "-1", "many"):
        reply = web.api("GET", "/v2/sandboxes", params={"limit": limit})
        assert reply.status_code == 400, (limit, reply.status_code)
        assert {"code", "message"} <= reply.json().keys()


def test_bad_token_is_refused(api) -> None:
    assert web.api("GET", "/v2/sandboxes", params={"nextToken": "%%%"}).status_code == 400


@pytest.mark.slow
def test_a_thousand(api) -> None:
    """Check 16: pages through 1,000 without a gap or a repetition. Paused ones take no memory."""
    group = {"group": unique("thousand")}
    made: set[str] = set()
    try:
        for _ in range(1000):
            sandbox = api.Sandbox.create(metadata=group, timeout=900)
            made.add(sandbox.sandbox_id)
            assert sandbox.pause()
        seen = [info.sandbox_id for info in listed(api, group, limit=1)]
        assert len(seen) == len(set(seen)) and set(seen) == made
    finally:
        for sandbox_id in made:
            api.Sandbox.kill(sandbox_id)
