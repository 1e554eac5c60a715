# SPDX-License-Identifier: Apache-2.0
"""The World: the cluster, its policies and what is known of GPUs, as one value that every question is asked of.

`State` (world/state.py) folds events into it. A World of a running service is a view of the state as it stands, which
costs nothing to make; `copied` is for work that takes longer than one turn of the event loop. A what-if is
`dataclasses.replace` of some of its fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.dra.cluster_devices import ClusterDevices
from app.dra.selectors import Selection
from app.knowledge.tables import Knowledge
from app.kube.admission_objects import AdmissionObjects
from app.kube.existing_pods import ExistingPods
from app.kube.node_selectors import NodeSelectorTerm
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.policy.demand import ExpectedDemand
from app.world.fleet_facts import FleetFacts
from app.world.rulings import RulingCache
from app.world.state import State


@dataclass(frozen=True, slots=True)
class World:
    """The cluster at one moment.

    `state` has what pods hold and wait for, and the namespaces. `used` are the requests of the pods on each node.
    `fleet` is what admission reads of the nodes. `devices` are those of DRA with the claims on them, and `selection`
    what selectors said of devices so far. `rulings` are kept by pod template.
    `volumes` is the node affinity of the PersistentVolume behind each PersistentVolumeClaim, by "namespace/name".
    `existing_pods` are all pods that have a node; None where they are not known: a running service keeps only their
    resources.
    `expected` is the expected demand that the service has learnt. `pod_group` is the PodGroup of the pod that is
    explained, where the cluster was asked for it.
    `idle` are the seconds for which all GPUs of a pod have been idle for certain, by namespace/name; a pod that is not
    in it works, or nothing is known of it. `idle_seconds` says the same of single GPUs: by activity as a share of one,
    and by namespace.
    `managed_resources` are by schedulerName the resources whose pods gpu-usher is asked about, None for every pod; a
    scheduler whose configuration is not known is not in it. `asking` are the schedulers that have called filter.
    `admission_objects` are quotas and other objects of the API server's own admission, which a pod is held against only
    where `judges_creation`: what a pod of the cluster asks for is counted in them already. `unread_limits` are
    those kinds of them that a running service may not read.
    """

    policies: PolicySet
    knowledge: Knowledge
    state: State
    nodes: Mapping[str, Node]
    used: Mapping[str, Mapping[str, int]]
    fleet: FleetFacts
    devices: ClusterDevices
    admission_objects: AdmissionObjects
    rulings: RulingCache = field(default_factory=RulingCache)
    volumes: Mapping[str, tuple[NodeSelectorTerm, ...]] = field(default_factory=dict)
    existing_pods: ExistingPods | None = None
    expected: ExpectedDemand | None = None
    pod_group: Mapping[str, Any] | None = None
    idle: Mapping[str, float] = field(default_factory=dict)
    idle_seconds: Mapping[float, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    managed_resources: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    asking: frozenset[str] = frozenset()
    judges_creation: bool = False
    unread_limits: tuple[str, ...] = ()

    def copied(self) -> "World":
        """Copy what the state changes in place. The copy is shallow, because what is in it is replaced."""
        return replace(
            self,
            nodes=dict(self.nodes),
            used=dict(self.used),
            devices=self.devices.copied(),
            admission_objects=AdmissionObjects(self.admission_objects),
            selection=Selection(),
        )


def world_of(state: State, policies: PolicySet, **known: Any) -> World:
    """View a state under these policies; `known` are further fields."""
    return World(
        policies,
        state.knowledge,
        state,
        state.nodes,
        state.node_requests.used,
        state.fleet(),
        state.devices.dra.current,
        state.admission_objects,
        **known,
    )
