"""Drives a browser over its debugging port: `browser.py begin` opens a page that counts, `browser.py check` fails unless it goes on."""

import base64
import json
import os
import socket
import struct
import sys
import time
import urllib.request

PORT = 9222
PAGE = """data:text/html,<title>counts</title><script>
    n = 0; setInterval(() => n%2b%2b, 10);
    w = new Worker(URL.createObjectURL(new Blob(["m = 0; setInterval(() => postMessage(m%2b%2b), 10)"])));
    w.onmessage = event => seen = event.data;
</script>"""


def ask(path, method="GET"):
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/json{path}", method=method)
    return urllib.request.urlopen(request, timeout=20).read()


def pages():
    return [page for page in json.loads(ask("")) if page["type"] == "page"]


class Page:
    def __init__(self, page):
        path = page["webSocketDebuggerUrl"].split(f":{PORT}")[1]
        self.line = socket.create_connection(("127.0.0.1", PORT), timeout=20)
        self.number = 0
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self.line.sendall(f"{head}Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.exact(1)

    def exact(self, length):
        found = b""
        while len(found) < length:
            more = self.line.recv(length - len(found))
            if not more:
                raise EOFError
            found += more
        return found

    def call(self, method, **parameters):
        self.number += 1
        data = json.dumps({"id": self.number, "method": method, "params": parameters}).encode()
        mask = os.urandom(4)
        size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        self.line.sendall(b"\x81" + size + mask + masked)
        while True:
            size = self.exact(2)[1] & 127
            if size > 125:
                size = int.from_bytes(self.exact(2 if size == 126 else 8), "big")
            answer = json.loads(self.exact(size))
            if answer.get("id") == self.number:
                return answer["result"]

    def value(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return found["result"]["value"]


def begin():
    Page(pages()[0]).call("Page.navigate", url=PAGE)
    time.sleep(1)
    check()


def check():
    page = Page([page for page in pages() if page["title"] == "counts"][0])
    before = page.value("[n, seen]")
    time.sleep(1.5)
    after = page.value("[n, seen]")
    assert all(one < other for one, other in zip(before, after)), f"it stands still: {before} {after}"
    assert len(page.call("Page.captureScreenshot")["data"]) > 1000, "no picture"
    # Another page, for which the browser starts a process.
    new = json.loads(ask("/new?about:blank", "PUT"))
    assert Page(new).value("fetch('data:,hello').then(found => found.text())") == "hello"
    ask(f"/close/{new['id']}")


{"begin": begin, "check": check}[sys.argv[1]]()
