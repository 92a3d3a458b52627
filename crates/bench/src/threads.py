"""Answers every HTTP request with 200; beside it, idle threads. usage: threads.py PORT COUNT"""
import socket
import sys
import threading

port, count = int(sys.argv[1]), int(sys.argv[2])
threading.stack_size(256 * 1024)
forever = threading.Event()
for _ in range(count):
    threading.Thread(target=forever.wait, daemon=True).start()
listener = socket.create_server(("127.0.0.1", port), backlog=64)
while True:
    connection, _ = listener.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    connection.close()
