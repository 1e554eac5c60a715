# SPDX-License-Identifier: Apache-2.0
"""Expands the macros of CEL into what they stand for, so that no expression has variables.

They are those of google/cel-go parser/macro.go and ext/bindings.go. A loop over a list of literals is the conjunction
or disjunction of its body for each, which absorbs errors in the same way (cel-go interpreter/interpretable.go).
"""

from collections.abc import Mapping
from dataclasses import replace

from app.dra.cel_syntax import Bound, Call, CelNode, Identifier, ListOf, Literal, Select, not_evaluated, syntax_error

MOST_NODES = 2000
"""A bound on the size of what variables and loops make, and so on the time of an evaluation, under a millisecond."""
MOST_DEEP = 100
"""A bound on the height of the tree, and so on the depth of the stack."""
LOOPS = {"all": "_&&_", "exists": "_||_"}
OTHER_LOOPS = frozenset(
    {"exists_one", "existsOne", "map", "filter", "transformList", "transformMap", "transformMapEntry", "sortBy"}
    | {"optMap", "optFlatMap"}
)


class Expander:
    """Expands one expression; `unused` are the values of variables, which are checked like the rest."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._left = MOST_NODES
        self._depth = self._deepest = 0
        self._heights: dict[CelNode, int] = {}
        self.unused: list[CelNode] = []

    def expand(self, node: CelNode, scope: Mapping[str, CelNode]) -> CelNode:
        """Return a node without macros; `scope` are the variables.

        Raises SelectorError, NotJudged.
        """
        self._enter(1, 1)
        self._depth += 1
        expanded = self._expanded(node, scope)
        self._depth -= 1
        return expanded

    def _enter(self, nodes: int, height: int) -> None:
        self._left -= nodes
        self._deepest = max(self._deepest, self._depth + height)
        if self._left < 0 or self._depth + height > MOST_DEEP:
            raise not_evaluated("an expression so large")

    def _expanded(self, node: CelNode, scope: Mapping[str, CelNode]) -> CelNode:
        match node:
            case Identifier():
                return self._variable(node, scope[node.name]) if node.name in scope else node
            case Select():
                return replace(node, operand=self.expand(node.operand, scope))
            case ListOf():
                return replace(node, items=tuple(self.expand(item, scope) for item in node.items))
            case Call():
                return self._call(node, scope)
        return node

    def _variable(self, node: Identifier, value: CelNode) -> CelNode:
        self._enter(size_of(value), self._heights.get(value, 1))
        return Bound(node.start, node.end, value)

    def _call(self, call: Call, scope: Mapping[str, CelNode]) -> CelNode:
        target, arguments = call.target, call.arguments
        if call.function == "bind" and len(arguments) == 3 and isinstance(target, Identifier) and target.name == "cel":
            deepest, self._deepest = self._deepest, self._depth
            value = self.expand(arguments[1], scope)
            self._heights[value] = self._deepest - self._depth
            self._deepest = max(deepest, self._deepest)
            self.unused.append(value)
            return self._within(call, arguments[0], value, scope)
        if target is not None and call.function in LOOPS and len(arguments) == 2:
            return self._loop(call, target, scope)
        if target is not None and (call.function in OTHER_LOOPS or call.function in LOOPS):
            raise not_evaluated(f"{call.function}()")
        expanded = target and self.expand(target, scope)
        return replace(call, target=expanded, arguments=tuple(self.expand(argument, scope) for argument in arguments))

    def _within(self, call: Call, variable: CelNode, value: CelNode, scope: Mapping[str, CelNode]) -> CelNode:
        if not isinstance(variable, Identifier):
            raise syntax_error(self._text, call.start, f"{call.function}() variable name must be a simple identifier")
        if variable.name.startswith("__"):
            raise not_evaluated(f"a variable {variable.name}")
        return self.expand(call.arguments[-1], {**scope, variable.name: value})

    def _loop(self, call: Call, target: CelNode, scope: Mapping[str, CelNode]) -> CelNode:
        items = target.items if isinstance(target, ListOf) else ()
        kinds = {type(item.value) if isinstance(item, Literal) else None for item in items}
        if len(kinds) != 1 or None in kinds:
            raise not_evaluated(f"{call.function}() over what is no list of literals")
        bodies = tuple(self._within(call, call.arguments[0], item, scope) for item in items)
        return Bound(call.start, call.end, Call(call.start, call.end, LOOPS[call.function], None, bodies))


def size_of(node: CelNode | None) -> int:
    """Count the nodes of an expression, those of variables at each use."""
    match node:
        case Select():
            return 1 + size_of(node.operand)
        case Bound():
            return size_of(node.value)
        case ListOf():
            return 1 + sum(map(size_of, node.items))
        case Call():
            return 1 + size_of(node.target) + sum(map(size_of, node.arguments))
    return 1
