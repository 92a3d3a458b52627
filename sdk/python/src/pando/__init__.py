"""The E2B SDK with what Pando adds to it.

`Sandbox`, `AsyncSandbox`, `Volume` and `AsyncVolume` are subclasses of the classes of the same names in `e2b`: all that
those have works here, too. Everything else of the SDK is imported from `e2b`.
"""

from .async_sandbox import AsyncSandbox, diff_async
from .async_volume import AsyncVolume
from .models import Checkpoint, FileDiff, VolumeChange, VolumeSnapshot
from .sandbox import Sandbox, diff
from .volume import Volume

__all__ = [
    "AsyncSandbox",
    "AsyncVolume",
    "Checkpoint",
    "FileDiff",
    "Sandbox",
    "Volume",
    "VolumeChange",
    "VolumeSnapshot",
    "diff",
    "diff_async",
]
