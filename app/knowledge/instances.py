# SPDX-License-Identifier: Apache-2.0
"""Instance types: which GPUs a machine type of a cloud has, by its exact name or by a pattern of its family."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class InstanceType:
    """Machine types that have the same GPUs. `pattern` matches the whole name of a type.

    `products`: one, or the several that it may be. `memory_mib`: of one GPU as the machine shows it, where that is not
    the product's; None where it is.
    """

    pattern: re.Pattern[str]
    products: tuple[str, ...]
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class InstanceTypes:
    """All rows; the first that matches counts. `key`: the node label that names the machine type."""

    key: str
    rows: tuple[InstanceType, ...]

    def of(self, labels: Mapping[str, str]) -> InstanceType | None:
        """Find the row of a node; None if its labels name no machine type, or an unknown one."""
        name = labels.get(self.key)
        return self.find(name) if name else None

    def find(self, name: str) -> InstanceType | None:
        """Find the row of a machine type; None if it is unknown."""
        return next((row for row in self.rows if row.pattern.fullmatch(name)), None)


def load_instance_types(document: Mapping[str, Any]) -> InstanceTypes:
    """Read `instance_types` of clouds.yaml."""
    return InstanceTypes(document["key"], tuple(map(_row, document["rows"])))


def _row(row: Mapping[str, Any]) -> InstanceType:
    patterns = ("[^/]*".join(map(re.escape, text.split("*"))) for text in row["types"])
    return InstanceType(re.compile("|".join(patterns)), tuple(row["products"]), row.get("memory_mib"))
