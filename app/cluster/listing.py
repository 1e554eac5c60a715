# SPDX-License-Identifier: Apache-2.0
"""Decodes lists and watch events: partial types on the common path, object by object if one cannot be read.

An object that cannot be read is reported by its key; nothing about it is guessed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from app.values.errors import ApiError, UsherError

Object = TypeVar("Object")
Fields = dict[str, Any]


class ListMeta(msgspec.Struct):
    """The metadata of a list that is needed. `more` is the token of the next page; empty on the last one."""

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
    """The Status in an ERROR event."""

    code: int = 0
    message: str = ""


class Unreadable(UsherError):
    """An answer is not a list or not a watch event, so it cannot be used any further."""


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """An object without the types that Kubernetes promises. `key` is empty if even that cannot be read."""

    key: str
    problem: str


class KindDecoders:
    """The decoders of one kind. `shape` is the TypedDict of the fields that are read."""

    def __init__(self, shape: Any) -> None:
        self._shape = shape
        self._page = msgspec.json.Decoder(ListPage[shape])
        self._event = msgspec.json.Decoder(Event[shape])

    def page(self, body: bytes) -> tuple[ListMeta, list[Fields | UnreadableObject]]:
        """Decode a page of a list; if one object cannot be read, the others still are.

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
        """Decode a line of a watch and return the event's type and object.

        Raises ApiError for an ERROR event, Unreadable.
        """
        try:
            decoded = self._event.decode(line)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            return _unreadable_event(line, str(error))
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unreadable(str(error)) from error
        return _unreadable_event(line, "") if decoded.type == "ERROR" else (decoded.type, decoded.object)


def _unreadable_event(line: bytes, problem: str) -> tuple[str, UnreadableObject]:
    """Raise the error of an ERROR event; else return the key of an object that cannot be read."""
    try:
        error_event = msgspec.json.decode(line, type=Event[WatchError])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        error_event = None
    if error_event is not None and error_event.type == "ERROR":
        raise ApiError(error_event.object.code, error_event.object.message)
    try:
        raw_event = msgspec.json.decode(line, type=Event[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"{problem or error}") from error
    key = _key(raw_event.object)
    if not key:
        raise Unreadable(problem)
    return raw_event.type, UnreadableObject(key, problem)


def _key(raw: msgspec.Raw) -> str:
    """Read the key of an object that cannot be read otherwise; empty if even that cannot be read."""
    try:
        metadata = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])["metadata"]
        return identity({"metadata": msgspec.json.decode(metadata, type=dict[str, Any])})[0]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        return ""


def identity(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return the key "namespace/name" (or name) and the UID of an object."""
    metadata = item["metadata"]
    name, namespace = metadata.get("name", ""), metadata.get("namespace", "")
    return (f"{namespace}/{name}" if namespace else str(name)), str(metadata.get("uid", ""))
