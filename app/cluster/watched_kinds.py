# SPDX-License-Identifier: Apache-2.0
"""The watched kinds: the path of each, the fields that are decoded, and where they are put."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from sys import intern
from typing import Any, Generic, TypeVar

import msgspec

from app.cluster.policy_watch import CONFIGMAP, GPUPOLICY, PolicyBook
from app.kube.admission_objects import ADMISSION_KINDS, ADMISSION_TYPES, AdmissionObjects
from app.kube.api_kinds import API_KINDS, NAMESPACE
from app.kube.device_classes import DeviceClass, DeviceTaintRule
from app.kube.devices import ResourceSlice
from app.kube.gangs import ANNOTATIONS, LABELS
from app.kube.numa_zones import NodeResourceTopology, read_topology
from app.kube.objects import ConfigMap, GPUPolicyObject, Namespace, NodeObject, RuntimeClass
from app.kube.pod_object import ContainerObject, PodMetadata, PodObject, PodSpec, PodStatus
from app.kube.pods import GPU_MEMORY, GROUP_LABELS, PRODUCTS, WORKLOAD_CLASS
from app.kube.records import part_of
from app.kube.resource_claims import ResourceClaim, ResourceClaimTemplate
from app.nodes.conditions import read_bad_conditions, read_not_ready
from app.nodes.model import Node
from app.nodes.reading import node_of
from app.policy.load import LAST_GOOD, LAST_GOOD_LABEL_VALUE, POLICY_LABEL, POLICY_LABEL_VALUE
from app.policy.schema import GROUP, STORAGE_VERSION
from app.world.pod_index import PodRecord, read_pod_record
from app.world.state import State

Fact = TypeVar("Fact")


_CONTAINER = part_of(ContainerObject, "name", "image", "ports", "env", "volume_mounts", "security_context")
_WATCHED_POD = part_of(
    PodObject,
    metadata=part_of(
        PodMetadata, "managed_fields", "deletion_timestamp", "generate_name",
        labels=(*GROUP_LABELS, *(label for label, _ in LABELS)),
        annotations=(GPU_MEMORY, PRODUCTS, WORKLOAD_CLASS, *(annotation for annotation, _ in ANNOTATIONS)),
    ),
    spec=part_of(
        PodSpec, "affinity", "topology_spread_constraints", "tolerations", "node_selector", "volumes",
        "ephemeral_containers", "scheduling_gates", "scheduler_name",
        containers=_CONTAINER, init_containers=_CONTAINER,
    ),
    status=part_of(
        PodStatus, "conditions", "container_statuses", "init_container_statuses", "resource_claim_statuses", "qos_class"
    ),
)  # fmt: skip
"""What says which GPUs a pod holds or waits for: some fields of a Pod, as there may be half a million."""


@dataclass(frozen=True, slots=True)
class WatchedKind(Generic[Fact]):
    """One watched kind.

    `name` is its plural, a label of metrics. Scheduler requests are answered only after every `needed` kind was listed.
    `selection` are the parameters of a list that select objects, labelSelector or fieldSelector; empty for all.
    `read` returns what is kept of an object (None if only its existence counts). `put` and `drop` change the index, by
    the key "namespace/name" (or name) and the UID. `listed` is called after the first list.
    """

    name: str
    path: str
    shape: Any
    read: Callable[[Any], Fact]
    put: Callable[[str, str, Fact], None]
    drop: Callable[[str, str], None]
    needed: bool = True
    selection: Mapping[str, str] = field(default_factory=dict)
    listed: Callable[[], None] = lambda: None


def core_kinds(state: State, book: PolicyBook, namespace: str) -> tuple[WatchedKind[Any], ...]:
    """Return the kinds that every cluster serves. `namespace` is ours, whose ConfigMaps may hold policies."""
    return (
        nodes_kind(state),
        _pods(state),
        _namespaces(state),
        *(_admission_kind(state.admission_objects, kind) for kind in ADMISSION_KINDS),
        WatchedKind(*_name_and_path("RuntimeClass"), RuntimeClass, lambda found: found,
             _by_key(state.put_runtime_class), lambda key, _uid: state.drop_runtime_class(key),
             needed=False, listed=state.runtime_classes_listed),
        WatchedKind(*_name_and_path("ConfigMap", namespace), ConfigMap, _policy_texts,
             _by_key(book.put_config_map), lambda key, _uid: book.drop_source(f"{CONFIGMAP} {key}"), needed=False,
             selection={"labelSelector": f"{POLICY_LABEL} in ({POLICY_LABEL_VALUE},{LAST_GOOD_LABEL_VALUE})"},
             listed=book.config_maps_listed),
    )  # fmt: skip


def dra_kinds(state: State, version: str) -> tuple[WatchedKind[Any], ...]:
    """Return the kinds of dynamic resource allocation, in the version that the API server prefers.

    Claims and templates of all namespaces are watched, because an admitted pod only names its claims.
    """
    devices = state.devices
    return (
        WatchedKind(*_name_and_path("DeviceClass", version=version), DeviceClass, lambda found: found,
             _by_fact(devices.take_device_class), lambda key, _uid: devices.drop_device_class(key), needed=False),
        WatchedKind(*_name_and_path("ResourceSlice", version=version), ResourceSlice, lambda found: found,
             _by_fact(devices.take_slice), lambda key, _uid: devices.drop_slice(key), needed=False),
        WatchedKind(*_name_and_path("ResourceClaim", version=version), ResourceClaim, lambda found: found,
             _by_fact(devices.take_claim), lambda key, _uid: devices.drop_claim(key), needed=False),
        WatchedKind(*_name_and_path("ResourceClaimTemplate", version=version), ResourceClaimTemplate,
             lambda found: found.claim, _by_fact(devices.take_claim_template),
             lambda key, _uid: devices.drop_claim_template(key), needed=False),
    )  # fmt: skip


def taint_rule_kinds(state: State, version: str) -> tuple[WatchedKind[Any], ...]:
    """Return the kind by which an administrator taints devices, which few clusters serve."""
    devices = state.devices
    return (
        WatchedKind(*_name_and_path("DeviceTaintRule", version=version), DeviceTaintRule, lambda found: found,
             _by_fact(devices.take_taint_rule), lambda key, _uid: devices.drop_taint_rule(key), needed=False),
    )  # fmt: skip


def topology_kinds(state: State, version: str) -> tuple[WatchedKind[Any], ...]:
    """Return the kind by which agents on nodes tell what is free on each NUMA node (kube/numa_zones.py)."""
    return (
        WatchedKind(*_name_and_path("NodeResourceTopology", version=version), NodeResourceTopology, read_topology,
             _by_key(state.put_topology), lambda key, _uid: state.put_topology(key, None), needed=False),
    )  # fmt: skip


def policy_kinds(book: PolicyBook, version: str) -> tuple[WatchedKind[Any], ...]:
    """Return the kinds of our own API group: policies as objects, in a version that the cluster serves."""
    return (
        WatchedKind(*_name_and_path("GPUPolicy", version=version), GPUPolicyObject,
             lambda found: policy_of(found.metadata.name, found.spec),
             lambda key, _uid, fact: book.put_source(f"{GPUPOLICY} {key}", fact),
             lambda key, _uid: book.drop_source(f"{GPUPOLICY} {key}"), needed=False),
    )  # fmt: skip


def _namespaces(state: State) -> WatchedKind[Namespace]:
    def drop(key: str, _uid: str) -> None:
        state.namespaces.drop(key)
        state.admission_objects.drop("Namespace", key)

    return WatchedKind(*_name_and_path("Namespace"), Namespace, lambda found: found, _by_key(state.put_namespace), drop)


def _admission_kind(objects: AdmissionObjects, kind: str) -> WatchedKind[Any]:
    """Return a kind by which the API server's own admission refuses pods; only explanations read it."""
    return WatchedKind(
        *_name_and_path(kind), ADMISSION_TYPES[kind], lambda found: found,
        lambda key, _uid, found: objects.put(kind, key, found), lambda key, _uid: objects.drop(kind, key),
        needed=False, listed=lambda: objects.listed.add(kind),
    )  # fmt: skip


