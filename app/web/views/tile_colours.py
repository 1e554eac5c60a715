# SPDX-License-Identifier: Apache-2.0
"""The colours of held cells on the fleet map: by the namespace that holds them, or by how active they are.

A mark is a colour with a text, so that no colour must be distinguished from another. Only a map that is asked for
colours has marks; the plain map knows nothing of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from zlib import crc32

from app.knowledge.mig_profiles import profile_of
from app.kube.gpu_usage import GPUUsage
from app.nodes.model import SHARES, Node
from app.usage.table import HeldUnit


class Colouring(Enum):
    """What the colour of a held cell says; the words of the parameter `colour` of the page."""

    State = "state"
    Namespace = "namespace"
    Activity = "activity"


@dataclass(frozen=True, slots=True)
class Mark:
    """How a held cell is shown: the class of its colour in page.css, its text, and its words in the legend."""

    colour: str
    text: str
    words: str


SLOTS = 8
"""Namespaces with a colour of their own. Paul Tol's scheme "light" has eight colours and a grey, which people with any
colour vision tell apart under black letters (SRON/EPS/TN/09-002, issue 3.2, 2021, section 2)."""
OTHER_NAMESPACE = Mark("c8", "+", "other namespaces")
SEVERAL = Mark("c9", "*", "several namespaces")
STEPS: Sequence[tuple[float, Mark]] = (
    (0.25, Mark("a1", "<25", "less than 25 % active")),
    (0.50, Mark("a2", "25+", "25 % and more")),
    (0.75, Mark("a3", "50+", "50 % and more")),
    (float("inf"), Mark("a4", "75+", "75 % and more")),
)
"""The activity below which a mark stands, as a share of one. The colours are five of viridis, whose lightness rises
evenly for any colour vision; the brightest is for idle GPUs, as these are looked for."""
IDLE = Mark("a0", "0", "idle for certain")
UNKNOWN = Mark("q", "?", "activity unknown")
ACTIVITIES = (IDLE, *(mark for _, mark in STEPS), UNKNOWN)


class HeldMarks:
    """The marks of the held cells of one node, by resource; "" stands for GPUs that DRA shows one by one."""

    def __init__(self, marks: Mapping[str, Iterable[Mark]], otherwise: Mark) -> None:
        self._left = {resource: iter(some) for resource, some in marks.items()}
        self._otherwise = otherwise

    def known(self, resource: str, count: int) -> list[Mark]:
        """Take the next marks of a resource; fewer where fewer are known."""
        return list(islice(self._left.get(resource, iter(())), max(count, 0)))

    def take(self, resource: str, count: int) -> list[Mark]:
        """Take the next marks of a resource, so many as cells."""
        marks = self.known(resource, count)
        return marks + [self._otherwise] * (count - len(marks))


@dataclass(frozen=True, slots=True)
class TileColours:
    """The colouring of a map. `slots` are the colours of namespaces, `units` what is known of use by node.

    `poll` is the number of the poll that it comes from.
    """

    by: Colouring
    slots: Mapping[str, int]
    units: Mapping[str, Sequence[HeldUnit]]
    poll: int = 0

    @property
    def stamp(self) -> str:
        """A text that differs where tiles that have not changed would be coloured otherwise."""
        if self.by is Colouring.Activity:
            return str(self.poll if self.units else 0)
        return format(crc32(repr(sorted(self.slots.items())).encode()), "x")

    @property
    def legend(self) -> tuple[Mark, ...]:
        """The marks that may be on the map."""
        if self.by is Colouring.Activity:
            return ACTIVITIES
        named = sorted(self.slots, key=lambda namespace: self.slots[namespace])
        others = (OTHER_NAMESPACE,) if len(named) == SLOTS else ()
        return (*(self._of(namespace) for namespace in named), *others, SEVERAL)

    def marks(self, node: Node, usages: Sequence[GPUUsage], claimed: Mapping[str, int]) -> HeldMarks:
        """Return the marks of a node. `claimed` is the number of devices that claims have, by namespace."""
        if self.by is Colouring.Activity:
            units = current_units(self.units.get(node.name, ()), usages, claimed)
            return HeldMarks(_activities(node, units), UNKNOWN)
        return HeldMarks(self._namespaces(node, usages, claimed), SEVERAL)

    def words(self, node: Node, usages: Sequence[GPUUsage], claimed: Mapping[str, int]) -> str:
        """Describe the activity on a node; empty for colours by namespace, which a tile names anyway."""
        if self.by is not Colouring.Activity:
            return ""
        marks = [activity_mark(unit) for unit in current_units(self.units.get(node.name, ()), usages, claimed)]
        counts = ((marks.count(mark), mark.words) for mark in ACTIVITIES)
        return "".join(f"; {count} {words}" for count, words in counts if count)

    def _of(self, namespace: str) -> Mark:
        slot = self.slots.get(namespace)
        return OTHER_NAMESPACE if slot is None else Mark(f"c{slot}", chr(ord("A") + slot), namespace)

    def _namespaces(
        self, node: Node, usages: Sequence[GPUUsage], claimed: Mapping[str, int]
    ) -> Mapping[str, Sequence[Mark]]:
        marks: dict[str, list[Mark]] = {}
        for usage in sorted(usages, key=lambda usage: usage.name):
            mark = self._of(usage.name.partition("/")[0])
            for resource, amount in usage.units:
                marks.setdefault(resource, []).extend([mark] * amount)
        for resource in marks:
            if node.node_class.unit(resource) in SHARES:
                marks[resource] = [mark if len(set(marks[resource])) == 1 else SEVERAL for mark in marks[resource]]
        devices = [self._of(namespace) for namespace in sorted(claimed) for _ in range(claimed[namespace])]
        mixed = bool(node.free.layouts) and len(set(devices)) > 1  # which slice is whose is not known
        return marks | {"": [SEVERAL] * len(devices) if mixed else devices}


def read_colouring(query: Mapping[str, str]) -> Colouring:
    """Read what to colour by from the query of an address; anything else is the plain map."""
    asked = query.get("colour", "")
    return next((colouring for colouring in Colouring if colouring.value == asked), Colouring.State)


def slots_of(holders: Mapping[str, int]) -> Mapping[str, int]:
    """Give colours to the namespaces that hold GPUs on most nodes.

    A namespace has the same colour at any time and in any replica, unless its place is taken by one before it in the
    alphabet.
    """
    most = sorted(holders, key=lambda namespace: (-holders[namespace], namespace))[:SLOTS]
    slots: dict[str, int] = {}
    for namespace in sorted(most):
        first = crc32(namespace.encode()) % SLOTS
        slots[namespace] = next(slot for step in range(SLOTS) if (slot := (first + step) % SLOTS) not in slots.values())
    return slots


def current_units(
    units: Iterable[HeldUnit], usages: Iterable[GPUUsage], claimed: Mapping[str, int]
) -> tuple[HeldUnit, ...]:
    """Return the units of a poll that are still held, one for each device; of a shared one the most active holder."""
    pods = {usage.name for usage in usages}
    devices: dict[tuple[str, str], HeldUnit] = {}
    for unit in units:
        if f"{unit.namespace}/{unit.pod}" in pods or unit.namespace in claimed:
            before = devices.get(unit.device)
            if before is None or (before.activity or 0.0) < (unit.activity or 0.0):
                devices[unit.device] = unit
    return tuple(devices.values())


def activity_mark(unit: HeldUnit) -> Mark:
    """Return the mark of a unit: idle where that is certain, and unknown where the activity is."""
    if unit.idle_seconds > 0:
        return IDLE
    activity = unit.activity
    return UNKNOWN if activity is None else next(mark for below, mark in STEPS if activity < below)


def _activities(node: Node, units: Iterable[HeldUnit]) -> Mapping[str, Iterable[Mark]]:
    """Give the marks by resource, the idle ones first: which of a node's cells is which GPU is not known."""
    by_profile: dict[str, list[Mark]] = {}
    for unit in units:
        by_profile.setdefault(unit.profile, []).append(activity_mark(unit))
    for marks in by_profile.values():
        marks.sort(key=ACTIVITIES.index)
    if not node.node_class.offered:
        return {"": [mark for profile in sorted(by_profile) for mark in by_profile[profile]]}
    resources = (resource for resource, _ in node.node_class.offered)
    left = {profile: iter(marks) for profile, marks in by_profile.items()}
    return {resource: left.get(profile_of(resource) or node.node_class.mig_profile or "", ()) for resource in resources}
