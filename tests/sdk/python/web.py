"""HTTP as a program without the SDK does it: the certificate authority and the names are those of the environment."""

import os
import socket
import ssl
from typing import Any

import httpx


def context() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))


def request(method: str, url: str, **options: Any) -> httpx.Response:
    with httpx.Client(verify=context(), timeout=30) as client:
        return client.request(method, url, **options)


def api_url() -> str:
    return os.environ.get("E2B_API_URL") or f"https://api.{os.environ['E2B_DOMAIN']}"


def api(method: str, path: str, key: str | None = None, **options: Any) -> httpx.Response:
    """A request to the control API, with the key of the environment or another one."""
    key = os.environ["E2B_API_KEY"] if key is None else key
    headers = {"X-API-KEY": key, **options.pop("headers", {})} if key else options.pop("headers", {})
    return request(method, api_url() + path, headers=headers, **options)


def routing(sandbox: Any, port: int = 49983) -> dict[str, str]:
    """The headers that say which sandbox is meant, where there are no names. The port is that of files and commands."""
    if not os.environ.get("E2B_SANDBOX_URL"):
        return {}
    return {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}


def port_url(sandbox: Any, port: int, path: str = "/") -> tuple[str, dict[str, str]]:
    """Address and headers of a port of the sandbox: by name, or by header where there are no names."""
    headers = routing(sandbox, port)
    base = os.environ["E2B_SANDBOX_URL"] if headers else f"https://{sandbox.get_host(port)}"
    return base + path, headers


def connect_port(sandbox: Any, port: int) -> tuple[socket.socket, str]:
    """A connection to a port of the sandbox without any HTTP client, and the head lines that route it."""
    url, routing = port_url(sandbox, port)
    parsed = httpx.URL(url)
    is_local = parsed.host.endswith("localhost")
    default = 443 if parsed.scheme == "https" else 80
    raw = socket.create_connection(("127.0.0.1" if is_local else parsed.host, parsed.port or default), timeout=15)
    if parsed.scheme == "https":
        raw = context().wrap_socket(raw, server_hostname=parsed.host)
    lines = [f"{name}: {value}" for name, value in {"Host": parsed.netloc.decode(), **routing}.items()]
    return raw, "\r\n".join(lines)


def get_port(sandbox: Any, port: int, path: str = "/", **headers: str) -> httpx.Response:
    url, routing = port_url(sandbox, port, path)
    return request("GET", url, headers=routing | headers)
