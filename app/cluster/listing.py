# SPDX-License-Identifier: Apache-2.0
"""Lists and watch lines decoded: typed and partial on the common path, object by object where one is odd.

Bytes in, values out; what cannot be read is named, never guessed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from app.values.errors import ApiError

Object = TypeVar("Object")
Fields = dict[str, Any]


class ListMeta(msgspec.Struct):
    """The part of a list's metadata that counts. `more`: the token of the next page; empty on the last."""

    resourceVersion: str = ""  # noqa: N815
    more: str = msgspec.field(name="continue", default="")


class ListPage(msgspec.Struct, Generic[Object]):
    """One page of a list."""

    metadata: ListMeta
    items: list[Object] | None = None


class Event(msgspec.Struct, Generic[Object]):
    """One line of a watch."""

    type: str
    object: Object


class WatchError(msgspec.Struct):
    """What an ERROR event carries: a Status."""

    code: int = 0
    message: str = ""


class Unreadable(Exception):
    """What came is no list or no watch event: the answer cannot be trusted any further."""


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """An object of another shape than Kubernetes promises. `key`: empty where not even that can be read."""

    key: str
    problem: str


class KindDecoders:
    """The decoders of one kind. `shape`: the TypedDict of the fields that are read."""

    def __init__(self, shape: Any) -> None:
        self._shape = shape
        self._page = msgspec.json.Decoder(ListPage[shape])
        self._event = msgspec.json.Decoder(Event[shape])

    def page(self, body: bytes) -> tuple[ListMeta, list[Fields | UnreadableObject]]:
        """Decode a page of a list; where one object is odd, the others are saved.

        Raises Unreadable.
        """
        try:
            page = self._page.decode(body)
            return page.metadata, page.items or []
        except (msgspec.ValidationError, UnicodeDecodeError):
            pass
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unreadable(str(error)) from error
        try:
            raw = msgspec.json.decode(body, type=ListPage[msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unreadable(str(error)) from error
        return raw.metadata, list(self._one_by_one(raw.items or []))

    def _one_by_one(self, raws: list[msgspec.Raw]) -> Iterator[Fields | UnreadableObject]:
        for raw in raws:
            try:
                yield msgspec.json.decode(raw, type=self._shape)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                yield UnreadableObject(_key(raw), str(error))

    def event(self, line: bytes) -> tuple[str, Fields | UnreadableObject]:
        """Decode a line of a watch: (type, object).

        Raises ApiError for an ERROR event, Unreadable.
        """
        try:
            told = self._event.decode(line)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            return _misshapen(line, str(error))
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unreadable(str(error)) from error
        return _misshapen(line, "") if told.type == "ERROR" else (told.type, told.object)


def _misshapen(line: bytes, problem: str) -> tuple[str, UnreadableObject]:
    """Tell an ERROR event from an object of another shape, of which only the name is read."""
    try:
        complaint = msgspec.json.decode(line, type=Event[WatchError])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        complaint = None
    if complaint is not None and complaint.type == "ERROR":
        raise ApiError(complaint.object.code, complaint.object.message)
    try:
        named = msgspec.json.decode(line, type=Event[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"{problem or error}") from error
    key = _key(named.object)
    if not key:
        raise Unreadable(problem)
    return named.type, UnreadableObject(key, problem)


def _key(raw: msgspec.Raw) -> str:
    """Read the key of an object of which nothing else can be read; empty if not even that can."""
    try:
        metadata = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])["metadata"]
        return identity({"metadata": msgspec.json.decode(metadata, type=dict[str, Any])})[0]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        return ""


def identity(item: Mapping[str, Any]) -> tuple[str, str]:
    """Give the key "namespace/name" (or name) and the UID of an object."""
    metadata = item["metadata"]
    name, namespace = metadata.get("name", ""), metadata.get("namespace", "")
    return (f"{namespace}/{name}" if namespace else str(name)), str(metadata.get("uid", ""))
