"""docs/e2b-compat.md has exactly one row for each public method of the SDK, and each row names tests that exist."""

import enum
import inspect
from collections import Counter

import e2b
from e2b.sandbox_async.commands import command as async_command
from e2b.sandbox_async.commands import pty as async_pty
from e2b.sandbox_async.filesystem import filesystem as async_filesystem
from e2b.sandbox_async.git import Git as AsyncGit
from e2b.sandbox_sync.commands import command, pty
from e2b.sandbox_sync.filesystem import filesystem
from e2b.template import main as template

import compat
from conftest import IS_NEW

# As in the table: the sync class and its async twin.
CLASSES = {
    "Sandbox": (e2b.Sandbox, e2b.AsyncSandbox),
    "SandboxPaginator": (e2b.SandboxPaginator, e2b.AsyncSandboxPaginator),
    "SnapshotPaginator": (e2b.SnapshotPaginator, e2b.AsyncSnapshotPaginator),
    "commands": (command.Commands, async_command.Commands),
    "CommandHandle": (e2b.CommandHandle, e2b.AsyncCommandHandle),
    "pty": (pty.Pty, async_pty.Pty),
    "files": (filesystem.Filesystem, async_filesystem.Filesystem),
    "WatchHandle": (e2b.WatchHandle, e2b.AsyncWatchHandle),
    "git": (e2b.Git, AsyncGit),
    "Template": (e2b.Template, e2b.AsyncTemplate),
    "TemplateBuilder": (template.TemplateBuilder, template.TemplateBuilder),
    "Volume": (e2b.Volume, e2b.AsyncVolume),
    "Secret": (e2b.Secret, e2b.AsyncSecret),
    "SecretPaginator": (e2b.SecretPaginator, e2b.AsyncSecretPaginator),
    "ReadyCmd": (e2b.ReadyCmd, e2b.ReadyCmd),
}
# Classes of a handle whose async form has it, or has it not.
ONLY_SYNC = {"WatchHandle.get_new_events"}
ONLY_ASYNC = {"AsyncCommandInputHandle": ("send", "close")}
# The transport and the settings of the client, which no server sees.
NO_SERVER = {"ApiClient", "ConnectionConfig", "VolumeConnectionConfig", "E2B", "TemplateBase"}
# Of the newest SDK only.
NEW_ONLY = {
    "commands.stream_input",
    "pty.stream_input",
    "AsyncCommandInputHandle.send",
    "AsyncCommandInputHandle.close",
}


def methods(kind: type) -> set[str]:
    names = (name for name in dir(kind) if not name.startswith("_"))
    return {name for name in names if callable(getattr(kind, name)) or is_variant(kind, name)}


def is_variant(kind: type, name: str) -> bool:
    """Methods of class and instance are descriptors of the SDK's own."""
    found = inspect.getattr_static(kind, name)
    return type(found).__module__.startswith("e2b")


def functions() -> set[str]:
    """The functions that the package exports."""
    exported = {name: getattr(e2b, name) for name in e2b.__all__}
    return {name for name, value in exported.items() if inspect.isfunction(value) and name.islower()}


def surface() -> set[str]:
    found = {f"{name}.{method}" for name, (kind, _) in CLASSES.items() for method in methods(kind)}
    found |= {f"{name}.{method}" for name, known in ONLY_ASYNC.items() if hasattr(e2b, name) for method in known}
    return found | functions()


def rows() -> list[str]:
    """Of methods. Other rows are numbers of checks, or in parentheses."""
    return [row.name for row in compat.rows() if not row.name.isdigit() and not row.name.startswith("(")]


def test_one_row_for_each_method() -> None:
    """Fails when a new version of the SDK has a method that the table does not have."""
    names = Counter(rows())
    assert [name for name, count in names.items() if count > 1] == []
    missing = surface() - names.keys()
    assert not missing, f"docs/e2b-compat.md lacks {sorted(missing)}"
    only_js = {name for name in names if name != name.partition(".")[0] and not name.partition(".")[2].islower()}
    gone = names.keys() - surface() - only_js - (set() if IS_NEW else NEW_ONLY)
    assert not gone, f"docs/e2b-compat.md has {sorted(gone)}, which e2b does not have"


def test_async_is_the_same() -> None:
    for name, (kind, twin) in CLASSES.items():
        only = {method for method in methods(kind) if f"{name}.{method}" not in ONLY_SYNC}
        assert methods(twin) == only, name


def test_no_other_class_has_methods() -> None:
    """Fails when a new version of the SDK exports a class that a server serves."""
    known = {kind for pair in CLASSES.values() for kind in pair}
    for name in e2b.__all__:
        kind = getattr(e2b, name)
        data = BaseException | str | bytes | dict | enum.Enum
        is_plain = not inspect.isclass(kind) or issubclass(kind, data) or kind in known
        if is_plain or name in NO_SERVER or name in ONLY_ASYNC or not kind.__module__.startswith("e2b"):
            continue
        assert not methods(kind) - {"from_dict"}, f"e2b.{name} has methods and no rows"


def test_each_row_names_tests() -> None:
    known = compat.names_of_tests()
    for row in compat.rows():
        assert set(row.tests) <= known, f"{row.name}: no such test: {set(row.tests) - known}"
        assert row.tests or row.state == "not ours", f"{row.name} names no test"
        assert row.note or row.state == "works", f"{row.name} is {row.state!r} without a reason"


def test_each_check_has_a_row() -> None:
    numbers = [int(row.name) for row in compat.rows() if row.name.isdigit()]
    assert numbers == list(range(1, 21))


def test_each_test_has_a_row() -> None:
    named = {test for row in compat.rows() for test in row.tests}
    unnamed = {test for test in compat.names_of_tests() - named if not test.startswith("surface::")}
    assert not unnamed, f"no row names {sorted(unnamed)}"
