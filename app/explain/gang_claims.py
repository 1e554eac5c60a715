# SPDX-License-Identifier: Apache-2.0
"""The devices that claims of a gang's pods get while these are placed in turn.

A claim made of a template is each pod's own. One that pods name, and one that their PodGroup has too, is allocated with
the first pod and serves all others (dynamicresources.go PreFilter and resourceclaim.go BindTo, v1.37). kube-scheduler
keeps such allocations in memory until the whole group is bound, and so does this.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from app.dra.allocator import GrantedDevice, allocate
from app.dra.cluster_devices import ClusterDevices, PoolIndex
from app.dra.pod_claims import generated_claims
from app.dra.pod_judge import ClaimJudge
from app.dra.selectors import Selection
from app.explain.survey import ScheduledPod
from app.kube.devices import NodeSelection, ResourceSlice
from app.kube.gangs import Gang
from app.kube.node_selectors import NodeSelector
from app.kube.pods import named_claim
from app.kube.records import Metadata
from app.kube.resource_claims import Allocation, ResourceClaim, Result, result_of
from app.nodes.model import Node


def shared_claims(pod: ScheduledPod, gang: Gang) -> Mapping[str, str]:
    """Name the claims of a pod that serve other pods of its gang too: what tells them apart, by their keys."""
    generated = generated_claims(pod.document)
    found: dict[str, str] = {}
    for entry, claim, template in pod.pod.claims:
        made = claim or generated.get(entry, "")
        key = f"{pod.pod.namespace}/{made}" if made else f"{pod.pod.namespace}/{template} ({entry})"
        if claim:
            found[key] = key
        elif (entry, claim, template) in map(named_claim, gang.spec.resource_claims):
            found[key] = f"entry {entry}"
    return found


@dataclass(slots=True)
class GangDevices:
    """The devices of the cluster while a gang is placed.

    `shared` are the claims of several pods that have devices, by what tells them apart; `not_judged` says why devices
    could not be counted, "" where they were.
    """

    cluster: ClusterDevices
    selection: Selection
    shared: dict[str, ResourceClaim] = field(default_factory=dict)
    not_judged: str = ""
    _number: int = 0

    def judge(self, claims: ClaimJudge, shared: Mapping[str, str]) -> ClaimJudge:
        """Judge nodes for the claims of a pod by what is left."""
        own = claims.pod_claims
        for claim in own.allocated:
            if claim.key in shared:
                self.shared.setdefault(shared[claim.key], claim)
        known = tuple(self.shared.get(shared.get(claim.key, ""), claim) for claim in own.claims)
        return ClaimJudge(replace(own, claims=known), self.cluster, self.selection)

    @property
    def first_pod_decides(self) -> bool:
        """Whether a pod of the gang chose devices for the others that some nodes do not reach.

        kube-scheduler takes any of the equal nodes for that pod, so that another try may end otherwise.
        """
        chosen = (claim.allocation for claim in self.shared.values() if "#" in claim.key)
        return any(allocation is not None and allocation.nodes is not None for allocation in chosen)

    def take(self, claims: ClaimJudge, node: Node, shared: Mapping[str, str]) -> bool:
        """Give a pod that is placed on a node its devices; tell whether that can change what other nodes have left."""
        asked = claims.pod_claims.on(node)
        verdict = allocate(asked, node, self.cluster, self.selection) if asked else None
        self.not_judged = self.not_judged or claims.not_judged
        if verdict is None or not verdict.devices:
            return False
        allocated = self.cluster.allocated.copy()
        for claim in asked:
            granted = [one for one in verdict.devices if one.claim == claim.key]
            self._number += 1
            nodes = self._nodes_of(granted, node)
            made = claim.allocated(f"{claim.key}#{self._number}", Allocation.of(_results(claim, granted), nodes))
            allocated.put(made)
            if claim.key in shared:
                self.shared[shared[claim.key]] = made
        self.cluster = replace(self.cluster, allocated=allocated)
        of_node = {(one.driver, one.pool) for one in self.cluster.pools.slices_on(node.name)}
        elsewhere = any(one.device.id[:2] not in of_node for one in verdict.devices)
        return elsewhere or any(claim.key in shared for claim in asked)

    def _nodes_of(self, granted: Iterable[GrantedDevice], node: Node) -> NodeSelector | None:
        """Return the nodes that reach all devices; None for all nodes, and the node alone where few others can."""
        selectors: list[NodeSelector] = []
        for one in granted:
            slices = self.cluster.pools.slices_of(one.device.id[:2])
            of_slice = next((each.spec for each in slices if one.device in each.devices), None)
            selection = one.device if one.device.names_nodes else of_slice
            if selection is not None and (selector := selection.selector) is not None and selector not in selectors:
                selectors.append(selector)
        if not selectors:
            return None
        return selectors[0] if len(selectors) == 1 else NodeSelection(node.name).selector


def _results(claim: ResourceClaim, granted: Iterable[GrantedDevice]) -> tuple[Result, ...]:
    admin = {request.name for choices in claim.spec.requests for request in choices if request.admin_access}
    return tuple(result_of(one.request, one.device.id, one.consumed, one.request in admin) for one in granted)


def with_devices_of_copies(cluster: ClusterDevices, node: Node, names: Sequence[str]) -> ClusterDevices:
    """Return the cluster with copies of a node, each of which publishes the devices of the node, all of them free."""
    slices = tuple(cluster.pools.slices_on(node.name))
    if not slices or not names:
        return cluster
    pools: PoolIndex = cluster.pools.copy()
    for name in names:
        for one in slices:
            pool = f"{one.pool} {name}"
            spec = structs.replace(
                one.spec,
                node_name=name,
                pool=structs.replace(one.spec.pool, name=pool),
                devices=tuple(map(structs.replace, one.devices)),
            )
            pools.put(ResourceSlice(Metadata(f"{one.name} {name}"), spec))
    return replace(cluster, pools=pools)
