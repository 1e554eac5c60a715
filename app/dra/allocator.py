# SPDX-License-Identifier: Apache-2.0
"""Decides which devices of one node the claims of a pod would get, as kube-scheduler's allocator does.

The search is that of dynamic-resource-allocation/structured/internal/incubating/allocator_incubating.go, kubernetes
v1.36: depth-first over claims, requests and devices, each in its order, and the first full solution counts. A later
device of a request is always behind the earlier ones, so that combinations are tried and not permutations.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from app.dra.cluster_devices import ClusterDevices, PoolID
from app.dra.counters import PoolCounters, consumed_by_kind, consumption, lacking
from app.dra.selectors import ClaimError, NotJudged, Selection
from app.kube.device_classes import untolerated
from app.kube.device_models import NOTHING, Attribute
from app.kube.devices import Device, DeviceID, same
from app.kube.resource_claims import ALL, EXACT_COUNT, MOST_RESULTS, Constraint, DeviceRequest, ResourceClaim
from app.nodes.model import Node


class ConstraintState:
    """One constraint with the values of the devices that were added, in their order (constraint.go).

    A list of values never matches, since kube-scheduler v1.36 does not enable lists in its allocator.

    kube-scheduler keeps the values of distinctAttribute by request: a request's later device replaces the value of its
    earlier one, so that two devices of one request are compared with the last one only, and a device that is removed
    again takes the value of its request with it.
    """

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self._count = 0
        self._value: Attribute | None = None
        self._by_request: dict[str, Attribute] = {}

    def add(self, request: DeviceRequest, device: Device) -> bool:
        """Add a device if it satisfies the constraint; the result tells whether it does."""
        if not self.constraint.covers(request):
            return True
        value = device.attributes.get(self.constraint.attribute)
        if value is None or (self._count and not self._fits(value)):
            return False
        if self.constraint.distinct:
            self._by_request[request.parent] = value
        elif not self._count:
            self._value = value
        self._count += 1
        return True

    def remove(self, request: DeviceRequest) -> None:
        """Remove the device of a request that was added last."""
        if self.constraint.covers(request):
            self._by_request.pop(request.parent, None)
            self._count -= 1

    def _fits(self, value: Attribute) -> bool:
        if not self.constraint.distinct:
            return self._value is not None and same(value, self._value)
        if isinstance(value, tuple):
            return not self._by_request
        return not any(same(value, other) for other in self._by_request.values())


MOST_STEPS = 20_000
"""Devices that are tried on one node, about 2 µs each. kube-scheduler looks for ten seconds (KubeSchedulerConfig,
DynamicResourcesArgs filterTimeout); a claim with more combinations is reported as not judged."""


@dataclass(frozen=True, slots=True)
class GrantedDevice:
    """A device that a request would get; `consumed` is its share's capacity, None if it gets the device alone."""

    claim: str
    request: str
    device: Device
    consumed: Mapping[str, Fraction] | None = None


class Outcome(Enum):
    """What the allocator says of a node; an error is kube-scheduler's as well, and ends its attempt on all nodes."""

    ALLOCATED = "allocated"
    REFUSED = "refused"
    ERROR = "error"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class NodeAllocation:
    """The outcome on one node, with the devices that the claims get, or in words what an error is, or not judged."""

    outcome: Outcome
    devices: tuple[GrantedDevice, ...] = ()
    text: str = ""
    error: ClaimError | None = None


def allocate(
    claims: Sequence[ResourceClaim], node: Node, cluster: ClusterDevices, selection: Selection
) -> NodeAllocation:
    """Decide which devices of a node claims that have none would get."""
    try:
        return _Search(claims, node, cluster, selection).run()
    except ClaimError as error:
        return NodeAllocation(Outcome.ERROR, text=str(error), error=error)
    except NotJudged as error:
        return NodeAllocation(Outcome.NOT_JUDGED, text=str(error))


class _Step(Enum):
    """What became of a branch of the search. TOO_MANY: the claim would have too many devices, whichever it gets."""

    DONE = 1
    FAILED = 2
    TOO_MANY = 3


