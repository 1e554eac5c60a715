# SPDX-License-Identifier: Apache-2.0
"""Long computations as generators that yield after each step, so that a caller on an event loop can yield control."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finish(steps: Generator[None, None, T]) -> T:
    """Run all steps without a pause, and give the return value of the generator."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
