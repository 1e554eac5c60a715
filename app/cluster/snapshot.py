# SPDX-License-Identifier: Apache-2.0
"""Snapshots: `kubectl get nodes,pods,namespaces,runtimeclasses -A -o json` (or yaml) folded into a State."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml

from app.cluster.state import State
from app.errors import SnapshotError
from app.pods import member, strings

KINDS = ("Node", "Pod", "Namespace", "RuntimeClass")
LARGEST_YAML_BYTES = 50 << 20
"""PyYAML takes about 1 s per 4 MB; JSON of any size is read (INTERFACES §10, Snapshots)."""


def read_snapshot(file: str, data: bytes) -> list[dict[str, Any]]:
    """Read a List, a single object, or several YAML documents, into objects.

    Raises SnapshotError.
    """
    found: list[dict[str, Any]] = []
    for document in _documents(file, data):
        if not isinstance(document, dict) or "kind" not in document:
            raise SnapshotError(f"{file}: got no Kubernetes object, wants a List from kubectl get -o json")
        items = document.get("items") if document["kind"].endswith("List") else [document]
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise SnapshotError(
                f"{file}: got a {document['kind']} without items, wants a List from kubectl get -o json"
            )
        found.extend(items)
    return found


def _documents(file: str, data: bytes) -> list[Any]:
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            return [msgspec.json.decode(data)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SnapshotError(f"{file}: not JSON: {error}") from error
    if len(data) > LARGEST_YAML_BYTES:
        raise SnapshotError(
            f"{file}: {len(data)} bytes of YAML, wants at most {LARGEST_YAML_BYTES}, or JSON of any size"
        )
    try:
        return [each for each in yaml.load_all(data, yaml.CSafeLoader) if each is not None]
    except yaml.YAMLError as error:
        raise SnapshotError(f"{file}: not YAML: {str(error).splitlines()[0]}") from error


def fill(state: State, objects: list[dict[str, Any]]) -> dict[str, int]:
    """Fold objects into a state; gives how many of each kind there were, so that absent ones can be named."""
    counts = dict.fromkeys(KINDS, 0)
    for item in objects:
        kind = item.get("kind")
        if kind not in counts:
            continue
        counts[kind] += 1
        _take(state, kind, item)
    if counts["RuntimeClass"]:
        state.runtime_classes = frozenset(_names(objects, "RuntimeClass"))
    return counts


def _take(state: State, kind: str, item: Mapping[str, Any]) -> None:
    if kind == "Node":
        state.put_node(item)
    elif kind == "Pod":
        state.put_pod(item)
    elif kind == "Namespace":
        metadata = member(item, "metadata", dict, "") or {}
        state.put_namespace(str(metadata.get("name", "")), strings(metadata, "labels", "metadata."))


def _names(objects: list[dict[str, Any]], kind: str) -> Iterator[str]:
    for item in objects:
        if item.get("kind") == kind:
            yield str((item.get("metadata") or {}).get("name", ""))
