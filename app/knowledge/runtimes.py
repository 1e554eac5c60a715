# SPDX-License-Identifier: Apache-2.0
"""Facts about runtime handlers: which one a vendor's toolkit installs, and which nodes need no RuntimeClass."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Labels by which a node gives containers their GPUs without a RuntimeClass.

    The labels are pairs of key and value, where an empty value stands for any. A node with all of `unless` is excepted.
    `why` is the reason, in words.
    """

    labels: tuple[tuple[str, str], ...]
    unless: tuple[tuple[str, str], ...]
    why: str


@dataclass(frozen=True, slots=True)
class Runtimes:
    """The tables of runtimes.yaml: the runtime handler of each vendor's toolkit by GPU family, and the evidence."""

    handlers: Mapping[str, str]
    unneeded: tuple[Unneeded, ...]

    def why_unneeded(self, labels: Mapping[str, str]) -> str | None:
        """Say why pods on a node with these labels need no RuntimeClass; None if nothing is known."""
        for row in self.unneeded:
            if _has_all(labels, row.labels) and not (row.unless and _has_all(labels, row.unless)):
                return row.why
        return None


def _has_all(labels: Mapping[str, str], wanted: tuple[tuple[str, str], ...]) -> bool:
    return all(key in labels and (not value or labels[key] == value) for key, value in wanted)


def load_runtimes(document: Mapping[str, Any]) -> Runtimes:
    """Read runtimes.yaml."""
    rows = (
        Unneeded(tuple(row["labels"].items()), tuple(row.get("unless", {}).items()), row["why"])
        for row in document["unneeded"]
    )
    return Runtimes({row["family"]: row["handler"] for row in document["toolkits"]}, tuple(rows))
