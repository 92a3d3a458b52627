"""Loaded by each Python of the system: a copy of a sandbox draws random numbers of its own. OpenSSL sees to its own (openssl.c)."""

import signal
import sys


def _reseed(_signal: int, _frame: object) -> None:
    # Those that the program has loaded. Generators that it has made itself stay as they are.
    for name in ("random", "numpy.random"):
        module = sys.modules.get(name)
        if module is not None:
            module.seed()


try:
    if signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
        signal.signal(signal.SIGURG, _reseed)
except ValueError:
    # Not in the main thread, where signals are handled.
    pass
