# SPDX-License-Identifier: Apache-2.0
"""A fleet in which pods are moved by way of trial: every judgement is of kube-scheduler's checks and of our filters.

What moves with a pod: its GPU units and declared memory, its requests, its host ports, and what it is to pod affinity,
anti-affinity and topology spread.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from app.admission.preview import unbound
from app.explain.survey import NodeJudge, ScheduledPod, read_scheduled_pod
from app.intree.inter_pod_constraints import InterPodConstraints, inter_pod_constraints_of
from app.kube.existing_pods import ExistingPod
from app.kube.pod_object import pod_object
from app.kube.pod_requests import PODS, sum_pod_requests
from app.nodes.model import Node
from app.placement.engine import total
from app.placement.ranking import ranking_key
from app.world.world import World


class FleetWithMoves:
    """The fleet of a snapshot. `documents` are the GPU pods that may be moved, by namespace/name."""

    def __init__(self, snapshot: World, documents: Mapping[str, Mapping[str, Any]]) -> None:
        self._snapshot = snapshot
        self._documents = documents
        self._nodes = dict(snapshot.nodes)
        self._gpu_nodes = tuple(name for name, node in snapshot.nodes.items() if node.has_gpus)
        self._used = {name: dict(requests) for name, requests in snapshot.used.items()}
        self._node_of = {name: node for name, pod in documents.items() if (node := pod["spec"].get("nodeName"))}
        existing = snapshot.existing_pods or ()
        self._others = tuple(pod for pod in existing if pod.name not in documents)
        self._existing = {pod.name: pod for pod in existing if pod.name in documents}
        self._forbidding = any(pod.pod.anti_affinity for pod in existing)
        self._scheduled: dict[str, ScheduledPod] = {}
        self._judges: dict[str, tuple[int, NodeJudge]] = {}
        self._moves = 0

    def nodes(self) -> Sequence[str]:
        """Return the names of the nodes with GPUs."""
        return self._gpu_nodes

    def fits(self, pod: str, node: str) -> bool:
        """Tell whether a pod without a node could be bound to a node, with the others where they are now."""
        return self._judge(pod).fits(self._nodes[node])

    def could_fit(self, pod: str, node: str, without: Sequence[str]) -> bool:
        """Tell whether a node has the units that a pod asks for, with those of pods that would leave it."""
        units = dict(self._nodes[node].free.units)
        for name in without:
            for resource, amount in self._pod(name).demand.resources:
                units[resource] = units.get(resource, 0) + amount
        return all(units.get(resource, 0) >= amount for resource, amount in self._pod(pod).demand.resources)

    def place(self, pod: str, node: str) -> None:
        self._node_of[pod] = node
        self._move(pod, node, 1)

    def remove(self, pod: str) -> None:
        self._move(pod, self._node_of.pop(pod), -1)

    def rank(self, pod: str, node: str) -> tuple[float, tuple[int, str]]:
        """Return the sort key by which the engine prefers nodes."""
        return ranking_key(total(self._pod(pod).demand, self._nodes[node]), node)

    def preferred(self, pod: str, node: str) -> list[str]:
        """List the other nodes that fit a pod and that the engine prefers to a node, the best first."""
        limit = self.rank(pod, node)
        better = [(self.rank(pod, name), name) for name in self._gpu_nodes if name != node and self.fits(pod, name)]
        return [name for key, name in sorted(better) if key < limit]

    def _move(self, pod: str, node: str, sign: int) -> None:
        self._moves += 1
        scheduled = self._pod(pod)
        self._nodes[node] = _with_units(self._nodes[node], scheduled, -sign)
        used = defaultdict(int, self._used.get(node, {}))
        for resource, amount in (*sum_pod_requests(pod_object(scheduled.document).spec), (PODS, 1)):
            used[resource] += sign * amount
        self._used[node] = dict(used)

    def _pod(self, name: str) -> ScheduledPod:
        """Read a pod as its controller would make it again: without the node that it is on."""
        if name not in self._scheduled:
            self._scheduled[name] = read_scheduled_pod(unbound(self._documents[name]), self._snapshot, admit=False)
        return self._scheduled[name]

    def _judge(self, name: str) -> NodeJudge:
        """Return the judge of a pod; where other pods matter to it, a new one after each move."""
        pod = self._pod(name)
        among = pod.pod_among_others
        others_matter = self._forbidding or among.affinity or among.anti_affinity or among.spread or among.ports
        made, judge = self._judges.get(name, (-1, None))
        if judge is None or (others_matter and made != self._moves):
            judge = NodeJudge(pod, self._used, self._constraints(pod, name) if others_matter else None)
            self._judges[name] = (self._moves, judge)
        return judge

    def _constraints(self, pod: ScheduledPod, name: str) -> InterPodConstraints:
        """Count what the other pods mean to a pod, those that have moved where they are now."""
        elsewhere = (
            ExistingPod(other.name, self._node_of[other.name], other.pod, other.terminating)
            for other in self._existing.values()
            if other.name != name and other.name in self._node_of
        )
        return inter_pod_constraints_of(
            pod.pod_among_others,
            pod.pod_constraints,
            (*self._others, *elsewhere),
            self._nodes,
            self._snapshot.state.namespaces.labels,
        )


def _with_units(node: Node, pod: ScheduledPod, sign: int) -> Node:
    """Return a node with the units and the declared memory of a pod added to what is free, or taken from it."""
    cpu = node.free_cpu_milli
    freed = sum(amount for resource, amount in pod.pod_constraints.requests if resource == "cpu")
    free = node.free.with_units(pod.demand.resources, pod.demand.declared_mib, sign)
    return node.with_free(free, None if cpu is None else cpu + sign * freed)
