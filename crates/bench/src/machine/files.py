"""A server that makes files when it is asked to: GET /fill/FILES/MIB, /touch/FILES, /walk, /write/SECONDS/MIB_PER_SECOND."""
import http.server
import os
import sys
import threading
import time

ROOT = "/home/user/files"


def fill(files, mib):
    for n in range(files):
        if n % 500 == 0:
            directory = f"{ROOT}/{n // 500}"
            os.makedirs(directory)
        with open(f"{directory}/{n}", "wb") as file:
            file.write(b"x" * 4000)
    with open(f"{ROOT}/large", "wb") as file:
        for n in range(mib):
            file.write(bytes([n % 256]) * (1 << 20))


def touch(files):
    for n in range(files):
        with open(f"{ROOT}/{n // 500}/{n}", "wb") as file:
            file.write(b"y" * 4000)


def walk():
    return sum(1 for directory, _, files in os.walk(ROOT) for name in files if os.lstat(f"{directory}/{name}"))


def write(seconds, mib_per_second):
    piece, began, written = os.urandom(1 << 20), time.monotonic(), 0
    while time.monotonic() - began < seconds:
        with open(f"/home/user/written{written // 100 % 4}", "wb") as file:
            for _ in range(100):
                file.write(piece)
                written += 1
                time.sleep(max(0, written / mib_per_second - (time.monotonic() - began)))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        what, *numbers = self.path.strip("/").split("/")
        numbers, began = [int(number) for number in numbers], time.monotonic()
        if what == "write":
            threading.Thread(target=write, args=numbers, daemon=True).start()
        elif what != "health":
            {"fill": fill, "touch": touch, "walk": walk}[what](*numbers)
        body = f"{(time.monotonic() - began) * 1e6:.0f}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
