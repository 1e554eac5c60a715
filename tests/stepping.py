# SPDX-License-Identifier: Apache-2.0
"""Answers computed step by step, as the event loop does it, with a measurement of each step."""

import gc
import time
from collections.abc import Generator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from app.api.admission_routes import review
from app.api.extender_routes import filter_nodes, prioritize
from app.api.preemption import preempt
from app.api.wire import decode_json, encode
from app.demo.sample_fleets import demo_fleet
from app.explain.pending_pod import explain
from app.policy.load import load_policies
from app.server.service import Service
from app.values.errors import MalformedPod, PolicyError, QuantityError, WireError
from app.web.api import dry_run
from tests.bench.measure import reference
from tests.builders import make_service

MOST_REFERENCES = 25.0
"""Longest step in reference loops: 50 ms on a machine whose reference loop takes 2 ms."""
ROUNDS = 20
"""Most rounds; another process may take CPU caches that the answer needs and the reference loop does not."""


@cache
def service() -> Service:
    """Make a service of the mixed demo fleet, frozen for the garbage collector as `serve` freezes it."""
    made = make_service(Path(mkdtemp()), demo_fleet("mixed"))
    gc.collect()
    gc.freeze()
    return made


def steps_of(route: str, body: bytes) -> Generator[None, None, bytes]:
    """Answer as a route does, step by step; `route` is the last part of its path, or `policy` for a policy file."""
    core = service()
    match route:
        case "mutate" | "validate":
            return (yield from review(body, route, core)).body
        case "filter":
            return (yield from filter_nodes(body, core)).body
        case "prioritize":
            return (yield from prioritize(body, core)).body
        case "preempt":
            return (yield from preempt(body, core)).body
        case "policy":
            text = body.decode("utf-8", "replace")
            return (yield from load_policies({"f": text}, core.state.knowledge)).hash.encode()
        case "explain":
            return encode((yield from explain(decode_json(body), core.world_copied())))
    tried = dry_run(decode_json(body), core)
    yield
    return encode(tried)


def taken(steps: Generator[None, None, bytes]) -> tuple[float, str]:
    """Run all steps; return the CPU milliseconds of the longest one, and the answer or the refusal."""
    longest, answer = 0.0, ""
    while not answer:
        started = time.thread_time_ns()
        try:
            next(steps)
        except StopIteration as end:
            answer = end.value[:100_000].decode("utf-8", "replace") or "nothing"
        except (WireError, MalformedPod, QuantityError, PolicyError) as error:
            answer = str(error)
        longest = max(longest, (time.thread_time_ns() - started) / 1e6)
    return longest, answer


def longest(route: str, body: bytes) -> float:
    """Return the longest step of an answer as a multiple of the reference loop, the least of some rounds.

    Before a second round, objects that other tests left in this process are frozen for the garbage collector.
    """
    service()
    ratio = taken(steps_of(route, body))[0] / reference()
    for _ in range(ROUNDS - 1):
        if ratio >= MOST_REFERENCES:
            gc.collect()
            gc.freeze()
            ratio = min(ratio, taken(steps_of(route, body))[0] / reference())
    return ratio
