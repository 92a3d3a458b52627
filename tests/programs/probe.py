#!/usr/bin/python3
"""CPython under a fork: threads, an asyncio loop, multiprocessing primitives, random state, generators.

`--child` keeps a subprocess as well, which makes it impossible to fork: the refusal must say so.
Protocol as in probe.h: prints "ready", waits for --go, then prints what it finds.
"""

import argparse
import asyncio
import hashlib
import multiprocessing
import os
import queue
import random
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import shared_memory

failures = 0


def check(held, what):
    global failures
    print(f"{what}: {'ok' if held else 'FAILED'}", flush=True)
    failures += not held


class Worker(threading.Thread):
    """Hashes what it is sent; blocked in a queue until then."""

    def __init__(self, number):
        super().__init__(daemon=True)
        self.number = number
        self.inbox = queue.Queue()
        self.outbox = queue.Queue()
        self.local = threading.local()
        self.start()

    def run(self):
        self.local.name = f"worker {self.number}"
        while True:
            text = self.inbox.get()
            self.outbox.put(f"{self.local.name} {hashlib.sha256(text.encode()).hexdigest()[:16]}")


class Ticker(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.ticks = 0
        self.start()

    def run(self):
        while True:
            time.sleep(0.01)
            self.ticks += 1


def fibonacci():
    one, other = 0, 1
    while True:
        yield one
        one, other = other, one + other


async def echo(reader, writer):
    while line := await reader.readline():
        writer.write(b"echo " + line)
        await writer.drain()
    writer.close()


async def from_go_on(options, state):
    """The loop and its tasks exist before the fork and finish after it."""
    server = await asyncio.start_unix_server(echo, path=os.path.join(state["directory"], "echo"))
    released = asyncio.Event()
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def wait_for_release():
        await released.wait()
        return "released"

    ticking, waiting = asyncio.create_task(tick()), asyncio.create_task(wait_for_release())
    in_executor = asyncio.get_running_loop().run_in_executor(None, state["executor_gate"].wait)
    await asyncio.sleep(0.05)
    ready(options)
    while not os.path.exists(options.go):
        await asyncio.sleep(0.002)
    before = ticks
    await asyncio.sleep(0.2)
    check(ticks > before, "asyncio timers go on")
    released.set()
    check(await waiting == "released", "asyncio task released")
    state["executor_gate"].set()
    check(await in_executor, "executor thread returns")
    reader, writer = await asyncio.open_unix_connection(os.path.join(state["directory"], "echo"))
    writer.write(b"hello\n")
    check(await reader.readline() == b"echo hello\n", "asyncio server answers")
    writer.close()
    process = await asyncio.create_subprocess_exec("/bin/echo", "from a child", stdout=subprocess.PIPE)
    check((await process.communicate())[0] == b"from a child\n" and process.returncode == 0, "subprocess after the fork")
    ticking.cancel()
    server.close()


def ready(options):
    if options.ready_file:
        open(options.ready_file, "w", encoding="ascii").close()
    print("ready", flush=True)


def check_rest(state):
    workers, ticker, generator = state["workers"], state["ticker"], state["generator"]
    for worker in workers:
        worker.inbox.put("some text")
    for worker in workers:
        print(worker.outbox.get(timeout=10))
    before = ticker.ticks
    time.sleep(0.2)
    check(ticker.ticks > before, "thread goes on")
    print("random", random.random(), random.getrandbits(64), random.Random(5).random())
    print("hash of a string", hash("pando") == state["string_hash"])
    print("generator", [next(generator) for _ in range(5)])
    check(state["lock"].acquire(block=False) is False, "multiprocessing.Lock is held")
    state["lock"].release()
    check(state["lock"].acquire(block=False), "multiprocessing.Lock can be taken again")
    with state["value"].get_lock():
        state["value"].value += 1
    print("multiprocessing.Value", state["value"].value)
    print("multiprocessing.Array", list(state["array"]))
    print("semaphore", state["semaphore"].get_value())
    state["memory"].buf[0] += 1
    print("shared memory", bytes(state["memory"].buf[:8]))
    reader, writer = state["pipe"]
    print("pipe", reader.recv())
    writer.send({"again": True})
    print("pipe", reader.recv())
    state["file"].seek(0, os.SEEK_CUR)
    print("file", state["file"].read())
    check(ssl.RAND_bytes(8) != ssl.RAND_bytes(8), "OpenSSL random")
    thread = threading.Thread(target=lambda: print("a new thread runs"))
    thread.start()
    thread.join()
    print("threads", threading.active_count())


def set_up(options):
    random.seed(42)
    generator = fibonacci()
    for _ in range(20):
        next(generator)
    directory = tempfile.mkdtemp(dir=options.dir)
    file = open(os.path.join(directory, "lines"), "w+", encoding="ascii")
    file.write("first line\nsecond line\n")
    file.flush()
    file.seek(11)
    memory = shared_memory.SharedMemory(create=True, size=4096) if options.shm else None
    state = {
        "directory": directory,
        "file": file,
        "generator": generator,
        "workers": [Worker(number) for number in range(3)],
        "ticker": Ticker(),
        "executor_gate": threading.Event(),
        "lock": multiprocessing.Lock(),
        "value": multiprocessing.Value("q", 4711),
        "array": multiprocessing.Array("d", [0.5, 1.5, 2.5]),
        "semaphore": multiprocessing.Semaphore(3),
        "pipe": multiprocessing.Pipe(duplex=False),
        "memory": memory,
        "string_hash": hash("pando"),
    }
    state["lock"].acquire()
    state["pipe"][1].send([1, "two", 3.0])
    if memory is None:
        state["memory"] = argparse.Namespace(buf=bytearray(4096))
    state["memory"].buf[:8] = b"Hashared"
    return state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--go", default="/tmp/go")
    parser.add_argument("--ready-file", default=os.environ.get("READY_FILE"))
    parser.add_argument("--dir", default="/tmp")
    parser.add_argument("--child", action="store_true", help="keep a subprocess")
    parser.add_argument("--shm", action="store_true", help="use SharedMemory, which starts a resource-tracker process")
    options = parser.parse_args()
    child = subprocess.Popen(["/bin/sleep", "3600"]) if options.child else None
    state = set_up(options)
    asyncio.run(from_go_on(options, state))
    check_rest(state)
    if options.shm:
        state["memory"].close()
        state["memory"].unlink()
    if child is not None:
        check(child.poll() is None, "child lives")
        child.kill()
        child.wait()
    print("done" if failures == 0 else "done with failures", flush=True)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
