# SPDX-License-Identifier: Apache-2.0
"""The types that CEL's checker infers, and which of them can stand for which (google/cel-go checker/types.go)."""

import re
from typing import NamedTuple


class Type(NamedTuple):
    """A type: its kind, and the types of its elements; a type parameter has the kind `param` and a name."""

    kind: str
    of: tuple["Type", ...] = ()
    name: str = ""

    def __str__(self) -> str:
        if self.kind == "param":
            return f"<{self.name}>"
        return f"{self.kind}({', '.join(map(str, self.of))})" if self.of else self.kind


DYN, ANY, ERROR, BOOL = Type("dyn"), Type("any"), Type("error"), Type("bool")
INT, STRING, NULL = Type("int"), Type("string"), Type("null_type")
QUANTITY, SEMVER, DEVICE = Type("kubernetes.Quantity"), Type("kubernetes.Semver"), Type("kubernetes.DRADevice")
Substitutions = dict[Type, Type]

_WILD = frozenset({"dyn", "any", "error"})
_NULLABLE = frozenset(
    {
        "optional_type",
        "kubernetes.Quantity",
        "kubernetes.Semver",
        "kubernetes.DRADevice",
        "any",
        "duration",
        "timestamp",
    }
)
_WORD = re.compile(r"[A-Za-z_.]+|[()]")
_SHORT = {"quantity": "kubernetes.Quantity", "semver": "kubernetes.Semver", "optional": "optional_type"}


def list_of(item: Type) -> Type:
    """Make the type of a list."""
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    """Make the type of a map."""
    return Type("map", (key, value))


def optional_of(item: Type) -> Type:
    """Make the type of an optional value."""
    return Type("optional_type", (item,))


def read_types(text: str) -> tuple[Type, ...]:
    """Read types as the tables of functions write them: `list(A) map(A B) int`; one capital letter is a parameter."""
    words = _WORD.findall(text)
    types, rest = _read(words)
    if rest:
        raise ValueError(f"types: got {text!r}, with {rest[0]!r} too many")
    return types


def _read(words: list[str]) -> tuple[tuple[Type, ...], list[str]]:
    types: list[Type] = []
    while words and words[0] != ")":
        name, words = words[0], words[1:]
        inner: tuple[Type, ...] = ()
        if words and words[0] == "(":
            inner, words = _read(words[1:])
            words = words[1:]
        is_parameter = len(name) == 1 and name.isupper()
        types.append(Type("param", (), name) if is_parameter else Type(_SHORT.get(name, name), inner))
    return tuple(types), words


def is_dynamic(item: Type) -> bool:
    """Tell whether the checker leaves the type of a value to the evaluation."""
    return item.kind in ("dyn", "any")


def substitute(known: Substitutions, item: Type, to_dynamic: bool = False) -> Type:
    """Replace the type parameters that are known; `to_dynamic` makes the others dyn."""
    if item in known:
        return substitute(known, known[item], to_dynamic)
    if item.kind == "param":
        return DYN if to_dynamic else item
    return Type(item.kind, tuple(substitute(known, inner, to_dynamic) for inner in item.of)) if item.of else item


def assignable(known: Substitutions, one: Type, other: Type) -> bool:
    """Tell whether a value of a type can be taken for one of another; `known` gains what that needs."""
    if other.kind == "param":
        valid, bound = _unify(known, one, other)
        if valid or bound:
            return valid
    if one.kind == "param":
        return _unify(known, other, one)[0]
    if one.kind in _WILD or other.kind in _WILD:
        return True
    if "null_type" in (one.kind, other.kind):
        return one.kind == other.kind or (other if one.kind == "null_type" else one).kind in _NULLABLE
    if one.kind == "type" or other.kind == "type":
        return one.kind == other.kind
    return one.kind == other.kind and all_assignable(known, one.of, other.of)


def all_assignable(known: Substitutions, ones: tuple[Type, ...], others: tuple[Type, ...]) -> bool:
    """Tell the same of two lists of types."""
    return len(ones) == len(others) and all(
        assignable(known, one, other) for one, other in zip(ones, others, strict=True)
    )


def _unify(known: Substitutions, one: Type, parameter: Type) -> tuple[bool, bool]:
    """Tell whether a type can stand for a parameter, and whether the parameter was bound already."""
    if one == parameter:
        return True, True
    bound = known.get(parameter)
    if bound is not None:
        if one == bound:
            return True, True
        if not assignable(known, one, bound):
            return False, True
        wider = most_general(one, bound)
        if _absent(known, parameter, wider):
            known[parameter] = wider
        return True, True
    if _absent(known, parameter, one):
        known[parameter] = one
        return True, False
    return False, False


def most_general(one: Type, other: Type) -> Type:
    """Return the more general of two types, each of which can stand for the other."""
    return one if _no_more_specific(one, other) else other


def _no_more_specific(one: Type, other: Type) -> bool:
    if is_dynamic(one) or one.kind == "param":
        return True
    if is_dynamic(other) or other.kind == "param":
        return False
    if one.kind != other.kind or len(one.of) != len(other.of):
        return False
    return one.kind == "type" or all(_no_more_specific(*pair) for pair in zip(one.of, other.of, strict=True))


def _absent(known: Substitutions, parameter: Type, within: Type) -> bool:
    """Tell that a parameter does not occur in a type, as no type contains itself."""
    if parameter == within:
        return False
    if within.kind == "param":
        return within not in known or _absent(known, parameter, known[within])
    return all(_absent(known, parameter, inner) for inner in within.of)


DEVICE_FIELDS = {
    "driver": STRING,
    "allowMultipleAllocations": BOOL,
    "attributes": map_of(STRING, map_of(STRING, ANY)),
    "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
}
TYPE_NAMES = {
    name: Type("type", (Type(name),))
    for name in ("bool", "bytes", "double", "int", "string", "uint", "null_type", "type")
}
TYPE_NAMES |= {"list": Type("type", (list_of(DYN),)), "map": Type("type", (map_of(DYN, DYN),))}
