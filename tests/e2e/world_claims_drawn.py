# SPDX-License-Identifier: Apache-2.0
"""Draws claims for the devices of a recorded world: each condition reads what its driver publishes (S13, F135)."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from app.dra.selectors import compile_selector
from app.kube.devices import ResourceSlice
from app.kube.records import read_record
from app.values.quantity import parse_quantity
from tests.controlplane.kubectl import Object


class Fact(NamedTuple):
    """An attribute or a capacity of one device: how CEL reads it, whether it is there, its type and its value."""

    read: str
    there: str
    optional: str
    kind: str
    value: Any


ZERO: Mapping[str, str] = {"string": "''", "int": "0", "bool": "false", "version": "semver('0.0.0')"}
"""What a condition takes for an attribute that is not there."""


def facts_of(device: Object, driver: str) -> Iterator[Fact]:
    """List what a device publishes; a name without a domain is in that of its driver."""
    for name, typed in (device.get("attributes") or {}).items():
        domain, _, own = name.rpartition("/")
        group = f"device.attributes['{domain or driver}']"
        (kind, value) = next(iter(typed.items()))
        yield Fact(f"{group}.{own}", f"'{own}' in {group}", f"{group}.?{own}", kind, value)
    for name, capacity in (device.get("capacity") or {}).items():
        domain, _, own = name.rpartition("/")
        group = f"device.capacity['{domain or driver}']"
        yield Fact(f"{group}.{own}", f"has({group}.{own})", f"{group}.?{own}", "quantity", capacity["value"])


def _strings(read: str, value: str, chance: random.Random) -> list[str]:
    part = value[: chance.randint(1, len(value))] if value else ""
    return [
        f"{read} == '{value}'",
        f"{read} != '{value}'",
        f"{read} in ['none', '{value}']",
        f"{read}.startsWith('{part}')",
        f"{read}.lowerAscii().contains('{value[-3:].lower()}')",
        f"{read}.matches('^[A-Z].*{value[-1:]}$')",
        f"{read}.lowerAscii().endsWith('{value[-2:].lower()}')",
    ]


def _integers(read: str, value: int, _chance: random.Random) -> list[str]:
    return [f"{read} == {value}", f"{read} > {value}", f"{read} <= {value}", f"{read} in [{value}, {value + 2}]"]


def _booleans(read: str, value: bool, _chance: random.Random) -> list[str]:
    return [read, f"!{read}", f"{read} == {str(value).lower()}"]


def _versions(read: str, value: str, _chance: random.Random) -> list[str]:
    later = f"{int(value.partition('.')[0]) + 1}.0.0"
    return [
        f"{read}.isGreaterThan(semver('{value}'))",
        f"{read}.isLessThan(semver('{later}'))",
        f"{read}.compareTo(semver('{value}')) >= 0",
        f"{read} == semver('{value}')",
        f"{read}.major() == semver('{value}').major()",
    ]


def _quantities(read: str, value: str, chance: random.Random) -> list[str]:
    amount = f"quantity('{share_of(value, chance)}')"
    return [
        f"{read}.compareTo({amount}) >= 0",
        f"{read}.isGreaterThan({amount})",
        f"{read}.isLessThan({amount})",
        f"{read}.compareTo(quantity('{value}')) == 0",
    ]


CONDITIONS: Mapping[str, Callable[[str, Any, random.Random], list[str]]] = {
    "string": _strings,
    "int": _integers,
    "bool": _booleans,
    "version": _versions,
    "quantity": _quantities,
}


def share_of(value: str, chance: random.Random) -> str:
    """Draw an amount around a capacity: parts of it, amounts that no step divides, and more than there is."""
    amount = parse_quantity(value) * Fraction(chance.choice((0, 1, 2, 3, 4, 4, 4, 5)), 4)
    whole = int(amount) + chance.choice((0, 0, 0, 1, 12345))
    return f"{whole // 2**20}Mi" if whole % 2**20 == 0 else str(whole)


@dataclass
class WorldClaims:
    """Draws the specs of claims by one seed. `slices` and `classes` are those of the world, as documents."""

    chance: random.Random
    slices: Sequence[Object]
    classes: Sequence[Object]
    _devices: list[tuple[str, Object]] = field(init=False)
    _of_class: dict[str, list[tuple[str, Object]]] = field(init=False)

    def __post_init__(self) -> None:
        pairs = [(one["spec"]["driver"], device) for one in self.slices for device in one["spec"].get("devices") or ()]
        read = [device for one in self.slices for device in read_record(ResourceSlice, one).devices]
        self._devices = pairs
        self._of_class = {}
        for one in self.classes:
            selectors = [compile_selector(entry["cel"]["expression"]) for entry in one["spec"].get("selectors") or ()]
            self._of_class[one["metadata"]["name"]] = [
                pair
                for pair, device in zip(pairs, read, strict=True)
                if all(selector.judge(device).matches for selector in selectors)
            ]

    def spec(self) -> Object:
        """Draw the spec of one claim."""
        chance = self.chance
        requests = [self._request(f"r{number}") for number in range(chance.choice((1, 1, 1, 1, 2, 3)))]
        constraints = [self._constraint(requests) for _ in range(chance.choice((0, 0, 0, 0, 1, 1, 2)))]
        if "'All'" in repr(requests) and chance.random() < 0.8:
            constraints = []
        return {"devices": {"requests": requests, "constraints": constraints}}

    def _constraint(self, requests: Sequence[Object]) -> Object:
        chance = self.chance
        driver, device = chance.choice(self._devices)
        names = [name if "/" in name else f"{driver}/{name}" for name in device.get("attributes") or ()]
        kind = chance.choice(("matchAttribute", "matchAttribute", "distinctAttribute"))
        constraint: Object = {kind: chance.choice(names) if names and chance.random() < 0.97 else f"{driver}/none"}
        if chance.random() < 0.3:
            constraint["requests"] = [chance.choice(requests)["name"]]
        return constraint

    def _request(self, name: str) -> Object:
        chance = self.chance
        if chance.random() < 0.8:
            body = self._body()
            return {"name": name, "exactly": {**body, "adminAccess": True} if chance.random() < 0.08 else body}
        alternatives = [{"name": f"s{number}", **self._body()} for number in range(chance.randint(1, 3))]
        return {"name": name, "firstAvailable": alternatives}

    def _body(self) -> Object:
        chance = self.chance
        useful = [name for name, devices in self._of_class.items() if devices]
        name = chance.choice(useful) if chance.random() < 0.95 else chance.choice([*self._of_class, "missing"])
        devices = self._of_class.get(name) or self._devices
        body: Object = {"deviceClassName": name, "allocationMode": "ExactCount"}
        body["count"] = chance.choice((1, 1, 1, 1, 2, 2, 3, 4, 9)) if chance.random() < 0.99 else 33
        if chance.random() < 0.08:
            body = {"deviceClassName": name, "allocationMode": "All"}
        conditions = [self._selector(devices) for _ in range(chance.choice((0, 0, 0, 1, 1, 1, 2, 3)))]
        body["selectors"] = [{"cel": {"expression": condition}} for condition in conditions if condition]
        if chance.random() < 0.2:
            body["tolerations"] = [self._toleration()]
        capacities = chance.choice(devices)[1].get("capacity") or {}
        if capacities and chance.random() < 0.3:
            own = chance.choice(sorted(capacities))
            body["capacity"] = {"requests": {own: share_of(capacities[own]["value"], chance)}}
        return body

    def _toleration(self) -> Object:
        chance = self.chance
        taints = [taint for _, device in self._devices for taint in device.get("taints") or ()]
        taint = chance.choice(taints) if taints else {"key": "none", "value": "", "effect": "NoSchedule"}
        forms: list[Object] = [
            {"operator": "Exists"},
            {"operator": "Exists", "key": taint["key"]},
            {"operator": "Exists", "key": taint["key"], "effect": chance.choice(("NoSchedule", "NoExecute"))},
            {"operator": "Equal", "key": taint["key"], "value": taint.get("value", "")},
            {"operator": "Equal", "key": taint["key"], "value": "other"},
        ]
        return chance.choice(forms)

    def _selector(self, devices: Sequence[tuple[str, Object]]) -> str:
        """Draw a condition, or two; "" where a device publishes nothing to read."""
        chance = self.chance
        first = self._condition(devices if chance.random() < 0.9 else self._devices)
        if not first or chance.random() < 0.8:
            return first
        second = self._condition(devices)
        return chance.choice((f"({first}) && ({second})", f"({first}) || ({second})", f"!({first})"))

    def _condition(self, devices: Sequence[tuple[str, Object]]) -> str:
        chance = self.chance
        driver, device = chance.choice(devices)
        facts = list(facts_of(device, driver))
        if not facts:
            return "device.driver != ''"
        fact = chance.choice(facts)
        everywhere = all(any(other.read == fact.read for other in facts_of(one, of)) for of, one in devices)
        if chance.random() < (0.2 if everywhere else 0.5) and fact.kind in ZERO:
            read = f"{fact.optional}.orValue({ZERO[fact.kind]})"
            return chance.choice(CONDITIONS[fact.kind](read, fact.value, chance))
        condition = chance.choice(CONDITIONS[fact.kind](fact.read, fact.value, chance))
        return condition if everywhere or chance.random() < 0.1 else f"{fact.there} && {condition}"
