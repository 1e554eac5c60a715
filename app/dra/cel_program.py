# SPDX-License-Identifier: Apache-2.0
"""Checks expressions without macros, and makes functions of them, which compute their values for a device.

What does not compile is found as by google/cel-go checker/checker.go; what is evaluated, and when, is as in its
interpreter/planner.go and interpretable.go: `&&` and `||` absorb errors of either side. Attributes have the type any,
which an evaluation decides (kubernetes staging/src/k8s.io/dynamic-resource-allocation/cel/compile.go).
"""

from collections.abc import Callable
from typing import Any

from app.dra.cel_facts import Evaluate, Read, reader
from app.dra.cel_functions import ANY, BOOL, FUNCTIONS, METHODS, NOT_EVALUATED, QUANTITY, STRING, Overload, choose
from app.dra.cel_syntax import (
    Aborted,
    Bound,
    Call,
    CelNode,
    EvaluationError,
    Identifier,
    ListOf,
    Literal,
    Path,
    Select,
    SelectorError,
    not_evaluated,
    path_of,
    syntax_error,
)
from app.dra.cel_values import compile_pattern, contains, equal, kind, member_of_constants, no_overload, unequal
from app.kube.devices import Device

Typed = tuple[str, Evaluate]
"""The type of an expression, and what computes it."""
FIELDS = {"driver": STRING, "allowMultipleAllocations": BOOL, "attributes": "map", "capacity": "map"}
_NAMESPACES = frozenset(name.partition(".")[0] for name in NOT_EVALUATED if "." in name)
_TYPES = frozenset({"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"})
_ARITHMETIC = frozenset({"_+_", "_-_", "_*_", "_/_", "_%_", "-_"})
"""Operators that take other types, too, which are not judged."""
_LONGER = {"replace": 4, "indexOf": 3}
"""Functions with an overload that is not evaluated, by the number of its operands."""
_OPTIONAL = {"orValue": 1, "hasValue": 0}


