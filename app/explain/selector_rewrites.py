# SPDX-License-Identifier: Apache-2.0
"""How a selector that fails would have to be written: another name, another type, `has()` before what some lack.

Each rewriting is a guess from what the devices have; the allocator proves it before a person sees it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from fractions import Fraction

from app.dra.attributes import SemanticVersion
from app.dra.cel_comparisons import Comparison
from app.dra.cel_facts import Read, read_fact
from app.dra.devices import Device
from app.dra.error_words import ORDERED
from app.dra.selectors import Part, written_conditions
from app.dra.words import failing_parts, name_of, number_of

CLOSE_NAMES = 2
"""Names like a misspelt one that are tried."""
Rewriting = tuple[str, str, str]
"""A condition as it is written, the condition in its place, and in words what to do."""


def rewritings(expression: str, devices: Sequence[Device]) -> Iterator[Rewriting]:
    """Propose rewritings of the conditions of a selector that fail on some device, or that keep it from compiling."""
    for text, comparison in written_conditions(expression):
        if comparison is not None:
            yield from retyped(text, comparison, devices)
    failed = {
        part.text: part for device in devices for part in failing_parts(expression, device) if part.judgement.error
    }
    for part in failed.values():
        yield from _renamed(part, devices)
        yield from _guarded(part)
    if len(failed) > 1:
        yield from _all_guarded(expression, failed.values())


def retyped(text: str, comparison: Comparison, devices: Sequence[Device]) -> Iterator[Rewriting]:
    """Write a comparison as the type of the fact needs it: of versions with semver(), of amounts with quantity()."""
    values = (read_fact(device, comparison.fact) for device in devices)
    value = next((value for value in values if value is not None), None)
    literal = typed_literal(value, comparison.wanted)
    if literal is not None and comparison.operator in ORDERED:
        new = f"{path_of(comparison.fact)}.compareTo({literal}) {comparison.operator} 0"
        if new != text:
            yield text, new, f"compare {name_of(comparison.fact)} as {new}"


def typed_literal(value: object, wanted: object) -> str | None:
    """Write what is wanted in the type of a fact; None where that needs no function, or cannot be."""
    if isinstance(value, SemanticVersion):
        fields = str(wanted).split(".")
        if not 1 <= len(fields) <= 3 or not all(map(str.isdecimal, fields)):
            return None
        return f"semver('{'.'.join(str(int(field)) for field in (*fields, '0', '0')[:3])}')"
    if isinstance(value, Fraction) and number_of(wanted) is not None:
        return f"quantity('{wanted}{GIBIBYTES if isinstance(wanted, int) and wanted < BYTES else ''}')"
    return None


GIBIBYTES, BYTES = "Gi", 1 << 20
"""A bare number this small is meant as gibibytes: no device has less than a megabyte."""


def path_of(read: Read) -> str:
    """Write a fact as CEL."""
    domain, _, name = read.name.partition("/")
    return f"device.{read.group}['{domain}'].{name}"


def _renamed(part: Part, devices: Sequence[Device]) -> Iterator[Rewriting]:
    """Read a fact that devices have in place of one that they lack: of another domain, or of a similar name."""
    missing = next((read for read, value in part.facts if value is None and read.name), None)
    if missing is None:
        return
    for other in dict.fromkeys(_similar(missing, devices)):
        new = part.text
        for written in _path_pattern(missing).findall(part.text):
            new = new.replace(written, path_of(other))
        if new != part.text:
            yield part.text, new, f"read {path_of(other)} instead of {missing.name}"


def _similar(missing: Read, devices: Sequence[Device]) -> Iterator[Read]:
    name = missing.name.rpartition("/")[2]
    facts = {Read("attributes", key) for device in devices for key in device.attributes}
    facts |= {Read("capacity", key) for device in devices for key in device.capacity}
    yield from sorted(fact for fact in facts if fact.name.rpartition("/")[2].lower() == name.lower())
    of_kind = {fact.name.rpartition("/")[2]: fact for fact in sorted(facts) if fact.group == missing.group}
    yield from (of_kind[close] for close in get_close_matches(name, of_kind, CLOSE_NAMES))


def _path_pattern(read: Read) -> re.Pattern[str]:
    """Match a fact as people write it: with single or double quotes, and its name behind a dot or in brackets."""
    domain, _, name = (re.escape(part) for part in read.name.partition("/"))
    tail = rf"(?:\.{name}\b|\[\s*['\"]{name}['\"]\s*\])"
    return re.compile(rf"device\.{read.group}\[\s*['\"]{domain}['\"]\s*\]{tail}")


def _guarded(part: Part) -> Iterator[Rewriting]:
    """Ask whether a device has what a condition reads, before it is read."""
    missing = _missing(part)
    if missing:
        guard = " && ".join(f"has({path_of(read)})" for read in missing)
        names = " and ".join(map(name_of, missing))
        yield part.text, f"{guard} && ({part.text})", f"test {guard} before {names} {_is(missing)} read"


def _all_guarded(expression: str, parts: Iterable[Part]) -> Iterator[Rewriting]:
    """Ask first whether a device has all that several conditions read."""
    missing = sorted({read for part in parts for read in _missing(part)})
    whole = " ".join(expression.split())
    if missing:
        guard = " && ".join(f"has({path_of(read)})" for read in missing)
        names = " and ".join(map(name_of, missing))
        yield whole, f"{guard} && ({whole})", f"test {guard} before {names} {_is(missing)} read"


def _missing(part: Part) -> list[Read]:
    return [read for read, value in part.facts if value is None and read.name]


def _is(reads: Sequence[Read]) -> str:
    return "is" if len(reads) == 1 else "are"
