"""Comparisons of files, with the real programs of two forks."""

import e2b
import pytest
from conftest import Make

from pando import FileDiff, diff

ODD = "tree/odd \n\t'\"$(x) ü.txt"


def test_equal_forks_do_not_differ(make: Make) -> None:
    source = make()
    source.files.write("tree/a", "1")
    (child,) = source.fork_all(timeout=60)
    assert not source.diff(child)
    assert source.diff(child, "tree") == FileDiff((), (), ())
    child.kill()


def test_each_kind_of_change_is_found(make: Make) -> None:
    source = make()
    for name in ("content", "mode", "gone", "kind", "same", "again"):
        source.files.write(f"tree/{name}", "12")
    source.commands.run("ln -s here tree/link; mkdir tree/empty")
    (child,) = source.fork_all(timeout=60)
    child.commands.run(
        "cd tree; printf 21 > content; chmod 600 mode; rm gone; rm kind; mkdir kind; touch again;"
        " ln -sfn there link; rmdir empty; mkdir -p new/er"
    )
    child.files.write(ODD, "odd")
    found = diff(source, child, "tree")
    child.kill()
    assert found.added == ("new", "new/er", ODD.removeprefix("tree/"))
    assert found.removed == ("empty", "gone")
    assert found.modified == ("content", "kind", "link", "mode")


def test_names_with_any_bytes_are_compared(make: Make) -> None:
    source = make()
    (child,) = source.fork_all(timeout=60)
    child.commands.run(r"mkdir tree; touch tree/$'\xff\xfe'")
    source.commands.run("mkdir tree")
    found = source.diff(child, "tree")
    child.kill()
    assert [name.encode(errors="surrogateescape") for name in found.added] == [b"\xff\xfe"]


def test_a_talkative_profile_does_no_harm(make: Make) -> None:
    source = make()
    source.files.write(".bash_profile", "echo welcome to this machine\n")
    (child,) = source.fork_all(timeout=60)
    child.files.write("new", "1")
    assert source.diff(child).added == ("new",)
    child.kill()


def test_a_missing_directory_is_an_error(make: Make) -> None:
    source = make()
    with pytest.raises(e2b.CommandExitException, match="No such file"):
        source.diff(source, "/home/user/absent; echo")
