"""Watches of directories."""

import time

import e2b
import pytest


@pytest.fixture
def watched(api, box, directory):
    made = []

    def watch(path=directory, **options):
        made.append(api.watch(box, path, **options))
        return made[-1]

    yield watch
    for one in made:
        one.handle.stop()


def test_write(box, directory, watched) -> None:
    watch = watched()
    box.files.write(f"{directory}/a", "1")
    watch.wait_for(("create", "a"), ("write", "a"))


def test_kinds(box, directory, watched) -> None:
    watch = watched()
    box.commands.run(f"cd {directory} && echo 1 > a && chmod 600 a && mv a b && rm b")
    watch.wait_for(("create", "a"), ("write", "a"), ("chmod", "a"), ("rename", "a"), ("create", "b"), ("remove", "b"))


def test_events_of_one_write(box, directory, watched) -> None:
    """Check 10: a new file is three events. Writing to a file that is there has a write among its events."""
    watch = watched()
    box.files.write(f"{directory}/a", "1")
    watch.wait_for(("write", "a"))
    time.sleep(0.5)
    assert [event.type.value for event in watch.poll()] == ["create", "chmod", "write"]
    box.files.write(f"{directory}/a", "2")
    time.sleep(0.5)
    assert "write" in [event.type.value for event in watch.poll()[3:]]


def test_events_are_there_at_once(api, box, directory, watched) -> None:
    """A poll after a write has returned gets its events."""
    if api.mode == "async":
        pytest.skip("the async SDK gets events by a stream")
    watch = watched()
    box.files.write(f"{directory}/a", "1")
    assert len(watch.poll()) == 3


def test_not_recursive(box, directory, watched) -> None:
    box.files.make_dir(f"{directory}/d")
    watch = watched()
    box.files.write(f"{directory}/d/inner", "")
    box.files.write(f"{directory}/outer", "")
    watch.wait_for(("create", "outer"))
    assert not any(event.name.endswith("inner") for event in watch.poll())


def test_recursive(box, directory, watched) -> None:
    """Check 10: also in directories that are made later."""
    watch = watched(recursive=True)
    box.files.make_dir(f"{directory}/new/er")
    watch.wait_for(("create", "new"))
    time.sleep(0.5)
    box.files.write(f"{directory}/new/er/file", "1")
    watch.wait_for(("write", "new/er/file"))


def test_renames_in_and_out(box, directory, watched) -> None:
    """Check 10."""
    box.commands.run(f"mkdir {directory}/w && echo > {directory}/in && echo > {directory}/w/out")
    watch = watched(f"{directory}/w")
    box.commands.run(f"mv {directory}/in {directory}/w/ && mv {directory}/w/out {directory}/")
    watch.wait_for(("create", "in"), ("rename", "out"))


def test_a_directory_made_anew(box, directory, watched) -> None:
    """Check 10: a directory below that is removed and made again is watched again."""
    box.files.make_dir(f"{directory}/again")
    watch = watched(recursive=True)
    box.commands.run(f"rmdir {directory}/again && mkdir {directory}/again")
    time.sleep(0.5)
    box.files.write(f"{directory}/again/file", "1")
    watch.wait_for(("create", "again/file"))


def test_ten_thousand(box, directory, watched) -> None:
    """Check 10: 10,000 events without a loss."""
    watch = watched()
    box.commands.run(f"cd {directory} && for i in $(seq 10000); do : > f$i; done", timeout=120)
    watch.wait_for(*(("create", f"f{number}") for number in range(1, 10001)), seconds=60)


def test_entry(box, directory, watched) -> None:
    watch = watched(include_entry=True)
    box.files.write(f"{directory}/a", "123")
    watch.wait_for(("write", "a"))
    event = next(event for event in watch.poll() if event.type.value == "write")
    assert event.entry.path == f"{directory}/a" and event.entry.size == 3


def test_stop(api, box, directory) -> None:
    watch = api.watch(box, directory)
    watch.handle.stop()
    box.files.write(f"{directory}/late", "")
    time.sleep(0.5)
    assert not watch.events
    if api.mode == "sync":
        with pytest.raises(e2b.SandboxException):
            watch.handle.get_new_events()


def test_of_what_is_no_directory(api, box, directory) -> None:
    box.files.write(f"{directory}/file", "")
    with pytest.raises(e2b.NotFoundException):
        api.watch(box, f"{directory}/absent")
    with pytest.raises(e2b.SandboxException):
        api.watch(box, f"{directory}/file")
