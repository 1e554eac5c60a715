# SPDX-License-Identifier: Apache-2.0
"""What a namespace holds of each GPU product, which policies limit (`placement.namespaceLimits`).

A pod holds the units that it requests, of its node's product, and a claim the devices that are allocated to it, of the
product that their ResourceSlice names. A claim that kube-scheduler made for an extended resource does not count beside
the pod's units, nor does a device with adminAccess.

A pod for which we named a node counts before its binding is seen. Replicas do not know of each other's promises, so
that a limit is exceeded where two of them, asked by one scheduler or two, decide within the time that a binding takes
to reach the other: at most by what is bound in that time. `LimitsExceeded` counts it, by what is bound alone.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from app.kube.gangs import pod_group_key
from app.kube.gpu_usage import GPUUsage
from app.kube.pods import Pod
from app.kube.resource_claims import POD, POD_GROUP, ResourceClaim
from app.placement.scheduler_demand import HeldUnits, used_of
from app.policy.demand import ProductLimit
from app.world.scheduling_groups import GroupHold
from app.world.state import State

NAMESPACES_KEPT = 1 << 14
"""Namespaces whose limits are known, the last that were asked about; 1 kB each. A guess: a cluster has hundreds."""
NO_HOLDS: Mapping[tuple[str, str], GroupHold] = {}


def held_by_others(state: State, pod: Pod, holds: Mapping[tuple[str, str], GroupHold] = NO_HOLDS) -> HeldUnits:
    """Return what the other pods and claims of a Pod's namespace hold, or will hold by what was promised.

    Of a Pod of a PodGroup those that wait and have a lower UID count too, whatever their product: its members are asked
    about before one is bound, and the same ones have to stay below the limit in any order. `holds` are the nodes that
    groups got within the last second.
    """
    allocations, key = state.allocations, pod_group_key(pod.namespace, pod.pod_group)
    consumers = {(POD, name) for name in (pod.name, *allocations.promised_claims(pod.namespace))}
    consumers |= {(POD_GROUP, pod.pod_group)} if pod.pod_group else set()
    own = {claim for _, claim, _ in pod.claims if claim}

    def counts(claim: ResourceClaim) -> bool:
        return claim.key.partition("/")[2] not in own and consumers.isdisjoint(claim.reserved_for)

    waiting = state.pending_pods.of_gang(key) if pod.pod_group else {}
    before = [pending for uid, pending in waiting.items() if uid < pod.uid]
    ahead = sum(sum(units for _, units in one.gpu_requests) + state.devices.devices_claimed(one) for one in before)
    named = (
        (name, hold.all_units)
        for (uid, name), hold in holds.items()
        if hold.group != key and hold.group.startswith(f"{pod.namespace}/") and state.allocations.get(uid) is None
    )
    return (
        *_of_products(state, allocations.held_in(pod.namespace, pod.uid).items()),
        *_of_products(state, named),
        *state.devices.dra.held_in(pod.namespace, counts),
        *(((None, ahead),) if ahead else ()),
    )


def _of_products(state: State, by_node: Iterable[tuple[str, int]]) -> Iterator[tuple[Iterable[str], int]]:
    """Yield units with the product of their node, or all that it may be; those of unknown nodes do not count."""
    for name, units in by_node:
        if (node := state.nodes.get(name)) is not None:
            yield node.node_class.candidates, units


class LimitsExceeded:
    """Counts each unit whose binding, or allocation, brings a namespace above one of its limits.

    `count` is called with these units. The limits are those of the pods that were last asked about, as long as what
    they follow from is the same.
    """

    def __init__(self, state: State, count: Callable[[int], None]) -> None:
        self._state, self._count = state, count
        self._limits: dict[str, tuple[Hashable, frozenset[ProductLimit]]] = {}
        state.allocations.on_bound = self._bound
        state.devices.on_allocated = self._held

    def know(self, namespace: str, limits: Iterable[ProductLimit], origin: Hashable) -> None:
        """Note limits of a namespace, and the policies and labels from which they follow."""
        before = self._limits.pop(namespace, None)
        known = before[1] if before is not None and before[0] == origin else frozenset()
        if len(self._limits) >= NAMESPACES_KEPT:
            del self._limits[next(iter(self._limits))]
        self._limits[namespace] = origin, known.union(limits)

    def _bound(self, usage: GPUUsage) -> None:
        node = self._state.nodes.get(usage.node)
        if node is not None:
            self._held(usage.name.partition("/")[0], ((node.node_class.candidates, usage.all_units),))

    def _held(self, namespace: str, new: HeldUnits) -> None:
        _, limits = self._limits.get(namespace, (None, ()))
        concerned = [limit for limit in limits if used_of(limit, new)]
        if not concerned:
            return
        state = self._state
        of_pods = _of_products(state, state.allocations.held_in(namespace).items())
        held = (*of_pods, *state.devices.dra.held_in(namespace, lambda _claim: True))
        over = (min(used_of(limit, new), used_of(limit, held) - limit.most) for limit in concerned)
        self._count(max(0, *over))
