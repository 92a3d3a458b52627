"""Idempotency and retries: a proxy between the SDK and the server loses or refuses answers."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import web
from conftest import RUN, listed
from support import unique


class Proxy(BaseHTTPRequestHandler):
    """Forwards to the API. `faults` are of the next requests: `lose` forwards, then answers 502."""

    protocol_version = "HTTP/1.1"
    faults: list[str] = []
    seen: list[tuple[str, str | None]] = []

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.path.startswith("/health"):
            self.seen.append((self.path, self.headers.get("Idempotency-Key")))
        fault = self.faults.pop(0) if self.faults else ""
        if fault.isdigit():
            self.answer(int(fault), b'{"code":%d,"message":"try again"}' % int(fault), {"Retry-After": "0"})
            return
        kept = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("host", "content-length", "connection")
        }
        reply = web.request(self.command, web.api_url() + self.path, content=body, headers=kept)
        if fault == "lose":
            self.answer(502, b'{"code":502,"message":"lost"}', {"Should-Retry": "true"})
        else:
            headers = {"x-next-token": reply.headers["x-next-token"]} if "x-next-token" in reply.headers else {}
            self.answer(reply.status_code, reply.content, headers)

    do_GET = do_POST = do_DELETE = do_PUT = handle_one

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            if status != 204 or name != "Content-Length":
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args) -> None:
        """Nothing."""


@pytest.fixture
def proxy(server):
    Proxy.faults, Proxy.seen = [], []
    listener = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listener.server_port}"
    listener.shutdown()
    listener.server_close()


@pytest.mark.new_only("retries of its own")
@pytest.mark.parametrize("status", ["429", "503", "502"])
def test_a_refused_create_is_repeated(api, make, proxy, status) -> None:
    Proxy.faults = [status]
    assert make(api_url=proxy).is_running()
    assert len(Proxy.seen) == 2


@pytest.mark.new_only("idempotency keys")
def test_a_lost_answer_makes_one_sandbox(api, make, proxy) -> None:
    """The server made the sandbox, the client did not hear of it, and asks again with the same key."""
    group = {"group": unique("lost")}
    Proxy.faults = ["lose"]
    key = unique("key")
    sandbox = make(metadata=group, api_url=proxy, idempotency_key=key)
    assert [key for path, key in Proxy.seen if path.endswith("/sandboxes")] == [key, key]
    assert [info.sandbox_id for info in listed(api, group)] == [sandbox.sandbox_id]


@pytest.mark.new_only("idempotency keys")
def test_the_same_key(api, make) -> None:
    """The same key is the same sandbox."""
    key = unique("key")
    one = make(idempotency_key=key)
    assert make(idempotency_key=key).sandbox_id == one.sandbox_id


def test_the_same_key_with_another_body(server) -> None:
    headers = {"Idempotency-Key": unique("key")}
    first = web.api(
        "POST",
        "/v2/sandboxes",
        headers=dict(headers),
        json={"templateID": "base", "timeout": 30, "metadata": {"run": RUN}},
    )
    assert first.status_code == 201, first.text
    try:
        again = web.api("POST", "/v2/sandboxes", headers=dict(headers), json={"templateID": "base", "timeout": 31})
        assert 400 <= again.status_code < 500
    finally:
        web.api("DELETE", f"/sandboxes/{first.json()['sandboxID']}")


def test_bad_keys_are_refused(server) -> None:
    for key in ("UPPER", "with space", "x" * 256):
        reply = web.api(
            "POST", "/v2/sandboxes", headers={"Idempotency-Key": key}, json={"templateID": "base", "timeout": 30}
        )
        if reply.status_code == 201:
            web.api("DELETE", f"/sandboxes/{reply.json()['sandboxID']}")
        assert reply.status_code == 400, key