@dataclass(frozen=True, slots=True)
class _Plan:
    """One request on one node: the number of devices, which are `everything` where it asks for all."""

    request: DeviceRequest
    selectors: tuple[str, ...]
    count: int
    everything: tuple[Device, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Taken:
    """One device taken in this search, and what must be given back for it."""

    claim: int
    plan: _Plan
    device: Device
    counters: bool
    consumed: Mapping[str, Fraction] | None


class _Search:
    """One search on one node. `_taken` are the devices taken so far, the last one on top."""

    def __init__(
        self, claims: Sequence[ResourceClaim], node: Node, cluster: ClusterDevices, selection: Selection
    ) -> None:
        self._claims, self._node, self._cluster, self._selection = claims, node, cluster, selection
        self._pools = cluster.pools.pools(node)
        usable = (pool for pool in self._pools if not (pool.incomplete or pool.invalid))
        self._order = [device for pool in usable for device in pool.devices]
        self._counters: dict[PoolID, PoolCounters] = {}
        self._constraints = [list(map(ConstraintState, claim.spec.constraints)) for claim in claims]
        self._taken: list[_Taken] = []
        self._holders: dict[DeviceID, list[int]] = {}
        self._shares: dict[DeviceID, list[Mapping[str, Fraction]]] = {}
        self._steps = 0
        self._plans = [list(self._plans_of(claim)) for claim in claims]

    def run(self) -> NodeAllocation:
        """Search. Raises ClaimError, NotJudged."""
        if any(pool.counter_sets for pool in self._pools) and self._exceeds_node():
            return NodeAllocation(Outcome.REFUSED)
        try:
            step = self._next_request(0, 0)
        except NotJudged:
            if self._exceeds_node():
                return NodeAllocation(Outcome.REFUSED)
            raise
        if step is not _Step.DONE:
            return NodeAllocation(Outcome.REFUSED)
        granted = (
            GrantedDevice(self._claims[one.claim].key, one.plan.request.name, one.device, one.consumed)
            for one in self._taken
        )
        return NodeAllocation(Outcome.ALLOCATED, tuple(granted))

    def _exceeds_node(self) -> bool:
        """Tell whether the claims ask for more than the node has in all, by numbers of devices or by sums of counters.

        Then no search is needed; False where that is not certain. It is not where a selector fails, or where a request
        for all devices could break a constraint, as the search may then end with an error.
        """
        needed: dict[str, Fraction] = {}
        try:
            for plans in (plans for claim in self._plans for plans in claim):
                least = [self._least_of_counters(plan) for plan in plans]
                possible = [amounts for amounts in least if amounts is not None]
                if not possible:
                    return not any(plan.everything for claim in self._plans for plans in claim for plan in plans)
                for name in possible[0]:
                    amount = min(amounts.get(name, Fraction(0)) for amounts in possible)
                    needed[name] = needed.get(name, Fraction(0)) + amount
        except (ClaimError, NotJudged):
            return False
        if any(plan.everything for claim in self._plans for plans in claim for plan in plans):
            return False
        left: dict[str, Fraction] = {}
        for pool in self._pools:
            for name, amount in PoolCounters(pool, self._cluster.allocated).left().items():
                left[name] = left.get(name, Fraction(0)) + amount
        return any(amount > left.get(name, 0) for name, amount in needed.items())

    def _least_of_counters(self, plan: _Plan) -> Mapping[str, Fraction] | None:
        """Give the least that a request consumes of each kind of counter; None if there are too few devices for it."""
        devices = [
            device
            for device in self._order
            if self._selects(plan, device) and (plan.request.admin_access or not self._in_use(-1, plan, device))
        ]
        if plan.request.admin_access or any(device.allow_multiple_allocations for device in devices):
            return {}
        if len(devices) < plan.count:
            return None
        consumed = [consumed_by_kind(device) for device in devices]
        names = set(consumed[0]).intersection(*consumed[1:]) if consumed else set()
        return {name: plan.count * min(amounts[name] for amounts in consumed) for name in names}

    def _plans_of(self, claim: ResourceClaim) -> Iterator[list[_Plan]]:
        """Plan each request of a claim with its alternatives, and check what kube-scheduler checks beforehand."""
        least = 0
        for choices in claim.spec.requests:
            plans = [self._plan(claim, request) for request in choices]
            least += min(plan.count for plan in plans)
            yield plans
        if least > MOST_RESULTS:
            raise ClaimError(f"claim {claim.key} asks for {least} devices, and a claim is given {MOST_RESULTS} at most")

    def _plan(self, claim: ResourceClaim, request: DeviceRequest) -> _Plan:
        device_class = self._cluster.classes.get(request.device_class)
        if device_class is None:
            raise ClaimError(f"request {request.name}: DeviceClass {request.device_class} does not exist")
        plan = _Plan(request, (*device_class.selectors, *request.selectors), request.count)
        if request.mode == EXACT_COUNT:
            return plan
        if request.mode != ALL:
            raise ClaimError(f"request {request.name}: allocationMode {request.mode} is not known")
        everything = tuple(self._everything(claim, plan))
        return _Plan(request, plan.selectors, len(everything), everything)

    def _everything(self, claim: ResourceClaim, plan: _Plan) -> Iterator[Device]:
        """List all devices that a request selects, whether free or not; it gets these or nothing."""
        for pool in self._pools:
            if pool.incomplete or pool.invalid:
                state = "its driver is still publishing" if pool.incomplete else "is invalid"
                raise ClaimError(
                    f"claim {claim.key} asks for all devices, among them those of pool {pool.id[1]}, which {state}"
                )
            for device in pool.devices:
                if self._selects(plan, device) and not self._lacks_capacity(plan, device):
                    yield device

    def _next_request(self, claim: int, request: int) -> _Step:
        """Allocate the requests from one on, and all later claims."""
        if claim == len(self._claims):
            return _Step.DONE
        if request == len(self._plans[claim]):
            step = self._next_request(claim + 1, 0)
            return _Step.FAILED if step is _Step.TOO_MANY else step
        plans = self._plans[claim][request]
        if len(plans) == 1 and "/" not in plans[0].request.name:
            return self._next_device(claim, request, plans[0], 0, 0)
        outcome = _Step.TOO_MANY
        for plan in plans:
            step = self._next_device(claim, request, plan, 0, 0)
            if step is _Step.DONE:
                return step
            outcome = _Step.FAILED if step is _Step.FAILED else outcome
        return outcome

    def _next_device(self, claim: int, request: int, plan: _Plan, taken: int, start: int) -> _Step:
        """Allocate the remaining devices of a request, from position `start` of the order on, and all that follows."""
        if plan.everything is not None and not plan.everything:
            return _Step.FAILED
        if taken >= plan.count:
            return self._next_request(claim, request + 1)
        if sum(one.claim == claim for one in self._taken) + plan.count - taken > MOST_RESULTS:
            return _Step.TOO_MANY
        if plan.everything is not None:
            if not self._take(claim, plan, plan.everything[taken], must=True):
                return _Step.FAILED
            step = self._next_device(claim, request, plan, taken + 1, 0)
            return step if step is _Step.DONE else self._give_back(step)
        for position in range(start, len(self._order)):
            self._count_step()
            if self._take(claim, plan, self._order[position]):
                step = self._next_device(claim, request, plan, taken + 1, position + 1)
                if step is _Step.DONE or self._give_back(step) is _Step.TOO_MANY:
                    return step
        return _Step.FAILED

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise NotJudged(f"more than {MOST_STEPS} combinations of devices to try on one node")

    def _selects(self, plan: _Plan, device: Device) -> bool:
        """Tell whether a device is of the class, is selected, and can be reached from the node."""
        if not self._selection.test_all(plan.selectors, device):
            return False
        return not device.names_nodes or device.selects(self._node)

    def _lacks_capacity(self, plan: _Plan, device: Device) -> bool:
        shared = device.allow_multiple_allocations or self._cluster.allocated.shared(device.id)
        if plan.request.capacity is None and not (shared or device.amounts.policies):
            return False
        used = self._cluster.allocated.used(device.id)
        taking: dict[str, Fraction] = {}
        for consumed in self._shares.get(device.id, ()):
            for name, amount in consumed.items():
                taking[name] = taking.get(name, Fraction(0)) + amount
        return lacking(device, plan.request.capacity, used, taking or NOTHING) is not None

    def _in_use(self, claim: int, plan: _Plan, device: Device) -> bool:
        holders = self._holders.get(device.id, ())
        if plan.request.admin_access:
            return claim in holders
        return bool(holders) or device.id in self._cluster.allocated.alone

    def _take(self, claim: int, plan: _Plan, device: Device, must: bool = False) -> bool:
        """Take a device if it is free and fits; with `must` a constraint that it breaks is an error."""
        if self._in_use(claim, plan, device) or not self._selects(plan, device) or self._lacks_capacity(plan, device):
            return False
        shared = device.allow_multiple_allocations
        in_share = shared and (self._cluster.allocated.shared(device.id) or device.id in self._shares)
        counters = bool(device.counters) and not in_share
        if counters and self._pool_counters(device).lacking(device) is not None:
            return False
        if untolerated(device, self._cluster.taint_rules, plan.request.tolerations) is not None:
            return False
        if not self._add_to_constraints(claim, plan.request, device):
            if must:
                raise ClaimError(
                    f"claim {self._claims[claim].key}, request {plan.request.name}: asks for all devices, and the"
                    f" claim's constraints do not allow {device.name} among them"
                )
            return False
        self._keep(claim, plan, device, counters)
        return True

    def _keep(self, claim: int, plan: _Plan, device: Device, counters: bool) -> None:
        """Record a device as taken."""
        if counters:
            self._pool_counters(device).take(device)
        consumed = None
        if device.allow_multiple_allocations:
            consumed = consumption(device, plan.request.capacity)
            self._shares.setdefault(device.id, []).append(consumed)
        else:
            self._holders.setdefault(device.id, []).append(claim)
        self._taken.append(_Taken(claim, plan, device, counters, consumed))

    def _give_back(self, step: _Step) -> _Step:
        """Give back the device that was taken last; the result is the step that made it necessary."""
        last = self._taken.pop()
        held = self._holders if last.consumed is None else self._shares
        held[last.device.id].pop()
        if not held[last.device.id]:
            del held[last.device.id]
        for constraint in reversed(self._constraints[last.claim]):
            constraint.remove(last.plan.request)
        if last.counters:
            self._pool_counters(last.device).give_back(last.device)
        return step

    def _add_to_constraints(self, claim: int, request: DeviceRequest, device: Device) -> bool:
        added: list[ConstraintState] = []
        for constraint in self._constraints[claim]:
            if not constraint.add(request, device):
                for one in reversed(added):
                    one.remove(request)
                return False
            added.append(constraint)
        return True

    def _pool_counters(self, device: Device) -> PoolCounters:
        """Return the counters of a device's pool, counted when they are needed first."""
        pool_id = device.driver, device.pool
        if pool_id not in self._counters:
            pool = next(pool for pool in self._pools if pool.id == pool_id)
            self._counters[pool_id] = PoolCounters(pool, self._cluster.allocated)
        return self._counters[pool_id]
