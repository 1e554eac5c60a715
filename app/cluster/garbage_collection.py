# SPDX-License-Identifier: Apache-2.0
"""How pauses by garbage collection are avoided: each way in one function.

A full collection walks every object that is alive. Over 5,000 nodes and 50,000 pods it takes 40 ms
(docs/reference/measurements.md#decoding), in the middle of a request. What a cluster is made of is never a cycle, so
that nothing is lost by leaving it out: `gc.freeze` moves all objects that exist to a generation that is not visited.

- While a kind is listed for the first time, `leave_out_what_is_listed` freezes what has come so far after each slice.
- When the first lists are complete, or a fleet that is read once is, `leave_out_all` collects once and freezes.
- A command reads a fleet and ends: `without_garbage_collection` collects nothing meanwhile.

What is kept of each pod for as long as it runs is a msgspec Struct with `gc=False`, which no collection visits
(docs/decisions/0035-keep-what-is-known-of-pods-out-of-garbage-collection.md).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def leave_out_what_is_listed() -> None:
    """Exclude all objects made so far from later collections; costs microseconds, whatever their number."""
    gc.freeze()


def leave_out_all() -> None:
    """Free what is no longer used, and exclude all other objects from later collections."""
    gc.collect()
    gc.freeze()


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: nothing is freed while a fleet is read, and walking all of it takes seconds.

    50,000 pods are millions of objects; walking them repeatedly takes four times as long as reading them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
