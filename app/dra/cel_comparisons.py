# SPDX-License-Identifier: Apache-2.0
"""Reads what a condition wants of one fact, so that an explanation can say it, and what would be less."""

from dataclasses import dataclass
from typing import Any

from app.dra.cel_facts import Read, read_of
from app.dra.cel_syntax import Call, CelNode, ListOf, Literal, path_of

_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_BY_ONE = {("==", 1): ">", ("==", -1): "<", (">", -1): ">=", ("<", 1): "<=", ("!=", 1): "<=", ("!=", -1): ">="}
"""What compareTo() with a result of 1 or -1 asks for: the operator behind it, and the number."""
_METHODS = {"isGreaterThan": ">", "isLessThan": "<", "matches": "matches", "startsWith": "startsWith"}
_METHODS |= {"endsWith": "endsWith", "contains": "contains"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a condition wants: that a fact stands in a relation to a value.

    `operator` is ==, !=, <, <=, >, >=, in, or the name of a function of strings such as matches. `wanted` is a bool, an
    int, a float, a str, or a tuple of them for `in`; a quantity or a version is the text that the selector has.
    """

    fact: Read
    operator: str
    wanted: Any

    def __str__(self) -> str:
        wanted = self.wanted
        if isinstance(wanted, tuple):
            return f"{self.operator} [{', '.join(map(_show, wanted))}]"
        return f"{self.operator} {_show(wanted)}"


def _show(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_comparison(node: CelNode) -> Comparison | None:
    """Read the comparison that a condition is, or return None for one of another form."""
    fact = _fact(node)
    if fact is not None:
        return Comparison(fact, "==", True)
    if not isinstance(node, Call):
        return None
    if node.function == "!_":
        return _negated(read_comparison(node.arguments[0]))
    if node.function == "@in":
        return _membership(node)
    if node.target is not None:
        return _method(node)
    operator = node.function.strip("_")
    return _compared(operator, node.arguments[0], node.arguments[1]) if operator in _MIRRORED else None


def _negated(comparison: Comparison | None) -> Comparison | None:
    if comparison is None or comparison.operator not in _OPPOSITE:
        return None
    return Comparison(comparison.fact, _OPPOSITE[comparison.operator], comparison.wanted)


def _membership(node: Call) -> Comparison | None:
    item, values = node.arguments
    fact = _fact(item)
    if fact is None or not isinstance(values, ListOf):
        return None
    wanted = [value.value for value in values.items if isinstance(value, Literal)]
    return Comparison(fact, "in", tuple(wanted)) if len(wanted) == len(values.items) else None


def _method(node: Call) -> Comparison | None:
    """Read `fact.isGreaterThan(value)` and the like."""
    operator = _METHODS.get(node.function)
    fact = _fact(node.target)
    if operator is None or fact is None or len(node.arguments) != 1:
        return None
    value = _value(node.arguments[0])
    return None if value is None else Comparison(fact, operator, value)


def _compared(operator: str, left: CelNode, right: CelNode) -> Comparison | None:
    """Read `fact >= value`, `value <= fact` and `fact.compareTo(value) >= 0`."""
    if isinstance(left, Literal) and not isinstance(right, Literal):
        return _compared(_MIRRORED[operator], right, left)
    value = _value(right)
    if value is None:
        return None
    if isinstance(left, Call) and left.function == "compareTo" and len(left.arguments) == 1:
        return _compared_to(left, operator, value)
    fact = _fact(left)
    return None if fact is None else Comparison(fact, operator, value)


def _compared_to(call: Call, operator: str, number: Any) -> Comparison | None:
    fact, value = _fact(call.target), _value(call.arguments[0])
    asked = operator if number == 0 else _BY_ONE.get((operator, number))
    return None if fact is None or value is None or asked is None else Comparison(fact, asked, value)


def _fact(node: CelNode | None) -> Read | None:
    path = path_of(node)
    return None if path is None or path[1] else read_of(path[0])


def _value(node: CelNode) -> Any:
    """Return the value of a literal, or the text that quantity() or semver() reads; None for anything else."""
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Call) and node.function in ("quantity", "semver") and node.target is None:
        return _value(node.arguments[0])
    return None
