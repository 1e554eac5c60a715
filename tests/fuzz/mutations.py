# SPDX-License-Identifier: Apache-2.0
"""Mutations: a good document becomes bad in its structure or in its bytes. All chance comes from the given Random."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from tests.fuzz.words import ANNOTATIONS, GRAMMAR, KEYS, QUANTITIES, RAW, SCALARS

Place = tuple[Any, Any]
"""A dict or list, and a key or index in it."""

AMOUNTS = ("limits", "requests", "allocatable", "capacity")
"""Members whose values are quantities."""


def mutated(seed: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Make a bad input from a good one. `others` are good inputs of the same kind, to splice with."""
    chance = random.random()
    if chance < 0.8:
        try:
            document = msgspec.json.decode(seed)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return changed_bytes(seed, others, random)
        return changed_structure(document, random)
    if chance < 0.97:
        return changed_bytes(seed, others, random)
    return seed


def changed_structure(document: Any, random: Random) -> bytes:
    """Change a decoded document in place at one to four places, and write it as bytes."""
    holder = [document]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        place = _random_place(holder, random)
        random.choice(_CHANGES)(*place, random)
    written = msgspec.json.encode(holder[0] if holder else None)
    if b'"@' in written:
        for name, raw in RAW.items():
            written = written.replace(b'"' + name.encode() + b'"', raw)
    return written


def _random_place(holder: list[Any], random: Random) -> Place:
    """Choose a place by walking down from the root, so that deep places are about as likely as others."""
    place: Place = (holder, 0)
    while True:
        inside = place[0][place[1]] if place[0] is not holder or holder else None
        if not isinstance(inside, dict | list) or not inside or (place[0] is not holder and random.random() < 0.05):
            return place
        if place[0] is holder and random.random() < 0.01:
            return place
        place = (inside, random.choice(list(inside)) if isinstance(inside, dict) else random.randrange(len(inside)))


def _replace(at: Any, key: Any, random: Random) -> None:
    at[key] = _fresh(random.choice(SCALARS))


def _quantity(at: Any, key: Any, random: Random) -> None:
    """Replace a quantity by an odd one; without a quantity nearby, replace any value."""
    inside = at[key]
    for name in AMOUNTS:
        if isinstance(inside, dict) and isinstance(inside.get(name), dict):
            at, key = (
                inside[name],
                random.choice([*inside[name], "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "amd.com/gpu"]),
            )
    at[key] = random.choice(QUANTITIES)


def _drop(at: Any, key: Any, _random: Random) -> None:
    if len(at) > 1 or isinstance(at, dict):
        del at[key]


def _duplicate(at: Any, key: Any, random: Random) -> None:
    """Repeat an item of a list, or copy a member to another key."""
    copy = _fresh(at[key])
    if isinstance(at, list):
        at.extend([copy] * random.choice((1, 1, 2, 30)))
    else:
        at[random.choice(KEYS)] = copy


def _retype(at: Any, key: Any, random: Random) -> None:
    value = at[key]
    if isinstance(value, str):
        at[key] = random.choice((len(value), [value], {value[:60]: value}, value.encode().hex(), list(value[:20])))
    elif isinstance(value, dict):
        at[key] = random.choice((list(value.values()), list(value), str(value)[:500]))
    elif isinstance(value, list):
        at[key] = random.choice(({str(index): item for index, item in enumerate(value)}, str(value)[:500]))
    else:
        at[key] = random.choice((str(value), [value], {"value": value}, value is None))


def _nest(at: Any, key: Any, random: Random) -> None:
    inside = at[key]
    for _ in range(random.choice((1, 2, 60))):
        inside = {random.choice(KEYS): inside} if random.random() < 0.5 else [inside]
    at[key] = inside


def _rename(at: Any, key: Any, random: Random) -> None:
    if isinstance(at, dict):
        name = random.choice((key.upper(), key.lower(), key.title(), key + " ", "x" * 5000, random.choice(KEYS)))
        at[name] = at.pop(key)
    else:
        random.shuffle(at)


def _add(at: Any, key: Any, random: Random) -> None:
    """Add a member that Kubernetes or gpu-usher reads, or one of a future version."""
    inside = at[key] if isinstance(at[key], dict) else at
    if isinstance(inside, dict):
        name = random.choice(KEYS) if random.random() < 0.8 else f"future{random.randrange(9)}"
        inside[name] = _fresh(random.choice(SCALARS if random.random() < 0.6 else QUANTITIES))
    else:
        inside.insert(random.randrange(len(inside) + 1), _fresh(random.choice(SCALARS)))


def _annotate(at: Any, key: Any, random: Random) -> None:
    """Add an annotation of gpu-usher with nearly valid words, on the nearest pod if there is one."""
    inside: Any = at[key]
    while isinstance(inside, dict) and not isinstance(inside.get("metadata"), dict):
        inside = next(
            (inside[name] for name in ("request", "object", "Pod", "pod", "template") if name in inside), None
        )
    metadata: Any = inside["metadata"] if isinstance(inside, dict) else {}
    if not isinstance(metadata.get("annotations"), dict):
        metadata["annotations"] = {}
    for _ in range(random.choice((1, 2, 5))):
        metadata["annotations"][f"gpu-usher.io/{random.choice(ANNOTATIONS)}"] = phrase(random)
    if not isinstance(inside, dict):
        at[key] = phrase(random)


def _transplant(at: Any, key: Any, random: Random) -> None:
    """Swap the values of two neighbours."""
    other = random.choice(list(at)) if isinstance(at, dict) else random.randrange(len(at))
    at[key], at[other] = at[other], at[key]


def phrase(random: Random) -> str:
    """Write tokens of the annotations' grammar in any order."""
    return "".join(random.choices(GRAMMAR, k=random.choice((1, 1, 2, 3, 5, 40))))


def _fresh(value: Any) -> Any:
    """Copy a value, so that a later change does not reach the original."""
    return msgspec.json.decode(msgspec.json.encode(value)) if isinstance(value, dict | list) else value


_CHANGES: Sequence[Callable[[Any, Any, Random], None]] = (
    _replace, _replace, _quantity, _drop, _duplicate, _retype, _nest, _rename, _add, _add, _annotate, _transplant,
)  # fmt: skip


def changed_bytes(seed: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Flip, cut, splice or repeat bytes at one to three places."""
    changed = seed
    for _ in range(random.choice((1, 1, 2, 3))):
        changed = _change_bytes(changed, others, random)
    return changed


def _change_bytes(seed: bytes, others: Sequence[bytes], random: Random) -> bytes:
    start, end = sorted((random.randrange(len(seed) + 1), random.randrange(len(seed) + 1)))
    near = min(end, start + random.randrange(1, 40))
    match random.randrange(6):
        case 0:
            flipped = bytes(
                byte ^ (1 << random.randrange(8)) for byte in seed[start : start + random.choice((1, 1, 4))]
            )
            return seed[:start] + flipped + seed[start + len(flipped) :]
        case 1:
            return seed[:start] if random.random() < 0.3 else seed[:start] + seed[near:]
        case 2:
            other = random.choice(others)
            return seed[:start] + other[random.randrange(len(other) + 1) :]
        case 3:
            return seed[:start] + seed[start:near] * random.choice((2, 3, 100)) + seed[near:]
        case 4:
            return seed[:start] + random.choice(list(RAW.values())) + seed[near:]
        case _:
            return seed[:start] + random.randbytes(random.choice((1, 2, 8))) + seed[start:]
