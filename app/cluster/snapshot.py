# SPDX-License-Identifier: Apache-2.0
"""Reads snapshots, `kubectl get nodes,pods,namespaces,runtimeclasses -A -o json` (or yaml), into a State."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from app.cluster.state import State
from app.kube.api_kinds import API_KINDS, DRA, FLEET
from app.nodes.reading import read_runtime_class
from app.policy.document import yaml_problem
from app.values.errors import SnapshotError
from app.values.json_members import member, strings

SNAPSHOT_KINDS = (*FLEET, *DRA)
"""The kinds of a snapshot that are read; objects of other kinds are left out."""
LARGEST_YAML_BYTES = 50 << 20
"""PyYAML takes about 1 s per 4 MB; JSON of any size is read (docs/reference/listeners.md#snapshots)."""

_BYTE = re.compile(r"\(byte (\d+)\)")
"""Where msgspec stopped."""


def read_snapshot(file: str, data: bytes) -> list[dict[str, Any]]:
    """Read the objects of a List, a single object, or several YAML documents.

    Raises SnapshotError.
    """
    objects: list[dict[str, Any]] = []
    for document in _documents(file, data):
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            raise SnapshotError(f"{file}: got no Kubernetes object, wants a List from kubectl get -o json")
        items = document.get("items") if document["kind"].endswith("List") else [document]
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise SnapshotError(
                f"{file}: got a {document['kind']} without items, wants a List from kubectl get -o json"
            )
        objects.extend(items)
    return objects


def _documents(file: str, data: bytes) -> list[Any]:
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            return [msgspec.json.decode(data)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SnapshotError(f"{file}{_json_place(data, error)}: not JSON: {error}") from error
    if len(data) > LARGEST_YAML_BYTES:
        raise SnapshotError(
            f"{file}: {len(data)} bytes of YAML, wants at most {LARGEST_YAML_BYTES}, or JSON of any size"
        )
    try:
        return [document for document in yaml.load_all(data, yaml.CSafeLoader) if document is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an invalid date, or 5,000 digits
        raise SnapshotError(yaml_problem(file, error, data.decode("utf-8", "replace"))) from error


def _json_place(data: bytes, error: Exception) -> str:
    """Write the line and the column of a mistake, as :line:column; empty where the decoder names no byte."""
    match = _BYTE.search(str(error))
    if match is None:
        return ""
    before = data[: int(match[1])]
    return f":{before.count(10) + 1}:{len(before) - before.rfind(10)}"


def fill(state: State, objects: list[dict[str, Any]]) -> dict[str, int]:
    """Put objects into a state; return their number by kind, so that absent kinds can be named.

    Raises MalformedPod, QuantityError.
    """
    by_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in SNAPSHOT_KINDS}
    for item in objects:
        kind = item.get("kind")
        if isinstance(kind, str) and kind in by_kind:
            by_kind[kind].append(item)
    for pod in by_kind["Pod"]:  # pods before nodes, or each pod would update its node again
        state.put_pod(pod)
    for node in by_kind["Node"]:
        state.put_node(node)
    for device_class in by_kind["DeviceClass"]:
        state.put_device_class(device_class)
    for rule in by_kind["DeviceTaintRule"]:
        state.put_taint_rule(rule)
    for document in (item for kind in DRA if kind != "DeviceTaintRule" for item in by_kind[kind]):
        state.claim_templates.served_version = _version(document) or state.claim_templates.served_version
    for resource_slice in by_kind["ResourceSlice"]:
        state.put_slice(resource_slice)
    for claim in by_kind["ResourceClaim"]:
        state.put_claim(claim)
    for template in by_kind["ResourceClaimTemplate"]:
        state.put_claim_template(template)
    for namespace in by_kind["Namespace"]:
        state.namespaces.put(_name(namespace), strings(_metadata(namespace), "labels", "metadata."))
    for runtime_class in by_kind["RuntimeClass"]:
        state.put_runtime_class(_name(runtime_class), read_runtime_class(runtime_class))
    return {kind: len(items) for kind, items in by_kind.items()}


def _version(item: Mapping[str, Any]) -> str:
    """Return the version of an object's apiVersion, if it is one of those of its kind that are known; else ""."""
    version = (member(item, "apiVersion", str, "") or "").rpartition("/")[2]
    return version if version in API_KINDS[item["kind"]].versions else ""


def _metadata(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return member(item, "metadata", dict, "") or {}


def _name(item: Mapping[str, Any]) -> str:
    return member(_metadata(item), "name", str, "metadata.") or ""
