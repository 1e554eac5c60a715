# SPDX-License-Identifier: Apache-2.0
"""The World: the cluster, its policies and what is known of GPUs, as one value that every question is asked of.

`State` (world/state.py) folds events into it. A World of a running service is a view of the state as it stands, which
costs nothing to make; `copied` is for work that takes longer than one turn of the event loop. A what-if is
`dataclasses.replace` of some of its fields.

What policies say of a pod is kept by pod template: pods of one template get one ruling and one demand.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Generic

from app.dra.cluster_devices import ClusterDevices
from app.dra.selectors import Selection
from app.knowledge.tables import Knowledge
from app.kube.admission_objects import AdmissionObjects
from app.kube.claimed_devices import NO_CLAIMED_DEVICES, ClaimedDevices
from app.kube.existing_pods import ExistingPods
from app.kube.gangs import PodGroup
from app.kube.node_selectors import NodeSelectorTerm
from app.kube.pods import PREFIX, Pod, gpu_amounts
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.policy.demand import ExpectedDemand
from app.policy.match import Ruling, ruling_for
from app.values.computations import T
from app.world.device_state import DeviceState
from app.world.fleet_facts import FleetFacts
from app.world.state import State

RULINGS_KEPT = 1024
"""Distinct pod templates in a cache; a ruling costs about 150 µs to make and 2 kB to keep."""
LARGEST_KEPT = 1 << 14
"""Characters of the largest template that is cached, so that all take 16 MB at most: a review may have 3 MiB of labels
that the API server has not refused yet. The largest recorded one has 331."""


class TemplateCache(Generic[T]):
    """The results of `make` for the last pod templates, at most RULINGS_KEPT of them."""

    def __init__(self, make: Callable[[Pod, Mapping[str, str], PolicySet, Knowledge, ClaimedDevices], T]) -> None:
        self._make = make
        self._by_template: dict[Any, T] = {}

    def of(
        self,
        pod: Pod,
        labels: Mapping[str, str],
        policies: PolicySet,
        state: State,
    ) -> T:
        """Return the result for a Pod in a namespace with these labels, by what it claims and what its images carry."""
        claimed, knowledge = _claimed(pod, state.devices), state.knowledge
        digests = state.images.digests(pod) if state.images.facts else ()
        key = (policies.hash, tuple(sorted(labels.items())), claimed, digests, _template(pod))
        remembered = self._by_template.get(key)
        if remembered is not None:
            return remembered
        if state.images.reading and (claimed is not NO_CLAIMED_DEVICES or gpu_amounts(pod, knowledge.families.of)):
            state.images.want(pod)
        pod = state.images.with_facts(pod) if digests else pod
        made = self._make(pod, labels, policies, knowledge, claimed)
        if len(str(key)) <= LARGEST_KEPT:
            if len(self._by_template) >= RULINGS_KEPT:
                del self._by_template[next(iter(self._by_template))]
            self._by_template[key] = made
        return made


class RulingCache(TemplateCache[Ruling]):
    """The rulings that admission needs."""

    def __init__(self) -> None:
        super().__init__(ruling_for)


def _claimed(pod: Pod, devices: DeviceState) -> ClaimedDevices:
    """Return the GPUs that a pod claims; most have no claim, and name no resource that a DeviceClass serves."""
    serving, prefix = devices.classes.by_resource, devices.knowledge.families.device_class_prefix
    names = (name for container in pod.containers for name in (*container.requests, *container.limits))
    if pod.claims or any(name in serving or name.startswith(prefix) for name in names):
        return devices.claimed(pod)
    return NO_CLAIMED_DEVICES


def _template(pod: Pod) -> tuple[Any, ...]:
    """Return the part of a pod that a ruling depends on, as a hashable key; its claims are a separate key."""
    ours = tuple(sorted((key, value) for key, value in pod.annotations.items() if key.startswith(PREFIX)))
    containers = tuple(
        (
            container.name,
            container.list_name,
            container.sidecar,
            container.image,
            container.env,
            *map(_items, (container.requests, container.limits)),
        )
        for container in pod.containers
    )
    return (tuple(sorted(pod.labels.items())), ours, containers)


def _items(amounts: Mapping[str, Fraction]) -> tuple[tuple[str, int, int], ...]:
    """Return amounts as integers, because hashing a Fraction costs as much as the rest of the key."""
    return tuple(sorted((name, amount.numerator, amount.denominator) for name, amount in amounts.items()))


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
    pod_group: PodGroup | None = None
    idle: Mapping[str, float] = field(default_factory=dict)
    idle_seconds: Mapping[float, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    managed_resources: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    asking: frozenset[str] = frozenset()
    judges_creation: bool = False
    unread_limits: tuple[str, ...] = ()

    def ruling(self, pod: Pod) -> Ruling:
        """Return what the policies say of a pod in its namespace; pods of one template share a cached ruling."""
        labels = self.state.namespaces.labels(pod.namespace)
        return self.rulings.of(pod, labels, self.policies, self.state)

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
