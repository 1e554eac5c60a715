# SPDX-License-Identifier: Apache-2.0
"""Node labels of clouds and provisioners that describe GPUs, for nodes that GPU Feature Discovery has not labelled.

The labels and their meanings are data, in clouds.yaml. So are the GPUs of a cloud's machine types, in instances.yaml,
by exact name or by a pattern for a family of types.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.values.errors import QuantityError
from app.values.quantity import MIB, parse_mib


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


def _row(row: Mapping[str, Any]) -> InstanceType:
    return InstanceType(type_pattern(row["types"]), tuple(row["products"]), row.get("memory_mib"))


def type_pattern(types: Iterable[str]) -> re.Pattern[str]:
    """Compile names of machine types, in which `*` stands for any run of characters, into one pattern."""
    return re.compile("|".join("[^/]*".join(map(re.escape, text.split("*"))) for text in types))


MOST_MEMORY_DIGITS = 18
"""Digits of a memory label that is read: 18 are enough for an exabyte in bytes."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The GPU labels of one provisioner.

    `key` is the label that names the product, and `other_keys` are alternatives to it; `values` are the products that a
    value may mean. `by_memory` has the values whose product depends on the label `memory_key`, which is in MiB.
    `sharing_key` and `slice_key` are labels that only nodes with shared GPUs, respectively MIG slices, have; None if
    the provisioner has no such label. `markers` are labels of each node of this provisioner, with or without GPUs.
    `on_templates` is true where an autoscaler knows the labels of a node to come, so that a pod may require them of a
    node group without a node.
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
    on_templates: bool = True

    def products(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """List the products that a node's labels may mean; empty if the labels are absent or their value is unknown.

        Where two labels are there, as class and model of CoreWeave, it is what both may mean.
        """
        memory = labels.get(self.memory_key or "", "")
        values = [labels[key] for key in (self.key, *self.other_keys) if key in labels]
        by_memory = next((product for value in values if (product := self.by_memory.get(value, {}).get(memory))), None)
        known = [self.values[value] for value in values if value in self.values]
        common = tuple(product for product in known[0] if all(product in other for other in known)) if known else ()
        return (by_memory,) if by_memory else common or next(iter(known), ())

    def is_used_by(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a node has labels of this dialect."""
        return not labels.keys().isdisjoint((self.key, *self.other_keys, *self.markers))

    def gpu_label_keys(self) -> Iterator[str]:
        """List the keys of the labels that describe GPUs."""
        keys = (self.key, *self.other_keys, self.memory_key, self.sharing_key, self.slice_key)
        yield from filter(None, keys)


@dataclass(frozen=True, slots=True)
class SharingLabel:
    """A label by which a cloud marks the nodes whose GPUs its own device plugin shares.

    `strategies` are GFD's words for the values of the label, and `several_units` says what the plugin does if a
    container asks for several units: `refused`, or `one-gpu`, which is refused unless the node has only one GPU. A node
    with the label `unless_key` does not run the cloud's plugin; None if there is no such label.
    """

    key: str
    strategies: Mapping[str, str]
    several_units: Mapping[str, str]
    replicas_key: str | None
    unless_key: str | None

    def values_refused(self) -> list[str]:
        """List the values with which the plugin gives a container only one unit, however many GPUs the node has."""
        return [value for value, rule in self.several_units.items() if rule == "refused"]


@dataclass(frozen=True, slots=True)
class VendorLabels:
    """The labels of another GPU vendor's own labeller, whose value is the name of the product.

    `family` is the name of the vendor's row in families.yaml. `bytes_in_all` says that the memory label has the bytes
    of all GPUs of the node; otherwise it is a quantity for one GPU. The partition is that of compute and memory, such
    as `cpx_nps4`; `whole_partition` begins the names of those that are a whole GPU. `partitions` are how many of them
    one GPU has at most, by the start of their name.
    """

    family: str
    product_keys: tuple[str, ...]
    memory_keys: tuple[str, ...]
    driver_keys: tuple[str, ...]
    partition_keys: tuple[str, ...]
    bytes_in_all: bool
    whole_partition: str = ""
    partitions: Mapping[str, int] = field(default_factory=dict)

    def all_keys(self) -> Iterator[str]:
        """List the keys of all labels."""
        yield from (*self.product_keys, *self.memory_keys, *self.driver_keys, *self.partition_keys)

    def product(self, labels: Mapping[str, str]) -> str | None:
        """Give the product with hyphens between its words, as product patterns have them; None without such a label."""
        name = _value(labels, self.product_keys)
        return name.replace("_", "-") if name else None

    def is_partition(self, name: str | None) -> bool:
        """Tell whether a partition is a part of a GPU."""
        return bool(name and self.whole_partition) and not (name or "").startswith(self.whole_partition)

    def partitioned(self, labels: Mapping[str, str]) -> tuple[str, int] | None:
        """Give the labelled partition, and how many of them a GPU has; None for whole GPUs."""
        name = (_value(labels, self.partition_keys) or "").lower()
        return next(((name, parts) for start, parts in self.partitions.items() if name.startswith(start)), None)

    def memory_mib(self, labels: Mapping[str, str], gpus: int) -> int | None:
        """Read the memory of one GPU in MiB; None without such a label. `gpus` is the number of GPUs of the node."""
        text = _value(labels, self.memory_keys) or ""
        if self.bytes_in_all:
            return int(text) // MIB // gpus if gpus and text.isdecimal() and len(text) <= MOST_MEMORY_DIGITS else None
        try:
            return parse_mib(text)
        except QuantityError:
            return None


def _value(labels: Mapping[str, str], keys: tuple[str, ...]) -> str | None:
    """Read the first label that there is, by its value, or from a key that ends in the value.

    AMD's labeller writes `<key>.<value>` = number of GPUs, and the plain key besides only where all GPUs are alike
    (ROCm/k8s-device-plugin cmd/k8s-node-labeller/main.go createLabels).
    """
    for key in keys:
        if labels.get(key):
            return labels[key]
        values = [name[len(key) + 1 :] for name in labels if name.startswith(f"{key}.")]
        if len(values) == 1:
            return values[0]
    return None


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform whose nodes' names begin with `node_prefix`, and that refuses pods that select by other `keys`."""

    node_prefix: str
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Clouds:
    """The content of clouds.yaml: the dialects of provisioners, the labels of other vendors, and machine types.

    `sharing` are the labels of shared GPUs. `sharing_annotations` are the keys of the annotations by which another
    device plugin registers the GPUs that it shares.
    """

    dialects: tuple[Dialect, ...]
    sharing: tuple[SharingLabel, ...]
    instances: InstanceTypes
    vendors: tuple[VendorLabels, ...] = ()
    sharing_annotations: tuple[str, ...] = ()
    platforms: tuple[Platform, ...] = ()

    def selectable(self, node: str) -> frozenset[str] | None:
        """List the only keys by which a pod may select nodes where there is such a node; None if all keys are."""
        return next((row.keys for row in self.platforms if node.startswith(row.node_prefix)), None)

    def possible_products(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """List the candidates for a node's product, as GFD names them; empty if its labels do not narrow it down.

        The machine type decides between the products that a provisioner's label may mean, and tells that a machine has
        a part of a GPU.
        """
        labelled = next((products for dialect in self.dialects if (products := dialect.products(labels))), ())
        machine = self.instances.of(labels)
        of_machine = machine.products if machine else ()
        both = tuple(product for product in labelled if product in of_machine)
        by_vendor = tuple(filter(None, (vendor.product(labels) for vendor in self.vendors)))
        has_part = machine is not None and machine.memory_mib is not None
        return both or (of_machine if has_part else labelled) or of_machine or by_vendor[:1]

    def vendor(self, labels: Mapping[str, str]) -> VendorLabels | None:
        """Find the vendor whose labeller has labelled a node; None for a node without such labels."""
        return next(
            (vendor for vendor in self.vendors if any(_value(labels, (key,)) for key in vendor.all_keys())), None
        )

    def driver(self, labels: Mapping[str, str]) -> str | None:
        """Give the version of the driver that a vendor's own labeller writes; None without such a label."""
        vendor = self.vendor(labels)
        return _value(labels, vendor.driver_keys) if vendor else None

    def has_partitions(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a vendor's labels say that the node's GPUs are partitioned."""
        vendor = self.vendor(labels)
        return vendor is not None and vendor.is_partition(_value(labels, vendor.partition_keys))

    def profile(self, labels: Mapping[str, str]) -> str | None:
        """Give the labelled MIG profile, which may be there although the product is unknown; None without a label."""
        profiles = (labels.get(dialect.slice_key) for dialect in self.dialects if dialect.slice_key)
        return next((text for text in profiles if text), None)

    def memory_mib(self, labels: Mapping[str, str], gpus: int) -> int | None:
        """Give the least memory of one GPU, in MiB, of labels and machine type; None if neither has it."""
        texts = [labels.get(dialect.memory_key) for dialect in self.dialects if dialect.memory_key]
        sizes = [
            int(text) for text in texts if text and text.isdecimal() and len(text) <= MOST_MEMORY_DIGITS and int(text)
        ]
        machine = self.instances.of(labels)
        if machine and machine.memory_mib:
            sizes.append(machine.memory_mib)
        sizes += [mib for vendor in self.vendors if (mib := vendor.memory_mib(labels, gpus))]
        return min(sizes, default=None)

    def sharing_strategy(self, labels: Mapping[str, str]) -> str | None:
        """Give the labelled sharing strategy in GFD's words; None without such a label."""
        strategies = (row.strategies.get(labels[row.key]) for row in self.sharing if row.key in labels)
        return next((value for value in strategies if value), None)

    def refuses_several(self, labels: Mapping[str, str], gpus: int) -> bool | None:
        """Tell whether a cloud's device plugin refuses several units of a shared GPU for one container.

        None where no cloud's plugin shares the GPUs of the node, of which there are `gpus`.
        """
        rows = (row for row in self.sharing if row.key in labels and row.unless_key not in labels)
        rules = (rule for row in rows if (rule := row.several_units.get(labels[row.key])))
        return next((rule == "refused" or gpus > 1 for rule in rules), None)

    def labels_sharing(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a node has labels of a dialect that marks nodes whose GPUs are shared or sliced."""
        dialects = (dialect for dialect in self.dialects if dialect.sharing_key)
        keys = (key for dialect in dialects for key in (dialect.key, dialect.sharing_key, dialect.slice_key))
        return any(key in labels for key in keys)

    def replicas(self, labels: Mapping[str, str]) -> str | None:
        """Give the value of the label with the number of units of a shared GPU; None without such a label."""
        keys = (row.replicas_key for row in self.sharing if row.replicas_key is not None)
        return next((labels[key] for key in keys if key in labels), None)

    def gpu_label_keys(self) -> Iterator[str]:
        """List the keys of all labels that describe GPUs."""
        for dialect in self.dialects:
            yield from dialect.gpu_label_keys()
        for vendor in self.vendors:
            yield from vendor.all_keys()
        for row in self.sharing:
            yield from filter(None, (row.key, row.replicas_key, row.unless_key))
        yield self.instances.key

    def dialects_of(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Name the dialects of which a node has labels."""
        return tuple(dialect.name for dialect in self.dialects if dialect.is_used_by(labels))

    def on_templates(self) -> tuple[str, ...]:
        """Name the dialects whose labels an autoscaler knows before a node exists."""
        return tuple(dialect.name for dialect in self.dialects if dialect.on_templates)


def load_clouds(document: Mapping[str, Any]) -> Clouds:
    """Read clouds.yaml."""
    types, in_sharing = document["instance_types"], ("replicas_key", "unless_key")
    return Clouds(
        dialects=tuple(map(_dialect, document["dialects"])),
        sharing=tuple(
            SharingLabel(one["key"], one["values"], one.get("several_units", {}), *map(one.get, in_sharing))
            for one in document["sharing_labels"]
        ),
        instances=InstanceTypes(types["key"], tuple(map(_row, types["rows"]))),
        vendors=tuple(map(_vendor, document["vendor_labels"])),
        sharing_annotations=tuple(row["key"] for row in document["sharing_annotations"]),
        platforms=tuple(Platform(row["node_prefix"], frozenset(row["keys"])) for row in document["platforms"]),
    )


def _vendor(row: Mapping[str, Any]) -> VendorLabels:
    return VendorLabels(
        family=row["family"],
        product_keys=tuple(row["product_keys"]),
        memory_keys=tuple(row["memory_keys"]),
        driver_keys=tuple(row.get("driver_keys", ())),
        partition_keys=tuple(row.get("partition_keys", ())),
        bytes_in_all=row["memory_of"] == "node",
        whole_partition=row.get("whole_partition", ""),
        partitions=row.get("partitions", {}),
    )


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
        on_templates=row.get("on_templates", True),
    )
