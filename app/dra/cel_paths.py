# SPDX-License-Identifier: Apache-2.0
"""Finds out which fact about a device a part of an expression is, without evaluating it."""

from collections.abc import Mapping

from app.dra.cel_syntax import Call, Fold, Identifier, ListOf, Literal, Node, Select

Path = tuple[str, ...]
"""What stands behind `device`: ("driver",), or ("attributes", domain, name), or the first items of that."""
Scope = Mapping[str, tuple[Path, bool] | None]
"""The variables of macros: those that stand for a path of `device` with that path, the others with None."""


def path_of(node: Node, scope: Scope) -> tuple[Path, bool] | None:
    """Return the constant path of a node below `device`, and whether a part of it is optional."""
    if isinstance(node, Identifier):
        return scope.get(node.name, ((), False) if node.name == "device" else None)
    operand, step, optional = _step(node)
    if operand is None or step is None:
        return None
    path = path_of(operand, scope)
    if path is None or len(path[0]) == 3 or path[0][:1] in (("driver",), ("allowMultipleAllocations",)):
        return None
    return (*path[0], step), path[1] or optional


def _step(node: Node) -> tuple[Node | None, str | None, bool]:
    """Split a field or a lookup by a literal text into its operand, the name, and whether it is optional."""
    if isinstance(node, Select) and not node.presence:
        return node.operand, node.field, node.optional
    if isinstance(node, Call) and node.function in ("_[_]", "_[?_]"):
        key = node.arguments[1]
        if isinstance(key, Literal) and isinstance(key.value, str):
            return node.arguments[0], key.value, node.function == "_[?_]"
    return None, None, False


def is_let(node: Node) -> bool:
    """Tell a macro that only names a value, such as cel.bind(), from a loop."""
    return isinstance(node, Fold) and isinstance(node.sequence, ListOf) and not node.sequence.items
