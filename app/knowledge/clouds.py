# SPDX-License-Identifier: Apache-2.0
"""Clouds: the words that their node labels have for GPUs, and what those mean where GPU Feature Discovery is silent."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.knowledge.instances import InstanceTypes, load_instance_types
from app.values.errors import QuantityError
from app.values.quantity import parse_mib

MIB = 1 << 20
MOST_DIGITS = 18
"""Digits of a memory label that is read: an exabyte, in bytes, has no more."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One provisioner's labels. `key` names the product, or one of `other_keys`; `values`: what a value may mean.

    `by_memory`: values that mean one product or another by the figure (MiB) in the label `memory_key`.
    `sharing_key`, `slice_key`: labels that only nodes with shared, respectively sliced GPUs carry; a None value means
    that the provisioner has no such label. `markers`: labels of every node that this provisioner made, with or without
    GPUs.
    """

    name: str
    key: str
    values: Mapping[str, tuple[str, ...]]
    by_memory: Mapping[str, Mapping[str, str]]
    memory_key: str | None
    sharing_key: str | None
    slice_key: str | None
    markers: tuple[str, ...]
    other_keys: tuple[str, ...] = ()

    def products(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """List the products that a node's labels may mean; none if they say nothing known."""
        value = next((labels[key] for key in (self.key, *self.other_keys) if key in labels), "")
        told = self.by_memory.get(value, {}).get(labels.get(self.memory_key or "", ""))
        return (told,) if told else self.values.get(value, ())

    def spoken(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a node carries this dialect's labels."""
        return any(key in labels for key in (self.key, *self.other_keys, *self.markers))

    def telling(self) -> Iterator[str]:
        """List the label keys that tell of GPUs."""
        keys = (self.key, *self.other_keys, self.memory_key, self.sharing_key, self.slice_key)
        yield from filter(None, keys)


@dataclass(frozen=True, slots=True)
class VendorLabels:
    """The labels of another vendor's own labeller, whose value is the product's name.

    `bytes_in_all`: the memory label counts bytes of all the node's GPUs; else it is a quantity, of one GPU.
    """

    product_keys: tuple[str, ...]
    memory_keys: tuple[str, ...]
    bytes_in_all: bool

    def product(self, labels: Mapping[str, str]) -> str | None:
        """Name the product with hyphens between its words, as product patterns want them; None if no label tells."""
        found = next((labels[key] for key in self.product_keys if labels.get(key)), None)
        return found.replace("_", "-") if found else None

    def memory_mib(self, labels: Mapping[str, str], gpus: int) -> int | None:
        """Read the memory of one GPU; None if no label tells. `gpus`: how many the node has."""
        text = next((labels[key] for key in self.memory_keys if labels.get(key)), "")
        if self.bytes_in_all:
            return int(text) // MIB // gpus if gpus and text.isdecimal() and len(text) <= MOST_DIGITS else None
        try:
            return parse_mib(text)
        except QuantityError:
            return None


@dataclass(frozen=True, slots=True)
class Clouds:
    """All dialects, the labels of other vendors, and machine types.

    `sharing`: what the values of a sharing label mean in GFD's words; `replicas_keys`: labels that count a GPU's
    sharers. `sharing_annotations`: by annotation key, the resource that another plugin gives out in shares.
    """

    dialects: tuple[Dialect, ...]
    sharing: Mapping[str, Mapping[str, str]]
    instances: InstanceTypes
    replicas_keys: tuple[str, ...] = ()
    vendors: tuple[VendorLabels, ...] = ()
    sharing_annotations: tuple[str, ...] = ()

    def candidates(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """List the products of which a node has one, as GFD would name them; none if its labels tell nothing.

        The machine type decides between those that a provisioner's label may mean.
        """
        named = next((found for each in self.dialects if (found := each.products(labels))), ())
        machine = self.instances.of(labels)
        able = machine.products if machine else ()
        both = tuple(product for product in named if product in able)
        return both or named or able or tuple(filter(None, (each.product(labels) for each in self.vendors)))[:1]

    def profile(self, labels: Mapping[str, str]) -> str | None:
        """Give the MIG profile that a label tells, also where the product is unknown; None if there is none."""
        found = (labels.get(each.slice_key) for each in self.dialects if each.slice_key)
        return next((text for text in found if text), None)

    def memory_mib(self, labels: Mapping[str, str], gpus: int) -> int | None:
        """Give the least memory of one GPU that labels, or the machine type, tell; None if nothing does."""
        said = [labels.get(each.memory_key) for each in self.dialects if each.memory_key]
        found = [int(text) for text in said if text and text.isdecimal() and len(text) <= MOST_DIGITS and int(text)]
        machine = self.instances.of(labels)
        if machine and machine.memory_mib:
            found.append(machine.memory_mib)
        found += [mib for each in self.vendors if (mib := each.memory_mib(labels, gpus))]
        return min(found, default=None)

    def sharing_strategy(self, labels: Mapping[str, str]) -> str | None:
        """Name the sharing strategy as GFD would; None if no label tells."""
        found = (values.get(labels[key]) for key, values in self.sharing.items() if key in labels)
        return next((value for value in found if value), None)

    def tells_sharing(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a node speaks a dialect whose labels would say that its GPUs are shared or sliced."""
        able = (each for each in self.dialects if each.sharing_key)
        return any(key in labels for each in able for key in (each.key, each.sharing_key, each.slice_key))

    def replicas(self, labels: Mapping[str, str]) -> str | None:
        """Give the label that tells how many share a GPU; None if there is none."""
        return next((labels[key] for key in self.replicas_keys if key in labels), None)

    def telling(self) -> Iterator[str]:
        """List the label keys that tell of GPUs."""
        for dialect in self.dialects:
            yield from dialect.telling()
        for vendor in self.vendors:
            yield from (*vendor.product_keys, *vendor.memory_keys)
        yield from (*self.sharing, *self.replicas_keys, self.instances.key)

    def spoken(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Name the dialects whose labels a node carries."""
        return tuple(each.name for each in self.dialects if each.spoken(labels))


def load_clouds(document: Mapping[str, Any]) -> Clouds:
    """Read clouds.yaml."""
    return Clouds(
        dialects=tuple(map(_dialect, document["dialects"])),
        sharing={row["key"]: row["values"] for row in document["sharing_labels"]},
        replicas_keys=tuple(row["replicas_key"] for row in document["sharing_labels"] if "replicas_key" in row),
        instances=load_instance_types(document["instance_types"]),
        vendors=tuple(map(_vendor, document["vendor_labels"])),
        sharing_annotations=tuple(row["key"] for row in document["sharing_annotations"]),
    )


def _vendor(row: Mapping[str, Any]) -> VendorLabels:
    return VendorLabels(tuple(row["product_keys"]), tuple(row["memory_keys"]), row["memory_of"] == "node")


def _dialect(row: Mapping[str, Any]) -> Dialect:
    values: dict[str, tuple[str, ...]] = {}
    by_memory: dict[str, Mapping[str, str]] = {}
    for value, meaning in row["values"].items():
        if isinstance(meaning, Mapping):
            by_memory[value] = {str(memory): product for memory, product in meaning.items()}
            values[value] = tuple(meaning.values())
        else:
            values[value] = (meaning,) if isinstance(meaning, str) else tuple(meaning)
    return Dialect(
        name=row["name"],
        key=row["key"],
        values=values,
        by_memory=by_memory,
        memory_key=row.get("memory_key"),
        sharing_key=row.get("sharing_key"),
        slice_key=row.get("slice_key"),
        markers=tuple(row["markers"]),
        other_keys=tuple(row.get("other_keys", ())),
    )
