# SPDX-License-Identifier: Apache-2.0
"""Lookups of facts, fields, keys and indexes."""

from typing import Any

from app.dra.cel_errors import EvaluationError
from app.dra.cel_facts import Evaluate, Names, SelectableDevice, qualified, read_value
from app.dra.cel_operators import index
from app.dra.cel_paths import Path
from app.dra.cel_values import NONE, Optional, find


def fact_reader(path: Path, optional: bool) -> Evaluate:
    """Make the lookup of one attribute or capacity."""
    group, key, name = path[0], qualified(path[1], path[2]), path[2]
    is_attribute = group == "attributes"

    def look_up(device: SelectableDevice, _: Names) -> Any:
        value = (device.attributes if is_attribute else device.capacity).get(key)
        if value is None:
            raise EvaluationError(f"no such key: {name}")
        return value if type(value) in _PLAIN and is_attribute else read_value(group, value)

    def look_up_optional(device: SelectableDevice, names: Names) -> Any:
        entries = device.attributes if is_attribute else device.capacity
        return Optional(look_up(device, names)) if key in entries else NONE

    return look_up_optional if optional else look_up


_PLAIN = frozenset({str, int, bool})


def lookup(container: Any, field: Any) -> Any:
    """Look up a field; of an optional value it is optional, too."""
    return optional_lookup(container, field) if isinstance(container, Optional) else index(container, field)


def optional_lookup(container: Any, field: Any) -> Optional:
    """Look up a field that may not be there."""
    if isinstance(container, Optional):
        container = container.value
    present, value = find(container, field)
    return Optional(value) if present else NONE
