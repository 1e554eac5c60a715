# SPDX-License-Identifier: Apache-2.0
"""The environment guard of app/admission/device_guard.py in CEL, of a container `c` and an entry `e` of its env."""

from app.admission.match_conditions import names_ours, quoted
from app.knowledge.families import Families
from app.knowledge.toolkit_env import EXPANDED, ToolkitEnv, ToolkitVariable


def taken_by(row: ToolkitVariable, entry: str = "e") -> str:
    """Ask whether an entry is this variable with a value that gives something (ToolkitVariable.takes)."""
    return f"({entry}.name == {quoted(row.name)} && {_gives(row, entry)})"


def _gives(row: ToolkitVariable, entry: str) -> str:
    value = f"{entry}.value"
    listed = f"{value} in [{', '.join(map(quoted, row.effective or row.harmless))}]"
    gives = f"({listed} || {value}.contains({quoted(EXPANDED)}))" if row.effective else f"!({listed})"
    return f"(has({entry}.valueFrom) || (has({value}) && {gives}))"


def hidden(row: ToolkitVariable, table: ToolkitEnv) -> str:
    """Ask whether other variables of the same container make this one harmless (devices.py _hidden).

    Of a hiding variable that is given twice every value must be harmless: CEL has no last one.
    """
    other = table[row.hidden_by]
    hides = _every(other.name, f"!{_gives(other, 'h')}")
    says = f"has(h.value) && h.value != '' && !h.value.contains({quoted(EXPANDED)})"
    return f"({hides} || {_every(row.required_by, says)})" if row.required_by else hides


def _every(name: str, question: str) -> str:
    """Ask whether there is an entry of this name, and the answer is yes for all of them."""
    named = f"h.name == {quoted(name)}"
    return f"(c.env.exists(h, {named}) && c.env.all(h, !({named}) || ({question})))"


def asks_for_some(families: Families) -> str:
    """Ask whether a container asks for a GPU itself, by resource or by any claim (devices.py given)."""
    amount = "quantity(string(c.resources.limits[k])).isGreaterThan(quantity('0'))"
    ours = names_ours(families, handed_on=False)
    limits = f"(has(c.resources.limits) && c.resources.limits.exists(k, ({ours}) && {amount}))"
    return f"(has(c.resources) && ({limits} || (has(c.resources.claims) && size(c.resources.claims) > 0)))"
