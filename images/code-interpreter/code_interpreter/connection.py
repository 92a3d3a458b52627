"""The channels of a kernel that runs. What it says is sorted by the requests that it is about."""

import asyncio
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

# Messages that wait for a client that reads slowly. A kernel with more waits, or loses them.
WAITING_MAX = 1_000
# How long a kernel may be silent about code that has ended before its end counts as lost, in seconds.
SILENCE_MAX = 2


class Over(Exception):
    """The kernel was restarted or removed."""


class Request:
    """Code that a kernel runs."""

    def __init__(self, over: asyncio.Event) -> None:
        self._over = over
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue(WAITING_MAX)
        self._has_reply = False

    async def put(self, message: dict[str, Any]) -> None:
        if message["msg_type"] == "execute_reply":
            self._has_reply = True
        else:
            await self._said.put(message)

    def leave(self) -> None:
        # Whoever waits for room in it goes on.
        while not self._said.empty():
            self._said.get_nowait()

    @property
    def has_ended(self) -> bool:
        """Whether the code has ended, and the kernel has said nothing since."""
        return self._has_reply and self._said.empty()

    async def next(self, wait: float) -> Optional[dict[str, Any]]:
        """What the kernel says next; None if it says nothing for so long."""
        if not self._said.empty():
            return self._said.get_nowait()
        said, over = asyncio.ensure_future(self._said.get()), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({said, over}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if said.done():
                return said.result()
            if over.done():
                raise Over
            return None
        finally:
            said.cancel()
            over.cancel()


class Connection:
    """To one run of a kernel."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._over = asyncio.Event()
        self._requests: dict[str, Request] = {}
        readers = (client.get_iopub_msg, client.get_shell_msg)
        self._tasks = [asyncio.create_task(self._sort(reader)) for reader in readers]

    async def _sort(self, read: Callable[..., Any]) -> None:
        while True:
            message = await read(timeout=None)
            request = self._requests.get(message["parent_header"].get("msg_id"))
            if request is not None:
                await request.put(message)

    @contextmanager
    def execute(self, code: str, silent: bool) -> Iterator[Request]:
        if self._over.is_set():
            raise Over
        name = self._client.execute(code, silent=silent, store_history=not silent, allow_stdin=False)
        request = self._requests[name] = Request(self._over)
        try:
            yield request
        finally:
            del self._requests[name]
            request.leave()

    async def close(self) -> None:
        self._over.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._client.stop_channels()
