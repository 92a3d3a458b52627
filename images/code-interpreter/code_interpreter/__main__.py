"""Starts the kernels that clients need first, has them warm, and serves."""

import argparse
import asyncio
import gc
import logging

from aiohttp import web

from .contexts import Contexts
from .server import application

WARM = ("python", "javascript")

# Loads what code loads first, draws once so that fonts are found, and leaves nothing that code sees.
WARM_UP = """
import numpy, pandas, matplotlib.pyplot, io
matplotlib.pyplot.plot([1, 2])
matplotlib.pyplot.gcf().savefig(io.BytesIO(), format="png")
matplotlib.pyplot.close("all")
pandas.DataFrame({"a": [1]})._repr_html_()
%reset -f
import gc; gc.collect(); gc.freeze(); del gc
"""


async def warm(contexts: Contexts) -> None:
    for language in WARM:
        context = await contexts.default(language)
        if language == "python":
            await context.run_silently(WARM_UP)
        else:
            await context.run_silently("1 + 1")


async def begin(port: int) -> None:
    contexts = Contexts()
    await warm(contexts)
    # The collector then leaves alone what is here, and copies go on sharing its memory.
    gc.collect()
    gc.freeze()
    runner = web.AppRunner(application(contexts), handler_cancellation=True, max_field_size=1 << 17, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="code_interpreter", description=__doc__)
    parser.add_argument("--port", type=int, default=49999)
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(begin(parser.parse_args().port))


if __name__ == "__main__":
    main()
