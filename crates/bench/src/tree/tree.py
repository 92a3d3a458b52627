"""A tree of processes: a server that answers GET /, and workers with memory of their own, each with a pipe, a TCP connection and a lock of it.

    tree.py PORT WORKERS MIB     MIB are those of all workers together; 0: they only wait, as pre-forked ones do
"""
import http.server
import mmap
import os
import socket
import sys
import threading

PORT, WORKERS, MIB = (int(word) for word in sys.argv[1:])


def work(requests, address):
    own = bytearray(os.urandom(1 << 20) * (MIB // WORKERS)) if MIB else b""
    connection = socket.create_connection(address)
    connection.sendall(b"here")
    while True:
        request = os.read(requests, 1)
        if not request:
            os._exit(0)
        connection.sendall(bytes([(own[-1] if own else 0) & 1 | 2]))


listener = socket.create_server(("127.0.0.1", 0))
shared = mmap.mmap(-1, 1 << 20)
pipes, connections = [], []
for _ in range(WORKERS):
    reads, writes = os.pipe()
    if os.fork() == 0:
        for other in [*pipes, writes]:
            os.close(other)
        work(reads, listener.getsockname())
    os.close(reads)
    pipes.append(writes)
    connection = listener.accept()[0]
    assert connection.recv(4) == b"here"
    connections.append(connection)
turn = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    """Each answer has asked all workers."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        with turn:
            for pipe in pipes:
                os.write(pipe, b"?")
            for connection in connections:
                assert connection.recv(1)[0] & 2
        body = b"all\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("0.0.0.0", PORT), Handler).serve_forever()
