# SPDX-License-Identifier: Apache-2.0
"""What says that a node has GPUs, whether or not it offers any: labels of vendors, provisioners and clouds, as data."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from app.knowledge.clouds import Clouds, type_pattern
from app.knowledge.gpu_resources import Families, Family

MOST_COUNT_DIGITS = 4
"""Digits of a number of GPUs that is read."""
_SAYS_NOTHING = frozenset(("", "0", "false"))


@dataclass(frozen=True, slots=True)
class GPUPromise:
    """What a label says about the GPUs of one family on a node.

    `family` is the name of the family and `resource` its resource for whole GPUs. `label` is the key of the label and
    `by` the component that writes it. `count` is the number of GPUs, None where the label tells none. `machine` says
    that the number is that of the machine, by its maker.
    """

    family: str
    resource: str
    label: str
    by: str
    count: int | None = None
    machine: bool = False

    def concerns(self, resource: str) -> bool:
        """Tell whether a resource is of this family, by the domain of its name."""
        return resource.partition("/")[0] == self.resource.partition("/")[0]

    @property
    def words(self) -> str:
        """What is promised, and by which label."""
        gpus = f"{self.count} GPU{'s' * (self.count > 1)}" if self.count else "GPUs"
        return f"label {self.label} ({self.by}) promises {gpus}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A row of `labels`: the label `key`, or the labels whose keys start with `prefix`; see gpu_evidence.yaml."""

    key: str
    prefix: str
    by: str
    counts: bool
    machine: bool
    family: str
    family_key: str
    families: tuple[tuple[re.Pattern[str], str], ...]

    def keys(self, labels: Mapping[str, str]) -> Iterator[str]:
        """List the keys of a node's labels that the row is about."""
        if self.key in labels:
            yield self.key
        elif self.prefix:
            yield from sorted(key for key in labels if key.startswith(self.prefix))

    def family_of(self, key: str, labels: Mapping[str, str]) -> str:
        """Name the family whose GPUs the label is about; empty where its value means no GPUs."""
        text = labels.get(self.family_key or key, "").lower()
        return self.family or next((name for pattern, name in self.families if pattern.fullmatch(text)), "")


@dataclass(frozen=True, slots=True)
class Layer:
    """A row of `layers`: what the objects show about a node that offers none of its GPUs, and what to look at."""

    family: str
    any_of: tuple[tuple[str, re.Pattern[str]], ...]
    zero: bool
    says: str
    remedy: str

    def holds(self, labels: Mapping[str, str], zero: bool) -> bool:
        """Tell whether the row holds; `zero` says that the node has the family's resource with 0 units."""
        if self.zero and not zero:
            return False
        return not self.any_of or any(_has(labels, key, value) for key, value in self.any_of)


@dataclass(frozen=True, slots=True, eq=False)
class GPUEvidence:
    """The content of gpu_evidence.yaml, with the resources of the families that it names."""

    rows: tuple[Evidence, ...]
    pci_prefix: str
    pci_by: str
    pci: Mapping[str, Mapping[str, Any]]
    for_machines: tuple[tuple[str, frozenset[str], str], ...]
    machine_gpus: tuple[tuple[re.Pattern[str], int], ...]
    layers: tuple[Layer, ...]
    coming_up: frozenset[str]
    other_nodes: tuple[tuple[str, str, bool], ...]
    schedulers_without_gpus: Mapping[str, str]
    families: Mapping[str, Family]
    clouds: Clouds

    def is_other(self, labels: Mapping[str, str], virtual: bool = False) -> bool:
        """Tell whether labels are of a node without GPUs for device plugins, or, with `virtual`, of no machine."""
        return any(labels.get(key) == value and (is_virtual or not virtual)
                   for key, value, is_virtual in self.other_nodes)  # fmt: skip

    def keys(self) -> Iterator[str]:
        """List the keys of the labels that are read, without those that are known by a prefix."""
        for row in self.rows:
            yield from filter(None, (row.key, row.family_key))
        yield from (key for key, _, _ in self.for_machines)

    def prefixes(self) -> tuple[str, ...]:
        """List the prefixes of further keys."""
        return (self.pci_prefix, *(row.prefix for row in self.rows if row.prefix))

    def is_read(self, key: str) -> bool:
        """Tell whether a label, whose key starts with one of the prefixes, is read."""
        return not key.startswith(self.pci_prefix) or bool(self.pci_family(key))

    def promises(self, labels: Mapping[str, str]) -> tuple[GPUPromise, ...]:
        """List what labels say of each family: the first row that tells a number, else the first row."""
        for_machines = {family for key, values, family in self.for_machines if labels.get(key) in values}
        found: dict[str, GPUPromise] = {}
        for promise in self._all(labels):
            known = found.get(promise.family)
            if promise.family not in for_machines and (known is None or (promise.count and not known.count)):
                found[promise.family] = promise
        return tuple(found.values())

    def machine_count(self, labels: Mapping[str, str]) -> int | None:
        """Give the number of GPUs of the machine, by its maker's label or by its type; None if it is not known."""
        return next((promise.count for promise in self._all(labels) if promise.machine and promise.count), None)

    def _all(self, labels: Mapping[str, str]) -> Iterator[GPUPromise]:
        for row in self.rows:
            for key in row.keys(labels):
                value, family = labels[key], row.family_of(key, labels)
                count = int(value) if row.counts and value.isdecimal() and len(value) <= MOST_COUNT_DIGITS else None
                if family and value.lower() not in _SAYS_NOTHING and not (row.counts and not count):
                    yield self._promise(family, key, row.by, count, row.machine)
        for key in labels:
            if key.startswith(self.pci_prefix) and labels[key] == "true" and (family := self.pci_family(key)):
                yield self._promise(family, key, self.pci_by)
        yield from self._machine_type(labels)

    def _machine_type(self, labels: Mapping[str, str]) -> Iterator[GPUPromise]:
        key = self.clouds.instances.key
        machine = self.clouds.instances.of(labels)
        if machine:
            name = labels[key]
            gpus = next((gpus for pattern, gpus in self.machine_gpus if pattern.fullmatch(name)), None)
            product = machine.products[0].lower()
            by_name = (name for name in self.families if product.startswith(f"{name}-"))
            with_cuda = (name for name, family in self.families.items() if family.cuda)
            family = (*by_name, *with_cuda)[0]
            yield self._promise(family, key, "the machine type", gpus, gpus is not None)

    def _promise(self, family: str, key: str, by: str, count: int | None = None, machine: bool = False) -> GPUPromise:
        return GPUPromise(family, self.families[family].whole, key, by, count, machine)

    def pci_family(self, key: str) -> str:
        """Name the family of the GPU that a PCI label is about; empty for any other device."""
        return _pci_family(self, key)

    def layer(self, promise: GPUPromise, labels: Mapping[str, str], zero: bool) -> Layer:
        """Find the layer that is missing where a promised GPU is not offered."""
        rows = (row for row in self.layers if row.family == promise.family)
        return next(row for row in rows if row.holds(labels, zero))


