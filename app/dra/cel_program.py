# SPDX-License-Identifier: Apache-2.0
"""Makes functions of expressions that were checked, which compute their values for a device.

What is evaluated, and when, is as in google/cel-go interpreter/planner.go and interpretable.go: `&&` and `||` absorb
errors of either side, variables of macros are computed once they are asked for, and so on. The paths
`device.attributes["domain"].name` are looked up at once, without making the maps on the way.
"""

from collections.abc import Callable, Mapping
from typing import Any

from app.dra.cel_control import (
    Loop,
    conditional,
    equality,
    inequality,
    let,
    logical,
    not_strictly_false,
    or_optional,
    or_value,
    settle,
)
from app.dra.cel_facts import Evaluate, Names, Read, group_view, qualified, read_value, spend
from app.dra.cel_functions import Overload
from app.dra.cel_operators import index
from app.dra.cel_syntax import (
    Call,
    CelNode,
    EvaluationError,
    Fold,
    Identifier,
    ListOf,
    Literal,
    MapOf,
    NotJudged,
    Path,
    Scope,
    Select,
    Unjudged,
    is_let,
    path_of,
)
from app.dra.cel_values import NONE, Optional, TypeValue, constant_key, find, kind, member_of_constants, no_overload
from app.kube.devices import Device


def fact_reader(path: Path, optional: bool) -> Evaluate:
    """Make the lookup of one attribute or capacity."""
    group, key, name = path[0], qualified(path[1], path[2]), path[2]
    is_attribute = group == "attributes"

    def look_up(device: Device, _: Names) -> Any:
        value = (device.attributes if is_attribute else device.capacity).get(key)
        if value is None:
            raise EvaluationError(f"no such key: {name}")
        return value if type(value) in _PLAIN and is_attribute else read_value(group, value)

    def look_up_optional(device: Device, names: Names) -> Any:
        entries = device.attributes if is_attribute else device.capacity
        return Optional(look_up(device, names)) if key in entries else NONE

    return look_up_optional if optional else look_up


_PLAIN = frozenset({str, int, bool})


def lookup(container: Any, field: Any) -> Any:
    """Look up a field; of an optional value it is optional, too."""
    return optional_lookup(container, field) if isinstance(container, Optional) else index(container, field)


def optional_lookup(container: Any, field: Any) -> Optional:
    """Look up a field that may not be there."""
    if isinstance(container, Optional):
        container = container.value
    present, value = find(container, field)
    return Optional(value) if present else NONE


class Planner:
    """Makes the functions of one expression; `reads` are the facts that it asks about, None if values decide that."""

    def __init__(self, calls: Mapping[CelNode, tuple[str, tuple[Overload, ...]]]) -> None:
        self._calls = calls
        self.reads: set[Read] | None = set()

    def plan(self, node: CelNode, scope: Scope) -> Evaluate:
        """Make the function of a node."""
        path = path_of(node, scope)
        if path is not None:
            return self._read_path(*path)
        match node:
            case Literal():
                return _constant(node.value)
            case Identifier():
                return self._identifier(node, scope)
            case Select():
                return self._select(node, scope)
            case Call():
                return self._call(node, scope)
            case ListOf():
                return self._list(node, scope)
            case MapOf():
                return self._map(node, scope)
            case Fold():
                return self._fold(node, scope)
            case Unjudged():
                return raising(NotJudged(f"{node.what} is not evaluated"))
        raise AssertionError(node)

    def _note(self, path: Path) -> None:
        """Remember what is read: a fact, or an unknown part of all of them."""
        if len(path) == 3:
            fact = Read(path[0], qualified(path[1], path[2]))
        elif path in (("driver",), ("allowMultipleAllocations",)):
            fact = Read(path[0], "")
        else:
            self.reads = None
            return
        if self.reads is not None:
            self.reads.add(fact)

    def _read_path(self, path: Path, optional: bool) -> Evaluate:
        self._note(path)
        if not path:
            return raising(NotJudged("device as a value"))
        if path == ("driver",):
            return lambda device, _: device.driver
        if path == ("allowMultipleAllocations",):
            return lambda device, _: device.allow_multiple_allocations
        if len(path) == 3:
            return fact_reader(path, optional)
        view = group_view(path)
        return (lambda device, _: Optional(view(device))) if optional else lambda device, _: view(device)

    def _identifier(self, node: Identifier, scope: Scope) -> Evaluate:
        name = node.name
        if name not in scope:
            return _constant(TypeValue(name))
        return lambda _, names: settle(names[name])

    def _select(self, node: Select, scope: Scope) -> Evaluate:
        if node.presence:
            return self._presence(node, scope)
        operand, field = self.plan(node.operand, scope), node.field
        if node.optional:
            return lambda device, names: optional_lookup(operand(device, names), field)
        return lambda device, names: lookup(operand(device, names), field)

    def _presence(self, node: Select, scope: Scope) -> Evaluate:
        """Make has(); a domain is always there, and what has no fields has none."""
        path = path_of(node.operand, scope)
        if path is not None and len(path[0]) < 2:
            return _constant(True)
        if path is not None and len(path[0]) == 2:
            self._note((*path[0], node.field))
            group, key = path[0][0], qualified(path[0][1], node.field)
            return lambda device, _: key in (device.attributes if group == "attributes" else device.capacity)
        operand, field = self.plan(node.operand, scope), node.field
        return lambda device, names: optional_lookup(operand(device, names), field) is not NONE

    def _call(self, node: Call, scope: Scope) -> Evaluate:
        function, overloads = self._calls[node]
        if not overloads:
            return raising(NotJudged(f"{function}() is not evaluated"))
        namespaced = "." in function
        operands = node.arguments if node.target is None or namespaced else (node.target, *node.arguments)
        if function == "@in" and isinstance(node.arguments[1], ListOf) and not node.arguments[1].optional:
            constants = _constants(node.arguments[1])
            if constants is not None:
                return _membership(self.plan(operands[0], scope), constants)
        if function == "_?_:_" and any(map(_is_optional_test, node.arguments)):
            return raising(NotJudged("has() of an optional value as the result of a condition"))
        planned = tuple(self.plan(operand, scope) for operand in operands)
        if function in _SPECIAL:
            return _SPECIAL[function](*planned)
        return _function(function, overloads, planned)

    def _list(self, node: ListOf, scope: Scope) -> Evaluate:
        items, optional = tuple(self.plan(item, scope) for item in node.items), node.optional

        def make(device: Device, names: Names) -> Any:
            values = []
            for position, item in enumerate(items):
                value = item(device, names)
                if position in optional:
                    if value is NONE or value == NONE:
                        continue
                    value = _unwrap(value)
                values.append(value)
            return tuple(values)

        return make

    def _map(self, node: MapOf, scope: Scope) -> Evaluate:
        entries = tuple(
            (self.plan(key, scope), self.plan(value, scope), optional) for key, value, optional in node.entries
        )

        def make(device: Device, names: Names) -> Any:
            made: dict[str, Any] = {}
            for key, value, optional in entries:
                name, item = key(device, names), value(device, names)
                if type(name) is not str:
                    raise NotJudged("a map with keys that are not strings")
                if optional and item == NONE:
                    made.pop(name, None)
                else:
                    made[name] = _unwrap(item) if optional else item
            return made

        return make

    def _fold(self, node: Fold, scope: Scope) -> Evaluate:
        path = path_of(node.initial, scope) if is_let(node) else None
        outer = {**scope, node.accumulator: path}
        if path is not None:
            return self.plan(node.result, outer)
        inner = {**outer, **dict.fromkeys(node.names)}
        initial, result = self.plan(node.initial, scope), self.plan(node.result, outer)
        if is_let(node):
            return let(node.accumulator, initial, result)
        loop = Loop(node, initial, self.plan(node.condition, inner), self.plan(node.step, inner), result)
        sequence = self.plan(node.sequence, scope)
        return lambda device, names: loop.run(sequence(device, names), device, names)


