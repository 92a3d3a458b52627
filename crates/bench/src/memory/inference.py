"""A process like an inference server: weights, and a key-value cache that is allocated ahead and used to a quarter.

Arguments: port, MiB. Of the memory, 5/8 are weights (normally distributed 32-bit floats), 3/8 the cache; both are touched whole.
Standard library only.
"""

import http.server
import random
import struct
import sys
from array import array

FLOATS = 2 << 20
BLOCK = 4 * FLOATS
# The bits of a float's fraction: new ones make new floats of the same sizes, far faster than drawing them.
FRACTIONS = int.from_bytes(struct.pack("<I", 0x007FFFFF) * FLOATS, "little")


def blocks(generator):
    first = array("f", (generator.gauss(0.0, 0.02) for _ in range(FLOATS)))
    base = int.from_bytes(first.tobytes(), "little")
    while True:
        yield (base ^ generator.getrandbits(8 * BLOCK) & FRACTIONS).to_bytes(BLOCK, "little")


def fill(memory, end, source):
    for start in range(0, end, BLOCK):
        memory[start : start + BLOCK] = next(source)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = b'{"ok": true}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


port, mib = int(sys.argv[1]), int(sys.argv[2])
count = (mib << 20) // BLOCK
source = blocks(random.Random(1))
weights = bytearray(count * 5 // 8 * BLOCK)
fill(weights, len(weights), source)
cache = bytearray((count - count * 5 // 8) * BLOCK)
used = len(cache) // BLOCK // 4 * BLOCK
fill(cache, used, source)
zeros = bytes(BLOCK)
for start in range(used, len(cache), BLOCK):
    cache[start : start + BLOCK] = zeros
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
