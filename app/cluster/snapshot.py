# SPDX-License-Identifier: Apache-2.0
"""Snapshots: `kubectl get nodes,pods,… -A -o json` (or yaml) read into a State, and copies of a State.

Of the nodes and pods of a large snapshot only the fields in use are decoded, with a tenth of the CPU of whole objects.
A copy (`view`) is for work that takes longer than one turn of the event loop.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from app.kube.admission_objects import ADMISSION_KINDS, ADMISSION_TYPES
from app.kube.api_kinds import API_KINDS, DRA, FLEET
from app.kube.gangs import PodGroup
from app.kube.node_selectors import NodeSelectorTerm, read_terms
from app.kube.numa_zones import NodeResourceTopology, read_topology
from app.kube.objects import Namespace, NodeObject, RuntimeClass
from app.kube.pod_object import ContainerObject, PodMetadata, PodObject, PodSpec, PodStatus
from app.kube.records import part_of, read_record
from app.policy.document import yaml_problem
from app.values.errors import BadInput, MalformedPod, SnapshotError
from app.values.json_members import Object, member, object_if_any
from app.world.state import State

SNAPSHOT_KINDS = (*FLEET, *ADMISSION_KINDS, "PodGroup", "NodeResourceTopology", *DRA)
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


class _Loader(yaml.CSafeLoader):
    """Refuses keys that are given twice, of which YAML's reader would lose the first in silence. Times stay texts."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [row for row in rows if row[0] != "tag:yaml.org,2002:timestamp"]
        for first, rows in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Read a mapping. Raises ConstructorError."""
        keys: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                problem = f"{key.value}: given twice, remove one"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


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
        return [document for document in yaml.load_all(data, _Loader) if document is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: 5,000 digits
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
    devices = state.devices
    by_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in SNAPSHOT_KINDS}
    for item in objects:
        kind = item.get("kind")
        if isinstance(kind, str) and kind in by_kind:
            by_kind[kind].append(item)
    put: dict[str, Callable[[dict[str, Any]], None]] = {
        "Pod": state.put_pod,  # before nodes, or each would update its node again
        "Node": state.put_node,
        "DeviceClass": devices.put_device_class,
        "DeviceTaintRule": devices.put_taint_rule,
        "ResourceSlice": devices.put_slice,
        "ResourceClaim": devices.put_claim,
        "ResourceClaimTemplate": devices.put_claim_template,
        "Namespace": lambda one: state.put_namespace(_name(one), read_record(Namespace, one)),
        "PodGroup": lambda one: state.pod_groups.update({_key(one): read_record(PodGroup, one)}),
        "NodeResourceTopology": lambda one: state.put_topology(
            _name(one), read_topology(read_record(NodeResourceTopology, one))
        ),
        "RuntimeClass": lambda one: state.put_runtime_class(_name(one), read_record(RuntimeClass, one)),
    }
    for kind in (*put, *(kind for kind in ADMISSION_TYPES if kind not in put)):
        for number, item in enumerate(by_kind[kind], 1):
            try:
                if not _name(item):
                    raise MalformedPod("metadata.name: got none, wants the name of the object")
                if kind in DRA and kind != "DeviceTaintRule":
                    devices.dra.served_version = _version(item) or devices.dra.served_version
                if kind in put:
                    put[kind](item)
                elif kind in ADMISSION_TYPES:
                    key = _name(item) if kind == "PriorityClass" else _key(item)
                    state.admission_objects.put(kind, key, read_record(ADMISSION_TYPES[kind], item))
                if kind in ADMISSION_TYPES:
                    state.admission_objects.listed.add(kind)
            except BadInput as error:
                raise MalformedPod(f"{_words(item, number)}: {error}") from error
    return {kind: len(items) for kind, items in by_kind.items()}


def _key(item: Mapping[str, Any]) -> str:
    return f"{_metadata(item).get('namespace') or 'default'}/{_name(item)}"


def _words(item: Mapping[str, Any], number: int) -> str:
    """Name an object for a message: by its kind and name, or by its place among those of its kind."""
    metadata = object_if_any(item, "metadata")
    name = "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))
    return f"{item['kind']} {name[:120]}" if metadata.get("name") else f"{item['kind']} number {number}"


def _version(item: Mapping[str, Any]) -> str:
    """Return the version of an object's apiVersion, if it is one of those of its kind that are known; else ""."""
    version = (member(item, "apiVersion", str, "") or "").rpartition("/")[2]
    return version if version in API_KINDS[item["kind"]].versions else ""


def _metadata(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return member(item, "metadata", dict, "") or {}


def _name(item: Mapping[str, Any]) -> str:
    return member(_metadata(item), "name", str, "metadata.") or ""


class _ObjectKind(msgspec.Struct):
    kind: str = ""


class _List(_ObjectKind):
    items: list[msgspec.Raw] = []


_KIND = msgspec.json.Decoder(_ObjectKind)
_LIST = msgspec.json.Decoder(_List)
_CONTAINER = part_of(ContainerObject, "name", "image", "env", "volume_mounts", "security_context")
_SPEC = part_of(
    PodSpec, "volumes", "tolerations", "node_selector", "topology_spread_constraints", "scheduling_gates",
    containers=_CONTAINER, init_containers=_CONTAINER,
)  # fmt: skip
_EXISTING_POD = part_of(
    PodObject,
    metadata=part_of(PodMetadata, "managed_fields"),
    spec=_SPEC,
    status=part_of(PodStatus, "conditions", "init_container_statuses"),
)
"""What is read of a pod of a large snapshot, which holds GPUs and constrains where other pods may run."""
_DECODERS: Mapping[str, msgspec.json.Decoder[Any]] = {
    "Node": msgspec.json.Decoder(NodeObject),
    "Pod": msgspec.json.Decoder(_EXISTING_POD),
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
    document: Object = msgspec.json.decode(msgspec.json.encode(decoder.decode(raw)))
    if kind == "Pod" and keep_whole(document):
        document = msgspec.json.decode(raw)
    return {**document, "kind": kind}


def bound_volumes(objects: Sequence[Mapping[str, Any]]) -> dict[str, tuple[NodeSelectorTerm, ...]]:
    """Return the node affinity of the volume that is bound to each PersistentVolumeClaim, by the claim's key.

    Raises BadInput.
    """
    volumes: dict[str, tuple[NodeSelectorTerm, ...]] = {}
    for volume in objects:
        if volume.get("kind") == "PersistentVolume":
            name, affinity = volume["metadata"]["name"], (volume.get("spec") or {}).get("nodeAffinity") or {}
            try:
                volumes[name] = read_terms(affinity.get("required"))
            except BadInput as error:
                raise BadInput(f"PersistentVolume {name}: spec.nodeAffinity.required.{error}") from error
    return {
        f"{claim['metadata'].get('namespace') or 'default'}/{claim['metadata']['name']}": terms
        for claim in objects
        if claim.get("kind") == "PersistentVolumeClaim"
        and (terms := volumes.get((claim.get("spec") or {}).get("volumeName") or ""))
    }
