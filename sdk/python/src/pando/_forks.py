"""Splits what `fork` returns."""

from collections.abc import Sequence
from typing import TypeVar

Child = TypeVar("Child")


def whole(results: Sequence[Child | Exception]) -> tuple[list[Child], Exception | None]:
    """The children that were made, and the first error."""
    children = [result for result in results if not isinstance(result, Exception)]
    failed = next((result for result in results if isinstance(result, Exception)), None)
    return children, failed
