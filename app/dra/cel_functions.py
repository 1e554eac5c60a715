# SPDX-License-Identifier: Apache-2.0
"""The functions that Kubernetes' CEL has for selectors: their types, and what computes them.

The tables are those of google/cel-go common/stdlib/standard.go and of the libraries that kubernetes
staging/src/k8s.io/apiserver/pkg/cel/environment/base.go and dynamic-resource-allocation/cel/compile.go enable for
1.36. Functions that are named only as unjudged compile with any arguments.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from app.dra import cel_library as library
from app.dra import cel_operators as operators
from app.dra.cel_quantities import read_quantity
from app.dra.cel_types import Type, read_types
from app.dra.cel_values import NONE, UInt, contains

Compute = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function; `guarded` says that the types of values are checked before it is computed."""

    member: bool
    arguments: tuple[Type, ...]
    result: Type
    compute: Compute
    guarded: bool = True


FUNCTIONS: dict[str, list[Overload]] = {}


def _declare(name: str, compute: Compute, *signatures: str, member: bool = True, guarded: bool = True) -> None:
    """Add signatures, such as `string int -> string`, to a function."""
    for signature in signatures:
        arguments, _, result = signature.partition("->")
        overload = Overload(member, read_types(arguments), read_types(result)[0], compute, guarded)
        FUNCTIONS.setdefault(name, []).append(overload)


def _global(name: str, compute: Compute, *signatures: str, guarded: bool = True) -> None:
    _declare(name, compute, *signatures, member=False, guarded=guarded)


def _operator(name: str, compute: Compute, *signatures: str) -> None:
    _global(name, compute, *signatures, guarded=False)


def _lazy(*_: Any) -> Any:
    raise AssertionError("computed by cel_program.py, which decides what is evaluated")


def _pairs(types: Iterable[str], result: str = "") -> list[str]:
    return [f"{name} {name} -> {result or name}" for name in types]


_NUMBERS = ("int", "uint", "double")
_ORDERED = [f"{left} {right} -> bool" for left in _NUMBERS for right in _NUMBERS]
_TIMES = ("duration", "timestamp")
"""Types without values here; null could be one of them, which decides whether an operator compiles."""
_ORDERED += _pairs(("bool", "string", "bytes", *_TIMES), "bool")
_COMPARABLE = ("int", "uint", "double", "bool", "string", "bytes", *_TIMES)
_LOWER, _UPPER = str.maketrans(ascii_uppercase, ascii_lowercase), str.maketrans(ascii_lowercase, ascii_uppercase)

for _name in ("_&&_", "_||_"):
    _operator(_name, _lazy, "bool bool -> bool")
_operator("_?_:_", _lazy, "bool A A -> A")
_operator("@not_strictly_false", _lazy, "bool -> bool")
for _name in ("_==_", "_!=_"):
    _operator(_name, _lazy, "A A -> bool")
_operator("!_", operators.invert, "bool -> bool")
_operator("-_", operators.negate, "int -> int", "double -> double")
_operator("_+_", operators.add, *_pairs((*_NUMBERS, "string", "bytes")), "list(A) list(A) -> list(A)")
_operator("_+_", operators.add, *_pairs(("duration",)), *(f"{a} {b} -> timestamp" for a, b in (_TIMES, _TIMES[::-1])))
_operator("_-_", operators.subtract, *_pairs((*_NUMBERS, "duration")))
_operator("_-_", operators.subtract, "timestamp timestamp -> duration", "timestamp duration -> timestamp")
_operator("_*_", operators.multiply, *_pairs(_NUMBERS))
_operator("_/_", operators.divide, *_pairs(_NUMBERS))
_operator("_%_", operators.remainder, *_pairs(("int", "uint")))
_operator("_<_", operators.less, *_ORDERED)
_operator("_<=_", operators.less_equal, *_ORDERED)
_operator("_>_", operators.greater, *_ORDERED)
_operator("_>=_", operators.greater_equal, *_ORDERED)
_operator("@in", operators.is_in, "A list(A) -> bool", "A map(A B) -> bool")
_operator("_[_]", _lazy, "list(A) int -> A", "map(A B) A -> B")
_operator("_[_]", _lazy, "optional(list(A)) int -> optional(A)", "optional(map(A B)) A -> optional(B)")
_operator("_[?_]", _lazy, "list(A) int -> optional(A)", "optional(list(A)) int -> optional(A)")
_operator("_[?_]", _lazy, "map(A B) A -> optional(B)", "optional(map(A B)) A -> optional(B)")

for _member in (False, True):
    _sizes = ("bytes -> int", "list(A) -> int", "map(A B) -> int", "string -> int")
    _declare("size", operators.size, *_sizes, member=_member, guarded=False)
    _declare("matches", library.matches, "string string -> bool", member=_member)
_global("type", operators.type_of, "A -> type(A)")
_global("dyn", lambda value: value, "A -> dyn")
_global("bool", operators.to_bool, "bool -> bool", "string -> bool")
_global("bytes", lambda value: value.encode() if isinstance(value, str) else value, "bytes -> bytes", "string -> bytes")
_global("double", operators.to_double, *(f"{name} -> double" for name in (*_NUMBERS, "string")))
_global("int", operators.to_int, *(f"{name} -> int" for name in (*_NUMBERS, "string", *_TIMES)))
_global(
    "string", operators.to_string, *(f"{name} -> string" for name in (*_NUMBERS, "bool", "bytes", "string", *_TIMES))
)
_global("uint", operators.to_uint, *(f"{name} -> uint" for name in (*_NUMBERS, "string")))

