# SPDX-License-Identifier: Apache-2.0
"""The functions that Kubernetes' CEL has for selectors: their types, and what computes them.

The tables are those of google/cel-go common/stdlib/standard.go and of the libraries that kubernetes
staging/src/k8s.io/apiserver/pkg/cel/environment/base.go and dynamic-resource-allocation/cel/compile.go enable for
1.36. Functions that are named only as unjudged compile with any arguments.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from app.dra import cel_lists as lists
from app.dra import cel_operators as operators
from app.dra import cel_texts as texts
from app.dra.cel_quantities import read_quantity
from app.dra.cel_types import Type, read_types
from app.dra.cel_values import NONE, UInt

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
    _declare("matches", texts.matches, "string string -> bool", member=_member)
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
_declare("charAt", texts.char_at, "string int -> string")
_declare("indexOf", texts.index_of, "string string -> int", "string string int -> int")
_declare("indexOf", lists.index_of, "list(A) A -> int")
_declare("lastIndexOf", texts.last_index_of, "string string -> int")
_declare("lastIndexOf", texts.last_index_before, "string string int -> int")
_declare("lastIndexOf", lists.last_index_of, "list(A) A -> int")
_declare("lowerAscii", texts.lower_ascii, "string -> string")
_declare("upperAscii", texts.upper_ascii, "string -> string")
_declare("replace", texts.replace, "string string string -> string", "string string string int -> string")
_declare("split", texts.split, "string string -> list(string)", "string string int -> list(string)")
_declare("substring", texts.substring, "string int -> string", "string int int -> string")
_declare("trim", texts.trim, "string -> string")
_declare("join", texts.join, "list(string) -> string", "list(string) string -> string")
_declare("find", texts.find_first, "string string -> string")

_declare("isSorted", lists.is_sorted, *(f"list({name}) -> bool" for name in _COMPARABLE))
_declare("min", lists.least, *(f"list({name}) -> {name}" for name in _COMPARABLE))
_declare("max", lists.greatest, *(f"list({name}) -> {name}" for name in _COMPARABLE))
for _name, _zero in (("int", 0), ("uint", UInt(0)), ("double", 0.0), ("duration", 0)):
    _declare("sum", lists.total_from(_zero), f"list({_name}) -> {_name}")
_declare("slice", lists.cut, "list(A) int int -> list(A)")
_declare("reverse", lambda values: values[::-1], "list(A) -> list(A)")
_declare("distinct", lists.distinct, "list(A) -> list(A)")
_declare("first", lists.first, "list(A) -> optional(A)")
_declare("last", lists.last, "list(A) -> optional(A)")
_global("sets.contains", lists.set_contains, "list(A) list(A) -> bool")
_global("sets.equivalent", lists.set_equivalent, "list(A) list(A) -> bool")
_global("sets.intersects", lists.set_intersects, "list(A) list(A) -> bool")
_declare("includes", lists.includes, "dyn dyn -> bool")

_global("optional.of", lists.optional_of, "A -> optional(A)")
_global("optional.ofNonZeroValue", lists.optional_of_non_zero, "A -> optional(A)")
_global("optional.none", lambda: NONE, "-> optional(A)")
_global("optional.unwrap", lists.unwrap, "list(optional(A)) -> list(A)")
_declare("unwrapOpt", lists.unwrap, "list(optional(A)) -> list(A)")
_declare("value", lists.optional_value, "optional(A) -> A")
_declare("hasValue", lists.has_value, "optional(A) -> bool")
_declare("or", _lazy, "optional(A) optional(A) -> optional(A)")
_declare("orValue", _lazy, "optional(A) A -> A")

_global("quantity", read_quantity, "string -> quantity")
_global("isQuantity", lists.is_quantity, "string -> bool")
_global("semver", lists.read_semver, "string -> semver", "string bool -> semver")
_global("isSemver", lists.is_semver, "string -> bool", "string bool -> bool")
_declare(
    "isGreaterThan", lambda left, right: lists.compare_to(left, right) > 0, *_pairs(("quantity", "semver"), "bool")
)
_declare("isLessThan", lambda left, right: lists.compare_to(left, right) < 0, *_pairs(("quantity", "semver"), "bool"))
_declare("compareTo", lists.compare_to, *_pairs(("quantity", "semver"), "int"))
_global("sign", lists.sign, "quantity -> int")
_declare("asApproximateFloat", lists.as_float, "quantity -> double")
_declare("asInteger", lists.as_integer, "quantity -> int")
_declare("isInteger", lambda quantity: quantity.integer() is not None, "quantity -> bool")
_declare("add", lists.add_quantities, "quantity quantity -> quantity", "quantity int -> quantity")
_declare("sub", lists.subtract_quantities, "quantity quantity -> quantity", "quantity int -> quantity")
_declare("major", lambda version: version.major, "semver -> int")
_declare("minor", lambda version: version.minor, "semver -> int")
_declare("patch", lambda version: version.patch, "semver -> int")

_TIME_PARTS = ("Date", "DayOfMonth", "DayOfWeek", "DayOfYear", "FullYear", "Hours", "Milliseconds", "Minutes", "Month")
_URL_PARTS = ("Scheme", "Host", "Hostname", "Port", "EscapedPath", "Query")
_FORMATS = ("dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName", "dns1123LabelPrefix", "named")
_MORE_FORMATS = (
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
)
UNJUDGED = frozenset(
    {
        *("duration", "timestamp", "getSeconds", *(f"get{part}" for part in (*_TIME_PARTS, *_URL_PARTS))),
        *("url", "isURL", "format", "validate", *(f"format.{name}" for name in (*_FORMATS, *_MORE_FORMATS))),
        *("ip", "isIP", "ip.isCanonical", "family", "isUnspecified", "isLoopback", "isLinkLocalMulticast"),
        *("isLinkLocalUnicast", "isGlobalUnicast"),
        *("cidr", "isCIDR", "containsIP", "containsCIDR", "prefixLength", "masked"),
        *("strings.quote", "findAll", "sort", "flatten", "lists.range"),
        *("path", "group", "serviceAccount", "resource", "subresource", "namespace", "name", "check", "errored"),
        *("error", "allowed", "reason", "fieldSelector", "labelSelector"),
    }
)
"""Functions that Kubernetes has, but that are not evaluated here."""

CONVERSIONS = frozenset(["bool", "bytes", "double", "dyn", "int", "string", "type", "uint"])
"""Functions of which cel-go computes calls with constants when it compiles (interpreter/decorators.go)."""
