# SPDX-License-Identifier: Apache-2.0
"""Reads ResourceSlices of resource.k8s.io/v1, v1beta2 and v1beta1.

Only v1beta1 wraps the fields of a device in `basic` (k8s.io/api resource/v1beta1 types.go BasicDevice).
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from sys import intern
from typing import Any, cast

from app.kube.devices import (
    NOTHING,
    Attribute,
    Attributes,
    CapacityPolicy,
    CounterUse,
    Device,
    DeviceTaint,
    NodeSelection,
    ResourceSlice,
    SemanticVersion,
)
from app.kube.node_selectors import read_terms
from app.values.errors import MalformedPod, OversizedPod, QuantityError
from app.values.json_members import json_type, member, objects
from app.values.quantity import parse_quantity

MOST_DEVICES = 128
MOST_TAINTS = 16
"""Of a slice, and of a device (k8s.io/api resource/v1 types.go ResourceSliceMaxDevices, DeviceTaintsMaxLength)."""
MOST_ENTRIES = 64
"""Attributes, capacities or counters of a device. Kubernetes allows 32 attributes and capacities together, and 32
counters (types.go ResourceSliceMaxAttributesAndCapacitiesPerDevice); a guess at what later versions may allow."""
MOST_COUNTER_SETS = 256
"""Counter sets of a slice. Kubernetes allows 8 in v1.36 and 32 counters in all before; a guess above both."""


def read_slice(document: Mapping[str, Any]) -> ResourceSlice:
    """Read a ResourceSlice of any driver.

    Raises MalformedPod, OversizedPod, QuantityError.
    """
    metadata = member(document, "metadata", dict, "") or {}
    spec = member(document, "spec", dict, "") or {}
    pool = member(spec, "pool", dict, "spec.") or {}
    driver = intern(member(spec, "driver", str, "spec.") or "")
    name = intern(member(pool, "name", str, "spec.pool.") or "")
    per_device = member(spec, "perDeviceNodeSelection", bool, "spec.") or False
    items = objects(spec, "devices", "spec.", MOST_DEVICES)
    return ResourceSlice(
        name=member(metadata, "name", str, "metadata.") or "",
        driver=driver,
        pool=name,
        generation=member(pool, "generation", int, "spec.pool.") or 0,
        size=member(pool, "resourceSliceCount", int, "spec.pool.") or 0,
        nodes=_node_selection(spec, "spec."),
        per_device_nodes=per_device,
        devices=tuple(_device(item, index, driver, name, per_device) for index, item in items),
        counter_sets=tuple(_counter_sets(spec)),
    )


def _node_selection(parent: Mapping[str, Any], where: str) -> NodeSelection | None:
    """Read which nodes can reach the devices; None where none of the three known fields is set."""
    name = member(parent, "nodeName", str, where) or ""
    everywhere = member(parent, "allNodes", bool, where) or False
    selector = member(parent, "nodeSelector", dict, where)
    if not (name or everywhere) and selector is None:
        return None
    return NodeSelection(intern(name), everywhere, None if selector is None else read_terms(selector))


def _counter_sets(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Fraction]]]:
    for index, item in objects(spec, "sharedCounters", "spec.", MOST_COUNTER_SETS):
        where = f"spec.sharedCounters[{index}]."
        yield member(item, "name", str, where) or "", _amounts(item, "counters", where)


def _device(item: Mapping[str, Any], index: int, driver: str, pool: str, per_device: bool) -> Device:
    where = f"spec.devices[{index}]."
    body = member(item, "basic", dict, where) or item
    policies = _policies(body, where)
    return Device(
        driver=driver,
        pool=pool,
        name=member(item, "name", str, where) or "",
        attributes=_attributes(body, driver, where),
        amounts=_amounts(body, "capacity", where),
        policies=policies or None,
        counters=tuple(_counters(body, where)),
        taints=tuple(read_taint(taint) for _, taint in objects(body, "taints", where, MOST_TAINTS)),
        nodes=_node_selection(body, where) if per_device else None,
        allow_multiple_allocations=member(body, "allowMultipleAllocations", bool, where) or False,
        waits_for_driver=bool(member(body, "bindingConditions", list, where)),
    )


def read_taint(item: Mapping[str, Any]) -> DeviceTaint:
    """Read a taint of a device or of a DeviceTaintRule. Raises MalformedPod."""
    key, value, effect = (intern(member(item, name, str, "taint.") or "") for name in ("key", "value", "effect"))
    return DeviceTaint(key, value, effect)


def _counters(body: Mapping[str, Any], where: str) -> Iterator[CounterUse]:
    for index, item in objects(body, "consumesCounters", where, MOST_ENTRIES):
        inside = f"{where}consumesCounters[{index}]."
        yield CounterUse(intern(member(item, "counterSet", str, inside) or ""), _amounts(item, "counters", inside))


def _entries(parent: Mapping[str, Any], key: str, where: str) -> Iterator[tuple[str, Any]]:
    """Read a map, names with a domain last, so that they win over the same name without it, as in the allocator."""
    entries = member(parent, key, dict, where) or {}
    if len(entries) > MOST_ENTRIES:
        raise OversizedPod(f"{where}{key}: got {len(entries)} entries, wants at most {MOST_ENTRIES}")
    if "/" not in "".join(entries):
        return iter(entries.items())
    return iter(sorted(entries.items(), key=lambda entry: "/" in entry[0]))


def _attributes(body: Mapping[str, Any], driver: str, where: str) -> Mapping[str, Attribute]:
    values = {
        name: value for name, item in _entries(body, "attributes", where) if (value := _attribute(item)) is not None
    }
    return Attributes(_positions(driver, tuple(values)), tuple(values.values()))


@lru_cache(1024)
def _positions(driver: str, names: tuple[str, ...]) -> Mapping[str, int]:
    """Number names with their domain, which is the driver where a name has none (types.go QualifiedName)."""
    return {intern(name if "/" in name else f"{driver}/{name}"): position for position, name in enumerate(names)}


_TYPES: Mapping[str, type] = {"version": str, "bool": bool, "int": int}
"""The fields of an attribute beside `string`, which most attributes have; the API server accepts one of all."""


def _attribute(item: object) -> Attribute | None:
    """Read the value of an attribute; None for a type that is not known, which no constraint can match."""
    if not isinstance(item, dict):
        return None
    text = item.get("string")
    if type(text) is str:
        return intern(text)
    for name, kind in _TYPES.items():
        value = item.get(name)
        if type(value) is kind:
            return _version(value) if isinstance(value, str) else cast("bool | int", value)
    lists = (item.get(name) for name in ("bools", "ints", "strings", "versions"))
    return next((tuple(values) for values in lists if isinstance(values, list) and values), None)


_version = lru_cache(4096)(SemanticVersion)


def _amounts(parent: Mapping[str, Any], key: str, where: str) -> Mapping[str, Fraction]:
    """Read quantities by name: as `{value: ...}`, or as plain quantities.

    Devices of one product have the same amounts, and share one object.
    """
    if not parent.get(key):
        return NOTHING
    entries = [
        (name, item.get("value") if isinstance(item, dict) else item) for name, item in _entries(parent, key, where)
    ]
    if all(isinstance(value, str) for _, value in entries):
        try:
            return _shared_amounts(tuple(entries))
        except QuantityError:
            pass  # the loop below names the entry
    return {intern(name): quantity(value, f"{where}{key}[{name[:80]}]") for name, value in entries}


@lru_cache(4096)
def _shared_amounts(entries: tuple[tuple[str, str], ...]) -> Mapping[str, Fraction]:
    return {intern(name): _parsed(value) for name, value in entries}


def quantity(item: object, where: str) -> Fraction:
    """Read a quantity, which may be wrapped in `value`, and in JSON may be a number.

    Raises MalformedPod, QuantityError.
    """
    value = item.get("value") if isinstance(item, dict) else item
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise MalformedPod(f"{where}: got {json_type(value)}, wants a quantity")
    return _parsed(value) if isinstance(value, str) else Fraction(value)


_parsed = lru_cache(4096)(parse_quantity)


def _policies(body: Mapping[str, Any], where: str) -> dict[str, CapacityPolicy]:
    items = ((name, item) for name, item in _entries(body, "capacity", where) if isinstance(item, dict))
    policies = ((name, member(item, "requestPolicy", dict, f"{where}capacity[{name[:80]}].")) for name, item in items)
    return {intern(name): _policy(policy, where) for name, policy in policies if policy is not None}


def _policy(policy: Mapping[str, Any], where: str) -> CapacityPolicy:
    where += "requestPolicy."
    valid_range = member(policy, "validRange", dict, where) or {}

    def amount(parent: Mapping[str, Any], key: str) -> Fraction | None:
        return None if parent.get(key) is None else quantity(parent[key], where + key)

    values = member(policy, "validValues", list, where) or []
    return CapacityPolicy(
        default=amount(policy, "default"),
        values=tuple(quantity(value, f"{where}validValues") for value in values[:MOST_ENTRIES]),
        minimum=amount(valid_range, "min"),
        maximum=amount(valid_range, "max"),
        step=amount(valid_range, "step"),
    )
