"""Forks: many copies of one instant."""

import e2b

import web
from support import out, state_of
from test_pause import ask


def test_fork(make) -> None:
    """Children have the files of the source; what is written later is their own."""
    source = make()
    source.files.write("/home/user/common", "1")
    (child,) = source.fork()
    make.adopt(child)
    assert child.sandbox_id != source.sandbox_id
    assert child.files.read("/home/user/common") == "1"
    child.files.write("/home/user/common", "2")
    assert source.files.read("/home/user/common") == "1"
    assert source.is_running()


def test_count(make) -> None:
    source = make()
    children = source.fork(count=5, timeout=60)
    for child in children:
        make.adopt(child)
    assert len({child.sandbox_id for child in children}) == 5
    assert {out(child, "echo alive") for child in children} == {"alive"}


def test_by_id(make, api) -> None:
    (child,) = api.Sandbox.fork(make().sandbox_id)
    make.adopt(child)
    assert child.is_running()


def test_memory(make) -> None:
    """Copies of a warmed program have its variables, each for itself."""
    source = make("python")
    ask(source, "x = 1")
    children = source.fork(count=3)
    for number, child in enumerate(children):
        make.adopt(child)
        ask(child, f"x += {number}")
    assert [ask(child, "x") for child in children] == ["1", "2", "3"]
    assert ask(source, "x") == "1"


def test_node_memory(make) -> None:
    source = make("node")
    ask(source, "var x = 1")
    (child,) = source.fork()
    make.adopt(child)
    ask(child, "x = 2")
    assert (ask(source, "x"), ask(child, "x")) == ("1", "2")


def test_copies_draw_numbers_of_their_own(make) -> None:
    """Generators in memory are told (`on_fork` of `base`); OpenSSL keeps nothing there."""
    python, node = [make("python"), make("python")], [make("node"), make("node")]
    ask(python[0], "import random, ssl; random.seed(1)")
    ask(python[1], "import random, ssl")
    for source, all_ in ((python[0], python), (node[0], node)):
        all_.extend(map(make.adopt, source.fork(count=2)))
    drawn = [ask(box, "str(random.random()) + chr(32) + ssl.RAND_bytes(16).hex()") for box in python[1:]]
    drawn += [ask(box, "Math.random()") for box in node]
    numbers = [number for answer in drawn for number in answer.strip("'").split()]
    assert len(set(numbers)) == 2 * 3 + 4, numbers


def test_children_are_no_twins(make) -> None:
    """Check 18: ids, names, randomness and access tokens of their own."""
    source = make()
    one, other = map(make.adopt, source.fork(count=2))
    question = "hostname; cat /etc/machine-id; head -c 16 /dev/urandom | base64"
    assert not set(out(one, question).split()) & set(out(other, question).split())
    tokens = {sandbox._envd_access_token for sandbox in (source, one, other)}  # noqa: SLF001
    assert len(tokens) == 3 and all(tokens)


def test_of_a_paused_one(make, api) -> None:
    """Check 18: an addition of ours; E2B answers 409."""
    source = make()
    source.files.write("/home/user/kept", "yes")
    assert source.pause()
    (child,) = api.Sandbox.fork(source.sandbox_id)
    make.adopt(child)
    assert child.files.read("/home/user/kept") == "yes"
    assert state_of(source) == "paused"


def test_the_tree_of_forks_is_shown(make) -> None:
    """An addition of ours: who was forked from whom, also when one between them is gone."""
    source = make()
    (child,) = source.fork()
    (grandchild,) = make.adopt(child).fork()
    make.adopt(grandchild)
    ids = [sandbox.sandbox_id for sandbox in (source, child, grandchild)]
    child.kill()
    shown = web.api("GET", f"/forks?sandboxID={ids[2]}").json()
    assert [line["sandboxID"] for line in shown] == ids
    assert [line.get("parentID") for line in shown] == [None, *ids[:2]]
    assert [line.get("state") for line in shown] == ["running", None, "running"]
    assert shown[1]["forkedAt"] < shown[2]["forkedAt"]
    assert web.api("GET", "/forks?sandboxID=absent0000000000").status_code == 404


def test_of_nothing(api) -> None:
    """The SDK raises, or hands the error over in the child's place."""
    try:
        results = api.Sandbox.fork("absent0000000000")
    except e2b.NotFoundException:
        return
    assert all(isinstance(result, Exception) for result in results)


def test_bad_counts_are_refused(make) -> None:
    sandbox = make()
    for count in (0, -1, "many"):
        reply = web.api("POST", f"/sandboxes/{sandbox.sandbox_id}/fork", json={"count": count})
        assert reply.status_code == 400, (count, reply.status_code)
    assert sandbox.is_running()
