# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's container toolkit: the environment variables by which a container gets devices, and runtime handlers.

The variables and their values are in toolkit_env.yaml. runtimes.yaml says which runtime handler the toolkit of a vendor
installs, and which nodes need no RuntimeClass.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

EXPANDED = "$("
"""The start of a reference to another variable (Kubernetes' dependent variables), by which a value may become any."""


class VariableEffect(Enum):
    """The kind of devices that a variable gives a container."""

    GPUs = "gpus"
    Channels = "channels"
    Fabric = "fabric"
    Control = "control"
    Devices = "devices"


@dataclass(frozen=True, slots=True)
class ToolkitVariable:
    """One variable of toolkit_env.yaml.

    Either `harmless` lists the only values that give no devices, or `effective` lists the only values that do.
    `beside_gpu` says that the variable is harmless in a container that requests a GPU. `hidden_by` is a variable whose
    harmless values make this one harmless, and `required_by` one that does so by any value that is not empty; both are
    empty if there is no such variable.
    """

    name: str
    effect: VariableEffect
    harmless: tuple[str, ...] = ()
    effective: tuple[str, ...] = ()
    beside_gpu: bool = False
    hidden_by: str = ""
    required_by: str = ""

    def is_effective(self, variable: Mapping[str, Any]) -> bool:
        """Tell whether an entry of `env` may give devices; one with `valueFrom` may, since its value is unknown."""
        value = variable.get("value") or ""
        if variable.get("valueFrom"):
            return True
        if self.effective:
            return value in self.effective or EXPANDED in value
        return value not in self.harmless


ToolkitEnv = Mapping[str, ToolkitVariable]
"""The variables by name."""


def load_toolkit_env(rows: Iterable[Mapping[str, Any]]) -> ToolkitEnv:
    """Read toolkit_env.yaml.

    Raises ValueError for a row without values, and for one that refers to a variable which is not in the table.
    """
    variables = {row["name"]: _variable(row) for row in rows}
    for variable in variables.values():
        if variable.hidden_by and variable.hidden_by not in variables:
            raise ValueError(f"{variable.name}: hidden_by {variable.hidden_by}: wants a variable of the table")
    return variables


def _variable(row: Mapping[str, Any]) -> ToolkitVariable:
    harmless, effective = tuple(row.get("harmless", ())), tuple(row.get("effective", ()))
    if bool(harmless) == bool(effective):
        raise ValueError(f"{row['name']}: wants either harmless or effective values")
    return ToolkitVariable(
        name=row["name"],
        effect=VariableEffect(row["gives"]),
        harmless=harmless,
        effective=effective,
        beside_gpu=bool(row.get("beside_gpu")),
        hidden_by=row.get("hidden_by", ""),
        required_by=row.get("required_by", ""),
    )


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

    def label_keys(self) -> frozenset[str]:
        """List the labels that `why_unneeded` reads."""
        return frozenset(key for row in self.unneeded for key, _ in (*row.labels, *row.unless))

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
