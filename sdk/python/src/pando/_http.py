"""Requests to routes that the official SDK does not know, by its own HTTP client: same keys, retries and errors."""

from typing import Any, Unpack

import httpx
from e2b import VolumeException
from e2b.api import handle_api_exception
from e2b.api.client_async import get_api_client as async_client
from e2b.api.client_sync import get_api_client as sync_client
from e2b.connection_config import ApiParams, ConnectionConfig
from e2b.exceptions import VolumeNotFoundException


def call(method: str, path: str, body: Any = None, **opts: Unpack[ApiParams]) -> Any:
    """Sends a request, and returns the body of the answer."""
    client = sync_client(ConnectionConfig(**opts)).get_httpx_client()
    return answer(client.request(method, path, json=body))


async def call_async(method: str, path: str, body: Any = None, **opts: Unpack[ApiParams]) -> Any:
    """`call` for the async classes."""
    client = async_client(ConnectionConfig(**opts)).get_async_httpx_client()
    return answer(await client.request(method, path, json=body))


def answer(response: httpx.Response) -> Any:
    """The body, or the SDK's exception for the status."""
    if response.status_code == httpx.codes.NOT_FOUND:
        raise handle_api_exception(response, VolumeNotFoundException)
    if response.is_error:
        raise handle_api_exception(response, VolumeException)
    return response.json() if response.content else None
