# SPDX-License-Identifier: Apache-2.0
"""What the declarations of Kubernetes objects share: their base class, their metadata, and the words for a mismatch.

An object is declared once, by the fields that are read; the decoder skips all others, which takes a tenth of the CPU
and memory of whole objects (docs/reference/measurements.md#decoding). A watch decodes JSON into the declaration, and
`read_record` converts the object of a snapshot or of an AdmissionReview by the same types and bounds.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from types import GenericAlias
from typing import Any, TypedDict, TypeVar

import msgspec

from app.values.computations import T
from app.values.errors import BadInput, MalformedPod, OversizedPod, QuantityError
from app.values.json_members import json_type
from app.values.quantity import parse_quantity


class Record(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """An object of Kubernetes or a part of one; a field is named as in the API, in snake case.

    A record never contains itself, so that the garbage collector need not visit it.
    """


R = TypeVar("R", bound=Record)


class Metadata(Record, frozen=True):
    """Metadata that identifies an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class KubeObject(Record, frozen=True):
    """A whole object."""

    metadata: Metadata


def part_of(kind: type[R], *skipped: str, **narrower: Any) -> type[R]:
    """Derive from a declaration one whose decoder skips some fields, which then have their defaults.

    It is for objects of which a cluster has hundreds of thousands. `narrower` are parts of the declarations of other
    fields, or of the items of a list, or the keys of a map of texts that are read.
    """
    fields: list[tuple[str, Any, Any]] = []
    for one in msgspec.structs.fields(kind):
        if one.name in skipped:
            fields.append((one.name, Any, msgspec.field(default=one.default, name=f"-{one.name}")))
        elif isinstance(part := narrower.get(one.name), tuple):
            texts: Any = TypedDict
            fields.append((one.name, texts("Texts", dict.fromkeys(part, str), total=False) | None, one.default))
        elif part is not None:
            fields.append((one.name, GenericAlias(tuple, (part, ...)) if one.default == () else part, one.default))
    part_kind: Any = msgspec.defstruct(
        kind.__name__, fields, bases=(kind,), rename="camel", omit_defaults=True, frozen=True, gc=False
    )
    return part_kind  # type: ignore[no-any-return]


def from_json(kind: Any, value: object) -> Any:
    """Read a field whose type the decoder does not know: a quantity, or what its class reads. Raises ValueError."""
    return quantity(value) if kind is Fraction else kind.from_json(value)


def quantity(value: object) -> Fraction:
    """Read a quantity, which in JSON may be a number. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | int | Fraction):
        raise ValueError(f"got {json_type(value)}, wants a quantity")
    try:
        return _parsed(value) if isinstance(value, str) else Fraction(value)
    except QuantityError as error:
        raise ValueError(str(error)) from error


_parsed = lru_cache(4096)(parse_quantity)


def read_record(kind: type[T], document: object) -> T:
    """Convert an object that was decoded before. A field that is null counts as absent, as for the API server.

    Raises MalformedPod, OversizedPod.
    """
    for _ in range(MOST_NULLS):
        try:
            return msgspec.convert(document, kind, dec_hook=from_json)
        except msgspec.ValidationError as error:
            null = _NULL.search(str(error))
            if null is None:
                raise mismatch(error, document) from error
            document = _without(document, _STEP.findall(null[1]))
    raise OversizedPod(f"got more than {MOST_NULLS} fields that are null")


def nested(kind: type[T], value: object) -> T:
    """Convert a part inside a field that its own class reads. Raises ValueError, which names the place."""
    try:
        return read_record(kind, value)
    except BadInput as error:
        raise ValueError(f"{'' if str(error).startswith('[') else '.'}{error}") from error


MOST_NULLS = 64
"""Fields of an object that may be null where the API server leaves them out; a person writes a few, if any."""
_NULL = re.compile(r"got `null` - at `\$\.?((?:\w|\[\d+\]|\.)*\w)`$")
"""A null that is the value of a field; one in a list or in a map, as of labels, has no meaning."""
_STEP = re.compile(r"\w+")


def _without(value: Any, path: list[str]) -> Any:
    """Copy an object without the field at a path."""
    step, *rest = path
    if isinstance(value, list):
        index = int(step)
        return [*value[:index], _without(value[index], rest), *value[index + 1 :]]
    others = {key: item for key, item in value.items() if key != step}
    return others | {step: _without(value[step], rest)} if rest else others


_TYPES: Mapping[str, str] = {
    "object": "an object",
    "array": "a list",
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "null": "null",
}
_WRONG_TYPE = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_TOO_LONG = re.compile(r"Expected `(\w+)` of length <= (\d+)")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")


def mismatch(error: msgspec.ValidationError, document: Any = None) -> MalformedPod:
    """Say in our words which field of an object does not match its declaration: the path, what it has, what is valid.

    A message that a declaration raised itself stays as it is, after the path. The decoder does not name the key of a
    map, which is looked for in the document, if there is one.
    """
    text, _, rest = str(error).partition(" - at `")
    path = rest.rpartition("$")[2].rstrip("`").removeprefix(".")
    if match := _TOO_LONG.fullmatch(text):
        unit = {"str": " characters", "object": " entries"}.get(match[1], "")
        return OversizedPod(f"{path}: got more, wants at most {match[2]}{unit}")
    if match := _WRONG_TYPE.fullmatch(text):
        wanted = " or ".join(_TYPES.get(name, name) for name in match[1].split(" | ") if name != "null")
        if document is not None and path.endswith("[...]"):
            path = _with_key(path, document, match[2])
        text = f"got {_TYPES.get(match[2], match[2])}, wants {wanted}"
        return MalformedPod(f"{path}: {text}" if path else text)
    if match := _MISSING.fullmatch(text):
        text = f"{match[1]}: got none, wants one"
    join = "" if not path or text[0] in "[." else ": " if text.startswith("got ") else "."
    return (OversizedPod if "wants at most" in text else MalformedPod)(f"{path}{join}{text}")


def _with_key(path: str, document: Any, got: str) -> str:
    """Name the first key of a map whose value is of the type that was got."""
    path = path.removesuffix("[...]")
    for step in re.findall(r"\w+", path):
        document = document[int(step) if isinstance(document, list) else step]
    types = {dict: "object", list: "array", type(None): "null"}
    keys = (key for key, value in document.items() if types.get(type(value), type(value).__name__) == got)
    return f"{path}[{next(keys, '...')[:80]}]"
