"""What `pando bench api` measures with the real SDK. Prints one JSON object per line; the variables name the server."""

import asyncio
import json
import os
import sys
import time

from e2b import AsyncSandbox, Sandbox

PLAN = json.loads(sys.argv[1])
SMALL = "a" * 4096
# Between starts the pool of the server is filled again, as on a server that is not saturated.
PAUSE_S = 0.05


def tell(**what):
    print(json.dumps(what), flush=True)


def timed(function, *args, **options):
    began = time.perf_counter_ns()
    value = function(*args, **options)
    return (time.perf_counter_ns() - began) // 1000, value


def several(case, function, rounds):
    """The first calls open connections and load modules."""
    for _ in range(3):
        function()
    tell(case=case, us=[timed(function)[0] for _ in range(rounds)])


def create(rounds):
    times = []
    for index in range(rounds + 3):
        took, sandbox = timed(Sandbox.create, timeout=600)
        if index >= 3:
            times.append(took)
        sandbox.kill()
        time.sleep(PAUSE_S)
    tell(case="create", us=times)


def at_once(count):
    async def burst():
        began = time.perf_counter_ns()
        sandboxes = await asyncio.gather(*(AsyncSandbox.create(timeout=600) for _ in range(count)))
        took = (time.perf_counter_ns() - began) // 1000
        await asyncio.gather(*(sandbox.kill() for sandbox in sandboxes))
        return took

    async def bursts():
        times = []
        # The first one opens the connections.
        for index in range(PLAN["bursts"] + 1):
            took = await burst()
            if index > 0:
                times.append(took)
            await asyncio.sleep(PLAN["rest_s"])
        return times

    tell(case="creates_at_once", us=asyncio.run(bursts()))


def upload(sandbox, path):
    with open(path, "rb") as data:
        sandbox.files.write("large", data)


def download(sandbox, path):
    with open(path, "wb") as into:
        for chunk in sandbox.files.read("large", format="stream"):
            into.write(chunk)
    os.unlink(path)


def large(sandbox):
    tell(begin="up")
    up, _ = timed(upload, sandbox, PLAN["source"])
    tell(case="up", us=[up])
    tell(begin="down")
    down, _ = timed(download, sandbox, PLAN["target"])
    tell(case="down", us=[down])


def main():
    rounds = PLAN["rounds"]
    create(rounds)
    at_once(PLAN["at_once"])
    sandbox = Sandbox.create(timeout=600)
    several("run", lambda: sandbox.commands.run("true"), rounds)
    several("write", lambda: sandbox.files.write("small", SMALL), rounds)
    several("read", lambda: sandbox.files.read("small"), rounds)
    large(sandbox)
    sandbox.kill()


main()