def _is_optional_test(node: CelNode) -> bool:
    """Tell has() of an optional value, which cel-go leaves optional as a branch of `?:` (planner.go)."""
    if not isinstance(node, Select) or not node.presence:
        return False
    inner: CelNode = node.operand
    while isinstance(inner, (Select, Call)):
        if inner.optional if isinstance(inner, Select) else inner.function == "_[?_]":
            return True
        operand = inner.operand if isinstance(inner, Select) else inner.target or (*inner.arguments, None)[0]
        if operand is None:
            return False
        inner = operand
    return False


def _constant(value: Any) -> Evaluate:
    return lambda _, __: value


def raising(problem: Exception) -> Evaluate:
    """Make the evaluation that fails."""

    def fail(_: Device, __: Names) -> Any:
        raise problem

    return fail


def _unwrap(value: Any) -> Any:
    if not isinstance(value, Optional):
        raise EvaluationError(f"cannot initialize optional entry from non-optional value of type {kind(value)}")
    return value.value


_SPECIAL: dict[str, Callable[..., Evaluate]] = {
    "_&&_": logical(False, "_&&_"),
    "_||_": logical(True, "_||_"),
    "_?_:_": conditional,
    "@not_strictly_false": not_strictly_false,
    "_==_": equality,
    "_!=_": inequality,
    "_[_]": lambda left, right: lambda device, names: lookup(left(device, names), right(device, names)),
    "_[?_]": lambda left, right: lambda device, names: optional_lookup(left(device, names), right(device, names)),
    "or": or_optional,
    "orValue": or_value,
}


def _constants(node: ListOf) -> frozenset[tuple[str, Any]] | None:
    """Return the elements of a list of literals, which cel-go looks up in a set, or None for another list."""
    values = [item.value for item in node.items if isinstance(item, Literal)]
    if len(values) < len(node.items) or any(isinstance(value, bytes) for value in values):
        return None
    return frozenset(map(constant_key, values))


def _membership(item: Evaluate, constants: frozenset[tuple[str, Any]]) -> Evaluate:
    """Make `in` with a list of literals; nothing is in an empty one, not even what cannot be computed."""
    if not constants:
        return _constant(False)
    return lambda device, names: member_of_constants(item(device, names), constants)


def _function(name: str, overloads: tuple[Overload, ...], arguments: tuple[Evaluate, ...]) -> Evaluate:
    """Make the call of the first overload that fits the values."""
    if not overloads[0].guarded:
        compute = overloads[0].compute
        return lambda device, names: compute(*_evaluated(arguments, device, names))

    def call(device: Device, names: Names) -> Any:
        values = _evaluated(arguments, device, names)
        for overload in overloads:
            if len(values) == len(overload.arguments) and all(map(_fits, overload.arguments, values)):
                return overload.compute(*values)
        raise no_overload(name, *values)

    return call


_ANYTHING = frozenset({"param", "any", "dyn"})


def _fits(wanted: Any, value: Any) -> bool:
    return wanted.kind in _ANYTHING or wanted.kind == kind(value)


def _evaluated(arguments: tuple[Evaluate, ...], device: Device, names: Names) -> list[Any]:
    """Compute arguments, and charge for those that are long."""
    values = [argument(device, names) for argument in arguments]
    size = 1
    for value in values:
        if isinstance(value, (str, tuple, bytes)) and len(value) > 16:
            size *= len(value)
    if size > 64:
        spend(names, size // 8)
    return values