def nodes_kind(state: State) -> WatchedKind[Node]:
    """Return the kind of nodes; one is read anew only where something that is read of it changed."""
    last_read: dict[str, tuple[int, Node]] = {}

    def read(found: NodeObject) -> Node:
        """Read a node; an unchanged one, as after a heartbeat, costs only a hash, since to keep it takes 3 kB."""
        metadata, status = found.metadata, found.status
        # What is read of conditions: a heartbeat renews the times of all of them.
        conditions = read_bad_conditions(status.conditions or (), state.knowledge), read_not_ready(found)
        registered = [(metadata.annotations or {}).get(key) for key in state.knowledge.clouds.sharing_annotations]
        amounts = status.allocatable, status.capacity
        fields = metadata.labels, registered, found.spec, amounts, status.node_info, status.runtime_handlers, conditions
        before, read_from = last_read.get(metadata.name), hash(msgspec.json.encode(fields))
        if before is not None and before[0] == read_from:
            return before[1]
        node = node_of(found, state.knowledge)
        node = replace(node, labels={key: intern(value) for key, value in node.labels.items()})  # mostly in common
        last_read[metadata.name] = (read_from, node)
        return node

    def drop(key: str, _uid: str) -> None:
        last_read.pop(key, None)
        state.drop_node(key)

    return WatchedKind(*_name_and_path("Node"), NodeObject, read, lambda _key, _uid, fact: state.take_node(fact), drop)


def _pods(state: State) -> WatchedKind[PodRecord]:
    def read(pod: PodObject) -> PodRecord:
        return read_pod_record(pod, state.knowledge, state.allocations.get(pod.metadata.uid))

    def put(_key: str, uid: str, record: PodRecord) -> None:
        state.take_pod(uid, record)

    return WatchedKind(*_name_and_path("Pod"), _WATCHED_POD, read, put, lambda _key, uid: state.drop_pod(uid))


def _name_and_path(kind: str, namespace: str = NAMESPACE, version: str = "") -> tuple[str, str]:
    return API_KINDS[kind].plural, API_KINDS[kind].path(namespace, version)


def _by_key(put: Callable[[str, Fact], None]) -> Callable[[str, str, Fact], None]:
    return lambda key, _uid, fact: put(key, fact)


def _by_fact(put: Callable[[Fact], None]) -> Callable[[str, str, Fact], None]:
    return lambda _key, _uid, fact: put(fact)


def _policy_texts(found: ConfigMap) -> Mapping[str, str]:
    """Return the texts of a ConfigMap; none of one that only says to be the last good set, by its label."""
    of_policies = (found.metadata.labels or {}).get(POLICY_LABEL) == POLICY_LABEL_VALUE
    return (found.data or {}) if of_policies or found.metadata.name == LAST_GOOD else {}


def policy_of(name: str, spec: Any) -> Mapping[str, Any]:
    """Return a GPUPolicy of any version as a file would have it, without the metadata that the API server adds."""
    document = {"apiVersion": f"{GROUP}/{STORAGE_VERSION}", "kind": "GPUPolicy", "metadata": {"name": name}}
    return document if spec is None else {**document, "spec": spec}
