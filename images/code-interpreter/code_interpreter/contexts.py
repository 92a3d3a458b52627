"""Contexts: kernels with a directory, each with variables of its own."""

import asyncio
import os
import uuid
from contextlib import aclosing
from typing import AsyncIterator, Mapping, Optional

from jupyter_client.kernelspec import NoSuchKernel
from jupyter_client.manager import AsyncKernelManager

from . import languages, results
from .connection import SILENCE_MAX, Connection, Over, Request

HOME = "/home/user"
# How long a kernel may take to begin, in seconds.
READY_MAX = 60
# Between two signs of life of code that says nothing, in seconds.
KEEPALIVE = 5
CONTEXTS_MAX = 64


class Unknown(Exception):
    """There is no such context."""


class Refused(Exception):
    """It cannot be done, and the text says why."""


class Context:
    """A kernel. Code runs in it one after the other."""

    def __init__(self, language: languages.Language, cwd: str) -> None:
        self.id = str(uuid.uuid4())
        self.language = language
        self.cwd = cwd
        self._manager = AsyncKernelManager(kernel_name=language.kernel)
        self._connection: Optional[Connection] = None
        self._is_removed = False
        # Of code, and of the making and ending of kernels.
        self._turn, self._changing = asyncio.Lock(), asyncio.Lock()
        self._known: dict[str, str] = {}

    async def start(self) -> None:
        try:
            os.makedirs(self.cwd, exist_ok=True)
            await self._manager.start_kernel(cwd=self.cwd)
        except NoSuchKernel:
            raise Refused(f"no kernel of the language {self.language.name} is installed") from None
        except OSError as error:
            raise Refused(f"the context cannot begin in {self.cwd}: {error.strerror}") from None
        await self._connect()

    async def _connect(self) -> None:
        client = self._manager.client()
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=READY_MAX)
        except BaseException:
            client.stop_channels()
            raise
        self._connection, self._known = Connection(client), {}

    async def restart(self) -> None:
        async with self._changing:
            await self._restart()

    async def _restart(self) -> None:
        if self._is_removed:
            raise Unknown(f"there is no context {self.id}")
        await self._disconnect()
        await self._manager.restart_kernel(now=True)
        await self._connect()

    async def _replace(self, connection: Connection) -> None:
        """A new kernel in the place of one that is of no use, unless there is one by now."""
        async with self._changing:
            if self._connection is connection and not self._is_removed:
                await self._restart()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def end(self) -> None:
        async with self._changing:
            self._is_removed = True
            await self._disconnect()
            await self._manager.shutdown_kernel(now=True)

    def shown(self) -> dict[str, str]:
        return {"id": self.id, "language": self.language.name, "cwd": self.cwd}

    async def run_silently(self, code: str) -> None:
        async with self._turn:
            async for _ in self._perform(code, silent=True):
                pass

    async def run(self, code: str, of_sandbox: Mapping[str, str], own: Mapping[str, str]) -> AsyncIterator[dict]:
        """What comes of the code, to its end. Closed early, it interrupts the code."""
        async with self._turn:
            await self._set_variables({**of_sandbox, **own})
            async with aclosing(self._perform(code, silent=False)) as events:
                async for event in events:
                    yield event

    async def _set_variables(self, wanted: dict[str, str]) -> None:
        gone = {name: os.environ.get(name) for name in self._known if name not in wanted}
        new = {name: value for name, value in wanted.items() if self._known.get(name) != value}
        if not gone and not new:
            return
        if self.language.set_variables is None:
            raise Refused(f"environment variables cannot be set for {self.language.name}")
        async for _ in self._perform(self.language.set_variables({**gone, **new}), silent=True):
            pass
        self._known = wanted

    async def _perform(self, code: str, silent: bool) -> AsyncIterator[dict]:
        # A kernel that is being restarted is waited for.
        async with self._changing:
            connection = self._connection
        if connection is None:
            raise Refused("the context was removed" if self._is_removed else "its kernel has not begun: restart it")
        with connection.execute(code, silent) as request:
            try:
                async with aclosing(self._events(connection, request)) as events:
                    async for event in events:
                        yield event
            except Over:
                yield results.error("KernelRestarted", "the context was restarted or removed while its code ran")
            except (asyncio.CancelledError, GeneratorExit):
                # Nothing waits for it any more, and the next code must not wait for it.
                await asyncio.shield(self._interrupt(connection, request))
                raise

    async def _events(self, connection: Connection, request: Request) -> AsyncIterator[dict]:
        has_result = False
        while True:
            wait = SILENCE_MAX if request.has_ended else KEEPALIVE
            message = await request.next(wait)
            if message is None and request.has_ended and wait == SILENCE_MAX:
                break
            if message is None and not await self._manager.is_alive():
                await self._replace(connection)
                yield results.error("KernelDied", "the kernel has ended; its variables are lost")
                return
            if message is None:
                yield results.KEEPALIVE
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
            event = results.of_message(message)
            if event is not None:
                has_result |= event["type"] in ("result", "error")
                yield event
        if self.language.late and not has_result:
            while (message := await request.next(self.language.late)) and (event := results.of_message(message)):
                yield event

    async def _interrupt(self, connection: Connection, request: Request) -> None:
        try:
            await self._manager.interrupt_kernel()
            async with asyncio.timeout(KEEPALIVE):
                async for _ in self._events(connection, request):
                    pass
        except Over:
            pass
        except TimeoutError:
            await self._replace(connection)


class Contexts:
    """All contexts. The first of each language is its default."""

    def __init__(self) -> None:
        self._all: dict[str, Context] = {}
        self._defaults: dict[str, Context] = {}
        self._starting: dict[str, asyncio.Lock] = {}

    async def default(self, language: Optional[str]) -> Context:
        wanted = languages.find(language)
        async with self._starting.setdefault(wanted.name, asyncio.Lock()):
            if wanted.name not in self._defaults:
                self._defaults[wanted.name] = await self._start(wanted, HOME)
            return self._defaults[wanted.name]

    async def create(self, language: Optional[str], cwd: Optional[str]) -> Context:
        return await self._start(languages.find(language), cwd or HOME)

    async def _start(self, language: languages.Language, cwd: str) -> Context:
        if len(self._all) >= CONTEXTS_MAX:
            raise Refused(f"{CONTEXTS_MAX} contexts are there; remove one first")
        context = Context(language, cwd)
        self._all[context.id] = context
        try:
            await context.start()
        except BaseException:
            del self._all[context.id]
            raise
        return context

    def get(self, name: str) -> Context:
        """By its id, or by a language whose default it is."""
        found = self._all.get(name) or self._defaults.get(languages.find(name).name)
        if found is None:
            raise Unknown(f"there is no context {name}")
        return found

    def all(self) -> list[Context]:
        return list(self._all.values())

    async def remove(self, name: str) -> None:
        context = self.get(name)
        del self._all[context.id]
        self._defaults = {language: found for language, found in self._defaults.items() if found is not context}
        await context.end()
