"""The async classes: each method once."""

import asyncio

import e2b

from pando import AsyncSandbox, FileDiff


def test_forks_checkpoints_and_comparisons(unique: str) -> None:
    asyncio.run(scenario(unique))


async def scenario(name: str) -> None:
    source = await AsyncSandbox.create(timeout=120)
    made = [source]
    try:
        await source.files.write("tree/a", "1")
        made += await source.fork_all(2, timeout=60)
        await made[1].files.write("tree/b", "2")
        assert await source.diff(made[1], "tree") == FileDiff(("b",), (), ())
        assert not await source.diff(made[2])
        kept = await made[1].checkpoint(name)
        assert [one.name for one in await AsyncSandbox.checkpoints(name)] == [name]
        made.append(await AsyncSandbox.from_checkpoint(kept, timeout=60))
        assert await made[-1].files.read("tree/b") == "2"
        assert await AsyncSandbox.delete_checkpoint(name)
        assert not await (await AsyncSandbox.attach(source.sandbox_id)).diff(source)
        assert await source.pause()
        made += await source.fork_all(timeout=60)
        assert await made[-1].files.read("tree/a") == "1"
        assert (await source.get_info()).state == e2b.SandboxState.PAUSED
    finally:
        for sandbox in made:
            await sandbox.kill()
