"""`pando mcp`, driven by the official Python client over standard streams."""

import asyncio
import base64
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from mcp import ClientSession, MCPError, StdioServerParameters, stdio_client
from mcp.types import CallToolResult, TextContent

PANDO = os.environ.get("PANDO", "target/debug/pando")
NAMES = ("E2B_API_KEY", "E2B_DOMAIN", "E2B_API_URL", "E2B_SANDBOX_URL", "SSL_CERT_FILE")
VARIABLES = {name: os.environ[name] for name in NAMES if name in os.environ}


class ToolFailed(Exception):
    """A tool answered that it failed."""


class Agent:
    """What a model does: calls tools, and reads texts."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.made: list[str] = []

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        result = await self.session.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult)
        if result.is_error:
            (part,) = result.content
            assert isinstance(part, TextContent)
            raise ToolFailed(part.text)
        return result.structured_content

    async def create(self, template: str = "base", **arguments: Any) -> str:
        made = await self("create_sandbox", template=template, timeout_seconds=120, **arguments)
        self.made.append(made["sandbox_id"])
        return self.made[-1]


Scenario = Callable[[Agent], Awaitable[None]]


@pytest.fixture
def drive() -> Iterator[Callable[[Scenario], None]]:
    """Runs a scenario with a fresh `pando mcp`, and kills what it made."""

    async def run(scenario: Scenario, variables: dict[str, str]) -> None:
        async with AsyncExitStack() as stack:
            # A key and no more: the program must not need the rest of an environment.
            server = StdioServerParameters(command=PANDO, args=["mcp"], env=variables)
            streams = await stack.enter_async_context(stdio_client(server, errlog=sys.__stderr__ or sys.stderr))
            session = await stack.enter_async_context(ClientSession(*streams, read_timeout_seconds=60))
            await session.initialize()
            agent = Agent(session)
            try:
                await scenario(agent)
            finally:
                for sandbox in agent.made:
                    await session.call_tool("kill_sandbox", {"sandbox_id": sandbox})

    yield lambda scenario, **variables: asyncio.run(run(scenario, VARIABLES | variables))


def test_tools_have_schemas_and_hints(drive: Any) -> None:
    async def scenario(agent: Agent) -> None:
        tools = {tool.name: tool for tool in (await agent.session.list_tools()).tools}
        assert len(tools) == 10
        for tool in tools.values():
            assert tool.description and tool.input_schema["type"] == "object"
        assert tools["run_command"].input_schema["required"] == ["sandbox_id", "command"]
        assert tools["read_file"].annotations and tools["read_file"].annotations.read_only_hint
        assert tools["kill_sandbox"].annotations and tools["kill_sandbox"].annotations.destructive_hint

    drive(scenario)


def test_a_sandbox_from_its_start_to_its_end(drive: Any) -> None:
    async def scenario(agent: Agent) -> None:
        box = await agent.create(metadata={"who": "agent"}, envs={"MODE": "fast"})
        rows = (await agent("list_sandboxes"))["sandboxes"]
        assert [row["metadata"] for row in rows if row["sandbox_id"] == box] == [{"who": "agent"}]
        ran = await agent("run_command", sandbox_id=box, command="echo $MODE; pwd; echo bad >&2; exit 3", cwd="/tmp")
        assert ran == {"exit_code": 3, "timed_out": False, "stdout": "fast\n/tmp\n", "stderr": "bad\n"}
        await agent("kill_sandbox", sandbox_id=box)
        with pytest.raises(ToolFailed, match="404"):
            await agent("run_command", sandbox_id=box, command="true")

    drive(scenario)


def test_files_of_text_and_of_bytes(drive: Any) -> None:
    async def scenario(agent: Agent) -> None:
        box = await agent.create()
        odd = "a dir/ü & +%2f.txt"
        await agent("write_file", sandbox_id=box, path=odd, content="größer\n")
        read = await agent("read_file", sandbox_id=box, path=odd)
        assert read == {"encoding": "text", "content": "größer\n", "next_offset": None}
        # A part that ends within a letter ends before it.
        cut = await agent("read_file", sandbox_id=box, path=odd, length=3)
        assert cut == {"encoding": "text", "content": "gr", "next_offset": 2}
        data = bytes(range(256)) * 2000
        await agent(
            "write_file", sandbox_id=box, path="data", content=base64.b64encode(data).decode(), encoding="base64"
        )
        parts, offset = b"", 0
        while offset is not None:
            part = await agent("read_file", sandbox_id=box, path="data", offset=offset)
            parts += base64.b64decode(part["content"])
            offset = part["next_offset"]
        assert parts == data
        await agent("write_file", sandbox_id=box, path="empty", content="")
        assert (await agent("read_file", sandbox_id=box, path="empty"))["content"] == ""
        listed = (await agent("list_files", sandbox_id=box, depth=2))["entries"]
        assert {"path": "/home/user/data", "type": "file", "size": len(data)} in listed
        assert f"/home/user/{odd}" in {entry["path"] for entry in listed}
        with pytest.raises(ToolFailed, match="absent"):
            await agent("read_file", sandbox_id=box, path="/absent")

    drive(scenario)


def test_code_goes_on_in_forks_and_snapshots(drive: Any) -> None:
    async def scenario(agent: Agent) -> None:
        box = await agent.create("python")
        assert (await agent("run_code", sandbox_id=box, code="x = 40"))["ok"]
        failed = await agent("run_code", sandbox_id=box, code="x / 0")
        assert not failed["ok"] and "ZeroDivisionError" in failed["output"]
        forks = (await agent("fork_sandbox", sandbox_id=box, count=2))["sandbox_ids"]
        agent.made += forks
        for number, fork in enumerate(forks):
            await agent("run_code", sandbox_id=fork, code=f"x += {number}")
        assert [(await agent("run_code", sandbox_id=one, code="x"))["output"] for one in forks] == ["40\n", "41\n"]
        snapshot = await agent("snapshot_sandbox", sandbox_id=forks[1])
        later = await agent.create(snapshot["snapshot_id"])
        assert (await agent("run_code", sandbox_id=later, code="x + 1"))["output"] == "42\n"

    drive(scenario)


def test_long_outputs_and_endless_commands_have_bounds(drive: Any) -> None:
    async def scenario(agent: Agent) -> None:
        box = await agent.create()
        ran = await agent("run_command", sandbox_id=box, command="seq 1000000")
        assert ran["stdout"].startswith("1\n2\n") and ran["stdout"].endswith("999999\n1000000\n")
        assert "bytes are left out" in ran["stdout"] and len(ran["stdout"]) < 70_000
        ran = await agent("run_command", sandbox_id=box, command="echo before; sleep 1000", timeout_seconds=1)
        assert (ran["timed_out"], ran["exit_code"], ran["stdout"]) == (True, None, "before\n")
        left = await agent("run_command", sandbox_id=box, command="pgrep -x sleep")
        assert left["exit_code"] == 1, "the command was not killed"
        started = await agent("run_command", sandbox_id=box, command="exec sleep 1000", background=True)
        assert started["pid"] > 0
        # The shell becomes the program a moment after it was started.
        wait = "for i in $(seq 100); do pgrep -x sleep && exit; sleep 0.1; done; exit 1"
        assert (await agent("run_command", sandbox_id=box, command=wait))["exit_code"] == 0

    drive(scenario)


def test_wrong_calls_are_told_in_words(drive: Any) -> None:
    async def scenario(agent: Agent) -> None:
        box = await agent.create()
        for tool, arguments, words in (
            ("create_sandbox", {"template": "no-such-template"}, "no-such-template"),
            ("run_command", {"sandbox_id": box}, "missing field `command`"),
            ("run_command", {"sandbox_id": box, "command": "true", "timeout_seconds": 99_999}, "between 1 and 3600"),
            ("run_command", {"sandbox_id": "../v2/sandboxes", "command": "true"}, "no id of a sandbox"),
            ("run_command", {"sandbox_id": box, "command": "true", "no_such": 1}, "unknown field"),
            ("run_code", {"sandbox_id": box, "code": "1"}, "template `python` or `node`"),
            ("write_file", {"sandbox_id": box, "path": "a", "content": "?", "encoding": "base64"}, "not base64"),
        ):
            with pytest.raises(ToolFailed, match=words):
                await agent(tool, **arguments)
        with pytest.raises(MCPError, match="there is no tool"):
            await agent("format_disk")

    drive(scenario)


@pytest.mark.skipif("E2B_DOMAIN" not in os.environ, reason="the port is not known")
def test_an_address_without_a_name_works_too(drive: Any) -> None:
    async def scenario(agent: Agent) -> None:
        box = await agent.create("python")
        assert (await agent("run_code", sandbox_id=box, code="6 * 7"))["output"] == "42\n"
        assert (await agent("run_command", sandbox_id=box, command="echo hello"))["stdout"] == "hello\n"

    port = os.environ["E2B_DOMAIN"].rpartition(":")[2]
    drive(scenario, PANDO_URL=f"http://127.0.0.1:{port}", PANDO_KEY=os.environ["E2B_API_KEY"])


def test_a_wrong_key_is_told(drive: Any) -> None:
    async def scenario(agent: Agent) -> None:
        with pytest.raises(ToolFailed, match="401"):
            await agent("list_sandboxes")

    drive(scenario, E2B_API_KEY="e2b_" + "0" * 40)


def test_without_a_server_the_command_says_what_to_set() -> None:
    async def run() -> tuple[int | None, bytes]:
        process = await asyncio.create_subprocess_exec(PANDO, "mcp", env={}, stderr=asyncio.subprocess.PIPE)
        _, told = await process.communicate()
        return process.returncode, told

    code, told = asyncio.run(run())
    assert code == 1 and b"pando env" in told