_declare("contains", lambda text, part: part in text, "string string -> bool")
_declare("startsWith", lambda text, start: text.startswith(start), "string string -> bool")
_declare("endsWith", lambda text, end: text.endswith(end), "string string -> bool")
_declare("charAt", library.char_at, "string int -> string")
_declare("indexOf", library.index_in_text, "string string -> int", "string string int -> int")
_declare("indexOf", library.index_in_list, "list(A) A -> int")
_declare("lastIndexOf", library.last_index_in_text, "string string -> int")
_declare("lastIndexOf", library.last_index_before, "string string int -> int")
_declare("lastIndexOf", library.last_index_in_list, "list(A) A -> int")
_declare("lowerAscii", lambda text: text.translate(_LOWER), "string -> string")
_declare("upperAscii", lambda text: text.translate(_UPPER), "string -> string")
_declare("replace", library.replace, "string string string -> string", "string string string int -> string")
_declare("split", library.split, "string string -> list(string)", "string string int -> list(string)")
_declare("substring", library.substring, "string int -> string", "string int int -> string")
_declare("trim", lambda text: text.strip(library.GO_SPACES), "string -> string")
_declare("join", library.join, "list(string) -> string", "list(string) string -> string")
_declare("find", library.find_first, "string string -> string")

_declare("isSorted", library.is_sorted, *(f"list({name}) -> bool" for name in _COMPARABLE))
_declare("min", library.extreme("min", 1), *(f"list({name}) -> {name}" for name in _COMPARABLE))
_declare("max", library.extreme("max", -1), *(f"list({name}) -> {name}" for name in _COMPARABLE))
for _name, _zero in (("int", 0), ("uint", UInt(0)), ("double", 0.0), ("duration", 0)):
    _declare("sum", library.total_from(_zero), f"list({_name}) -> {_name}")
_declare("slice", library.cut, "list(A) int int -> list(A)")
_declare("reverse", lambda values: values[::-1], "list(A) -> list(A)")
_declare("distinct", library.distinct, "list(A) -> list(A)")
_declare("first", lambda values: library.element(values, 0), "list(A) -> optional(A)")
_declare("last", lambda values: library.element(values, -1), "list(A) -> optional(A)")
_global("sets.contains", library.set_contains, "list(A) list(A) -> bool")
_global("sets.equivalent", library.set_equivalent, "list(A) list(A) -> bool")
_global("sets.intersects", lambda one, other: any(contains(other, value) for value in one), "list(A) list(A) -> bool")
_declare("includes", library.includes, "dyn dyn -> bool")

_global("optional.of", library.optional_of, "A -> optional(A)")
_global("optional.ofNonZeroValue", library.optional_of_non_zero, "A -> optional(A)")
_global("optional.none", lambda: NONE, "-> optional(A)")
_global("optional.unwrap", library.unwrap, "list(optional(A)) -> list(A)")
_declare("unwrapOpt", library.unwrap, "list(optional(A)) -> list(A)")
_declare("value", library.optional_value, "optional(A) -> A")
_declare("hasValue", lambda optional: optional.value is not None, "optional(A) -> bool")
_declare("or", _lazy, "optional(A) optional(A) -> optional(A)")
_declare("orValue", _lazy, "optional(A) A -> A")

_global("quantity", read_quantity, "string -> quantity")
_global("isQuantity", library.is_quantity, "string -> bool")
_global("semver", library.read_semver, "string -> semver", "string bool -> semver")
_global("isSemver", library.is_semver, "string -> bool", "string bool -> bool")
_declare(
    "isGreaterThan", lambda left, right: library.compare_to(left, right) > 0, *_pairs(("quantity", "semver"), "bool")
)
_declare("isLessThan", lambda left, right: library.compare_to(left, right) < 0, *_pairs(("quantity", "semver"), "bool"))
_declare("compareTo", library.compare_to, *_pairs(("quantity", "semver"), "int"))
_global("sign", library.sign, "quantity -> int")
_declare("asApproximateFloat", library.as_float, "quantity -> double")
_declare("asInteger", library.as_integer, "quantity -> int")
_declare("isInteger", lambda quantity: quantity.integer() is not None, "quantity -> bool")
_declare("add", library.adder(1), "quantity quantity -> quantity", "quantity int -> quantity")
_declare("sub", library.adder(-1), "quantity quantity -> quantity", "quantity int -> quantity")
_declare("major", lambda version: version.major, "semver -> int")
_declare("minor", lambda version: version.minor, "semver -> int")
_declare("patch", lambda version: version.patch, "semver -> int")

_UNJUDGED = """
    duration timestamp getDate getDayOfMonth getDayOfWeek getDayOfYear getFullYear getHours getMilliseconds getMinutes
    getMonth getSeconds
    url isURL getScheme getHost getHostname getPort getEscapedPath getQuery
    format validate format.dns1123Label format.dns1123Subdomain format.dns1035Label format.qualifiedName
    format.dns1123LabelPrefix format.dns1123SubdomainPrefix format.dns1035LabelPrefix format.labelValue format.uri
    format.uuid format.byte format.date format.datetime format.named
    ip isIP ip.isCanonical family isUnspecified isLoopback isLinkLocalMulticast isLinkLocalUnicast isGlobalUnicast
    cidr isCIDR containsIP containsCIDR prefixLength masked
    strings.quote findAll sort flatten lists.range
    path group serviceAccount resource subresource namespace name check errored error allowed reason fieldSelector
    labelSelector
"""
UNJUDGED = frozenset(_UNJUDGED.split())
"""Functions that Kubernetes has, but that are not evaluated here."""

CONVERSIONS = frozenset(["bool", "bytes", "double", "dyn", "int", "string", "type", "uint"])
"""Functions of which cel-go computes calls with constants when it compiles (interpreter/decorators.go)."""
