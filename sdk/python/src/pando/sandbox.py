"""`Sandbox` with checkpoints, whole forks and comparisons."""

from contextlib import suppress
from typing import Any, Self, Unpack

import e2b
from e2b.connection_config import ApiParams

from ._files import DIRECTORY, SCRIPT, compare, parse
from ._forks import whole
from .models import Checkpoint, FileDiff


class Sandbox(e2b.Sandbox):
    """E2B's sandbox with what Pando adds."""

    @classmethod
    def attach(cls, sandbox_id: str, timeout: int | None = None, **opts: Unpack[ApiParams]) -> Self:
        """`connect` by id, typed: what `Sandbox.connect(id)` returns is E2B's own class to a type checker."""
        found = cls.connect(sandbox_id, timeout, **opts)
        assert isinstance(found, cls)
        return found

    def fork_all(self, count: int = 1, timeout: int | None = None, **opts: Unpack[ApiParams]) -> list[Self]:
        """Forks the sandbox `count` times, all or none. The sandbox may run or be paused, and stays as it is.

        `fork` returns errors in the places of children that failed. This method ends the others and raises the first
        error instead.

        :param count: how many children
        :param timeout: seconds that each child lives; the server's default if not given
        """
        results = self.fork(timeout=timeout, count=count, **opts)
        children, failed = whole(results)
        if failed is not None:
            for child in children:
                with suppress(Exception):
                    child.kill()
            raise failed
        return children

    def checkpoint(self, name: str, **opts: Unpack[ApiParams]) -> Checkpoint:
        """Keeps the present memory and files under a name. The sandbox goes on.

        If the team has a checkpoint of this name, the name now means the new one.
        """
        info = self.create_snapshot(name=name, **opts)
        return Checkpoint(info.snapshot_id, tuple(info.names))

    @classmethod
    def from_checkpoint(cls, checkpoint: str | Checkpoint, timeout: int | None = None, **options: Any) -> Self:
        """Starts a sandbox from a checkpoint.

        :param checkpoint: its name, or what `checkpoint` returned
        :param timeout: seconds that the sandbox lives; the server's default if not given
        :param options: all others of `create`
        """
        template = checkpoint if isinstance(checkpoint, str) else checkpoint.checkpoint_id
        return cls.create(template, timeout=timeout, **options)

    @classmethod
    def checkpoints(cls, name: str | None = None, **opts: Unpack[ApiParams]) -> list[Checkpoint]:
        """All checkpoints of the team that have a name, or only that one of the given name."""
        pages = cls.list_snapshots(name=name, **opts)
        found = []
        while pages.has_next:
            found += [Checkpoint(info.snapshot_id, tuple(info.names)) for info in pages.next_items() if info.names]
        return found

    @classmethod
    def delete_checkpoint(cls, checkpoint: str | Checkpoint, **opts: Unpack[ApiParams]) -> bool:
        """Deletes a checkpoint. Sandboxes that were started from it go on. False if there was none."""
        if isinstance(checkpoint, Checkpoint):
            return cls.delete_snapshot(checkpoint.checkpoint_id, **opts)
        found = cls.checkpoints(checkpoint, **opts)
        return any([cls.delete_snapshot(one.checkpoint_id, **opts) for one in found])

    def diff(self, other: e2b.Sandbox, path: str = ".", timeout: float = 0) -> FileDiff:
        """What another sandbox has changed below `path`: see the function `diff`."""
        return diff(self, other, path, timeout)


def diff(first: e2b.Sandbox, second: e2b.Sandbox, path: str = ".", timeout: float = 0) -> FileDiff:
    """Compares the files below `path` in two running sandboxes, such as two forks of one.

    A command in each sandbox lists and hashes them, as the user `user`. All bytes of all files are read. Times of files
    are not compared. Programs that write meanwhile make the result uncertain: fork first, and compare the forks.

    :param path: a directory, relative to the home of `user`
    :param timeout: seconds for each command; 0 is without end
    :raises CommandExitException: the directory does not exist, or a file cannot be read
    """
    found = [
        parse(sandbox.commands.run(SCRIPT, envs={DIRECTORY: path}, timeout=timeout).stdout)
        for sandbox in (first, second)
    ]
    return compare(*found)