@lru_cache(maxsize=4096)
def _pci_family(evidence: GPUEvidence, key: str) -> str:
    fields = key.removeprefix(evidence.pci_prefix).partition(".")[0].split("_")
    for at, field in enumerate(fields[:2]):
        if row := evidence.pci.get(field):
            by_class = fields[0] in row["classes"] if at else row.get("alone", False)
            by_device = any(device in row.get("devices", ()) for device in fields[at + 1 :])
            return str(row["family"]) if by_class or by_device else ""
    return ""


def _has(labels: Mapping[str, str], key: str, value: re.Pattern[str]) -> bool:
    """Tell whether a label is there with such a value; a key that ends in a star is the start of keys."""
    if key.endswith("*"):
        return any(name.startswith(key[:-1]) for name in labels)
    return key in labels and value.fullmatch(labels[key]) is not None


def load_gpu_evidence(document: Mapping[str, Any], families: Families, clouds: Clouds) -> GPUEvidence:
    """Read gpu_evidence.yaml. Raises KeyError for a family that families.yaml does not have."""
    by_name = {family.name: family for family in families.all}
    pci = document["pci"]
    evidence = GPUEvidence(
        rows=tuple(map(_evidence, document["labels"])),
        pci_prefix=pci["prefix"],
        pci_by=pci["by"],
        pci={row["vendor"]: row for row in pci["vendors"]},
        for_machines=tuple((row["key"], frozenset(row["values"]), row["family"]) for row in document["for_machines"]),
        machine_gpus=tuple((type_pattern(row["types"]), row["gpus"]) for row in document["machine_gpus"]),
        layers=tuple(map(_layer, document["layers"])),
        coming_up=frozenset(document["coming_up"]["taints"]),
        other_nodes=tuple((row["key"], row["value"], row.get("virtual", False)) for row in document["other_nodes"]),
        schedulers_without_gpus={
            row["name"]: f"{row['name']} {row['says']}: {row['remedy']}" for row in document["schedulers_without_gpus"]
        },
        families=by_name,
        clouds=clouds,
    )
    for row in evidence.rows:
        _ = [by_name[name] for name in (row.family, *(name for _, name in row.families)) if name]
    return evidence


def _evidence(row: Mapping[str, Any]) -> Evidence:
    families = tuple((re.compile(pattern.lower()), name) for pattern, name in row.get("families", {}).items())
    return Evidence(
        key=row.get("key", ""),
        prefix=row.get("prefix", ""),
        by=row["by"],
        counts=row.get("counts", False),
        machine=row.get("machine", False),
        family=row.get("family", ""),
        family_key=row.get("family_key", ""),
        families=families,
    )


def _layer(row: Mapping[str, Any]) -> Layer:
    pairs = (text.partition("=") for text in row.get("any", ()))
    any_of = tuple((key, re.compile(value or ".*")) for key, _, value in pairs)
    return Layer(row["family"], any_of, row.get("zero", False), row["says"], row["remedy"])
