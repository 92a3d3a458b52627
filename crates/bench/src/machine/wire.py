"""Traffic between two ends: `far ADDRESS`, `near PORT ADDRESS` (asked over HTTP: /send/MIB, /receive/MIB, /ping/TIMES),
and `once ADDRESS WHAT NUMBER`, which prints what the same takes, in microseconds."""
import http.server
import socket
import struct
import sys
import threading
import time

PORT, PIECE = 7, bytes(1 << 20)


def serve(connection):
    """The far end: gets and sends as many bytes as it is told first, then sends back what comes."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    gets, sends = struct.unpack(">QQ", connection.recv(16, socket.MSG_WAITALL))
    buffer = bytearray(len(PIECE))
    while gets > 0:
        # Not the first bytes of what comes behind.
        gets -= connection.recv_into(buffer, min(len(buffer), gets)) or gets
    for _ in range(sends // len(PIECE)):
        connection.sendall(PIECE)
    while data := connection.recv(64):
        connection.send(data)


def measure(address, what, number):
    connection = socket.create_connection((address, PORT))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    pieces = number * ((1 << 20) // len(PIECE))
    sends, receives = (pieces if what == way else 0 for way in ("send", "receive"))
    began = time.monotonic()
    connection.sendall(struct.pack(">QQ", sends * len(PIECE), receives * len(PIECE)))
    for _ in range(sends):
        connection.sendall(PIECE)
    buffer, left = bytearray(len(PIECE)), receives * len(PIECE)
    while left > 0:
        left -= connection.recv_into(buffer) or left
    # The far end answers when it has got all.
    for _ in range(number if what == "ping" else 1):
        connection.send(b"x")
        connection.recv(1)
    took = time.monotonic() - began
    connection.close()
    return took / (number if what == "ping" else 1) * 1e6


class Near(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        what, *numbers = self.path.strip("/").split("/")
        took = 0 if what == "health" else measure(sys.argv[3], what, int(numbers[0]))
        body = f"{took:.0f}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


if sys.argv[1] == "far":
    listener = socket.create_server((sys.argv[2], PORT), backlog=64)
    print("ready", flush=True)
    while True:
        threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
elif sys.argv[1] == "near":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Near).serve_forever()
else:
    print(f"{measure(sys.argv[2], sys.argv[3], int(sys.argv[4])):.0f}")
