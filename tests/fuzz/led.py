# SPDX-License-Identifier: Apache-2.0
"""The input of the coverage-guided fuzzer: a byte that chooses the target, then the bytes that this target reads."""

from collections.abc import Callable
from random import Random

from app.knowledge.cuda_compatibility import parse_require
from app.values.errors import BadInput
from app.values.quantity import parse_mib, parse_quantity
from tests.builders import knowledge
from tests.fuzz.mutations import changed_bytes, mutated
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import REFUSED, TARGETS
from tests.fuzz.words import QUANTITIES

Outcome = Callable[[bytes, int], str]


def _text(read: Callable[[str], object]) -> Outcome:
    def outcome(body: bytes, _number: int) -> str:
        try:
            read(body.decode("utf-8", "replace"))
        except BadInput:
            return REFUSED
        return "read"

    return outcome


_AMOUNTS = tuple(str(quantity).encode() for quantity in QUANTITIES)
_IMAGES = (b"nvcr.io/nvidia/pytorch:24.05-py3", b"nvidia/cuda:12.4.1-cudnn-devel@sha256:0", b"r:5000/a/b:v1-cu124")
_REQUIRES = (b"cuda>=12.4 brand=tesla,driver>=470,driver<471", b"arch>=7.5")
PLAYED: tuple[tuple[Outcome, tuple[bytes, ...]], ...] = (
    *((target.outcome, seeds(target.seeds)) for target in TARGETS),
    (_text(parse_quantity), _AMOUNTS),
    (_text(parse_mib), _AMOUNTS),
    (_text(lambda text: knowledge().images.infer(text)), _IMAGES),
    (_text(lambda text: parse_require([text])), _REQUIRES),
)
"""The targets of the campaign, and readers of texts that are parts of documents there, each with its good inputs."""


def play(data: bytes) -> str:
    """Return the outcome of an input.

    Raises any exception that is not the documented error.
    """
    if not data:
        return REFUSED
    outcome, _ = PLAYED[data[0] % len(PLAYED)]
    return outcome(data[1:], data[0])


def mutate(data: bytes, largest: int, seed: int) -> bytes:
    """Make another input for the same target. An input without any bytes starts again from a good one."""
    random = Random(seed)
    index = data[0] % len(PLAYED) if data and random.random() < 0.98 else random.randrange(len(PLAYED))
    _, good = PLAYED[index]
    change = mutated if random.random() < 0.7 else changed_bytes
    return bytes([index]) + change(data[1:] or random.choice(good), good, random)[: largest - 1]
