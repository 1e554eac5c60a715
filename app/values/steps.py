# SPDX-License-Identifier: Apache-2.0
"""Long work as a generator of steps, so that a caller on the event loop can rest between them."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finish(steps: Generator[None, None, T]) -> T:
    """Take all steps at once, and give what the last one returned."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
