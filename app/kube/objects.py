# SPDX-License-Identifier: Apache-2.0
"""The declarations of the objects that every cluster has: the fields that are read, with their types.

A field may be null where files or the API server often have null. Amounts may be of any type, so that one malformed
quantity does not fail the whole object. Source of all: the API reference of Kubernetes.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import force_setattr

from app.kube.records import KubeObject, Metadata, Record

Texts = dict[str, str]
Amounts = dict[str, Any]
NodeAmounts = dict[str, str | int | float | None]


class LabelledMetadata(Metadata, frozen=True):
    """Metadata with labels and annotations."""

    labels: Texts | None = None
    annotations: Texts | None = None


class Namespace(KubeObject, frozen=True):
    """A Namespace, whose annotations may hold a node selector (intree/api_server.py)."""

    metadata: LabelledMetadata


class ConfigMap(KubeObject, frozen=True):
    """A ConfigMap, whose text data may hold policies."""

    metadata: LabelledMetadata
    data: Texts | None = None


class Taint(Record, frozen=True):
    """A taint of a Node."""

    key: str = ""
    value: str | None = None
    effect: str | None = None
    time_added: str | None = None


class NodeSpec(Record, frozen=True):
    """What a Node is meant to be."""

    taints: tuple[Taint, ...] | None = None
    unschedulable: bool | None = None


class ObjectCondition(Record, frozen=True):
    """A condition of a Node or a Pod without the time of the last heartbeat, so that a heartbeat changes nothing."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class NodeInfo(Record, frozen=True):
    """The software of a Node."""

    container_runtime_version: str = ""
    architecture: str = ""


class RuntimeHandler(Record, frozen=True):
    """One handler of a Node's container runtime; its name is absent for the default one."""

    name: str | None = None


class NodeStatus(Record, frozen=True):
    """What a Node has."""

    conditions: tuple[ObjectCondition, ...] | None = None
    allocatable: NodeAmounts | None = None
    capacity: NodeAmounts | None = None
    node_info: NodeInfo = NodeInfo()
    runtime_handlers: tuple[RuntimeHandler, ...] | None = None


class NodeMetadata(LabelledMetadata, frozen=True):
    """Metadata of a Node."""

    creation_timestamp: str | None = None


class NodeObject(KubeObject, frozen=True):
    """A Node."""

    metadata: NodeMetadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class GPUPolicyObject(KubeObject, frozen=True):
    """A GPUPolicy as the API server keeps it; policy/schema.py declares its spec."""

    spec: dict[str, Any] | None = None


class Scheduling(Record, frozen=True):
    """The constraints that a RuntimeClass adds to its pods; tolerations are copied with all their fields."""

    node_selector: Texts | None = None
    tolerations: tuple[dict[str, Any], ...] | None = None


class Overhead(Record, frozen=True):
    """What a RuntimeClass adds to the requests of its pods, by resource."""

    pod_fixed: Amounts | None = None


class RuntimeClass(Record, frozen=True):
    """A RuntimeClass (node.k8s.io/v1). The API server wants a handler; without one the class's name stands for it."""

    handler: str = ""
    scheduling: Scheduling = Scheduling()
    overhead: Overhead = Overhead()
    metadata: Metadata = Metadata()

    def __post_init__(self) -> None:
        if not self.handler:
            force_setattr(self, "handler", self.metadata.name)

    @property
    def node_selector(self) -> Mapping[str, str]:
        """The labels that its pods select of nodes."""
        return self.scheduling.node_selector or {}
