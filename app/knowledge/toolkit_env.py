# SPDX-License-Identifier: Apache-2.0
"""The variables that NVIDIA's container toolkit takes for a wish for devices, and which of their values are none."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

EXPANDED = "$("
"""What a value with a reference to another variable has in it (Kubernetes' dependent variables); it may become any."""


class VariableEffect(Enum):
    """What a variable gives a container."""

    GPUs = "gpus"
    Channels = "channels"
    Fabric = "fabric"
    Control = "control"
    Devices = "devices"


@dataclass(frozen=True, slots=True)
class ToolkitVariable:
    """One variable. Either its `harmless` values are listed, and any other gives; or those that are `effective`.

    `beside_gpu`: harmless in a container that asks for a GPU. `hidden_by`, `required_by`: variables that make this one
    harmless, the first by a harmless value, the other by any that is not empty; empty names are none.
    """

    name: str
    gives: VariableEffect
    harmless: tuple[str, ...] = ()
    effective: tuple[str, ...] = ()
    beside_gpu: bool = False
    hidden_by: str = ""
    required_by: str = ""

    def takes(self, variable: Mapping[str, Any]) -> bool:
        """Tell whether an entry of `env` gives something; what comes from elsewhere cannot be seen, and may."""
        value = variable.get("value") or ""
        if variable.get("valueFrom"):
            return True
        if self.effective:
            return value in self.effective or EXPANDED in value
        return value not in self.harmless


ToolkitEnv = Mapping[str, ToolkitVariable]
"""By name."""


def load_toolkit_env(rows: Iterable[Mapping[str, Any]]) -> ToolkitEnv:
    """Read toolkit_env.yaml.

    Raises ValueError for a row without values, or one that names a variable which is not in the table.
    """
    found = {row["name"]: _variable(row) for row in rows}
    for each in found.values():
        if each.hidden_by and each.hidden_by not in found:
            raise ValueError(f"{each.name}: hidden_by {each.hidden_by}: wants a variable of the table")
    return found


def _variable(row: Mapping[str, Any]) -> ToolkitVariable:
    harmless, effective = tuple(row.get("harmless", ())), tuple(row.get("effective", ()))
    if bool(harmless) == bool(effective):
        raise ValueError(f"{row['name']}: wants either harmless or effective values")
    return ToolkitVariable(
        name=row["name"],
        gives=VariableEffect(row["gives"]),
        harmless=harmless,
        effective=effective,
        beside_gpu=bool(row.get("beside_gpu")),
        hidden_by=row.get("hidden_by", ""),
        required_by=row.get("required_by", ""),
    )
