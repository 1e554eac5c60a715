# SPDX-License-Identifier: Apache-2.0
"""Resource families: which resource names ask for a GPU, and which taint keys guard such nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """One vendor's resources. `whole` is the resource that means a whole GPU where nothing shares it.

    `device_classes`: the DeviceClasses of the vendor's DRA driver that give GPUs; that of whole GPUs first.
    """

    name: str
    resources: frozenset[str]
    prefixes: tuple[str, ...]
    whole: str
    taint_keys: tuple[str, ...]
    device_classes: tuple[str, ...] = ()

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

    def of_device_class(self, name: str) -> Family | None:
        """Find the family of a DeviceClass; None if it gives no GPU, or is one of the cluster's own making."""
        return next((family for family in self.all if name in family.device_classes), None)

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
            device_classes=tuple(row.get("device_classes", ())),
        )
        for row in rows
    )
    return Families(families, tuple(infrastructure_namespaces))
