"""The HTTP interface that the SDKs `e2b-code-interpreter` and `@e2b/code-interpreter` drive.

| request | what it does |
|---|---|
| `GET /health` | 200 when it is ready |
| `POST /execute` | runs code; the answer is a line of JSON for each thing that comes of it |
| `GET /contexts`, `POST /contexts` | lists contexts, makes one |
| `POST /contexts/ID/restart` | a new kernel, without the variables of before |
| `DELETE /contexts/ID` | ends it |
"""

import base64
import json
from typing import Any

from aiohttp import web

from . import results
from .contexts import Context, Contexts, Refused, Unknown

# Of code and variables.
BODY_BYTES_MAX = 16 << 20
# Of the gateway: the variables that the sandbox was created with, JSON as base64.
VARIABLES = "X-Sandbox-Envs"


def application(contexts: Contexts) -> web.Application:
    app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[_errors])
    handler = _Handler(contexts)
    app.add_routes(
        [
            web.get("/health", handler.health),
            web.post("/execute", handler.execute),
            web.get("/contexts", handler.contexts),
            web.post("/contexts", handler.create),
            web.post("/contexts/{id}/restart", handler.restart),
            web.delete("/contexts/{id}", handler.remove),
        ]
    )
    return app


@web.middleware
async def _errors(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return await handler(request)
    except Unknown as error:
        return web.Response(status=404, text=str(error))
    except Refused as error:
        return web.Response(status=400, text=str(error))


class _Handler:
    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def contexts(self, _: web.Request) -> web.Response:
        return web.json_response([context.shown() for context in self._contexts.all()])

    async def create(self, request: web.Request) -> web.Response:
        body = await _body(request)
        context = await self._contexts.create(_text(body, "language"), _text(body, "cwd"))
        return web.json_response(context.shown())

    async def restart(self, request: web.Request) -> web.Response:
        await self._contexts.get(request.match_info["id"]).restart()
        return web.Response()

    async def remove(self, request: web.Request) -> web.Response:
        await self._contexts.remove(request.match_info["id"])
        return web.Response()

    async def execute(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        code, id_, language = _text(body, "code"), _text(body, "context_id"), _text(body, "language")
        if code is None:
            raise Refused("code is missing")
        if id_ and language:
            raise Refused("a context has its language: give either")
        context = self._contexts.get(id_) if id_ else await self._contexts.default(language)
        own = _variables(body.get("env_vars") or {})
        return await _stream(request, context.run(code, _of_sandbox(request), own))


async def _stream(request: web.Request, events: Any) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    try:
        async for event in events:
            if not response.prepared:
                await response.prepare(request)
            await response.write(json.dumps(event).encode() + b"\n")
        if not response.prepared:
            await response.prepare(request)
        await response.write(json.dumps(results.END).encode() + b"\n")
        await response.write_eof()
    finally:
        # Whoever has gone waits for nothing: the code is interrupted.
        await events.aclose()
    return response


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise Refused(f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused("the body is no JSON object")
    return body


def _text(body: dict[str, Any], key: str) -> str | None:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise Refused(f"{key} is no text")
    return value


def _variables(found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise Refused("environment variables are texts by name")
    return found


def _of_sandbox(request: web.Request) -> dict[str, str]:
    text = request.headers.get(VARIABLES)
    if text is None:
        return {}
    try:
        return _variables(json.loads(base64.b64decode(text)))
    except ValueError:
        raise Refused(f"{VARIABLES} is damaged") from None
