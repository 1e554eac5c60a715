# SPDX-License-Identifier: Apache-2.0
"""Infers the types of an expression, and finds what does not compile (google/cel-go checker/checker.go).

The types of `device` are those of kubernetes staging/src/k8s.io/dynamic-resource-allocation/cel/compile.go with the
feature gates DRAConsumableCapacity (on by default since 1.36) and DRAListTypeAttributes (off by default in 1.36 and
1.37). With the latter off, Kubernetes also refuses includes(), dyn() as the result, and macros over one attribute.
"""

from typing import Any

from app.dra.cel_functions import CONVERSIONS, FUNCTIONS, UNJUDGED, Overload
from app.dra.cel_library import compile_pattern
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
    Select,
    SelectorError,
    syntax_error,
)
from app.dra.cel_types import (
    ANY,
    BOOL,
    DEVICE,
    DEVICE_FIELDS,
    DYN,
    INT,
    NULL,
    TYPE_NAMES,
    Substitutions,
    Type,
    all_assignable,
    is_dynamic,
    list_of,
    map_of,
    most_general,
    optional_of,
    substitute,
)
from app.dra.cel_values import kind

Scope = dict[str, Type]


class Checker:
    """Checks one expression; `calls` then has the name and the possible overloads of each call.

    The overloads are empty for a function that is not judged.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._known: Substitutions = {}
        self._variables = 0
        self._constants: dict[CelNode, Any] = {}
        self._literals: list[tuple[CelNode, list[Type]]] = []
        self.calls: dict[CelNode, tuple[str, tuple[Overload, ...]]] = {}

    def check(self, root: CelNode) -> None:
        """Check an expression, which must be a bool, or an attribute that may be one.

        Raises SelectorError.
        """
        result = substitute(self._known, self._type(root, {}), to_dynamic=True)
        for node, types in self._literals:
            self._check_alike(node, [substitute(self._known, item, to_dynamic=True) for item in types])
        if result != BOOL and not is_dynamic(result):
            raise self._problem(root, f"must evaluate to bool or the unknown type, not {result}")

    def _problem(self, node: CelNode, message: str) -> SelectorError:
        return syntax_error(self._text, node.start, message)

    def _type(self, node: CelNode, scope: Scope) -> Type:
        match node:
            case Literal():
                return NULL if node.value is None else Type(kind(node.value))
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
            case _:
                return ANY

    def _identifier(self, node: Identifier, scope: Scope) -> Type:
        if node.name in scope:
            return scope[node.name]
        if node.name == "device":
            return DEVICE
        if node.name in TYPE_NAMES:
            return TYPE_NAMES[node.name]
        raise self._problem(node, f"undeclared reference to '{node.name}' (in container '')")

    def _select(self, node: Select, scope: Scope) -> Type:
        operand = substitute(self._known, self._type(node.operand, scope))
        optional = operand.kind == "optional_type"
        result = self._field(node, operand.of[0] if optional else operand)
        if node.presence:
            return BOOL
        return optional_of(result) if optional or node.optional else result

    def _field(self, node: Select, operand: Type) -> Type:
        if operand.kind == "map":
            return substitute(self._known, operand.of[1])
        if operand == DEVICE:
            if node.field not in DEVICE_FIELDS:
                raise self._problem(node, f"undefined field '{node.field}'")
            return DEVICE_FIELDS[node.field]
        if operand.kind == "param":
            self._assignable(DYN, operand)
        elif not is_dynamic(operand):
            raise self._problem(node, f"type '{operand}' does not support field selection")
        return DYN

    def _call(self, node: Call, scope: Scope) -> Type:
        arguments = [self._type(argument, scope) for argument in node.arguments]
        name = node.function
        qualified = _qualified(node.target)
        if node.target is not None and qualified and f"{qualified}.{name}" in FUNCTIONS.keys() | UNJUDGED:
            name = f"{qualified}.{name}"
            return self._resolve(node, name, arguments, member=False)
        if node.target is not None:
            arguments.insert(0, self._type(node.target, scope))
        return self._resolve(node, name, arguments, member=node.target is not None)

    def _resolve(self, node: Call, name: str, arguments: list[Type], member: bool) -> Type:
        if name in ("_&&_", "_||_"):
            return self._logical(node, name, arguments)
        if name in UNJUDGED:
            self.calls[node] = (name, ())
            return ANY
        if name not in FUNCTIONS:
            raise self._problem(node, f"undeclared reference to '{name}' (in container '')")
        result, overloads = self._overloads(name, arguments, member)
        if result is None:
            raise self._problem(
                node, f"found no matching overload for '{name}' applied to '{self._applied(arguments, member)}'"
            )
        chosen = overloads if len(overloads) == 1 else FUNCTIONS[name]
        self.calls[node] = (name, tuple(chosen))
        if name in ("matches", "find"):
            self._check_pattern(node)
        if name in CONVERSIONS:
            self._convert_constant(node, overloads)
        return result

    def _overloads(self, name: str, arguments: list[Type], member: bool) -> tuple[Type | None, list[Overload]]:
        """Find the overloads that the arguments fit, and the type of their results."""
        result: Type | None = None
        fitting = []
        for overload in FUNCTIONS[name]:
            wanted, made = self._fresh(overload)
            if overload.member != member or not self._all_assignable(arguments, wanted):
                continue
            fitting.append(overload)
            made = substitute(self._known, made)
            if result is None:
                result = made
            elif not is_dynamic(result) and made != result:
                result = DYN
        return result, fitting

    def _logical(self, node: Call, name: str, arguments: list[Type]) -> Type:
        for argument, item in zip(node.arguments, arguments, strict=True):
            if not self._assignable(item, BOOL):
                raise self._problem(argument, f"expected type 'bool' but found '{substitute(self._known, item)}'")
        self.calls[node] = (name, tuple(FUNCTIONS[name]))
        return BOOL

    def _applied(self, arguments: list[Type], member: bool) -> str:
        shown = [str(substitute(self._known, item, to_dynamic=True)) for item in arguments]
        return f"{shown[0]}.({', '.join(shown[1:])})" if member else f"({', '.join(shown)})"

    def _convert_constant(self, node: Call, overloads: list[Overload]) -> None:
        """Compute the conversion of a constant, and refuse one that fails, as int("x") does."""
        argument = node.arguments[0]
        if isinstance(argument, Literal):
            value = argument.value
        elif argument in self._constants:
            value = self._constants[argument]
        else:
            return
        try:
            self._constants[node] = overloads[0].compute(value)
        except EvaluationError as problem:
            raise self._problem(node, f"program instantiation failed: {problem}") from None
        except NotJudged:
            return

    def _check_pattern(self, node: Call) -> None:
        """Refuse a literal that is no regular expression."""
        pattern = node.arguments[-1]
        if isinstance(pattern, Literal) and isinstance(pattern.value, str):
            try:
                compile_pattern(pattern.value)
            except EvaluationError as problem:
                raise self._problem(pattern, f"invalid matches argument: {problem}") from None
            except NotJudged:
                return

    def _fresh(self, overload: Overload) -> tuple[tuple[Type, ...], Type]:
        """Give an overload's type parameters names that nothing else has."""
        fresh: Substitutions = {}
        for name in "AB":
            fresh[Type("param", (), name)] = self._variable()
        return tuple(substitute(fresh, item) for item in overload.arguments), substitute(fresh, overload.result)

    def _variable(self) -> Type:
        self._variables += 1
        return Type("param", (), f"_var{self._variables}")

    def _assignable(self, one: Type, other: Type) -> bool:
        return self._all_assignable([one], (other,))

    def _all_assignable(self, ones: list[Type], others: tuple[Type, ...]) -> bool:
        known = dict(self._known)
        if not all_assignable(known, tuple(ones), others):
            return False
        self._known = known
        return True

    def _join(self, node: CelNode, types: list[Type]) -> Type:
        """Find the type that all elements of a literal have."""
        joined = types[0]
        for item in types[1:]:
            if not self._assignable(joined, item):
                raise self._problem(node, f"expected type '{substitute(self._known, joined)}' but found '{item}'")
            joined = most_general(joined, item)
        self._literals.append((node, types))
        return joined

    def _check_alike(self, node: CelNode, types: list[Type]) -> None:
        """Refuse a literal with elements of several types (cel/validator.go, homogeneousAggregateLiteralValidator)."""
        for item in types[1:]:
            if item != types[0] and not (is_dynamic(item) and is_dynamic(types[0])):
                raise self._problem(node, f"expected type '{types[0]}' but found '{item}'")

    def _unwrapped(self, node: CelNode, item: Type) -> Type:
        """Return the type of an optional element's value."""
        item = substitute(self._known, item)
        if item.kind == "optional_type":
            return item.of[0]
        if not is_dynamic(item):
            raise self._problem(node, f"expected type 'optional_type({item})' but found '{item}'")
        return item

    def _list(self, node: ListOf, scope: Scope) -> Type:
        types = [self._type(item, scope) for item in node.items]
        types = [self._unwrapped(node, item) if index in node.optional else item for index, item in enumerate(types)]
        return list_of(self._join(node, types) if types else self._variable())

    def _map(self, node: MapOf, scope: Scope) -> Type:
        if not node.entries:
            return map_of(self._variable(), self._variable())
        keys = [self._type(key, scope) for key, _, _ in node.entries]
        values = [self._type(value, scope) for _, value, _ in node.entries]
        values = [
            self._unwrapped(node, item) if entry[2] else item for entry, item in zip(node.entries, values, strict=True)
        ]
        return map_of(self._join(node, keys), self._join(node, values))

    def _fold(self, node: Fold, scope: Scope) -> Type:
        sequence = substitute(self._known, self._type(node.sequence, scope))
        initial = self._type(node.initial, scope)
        outer = {**scope, node.accumulator: initial}
        inner = {**outer, **dict(zip(node.names, self._elements(node, sequence), strict=False))}
        if not self._assignable(BOOL, self._type(node.condition, inner)):
            raise self._problem(node, "expected type 'bool'")
        step = self._type(node.step, inner)
        if not self._assignable(initial, step):
            expected, got = (substitute(self._known, item) for item in (initial, step))
            raise self._problem(node, f"expected type '{expected}' but found '{got}'")
        return substitute(self._known, self._type(node.result, outer))

    def _elements(self, node: Fold, sequence: Type) -> tuple[Type, Type]:
        """Return the types of the variables of a loop; a single variable has the first."""
        if sequence.kind == "list":
            return (INT, sequence.of[0]) if len(node.names) == 2 else (sequence.of[0], DYN)
        if sequence.kind == "map":
            return sequence.of[0], sequence.of[1]
        if sequence.kind == "param":
            self._assignable(DYN, sequence)
        elif not is_dynamic(sequence):
            words = "cannot be range of a comprehension (must be list, map, or dynamic)"
            raise self._problem(node.sequence, f"expression of type '{sequence}' {words}")
        return DYN, DYN


def _qualified(node: CelNode | None) -> str | None:
    """Return the name that identifiers and fields make, such as a.b, or None."""
    if isinstance(node, Identifier):
        return node.name
    if isinstance(node, Select) and not node.presence and not node.optional:
        operand = _qualified(node.operand)
        return f"{operand}.{node.field}" if operand else None
    return None
