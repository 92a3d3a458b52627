"""The SDK's sync and async classes behind one way to call them, so that one list of cases drives both.

`Api("sync")` has the SDK's own classes. `Api("async")` has the async ones. A facade runs each of their calls to its end
on an event loop in a thread of its own. The loop goes on between the calls, as a program's loop would.
"""

import asyncio
import dataclasses
import enum
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import e2b

# No call of a test takes longer.
CALL_SECONDS = 240
NAMES = ("Sandbox", "Template", "Volume", "Secret")


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def run() -> Any:
            value = function(*map(bare, args), **{name: bare(value) for name, value in options.items()})
            return await value if inspect.isawaitable(value) else value

        future = asyncio.run_coroutine_threadsafe(run(), self.loop)
        return self.adapt(future.result(CALL_SECONDS))

    def adapt(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.adapt(one) for one in value]
        if inspect.isroutine(value) or is_machinery(value) or inspect.isasyncgen(value):
            return Facade(self, value)
        return value


def is_machinery(value: Any) -> bool:
    """True for the SDK's objects with methods; false for plain data."""
    kind = type(value)
    is_data = dataclasses.is_dataclass(kind) or isinstance(value, BaseException | enum.Enum | dict | str | bytes)
    return kind.__module__.startswith("e2b") and not is_data and not isinstance(value, type)


class Facade:
    """An object, a class or a function of the async SDK."""

    def __init__(self, loop: Loop, target: Any) -> None:
        self._loop, self._target = loop, target

    def __getattr__(self, name: str) -> Any:
        return self._loop.adapt(getattr(self._target, name))

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._loop.call(self._target, *args, **options)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._target.__aiter__()
        while True:
            try:
                yield self._loop.call(iterator.__anext__)
            except StopAsyncIteration:
                return


def bare(value: Any) -> Any:
    return value._target if isinstance(value, Facade) else value


class Watched:
    """What a watcher has reported, whichever way the SDK delivers it."""

    def __init__(self, api: "Api", sandbox: Any, path: str, **options: Any) -> None:
        self.events: list[Any] = []
        self.exits: list[Any] = []
        self._polls = api.mode == "sync"
        if not self._polls:
            options |= {"on_event": self.events.append, "on_exit": self.exits.append, "timeout": 0}
        self.handle = sandbox.files.watch_dir(path, **options)

    def poll(self) -> list[Any]:
        if self._polls:
            self.events += self.handle.get_new_events()
        return self.events

    def names(self) -> set[tuple[str, str]]:
        return {(event.type.value, event.name) for event in self.poll()}

    def wait_for(self, *wanted: tuple[str, str], seconds: float = 10) -> None:
        deadline = time.monotonic() + seconds
        while not self.names().issuperset(wanted):
            assert time.monotonic() < deadline, f"{set(wanted) - self.names()} did not come; came: {self.names()}"
            time.sleep(0.05)


class Api:
    """The SDK in one of its two forms."""

    Sandbox: Any
    Template: Any
    Volume: Any
    Secret: Any

    def __init__(self, mode: str) -> None:
        self.mode = mode
        loop = Loop() if mode == "async" else None
        for name in NAMES:
            target = getattr(e2b, f"Async{name}" if loop else name)
            setattr(self, name, Facade(loop, target) if loop else target)

    def watch(self, sandbox: Any, path: str, **options: Any) -> Watched:
        return Watched(self, sandbox, path, **options)

    def stream_input(self, owner: Any, pid: int, parts: list[str | bytes]) -> None:
        """`owner` is `sandbox.commands` or `sandbox.pty`."""
        if self.mode == "sync":
            owner.stream_input(pid, parts)
            return
        handle = owner.stream_input(pid)
        for part in parts:
            handle.send(part)
        handle.close()

    def thread(self, function: Callable[..., Any], *args: Any) -> threading.Thread:
        """Runs a call beside the test."""
        thread = threading.Thread(target=function, args=args, daemon=True)
        thread.start()
        return thread
