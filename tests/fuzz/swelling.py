# SPDX-License-Identifier: Apache-2.0
"""Swelling: a good document in which one list, mapping, text or line becomes thousands of times as large."""

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec

from tests.fuzz.seeds import seeds

COUNTS = (1_000, 10_000, 50_000, 300_000)
MOST_BYTES = 6 << 20
"""The most bytes of a swollen document, which is the limit of a review."""
ROUTES = {
    "mutate": ("mutate", "review"),
    "validate": ("validate", "review"),
    "validate policies": ("validate", "review of a policy"),
    "filter": ("filter", "filter"),
    "prioritize": ("prioritize", "prioritize"),
    "preempt": ("preempt", "preempt"),
    "dry-run": ("dry-run", "pod"),
    "explain": ("explain", "pod"),
    "policy file": ("policy", "policy"),
}
"""The last part of a path and the kind of its good inputs, by name."""


def swollen(name: str, number: int, seed: int = 1125) -> bytes:
    """Make the input of this number for the route of this name, which is always the same."""
    random = Random(f"{seed} {name} {number} swollen")
    good = random.choice(seeds(ROUTES[name][1]))
    try:
        document = msgspec.json.decode(good)
    except msgspec.DecodeError:
        return _longer_text(good, random)
    holder, key = random.choice([place for place in _places([document]) if isinstance(place[0][place[1]], _SWELLING)])
    count = min(random.choice(COUNTS), MOST_BYTES // (len(msgspec.json.encode(holder[key])) + 20) + 1)
    holder[key] = _swell(holder[key], count)
    return msgspec.json.encode(document)


_SWELLING = (list, dict, str)


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    for key in holder if isinstance(holder, dict) else range(len(holder)):
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _places(holder[key])


def _swell(original: Any, count: int) -> Any:
    if isinstance(original, str):
        lines = original.splitlines(keepends=True)
        return original * (count // 10) if len(lines) < 2 else "".join(lines[:3] * (count // 3))
    if isinstance(original, dict):
        value = next(iter(original.values()), "x")
        return {**original, **{f"k{index}": value for index in range(count)}}
    item = original[-1] if original else "x"
    return [*original, *(f"{item}{index}" if isinstance(item, str) else item for index in range(count))]


def _longer_text(good: bytes, random: Random) -> bytes:
    """Repeat a line of a text, or the whole text as further documents."""
    lines = good.splitlines(keepends=True)
    place, count = random.randrange(len(lines)), random.choice(COUNTS)
    if random.random() < 0.3:
        whole = b"---\n" + good
        return whole * min(count, MOST_BYTES // len(whole))
    line = random.choice((lines[place], b"---\n", b"- a\n", b"[", b"a: {", b"#\n", b"x"))
    return b"".join([*lines[:place], line * min(count, MOST_BYTES // len(line)), *lines[place:]])
