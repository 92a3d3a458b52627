#!/usr/bin/env python3
"""A Python program with processes of many kinds, which work together before and after a fork of all of them.

Protocol as in probe.h: prepares, prints `ready`, waits for the file --go, then prints what it finds.
"""

import argparse
import http.client
import http.server
import multiprocessing
import os
import signal
import socketserver
import subprocess
import sys
import time

failures = 0


def check(held, what):
    global failures
    failures += not held
    print(f"{what}: {'ok' if held else 'FAILED'}", flush=True)


def square(number):
    return number * number, os.getpid()


def add_up(numbers, sums):
    total = 0
    for number in iter(numbers.get, None):
        total += number
        sums.put(total)


def serve(pipe):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        seen = 0

        def do_GET(self):
            Handler.seen += 1
            body = f"{self.path} {Handler.seen}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        pipe.send(server.server_address[1])
        server.serve_forever()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--go", default="/tmp/go")
    parser.add_argument("--ready-file", default=os.environ.get("READY_FILE"))
    parser.add_argument("--dir", default="/tmp")
    options = parser.parse_args()

    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    pools = [fork.Pool(2), spawn.Pool(2)]
    workers = [sorted(worker.pid for worker in pool._pool) for pool in pools]
    manager = fork.Manager()
    shared, counter = manager.dict(), fork.Value("i", 0)
    numbers, sums = fork.Queue(), fork.Queue()
    adder = fork.Process(target=add_up, args=(numbers, sums))
    adder.start()
    ours, theirs = fork.Pipe()
    server = fork.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    web = http.client.HTTPConnection("127.0.0.1", ours.recv(), timeout=20)
    cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    tail = subprocess.Popen(["sh", "-c", "read line; echo got $line; exit 5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)

    def web_says(path):
        web.request("GET", path)
        return web.getresponse().read().decode()

    for pool in pools:
        pool.map(square, range(8))
    shared["before"] = 1
    numbers.put(1)
    first = sums.get()
    cat.stdin.write(b"before ")
    cat.stdin.flush()
    begun = web_says("/before")
    # On their way.
    numbers.put(2)
    web.request("GET", "/between")
    time.sleep(0.2)

    if options.ready_file:
        open(options.ready_file, "w").close()
    print("ready", flush=True)
    while not os.path.exists(options.go):
        time.sleep(0.002)

    check((first, begun) == (1, "/before 1"), "what was known before")
    check(web.getresponse().read() == b"/between 2" and web_says("/after") == "/after 3", "a connection that is kept")
    cat.stdin.write(b"after")
    cat.stdin.flush()
    check(cat.stdout.read(12) == b"before after", "cat between two pipes")
    numbers.put(3)
    check((sums.get(), sums.get()) == (3, 6), "a queue and what was on its way")
    for name, pool, pids in zip(("forked", "spawned"), pools, workers):
        found = pool.map(square, range(50), chunksize=5)
        check([value for value, _ in found] == [n * n for n in range(50)], f"a {name} pool")
        check({pid for _, pid in found} <= set(pids), f"the {name} workers are those of before")
    shared["after"] = 2
    check(dict(shared) == {"before": 1, "after": 2}, "a manager")
    with counter.get_lock():
        counter.value += 1
    check(counter.value == 1, "a shared value with a lock")
    tail.stdin.write(b"a line\n")
    tail.stdin.close()
    check(tail.stdout.read() == b"got a line\n" and tail.wait() == 5, "a shell that waited for a line")
    check(ended.wait() == 0, "a child that had ended")
    cat.stdin.close()
    check(cat.wait() == 0, "cat ends")
    numbers.put(None)
    adder.join(20)
    check(adder.exitcode == 0, "the adder ends")
    server.terminate()
    server.join(20)
    check(server.exitcode == -signal.SIGTERM, "the server ends")
    for pool in pools:
        pool.close()
        pool.join()
    manager.shutdown()
    check(not multiprocessing.active_children(), "all children have ended")
    print("done" if failures == 0 else "done with failures", flush=True)
    sys.exit(failures != 0)


if __name__ == "__main__":
    main()
