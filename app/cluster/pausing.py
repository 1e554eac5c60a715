# SPDX-License-Identifier: Apache-2.0
"""Pauses of a thread that computes beside the event loop, so that the loop never waits long for the interpreter.

A thread that computes gives up the interpreter only after five milliseconds (sys.getswitchinterval), and the loop waits
for it after most reads and writes of a request. A thread that rests by itself leaves the interpreter to the loop.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

WORK_SECONDS = 0.0005
"""Computing between two rests, unless a single item takes longer: a fifth of what filter takes about 1,000 nodes."""
REST_SECONDS = 0.001
"""A rest. With WORK_SECONDS a thread takes a third of one core at most. A guess."""

Item = TypeVar("Item")


def pausing(
    items: Iterable[Item],
    clock: Callable[[], float] = time.perf_counter,
    rest: Callable[[float], None] = time.sleep,
) -> Iterator[Item]:
    """Yield items, and rest when the work on them has taken WORK_SECONDS. For threads: the event loop must not rest."""
    began = clock()
    for item in items:
        yield item
        if clock() - began >= WORK_SECONDS:
            rest(REST_SECONDS)
            began = clock()
