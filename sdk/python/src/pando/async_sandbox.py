"""`AsyncSandbox` with checkpoints, whole forks and comparisons."""

import asyncio
from typing import Any, Self, Unpack

import e2b
from e2b.connection_config import ApiParams

from ._files import DIRECTORY, SCRIPT, Entry, compare, parse
from ._forks import whole
from .models import Checkpoint, FileDiff


class AsyncSandbox(e2b.AsyncSandbox):
    """E2B's async sandbox with what Pando adds. The methods are those of `Sandbox`."""

    @classmethod
    async def attach(cls, sandbox_id: str, timeout: int | None = None, **opts: Unpack[ApiParams]) -> Self:
        """`connect` by id, typed: what `AsyncSandbox.connect(id)` returns is E2B's own class to a type checker."""
        found = await cls.connect(sandbox_id, timeout, **opts)
        assert isinstance(found, cls)
        return found

    async def fork_all(self, count: int = 1, timeout: int | None = None, **opts: Unpack[ApiParams]) -> list[Self]:
        """Forks the sandbox `count` times, all or none. The sandbox may run or be paused, and stays as it is."""
        results = await self.fork(timeout=timeout, count=count, **opts)
        children, failed = whole(results)
        if failed is not None:
            await asyncio.gather(*(child.kill() for child in children), return_exceptions=True)
            raise failed
        return children

    async def checkpoint(self, name: str, **opts: Unpack[ApiParams]) -> Checkpoint:
        """Keeps the present memory and files under a name. The sandbox goes on."""
        info = await self.create_snapshot(name=name, **opts)
        return Checkpoint(info.snapshot_id, tuple(info.names))

    @classmethod
    async def from_checkpoint(cls, checkpoint: str | Checkpoint, timeout: int | None = None, **options: Any) -> Self:
        """Starts a sandbox from a checkpoint, or from the checkpoint of a name."""
        template = checkpoint if isinstance(checkpoint, str) else checkpoint.checkpoint_id
        return await cls.create(template, timeout=timeout, **options)

    @classmethod
    async def checkpoints(cls, name: str | None = None, **opts: Unpack[ApiParams]) -> list[Checkpoint]:
        """All checkpoints of the team that have a name, or only that one of the given name."""
        pages = cls.list_snapshots(name=name, **opts)
        found = []
        while pages.has_next:
            infos = await pages.next_items()
            found += [Checkpoint(info.snapshot_id, tuple(info.names)) for info in infos if info.names]
        return found

    @classmethod
    async def delete_checkpoint(cls, checkpoint: str | Checkpoint, **opts: Unpack[ApiParams]) -> bool:
        """Deletes a checkpoint. Sandboxes that were started from it go on. False if there was none."""
        if isinstance(checkpoint, Checkpoint):
            return await cls.delete_snapshot(checkpoint.checkpoint_id, **opts)
        found = await cls.checkpoints(checkpoint, **opts)
        return any([await cls.delete_snapshot(one.checkpoint_id, **opts) for one in found])

    async def diff(self, other: e2b.AsyncSandbox, path: str = ".", timeout: float = 0) -> FileDiff:
        """What another sandbox has changed below `path`: see the function `diff`."""
        return await diff_async(self, other, path, timeout)


async def diff_async(
    first: e2b.AsyncSandbox, second: e2b.AsyncSandbox, path: str = ".", timeout: float = 0
) -> FileDiff:
    """`diff` for async sandboxes. Both commands run at once."""

    async def entries(sandbox: e2b.AsyncSandbox) -> dict[str, Entry]:
        return parse((await sandbox.commands.run(SCRIPT, envs={DIRECTORY: path}, timeout=timeout)).stdout)

    return compare(*await asyncio.gather(entries(first), entries(second)))
