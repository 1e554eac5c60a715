# SPDX-License-Identifier: Apache-2.0
"""Instance types: the GPUs of a cloud's machine types, by exact name or by a pattern for a family of types."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class InstanceType:
    """Machine types with the same GPUs; `pattern` matches the whole name of a type.

    `products` is the product, or the candidates for it. `memory_mib` is the memory of one GPU of the machine in MiB,
    where it differs from that of the product; otherwise it is None.
    """

    pattern: re.Pattern[str]
    products: tuple[str, ...]
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class InstanceTypes:
    """All machine types, of which the first row that matches counts; `key` is the node label with the machine type."""

    key: str
    rows: tuple[InstanceType, ...]

    def of(self, labels: Mapping[str, str]) -> InstanceType | None:
        """Find the row for a node; None if its labels have no machine type, or an unknown one."""
        name = labels.get(self.key)
        return self.find(name) if name else None

    def find(self, name: str) -> InstanceType | None:
        """Find the row of a machine type; None if it is unknown."""
        return next((row for row in self.rows if row.pattern.fullmatch(name)), None)


def load_instance_types(document: Mapping[str, Any]) -> InstanceTypes:
    """Read `instance_types` of clouds.yaml."""
    return InstanceTypes(document["key"], tuple(map(_row, document["rows"])))


def _row(row: Mapping[str, Any]) -> InstanceType:
    return InstanceType(type_pattern(row["types"]), tuple(row["products"]), row.get("memory_mib"))


def type_pattern(types: Iterable[str]) -> re.Pattern[str]:
    """Compile names of machine types, in which `*` stands for any run of characters, into one pattern."""
    return re.compile("|".join("[^/]*".join(map(re.escape, text.split("*"))) for text in types))