class Program:
    """Compiles one expression; `reads` are the facts that it asks about."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.reads: set[Read] = set()

    def condition(self, node: CelNode) -> Evaluate:
        """Compile an expression that must be a bool, or an attribute that may be one.

        Raises SelectorError, NotJudged.
        """
        result, evaluate = self.compile(node)
        if result not in (BOOL, ANY):
            raise self._problem(node, f"must evaluate to bool or the unknown type, not {result}")
        return evaluate

    def _problem(self, node: CelNode, message: str) -> SelectorError:
        return syntax_error(self._text, node.start, message)

    def compile(self, node: CelNode) -> Typed:
        """Compile an expression."""
        path = path_of(node)
        if path is not None:
            return self._path(node, *path)
        match node:
            case Bound():
                return self.compile(node.value)
            case Literal():
                value = node.value
                return kind(value), lambda _: value
            case ListOf():
                return self._list(node)
            case Select():
                return self._field(node)
            case Call():
                return self._call(node)
            case Identifier() if node.name in _TYPES:
                raise not_evaluated(f"{node.name} as a value")
            case Identifier():
                raise self._problem(node, f"undeclared reference to '{node.name}' (in container '')")
        raise AssertionError(node)

    def _path(self, node: CelNode, path: Path, optional: bool) -> Typed:
        if path and path[0] not in FIELDS:
            raise self._problem(node, f"undefined field '{path[0]}'")
        found = reader(path)
        if found is None or optional:
            raise not_evaluated(f"device{'.' * bool(path)}{'.'.join(path)} as a value")
        self.reads.add(found[0])
        return {"attributes": ANY, "capacity": QUANTITY}.get(path[0], FIELDS[path[0]]), found[1]

    def _field(self, node: Select) -> Typed:
        """Compile a field of what has none, which is an error when it is evaluated if the type is not known."""
        if node.optional:
            raise not_evaluated("an optional field of a value")
        operand, evaluate = self.compile(node.operand)
        if operand != ANY:
            raise self._problem(node, f"type '{operand}' does not support field selection")

        def fail(device: Device) -> Any:
            evaluate(device)
            raise EvaluationError(f"no such key: {node.field}")

        return ANY, fail

    def _list(self, node: ListOf) -> Typed:
        compiled = [self.compile(item) for item in node.items]
        types = {item for item, _ in compiled}
        if len(types) > 1 and any(item.startswith("list(") for item in types):
            raise not_evaluated("a list of lists")
        if len(types) > 1:
            raise self._problem(node, f"expected elements of one type, but found {' and '.join(sorted(types))}")
        items = [evaluate for _, evaluate in compiled]
        return f"list({', '.join(types)})", lambda device: tuple([evaluate(device) for evaluate in items])

    def _call(self, node: Call) -> Typed:
        if node.function in _SPECIAL:
            return _SPECIAL[node.function](self, node)
        qualified = isinstance(node.target, Identifier) and node.target.name in _NAMESPACES
        if node.function in _OPTIONAL and len(node.arguments) == _OPTIONAL[node.function]:
            return self._of_optional(node)
        name = (
            f"{node.target.name}.{node.function}"
            if isinstance(node.target, Identifier) and qualified
            else node.function
        )
        overloads = (FUNCTIONS if node.target is None else METHODS).get(name)
        if name in NOT_EVALUATED:
            raise not_evaluated(f"{name}()")
        operands = node.arguments if node.target is None else (node.target, *node.arguments)
        compiled = [self.compile(operand) for operand in operands]
        if overloads is None and name not in FUNCTIONS.keys() | METHODS.keys():
            raise self._problem(node, f"undeclared reference to '{name}' (in container '')")
        types = [one for one, _ in compiled]
        if len(types) == _LONGER.get(name):
            raise not_evaluated(f"{name}() with so many arguments")
        if name == "_+_" and any(item.startswith("list(") for item in types):
            raise not_evaluated("a sum of lists")
        fitting = [overload for overload in overloads or () if _fits(overload, types)]
        if not fitting:
            raise self._problem(node, f"found no matching overload for '{name}' applied to '({', '.join(types)})'")
        if name == "matches":
            self._check_pattern(operands[1])
        results = {overload.result for overload in fitting}
        unknown = len(results) > 1 or (name in _ARITHMETIC and set(types) == {ANY})
        return (ANY if unknown else results.pop()), _function(name, fitting, [one for _, one in compiled])

    def _check_pattern(self, pattern: CelNode) -> None:
        """Refuse a literal that is no regular expression."""
        if isinstance(pattern, Literal):
            try:
                compile_pattern(pattern.value)
            except EvaluationError as problem:
                raise self._problem(pattern, f"invalid matches argument: {problem}") from None

    def _of_optional(self, node: Call) -> Typed:
        """Compile `….?name.hasValue()` and `….?name.orValue(other)`."""
        path = path_of(node.target)
        found = reader(path[0]) if path is not None and path[1] else None
        if found is None or path is None or path[0][0] not in ("attributes", "capacity"):
            raise not_evaluated(f"{node.function}()")
        read, look_up = found
        self.reads.add(read)
        present = _presence(read)
        if node.function == "hasValue":
            return BOOL, present
        result, otherwise = self.compile(node.arguments[0])
        if path[0][0] == "capacity" and result not in (QUANTITY, ANY):
            raise self._problem(node, f"found no matching overload for 'orValue' applied to '{result}'")
        return ANY if path[0][
            0
        ] == "attributes" else QUANTITY, lambda device: look_up(device) if present(device) else otherwise(device)

    def _has(self, node: Call) -> Typed:
        """Compile has(); a domain is always there."""
        field = node.arguments[0] if len(node.arguments) == 1 else None
        if node.target is not None or field is None:
            raise not_evaluated("has()")
        if not isinstance(field, Select) or field.optional:
            raise self._problem(node, "invalid argument to has() macro")
        path = path_of(field)
        if path is None or path[1]:
            raise not_evaluated("has() of what is no attribute")
        if path[0][0] not in FIELDS:
            raise self._problem(node, f"undefined field '{path[0][0]}'")
        found = reader(path[0]) if len(path[0]) == 3 else None
        if found is None:
            return BOOL, lambda _: True
        self.reads.add(found[0])
        return BOOL, _presence(found[0])

    def _logical(self, node: Call) -> Typed:
        operands = []
        for argument in node.arguments:
            result, evaluate = self.compile(argument)
            if result not in (BOOL, ANY):
                raise self._problem(argument, f"expected type 'bool' but found '{result}'")
            operands.append(evaluate)
        return BOOL, _absorbing(node.function == "_||_", node.function, operands)

    def _conditional(self, node: Call) -> Typed:
        (asked, test), (one, then), (other, otherwise) = map(self.compile, node.arguments)
        if asked not in (BOOL, ANY) or not _alike(one, other):
            raise self._problem(node, f"found no matching overload for '_?_:_' applied to '({asked}, {one}, {other})'")

        def evaluate(device: Device) -> Any:
            chosen = test(device)
            if type(chosen) is not bool:
                raise no_overload("_?_:_", chosen)
            return then(device) if chosen else otherwise(device)

        if one != other and ANY not in (one, other):
            raise not_evaluated("a choice between lists")
        return (one if one == other else ANY), evaluate

    def _equality(self, node: Call) -> Typed:
        (one, left), (other, right) = map(self.compile, node.arguments)
        if not _alike(one, other):
            raise self._problem(node, f"found no matching overload for '{node.function}' applied to '({one}, {other})'")
        test = equal if node.function == "_==_" else unequal
        return BOOL, lambda device: test(left(device), right(device))

    def _membership(self, node: Call) -> Typed:
        item, values = node.arguments
        path = path_of(values)
        if (
            path is not None
            and len(path[0]) == 2
            and not path[1]
            and isinstance(item, Literal)
            and type(item.value) is str
        ):
            return self._has(
                Call(node.start, node.end, "has", None, (Select(node.start, node.end, values, item.value),))
            )
        one, evaluate = self.compile(item)
        other, container = self.compile(values)
        if other != ANY and not (other.startswith("list(") and _alike(one, other[5:-1] or ANY)):
            raise self._problem(node, f"found no matching overload for '@in' applied to '({one}, {other})'")
        literals = values.items if isinstance(values, ListOf) else ()
        constants = {(type(each.value), each.value) for each in literals if isinstance(each, Literal)}
        if isinstance(values, ListOf) and not literals:
            return BOOL, lambda _: False  # nothing is in it, not even what cannot be computed
        if literals and all(isinstance(each, Literal) for each in literals):
            return BOOL, lambda device: member_of_constants(evaluate(device), constants)

        def find(device: Device) -> bool:
            value = evaluate(device)
            return contains(container(device), value)

        return BOOL, find

    def _element(self, node: Call) -> Typed:
        result, _ = self.compile(node.arguments[0])
        raise not_evaluated(f"an element of {result}")


_SPECIAL: dict[str, Callable[[Program, Call], Typed]] = {
    "has": Program._has,
    "_&&_": Program._logical,
    "_||_": Program._logical,
    "_?_:_": Program._conditional,
    "_==_": Program._equality,
    "_!=_": Program._equality,
    "@in": Program._membership,
    "_[_]": Program._element,
    "_[?_]": Program._element,
}


def _alike(one: str, other: str) -> bool:
    """Tell whether values of two types may be compared, which are equal, or of which one is not known."""
    if ANY in (one, other):
        return True
    if one.startswith("list(") and other.startswith("list("):
        return _alike(one[5:-1] or ANY, other[5:-1] or ANY)
    return one == other


def _fits(overload: Overload, types: list[str]) -> bool:
    return len(types) == len(overload.arguments) and all(
        one == ANY or one.startswith(wanted) for wanted, one in zip(overload.arguments, types, strict=True)
    )


def _presence(read: Read) -> Evaluate:
    def is_there(device: Device) -> bool:
        return read.name in (device.attributes if read.group == "attributes" else device.capacity)

    return is_there


def _function(name: str, overloads: list[Overload], arguments: list[Evaluate]) -> Evaluate:
    def call(device: Device) -> Any:
        values = [argument(device) for argument in arguments]
        return choose(name, overloads, values, list(map(kind, values)))

    return call


def _absorbing(decisive: bool, function: str, operands: list[Evaluate]) -> Evaluate:
    """Make `&&` or `||`: a decisive operand counts, whatever the others are; else the first error does."""

    def evaluate(device: Device) -> bool:
        failure: EvaluationError | None = None
        for operand in operands:
            try:
                value = operand(device)
                if type(value) is not bool:
                    raise no_overload(function, value)
            except Aborted:
                raise
            except EvaluationError as problem:
                failure = failure or problem
                continue
            if value is decisive:
                return decisive
        if failure is not None:
            raise failure
        return not decisive

    return evaluate
