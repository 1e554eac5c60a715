# SPDX-License-Identifier: Apache-2.0
"""Resource families: which resource names ask for a GPU, and which taint keys guard such nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """One vendor's resources. `whole` is the resource that means a whole GPU where nothing shares it."""

    name: str
    resources: frozenset[str]
    prefixes: tuple[str, ...]
    whole: str
    taint_keys: tuple[str, ...]

    def has(self, resource: str) -> bool:
        """Tell whether a resource name belongs to the family."""
        return resource in self.resources or resource.startswith(self.prefixes)


@dataclass(frozen=True, slots=True)
class Families:
    """All families, and the namespaces that run the vendors' own operands."""

    all: tuple[Family, ...]
    infrastructure_namespaces: tuple[str, ...]

    def of(self, resource: str) -> Family | None:
        """Find a resource's family; None if it is no GPU resource."""
        if "/" not in resource:
            return None
        return next((family for family in self.all if family.has(resource)), None)

    def infrastructure(self, namespace: str) -> bool:
        """Tell whether a namespace is exempt by its name; a trailing `*` in the list is a prefix."""
        return any(
            namespace.startswith(name[:-1]) if name.endswith("*") else namespace == name
            for name in self.infrastructure_namespaces
        )


def load_families(rows: Iterable[Mapping[str, Any]], infrastructure_namespaces: Iterable[str]) -> Families:
    """Read families.yaml."""
    families = tuple(
        Family(
            name=row["name"],
            resources=frozenset(row["resources"]),
            prefixes=tuple(row["prefixes"]),
            whole=row["whole"],
            taint_keys=tuple(row["taint_keys"]),
        )
        for row in rows
    )
    return Families(families, tuple(infrastructure_namespaces))
