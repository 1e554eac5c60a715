# SPDX-License-Identifier: Apache-2.0
"""The device guard's checks of variables in CEL, for a container `c` and an entry `e` of its env (device_guard.py)."""

from app.admission.match_conditions import is_gpu_resource, quoted
from app.knowledge.families import Families
from app.knowledge.toolkit_env import EXPANDED, ToolkitEnv, ToolkitVariable


def entry_gives_devices(row: ToolkitVariable, entry: str = "e") -> str:
    """Write CEL that is true where an entry is the variable with an effective value (ToolkitVariable.is_effective)."""
    return f"({entry}.name == {quoted(row.name)} && {_value_gives_devices(row, entry)})"


def _value_gives_devices(row: ToolkitVariable, entry: str) -> str:
    value = f"{entry}.value"
    listed = f"{value} in [{', '.join(map(quoted, row.effective or row.harmless))}]"
    gives = f"({listed} || {value}.contains({quoted(EXPANDED)}))" if row.effective else f"!({listed})"
    return f"(has({entry}.valueFrom) || (has({value}) && {gives}))"


def made_harmless(row: ToolkitVariable, table: ToolkitEnv) -> str:
    """Write CEL that is true where other variables of the container make this one harmless (_made_harmless there).

    Of a hiding variable that is given twice every value must be harmless: CEL cannot pick the last one.
    """
    other = table[row.hidden_by]
    voided = _all_named(other.name, f"!{_value_gives_devices(other, 'h')}")
    required = f"has(h.value) && h.value != '' && !h.value.contains({quoted(EXPANDED)})"
    return f"({voided} || {_all_named(row.required_by, required)})" if row.required_by else voided


def _all_named(name: str, condition: str) -> str:
    """Write CEL that is true where the env has entries of this name and the condition holds for all of them."""
    named = f"h.name == {quoted(name)}"
    return f"(c.env.exists(h, {named}) && c.env.all(h, !({named}) || ({condition})))"


def container_asks_for_gpu(families: Families) -> str:
    """Write CEL that is true where a container requests a GPU, by resource or by any claim (asks_for_gpu there)."""
    amount = "quantity(string(c.resources.limits[k])).isGreaterThan(quantity('0'))"
    gpu = is_gpu_resource(families, passthrough=False)
    limits = f"(has(c.resources.limits) && c.resources.limits.exists(k, ({gpu}) && {amount}))"
    return f"(has(c.resources) && ({limits} || (has(c.resources.claims) && size(c.resources.claims) > 0)))"
