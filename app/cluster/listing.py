# SPDX-License-Identifier: Apache-2.0
"""Decodes lists and watch events, and reads whole objects once for a command.

Partial types are decoded on the common path, object by object if one cannot be read. An object that cannot be read is
reported by its key; nothing about it is guessed.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from app.cluster.apiserver import ApiServer
from app.cluster.kubeconfig import Load
from app.kube.api_kinds import API_KINDS, NAMESPACE
from app.kube.records import Metadata, from_json, read_record
from app.values.errors import FORBIDDEN, NOT_FOUND, ApiError, BadInput, UsherError
from app.values.json_members import JSON

Item = TypeVar("Item")
Fields = Any
"""An object as it was decoded: a KubeObject, or the dict of a kind that is not declared as one."""


class ListMeta(msgspec.Struct):
    """The metadata of a list that is needed. `more` is the token of the next page; empty on the last one."""

    resourceVersion: str = ""  # noqa: N815
    more: str = msgspec.field(name="continue", default="")


class ListPage(msgspec.Struct, Generic[Item]):
    """One page of a list."""

    metadata: ListMeta
    items: list[Item] | None = None


class Event(msgspec.Struct, Generic[Item]):
    """One line of a watch."""

    type: str
    object: Item


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
    """The decoders of one kind. `shape` is its declaration, a KubeObject or a TypedDict."""

    def __init__(self, shape: Any) -> None:
        self._shape = shape
        self._page = msgspec.json.Decoder(ListPage[shape], dec_hook=from_json)
        self._event = msgspec.json.Decoder(Event[shape], dec_hook=from_json)

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
                yield read_record(self._shape, msgspec.json.decode(raw))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadInput) as error:
                yield UnreadableObject(_key(raw), str(error))

    def event(self, line: bytes) -> tuple[str, Fields | UnreadableObject]:
        """Decode a line of a watch and return the event's type and object.

        Raises ApiError for an ERROR event, Unreadable.
        """
        try:
            decoded = self._event.decode(line)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            return self._unusual_event(line, str(error))
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unreadable(str(error)) from error
        return self._unusual_event(line, "") if decoded.type == "ERROR" else (decoded.type, decoded.object)

    def _unusual_event(self, line: bytes, problem: str) -> tuple[str, Fields | UnreadableObject]:
        """Raise the error of an ERROR event; else return the object, or the key of one that cannot be read."""
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
        item = next(self._one_by_one([raw_event.object]))
        if isinstance(item, UnreadableObject) and not item.key:
            raise Unreadable(item.problem)
        return raw_event.type, item


def _key(raw: msgspec.Raw) -> str:
    """Read the key of an object that cannot be read otherwise; empty if even that cannot be read."""
    try:
        return identity({"metadata": msgspec.json.decode(raw, type=dict[str, Any])["metadata"]})[0]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, BadInput):
        return ""


def metadata_of(item: Fields) -> Metadata:
    """Return the metadata by which a watch identifies an object. Raises MalformedPod."""
    return read_record(Metadata, item["metadata"]) if isinstance(item, dict) else item.metadata


def identity(item: Fields) -> tuple[str, str]:
    """Return the key "namespace/name" (or name) and the UID of an object."""
    metadata = metadata_of(item)
    name, namespace = metadata.name, metadata.namespace
    return (f"{namespace}/{name}" if namespace else name), metadata.uid


PAGE_OBJECTS = 500
"""A page of 500 nodes decodes in 14 ms (docs/reference/measurements.md#decoding), the longest that the event loop is
blocked."""
NOT_READABLE = (FORBIDDEN, NOT_FOUND)


async def list_pages(
    server: ApiServer,
    path: str,
    decode: Callable[[bytes], tuple[ListMeta, list[Item]]],
    params: Mapping[str, str],
    limit: int = PAGE_OBJECTS,
    accept: str = JSON,
) -> AsyncIterator[tuple[ListMeta, list[Item]]]:
    """Read a list in pages of at most `limit` objects, 0 for one of all. Raises ApiError, and what `decode` raises."""
    token = ""
    while True:
        more = ({"limit": str(limit)} if limit else {}) | ({"continue": token} if token else {})
        page, items = decode(await server.get(path, {**params, **more}, accept))
        yield page, items
        token = page.more
        if not token:
            return


async def read_objects(
    load: Load,
    *kinds: str,
    optional: Collection[str] = (),
    report: Callable[[str], None] = lambda _: None,
    report_forbidden: Callable[[str], None] = lambda _: None,
    namespace: str = NAMESPACE,
) -> list[dict[str, Any]]:
    """List all objects of these kinds. Kinds in `optional` are left out if they are not served or forbidden.

    `report` is called before each kind is read, `report_forbidden` with the path of an optional kind that is forbidden.
    `namespace` is that of gpu-usher, whose ConfigMaps may hold policies.

    Raises ApiError.
    """
    objects: list[dict[str, Any]] = []
    async with ApiServer(load) as server:
        for kind in (*kinds, *optional):
            path = API_KINDS[kind].path(namespace)
            report(f"reading {path} of the cluster")
            try:
                objects.extend(await list_kind(server, kind, namespace))
            except ApiError as error:
                if kind not in optional or error.status not in NOT_READABLE:
                    raise
                if error.status == FORBIDDEN:
                    report_forbidden(path)
    return objects


async def list_kind(
    server: ApiServer, kind: str, namespace: str, keep: Callable[[dict[str, Any]], bool] | None = None
) -> list[dict[str, Any]]:
    """List the objects of a kind in the preferred version that is served: all of them, or those that `keep` selects.

    The API server names kind and version for the list alone; each object gets them, as in a snapshot of kubectl.

    Raises ApiError, with the status 404 if the kind is served in none of its versions.
    """
    api_kind = API_KINDS[kind]
    for version in api_kind.versions:
        path, type_meta = api_kind.path(namespace, version), {"apiVersion": api_kind.api_version(version), "kind": kind}
        try:
            return [
                {**item, **type_meta}
                async for _, items in list_pages(server, path, partial(_whole_objects, path), {})
                for item in items
                if keep is None or keep(item)
            ]
        except ApiError as error:
            if error.status != NOT_FOUND or version == api_kind.versions[-1]:
                raise
    return []


def _whole_objects(path: str, body: bytes) -> tuple[ListMeta, list[dict[str, Any]]]:
    try:
        page = msgspec.json.decode(body, type=ListPage[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise ApiError(200, f"{path}: no list: {error}") from error
    return page.metadata, page.items or []
