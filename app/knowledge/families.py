# SPDX-License-Identifier: Apache-2.0
"""Resource families: which resource names ask for a GPU, and which taint keys guard such nodes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""Name of a namespace, a DNS label (RFC 1123)."""
PREFIX = "deviceclass.resource.kubernetes.io/"
"""Of resource names that name a DeviceClass (k8s.io/api resource/v1 ResourceDeviceClassPrefix)."""


@dataclass(frozen=True, slots=True)
class Family:
    """One vendor's resources. `whole` is the resource that means a whole GPU where nothing shares it.

    `device_classes`: the DeviceClasses of the vendor's DRA driver that give GPUs; that of whole GPUs first.
    `passthrough`: a regular expression (RE2) of names that give GPUs to virtual machines; empty is none.
    """

    name: str
    resources: frozenset[str]
    prefixes: tuple[str, ...]
    whole: str
    taint_keys: tuple[str, ...]
    device_classes: tuple[str, ...] = ()
    passthrough: str = ""

    def has(self, resource: str) -> bool:
        """Tell whether a resource name belongs to the family."""
        return resource in self.resources or resource.startswith(self.prefixes)


@lru_cache(maxsize=4096)
def fullmatch(pattern: str, name: str) -> bool:
    """Match a whole name, remembered: pods name few resources."""
    return re.fullmatch(pattern, name) is not None


@dataclass(frozen=True, slots=True)
class Families:
    """All families, and the namespaces that run the vendors' own operands.

    `device_class_prefix`: of the resource names by which devices of a DeviceClass are asked for without a claim.
    """

    all: tuple[Family, ...]
    infrastructure_namespaces: tuple[str, ...]
    device_class_prefix: str = PREFIX

    def of(self, resource: str) -> Family | None:
        """Find a resource's family; None if it is no GPU resource."""
        if "/" not in resource:
            return None
        return next((family for family in self.all if family.has(resource)), None)

    def hands_on(self, resource: str) -> Family | None:
        """Find the family of a resource that gives GPUs to virtual machines; guards count it, no container has it."""
        if self.of(resource) is not None:
            return None
        return next((each for each in self.all if each.passthrough and fullmatch(each.passthrough, resource)), None)

    def implicit_class(self, resource: str) -> str | None:
        """Give the DeviceClass that a resource name names itself (KEP-5004); None where it names none."""
        named = resource.startswith(self.device_class_prefix)
        return resource.removeprefix(self.device_class_prefix) if named else None

    def of_device_class(self, name: str) -> Family | None:
        """Find the family of a DeviceClass; None if it gives no GPU, or is one of the cluster's own making."""
        return next((family for family in self.all if name in family.device_classes), None)

    def infrastructure(self, namespace: str) -> bool:
        """Tell whether a namespace is exempt by its name."""
        return namespace in self.infrastructure_namespaces


def load_families(
    rows: Iterable[Mapping[str, Any]], infrastructure_namespaces: Iterable[str], device_class_prefix: str = PREFIX
) -> Families:
    """Read families.yaml.

    Raises ValueError for an exempt namespace that is no name: behind a prefix anybody could stand.
    """
    namespaces = tuple(infrastructure_namespaces)
    for name in namespaces:
        if not _LABEL.fullmatch(name):
            raise ValueError(f"infrastructure_namespaces: got {name!r}, wants the exact name of a namespace")
    families = tuple(
        Family(
            name=row["name"],
            resources=frozenset(row["resources"]),
            prefixes=tuple(row["prefixes"]),
            whole=row["whole"],
            taint_keys=tuple(row["taint_keys"]),
            device_classes=tuple(row.get("device_classes", ())),
            passthrough=row.get("passthrough", ""),
        )
        for row in rows
    )
    return Families(families, namespaces, device_class_prefix)
