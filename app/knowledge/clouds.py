# SPDX-License-Identifier: Apache-2.0
"""Clouds: the words that their node labels have for GPUs, and what those mean where GPU Feature Discovery is silent."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Dialect:
    """One provisioner's labels. `key` names the product; `values`: the products that a value may mean.

    `by_memory`: values that mean one product or another by the figure (MiB) in the label `memory_key`.
    `sharing_key`, `slice_key`: labels that only nodes with shared, respectively sliced GPUs carry; None is no word.
    `markers`: labels of every node that this provisioner made, with or without GPUs.
    """

    name: str
    key: str
    values: Mapping[str, tuple[str, ...]]
    by_memory: Mapping[str, Mapping[str, str]]
    memory_key: str | None
    sharing_key: str | None
    slice_key: str | None
    markers: tuple[str, ...]

    def products(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """List the products that a node's labels may mean; none if they say nothing known."""
        named = self.values.get(labels.get(self.key, ""), ())
        told = self.by_memory.get(labels.get(self.key, ""), {}).get(labels.get(self.memory_key or "", ""))
        return (told,) if told else named

    def spoken(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a node carries this dialect's labels."""
        return self.key in labels or any(marker in labels for marker in self.markers)

    def telling(self) -> Iterator[str]:
        """List the label keys that tell of GPUs."""
        yield from filter(None, (self.key, self.memory_key, self.sharing_key, self.slice_key))


@dataclass(frozen=True, slots=True)
class Clouds:
    """All dialects, what the values of a sharing label mean in GFD's words, and which labels count a GPU's sharers.

    `instances`: the product by the family of the machine type in the label `instance_key` (`g5` of `g5.xlarge`).
    """

    dialects: tuple[Dialect, ...]
    sharing: Mapping[str, Mapping[str, str]]
    replicas_keys: tuple[str, ...] = ()
    instance_key: str = ""
    instances: Mapping[str, str] = field(default_factory=dict)

    def product(self, labels: Mapping[str, str]) -> str | None:
        """Name the product as GFD would, with its MIG suffix; None if no label tells it for certain."""
        for dialect in self.dialects:
            found = dialect.products(labels)
            if len(found) == 1:
                profile = labels.get(dialect.slice_key or "")
                return f"{found[0]}-MIG-{profile}" if profile else found[0]
        return self.instances.get(labels.get(self.instance_key, "").partition(".")[0])

    def candidates(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """List the products of which a node has one, where its labels tell no more; none if they tell nothing."""
        return next((found for each in self.dialects if (found := each.products(labels))), ())

    def profile(self, labels: Mapping[str, str]) -> str | None:
        """Give the MIG profile that a label tells, also where the product is unknown; None if there is none."""
        found = (labels.get(each.slice_key) for each in self.dialects if each.slice_key)
        return next((text for text in found if text), None)

    def memory(self, labels: Mapping[str, str]) -> str | None:
        """Give the label that tells a GPU's memory, in MiB; None if there is none."""
        found = (labels.get(each.memory_key) for each in self.dialects if each.memory_key)
        return next((text for text in found if text), None)

    def sharing_strategy(self, labels: Mapping[str, str]) -> str | None:
        """Name the sharing strategy as GFD would; None if no label tells."""
        found = (values.get(labels[key]) for key, values in self.sharing.items() if key in labels)
        return next((value for value in found if value), None)

    def replicas(self, labels: Mapping[str, str]) -> str | None:
        """Give the label that tells how many share a GPU; None if there is none."""
        return next((labels[key] for key in self.replicas_keys if key in labels), None)

    def telling(self) -> Iterator[str]:
        """List the label keys that tell of GPUs."""
        for dialect in self.dialects:
            yield from dialect.telling()
        yield from (*self.sharing, *self.replicas_keys, self.instance_key)

    def spoken(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Name the dialects whose labels a node carries."""
        return tuple(each.name for each in self.dialects if each.spoken(labels))


def load_clouds(document: Mapping[str, Any]) -> Clouds:
    """Read clouds.yaml."""
    return Clouds(
        dialects=tuple(map(_dialect, document["dialects"])),
        sharing={row["key"]: row["values"] for row in document["sharing_labels"]},
        instance_key=document["instance_types"]["key"],
        instances=document["instance_types"]["families"],
        replicas_keys=tuple(row["replicas_key"] for row in document["sharing_labels"] if "replicas_key" in row),
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
    )
