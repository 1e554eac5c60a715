# SPDX-License-Identifier: Apache-2.0
"""Learns the workload from the GPU pods that exist, as the expected demand for scorers.

`PodCounts` (world/pod_index.py) counts pods by shape with each event, `Workload` keeps the common shapes, and
`DemandLearning` compiles them with the policies into the expected demand. That is a function of the state and of the
policies alone, so that replicas that have seen the same cluster agree, whichever of them was asked or started anew
(decision 34). Counts and free GPUs are rounded, because a new expected demand invalidates all cached verdicts of
demands with it.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Generic

from app.kube.pod_shapes import PodShape
from app.kube.pods import PRODUCTS, WORKLOAD_CLASS, Container, Pod
from app.nodes.model import WHOLE_MILLI
from app.placement.scheduler_demand import demand_class, expected_from_weights, expecting
from app.placement.unusable_capacity import EXPECTED_DEMANDS_KEPT
from app.policy.compiled import PolicySet
from app.policy.demand import Demand, DemandClass, ExpectedDemand
from app.policy.match import compile_demand, selections_by_namespace
from app.world.pod_index import Shape
from app.world.state import State

LEAST_PODS = 32
"""The least number of pods from which anything is expected, a guess."""
SHAPE_RARE_BITS, SHAPE_COUNT_BITS = 12, 2
LIMIT_RARE_BITS, LIMIT_COUNT_BITS = 12, 3
"""How rare a shape or a limit is that does not count, and how exactly the others do. With each digit more, cached
verdicts are renewed more often; the published traces have up to 330 shapes and 16 limits."""


class WorkloadIndex(Generic[Shape]):
    """The number of pods by shape. `generation` counts changes of what `common` returns.

    A shape is rare if the GPU capacity that its pods request has `rare_bits` binary digits fewer than that of all pods,
    so that at most 2 ** `rare_bits` shapes are not. Of a number of pods `count_bits` leading binary digits count: with
    two, 16 and 17 are alike, and 24 is more.
    """

    def __init__(self, rare_bits: int, count_bits: int) -> None:
        self._rare_bits, self._count_bits = rare_bits, count_bits
        self._pods: dict[Shape, int] = {}
        self._by_bits: dict[int, dict[Shape, None]] = {}
        """Shapes by the binary digits of their capacity, so that rare ones cost nothing, however many there are."""
        self._total = self._total_milli = self.generation = 0

    def add(self, shape: Shape, pods: int, milli: int) -> None:
        """Add pods of a shape that request `milli` thousandths of a GPU each; a negative number removes them."""
        before, scope = self._pods.get(shape, 0), self._scope()
        after = before + pods
        self._total += pods
        self._total_milli += pods * milli
        if after:
            self._pods[shape] = after
        else:
            del self._pods[shape]
        if (left := (before * milli).bit_length()) != (joined := (after * milli).bit_length()):
            self._move(shape, left, joined)
        if self._rounded(before) != self._rounded(after) or self._scope() != scope:
            self.generation += 1

    def _scope(self) -> tuple[bool, int]:
        return self._total >= LEAST_PODS, self._total_milli.bit_length()

    def _move(self, shape: Shape, left: int, joined: int) -> None:
        if left:
            former = self._by_bits[left]
            del former[shape]
            if not former:
                del self._by_bits[left]
        if joined:
            self._by_bits.setdefault(joined, {})[shape] = None

    def common(self) -> Mapping[Shape, int]:
        """Return the shapes that are not rare, with the rounded number of pods of each; none of too few pods."""
        enough, bits = self._scope()
        common = (shapes for digits, shapes in self._by_bits.items() if enough and digits > bits - self._rare_bits)
        return {shape: self._rounded(self._pods[shape]) for shapes in common for shape in shapes}

    @property
    def seen_milli(self) -> int:
        """The GPU capacity that all pods request in thousandths, rounded down to a power of two."""
        return 1 << self._total_milli.bit_length() >> 1

    def clear(self) -> None:
        self._pods.clear()
        self._by_bits.clear()
        self._total = self._total_milli = 0
        self.generation += 1

    def _rounded(self, pods: int) -> int:
        spare = max(0, pods.bit_length() - self._count_bits)
        return pods >> spare << spare


class Workload(Generic[Shape]):
    """The pods by shape, and the GPU capacity that they request by limit.

    A limit is a shape that says nothing but on which products a pod can run. Limits are counted apart, because which
    products are scarce depends on the sum of many shapes, and should be known more exactly than each of them.
    """

    def __init__(self) -> None:
        self._shapes = WorkloadIndex[Shape](SHAPE_RARE_BITS, SHAPE_COUNT_BITS)
        self._limits = WorkloadIndex[Shape](LIMIT_RARE_BITS, LIMIT_COUNT_BITS)

    def add(self, shape: Shape, limit: Shape, pods: int, milli: int) -> None:
        """Add pods of a shape and a limit that request `milli` thousandths of a GPU each; a negative number removes
        pods."""
        if milli:
            self._shapes.add(shape, pods, milli)
            self._limits.add(limit, pods * milli, 1)

    @property
    def generation(self) -> int:
        """The number of changes of what the other members return."""
        return self._shapes.generation + self._limits.generation

    def shapes(self) -> Mapping[Shape, int]:
        """Return the number of pods by shape; nothing of too few pods."""
        return self._shapes.common()

    def limits(self) -> Mapping[Shape, int]:
        """Return the requested GPU capacity in thousandths by limit."""
        return self._limits.common()

    @property
    def seen_milli(self) -> int:
        """The requested GPU capacity in thousandths, rounded down to a power of two."""
        return self._shapes.seen_milli

    def clear(self) -> None:
        self._shapes.clear()
        self._limits.clear()


SHAPES_KEPT = 16_384
"""Shapes and limits with their demand class; twice as many as are common at a time (world/demand_learning.py)."""
NAMESPACES_SPARE = 1_024
"""Namespaces that are kept beyond two for each that exists, before those that are gone are dropped."""
DEMANDS_KEPT = 1_024
"""Demands with an expected demand; as many as there are cached rulings (cluster/core.py)."""

Labels = Mapping[str, str]
GroupedShape = tuple[tuple[bool, ...], PodShape]
"""A shape without its namespace, and which selectors of the policies select the labels of the namespace."""


class ExpectedDemandCache:
    """The last expected demands by their content: equal ones are one object, because they are compared by identity."""

    def __init__(self) -> None:
        self._made: dict[object, ExpectedDemand] = {}

    def of(
        self,
        weights: Mapping[DemandClass, float],
        free: Mapping[str, int],
        limits: Mapping[DemandClass, float],
        seen_milli: int,
    ) -> ExpectedDemand | None:
        """Return the expected demand that `expected_from_weights` makes of this."""
        made = expected_from_weights(weights, free, limits, seen_milli)
        if made is None:
            return None
        key = (made.classes, made.free, made.seen_milli, made.limits)
        kept = self._made.pop(key, made)
        self._made[key] = kept
        if len(self._made) > EXPECTED_DEMANDS_KEPT:
            del self._made[next(iter(self._made))]
        return kept


class GroupedWorkload:
    """The pods of a state by demand class. Namespaces that the policies do not tell apart are counted together."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pods = Workload[GroupedShape]()
        self._policies: PolicySet | None = None
        self._namespace_changes = -1
        self._selected: dict[str, tuple[bool, ...]] = {}
        self._labels: dict[tuple[bool, ...], Labels] = {}
        self._classes: dict[GroupedShape, DemandClass] = {}

    def renewed(self, policies: PolicySet) -> int:
        """Count the pods that have come and gone since the last call; return the generation of the workload."""
        if self._outdated(policies):
            self._policies, self._namespace_changes = policies, self._state.namespaces.changes
            for kept in (self._pods, self._selected, self._labels, self._classes):
                kept.clear()
            changes = self._state.pod_counts.all()
        elif not self._state.pod_counts.changed:
            return self._pods.generation
        else:
            changes = self._state.pod_counts.changes()
        for shape, pods in changes:
            selected, milli = self._selection(shape.namespace, policies), WHOLE_MILLI * sum(dict(shape.units).values())
            limit = shape._replace(namespace="", units=(), cpu_milli=0)
            self._pods.add((selected, shape._replace(namespace="")), (selected, limit), pods, milli)
        return self._pods.generation

    def expected_demand(
        self, policies: PolicySet, free: Mapping[str, int], cache: ExpectedDemandCache
    ) -> ExpectedDemand | None:
        """Return the expected demand of the pods counted so far."""
        pods = self._pods
        weights, limits = self._by_class(pods.shapes(), policies), self._by_class(pods.limits(), policies)
        return cache.of(weights, free, limits, pods.seen_milli)

    def _by_class(self, amounts: Mapping[GroupedShape, int], policies: PolicySet) -> Mapping[DemandClass, float]:
        """Sum up amounts by the demand class of their shape."""
        sums: dict[DemandClass, float] = {}
        for shape, amount in amounts.items():
            class_of_shape = self._class_of(shape, policies)
            sums[class_of_shape] = sums.get(class_of_shape, 0) + amount
        return sums

    def _outdated(self, policies: PolicySet) -> bool:
        """Tell whether policies or labels of namespaces have changed so that pods belong to other groups."""
        if self._policies is None or self._policies.hash != policies.hash:
            return True
        if self._namespace_changes == self._state.namespaces.changes:
            return False
        self._namespace_changes = self._state.namespaces.changes
        if len(self._selected) > 2 * len(self._state.namespaces.by_name) + NAMESPACES_SPARE:
            return True
        labels = self._state.namespaces.labels
        return any(selected != selections_by_namespace(policies, labels(name))
                   for name, selected in self._selected.items())  # fmt: skip

    def _selection(self, namespace: str, policies: PolicySet) -> tuple[bool, ...]:
        selected = self._selected.get(namespace)
        if selected is None:
            labels = self._state.namespaces.labels(namespace)
            selected = self._selected[namespace] = selections_by_namespace(policies, labels)
            self._labels.setdefault(selected, labels)
        return selected

    def _class_of(self, grouped: GroupedShape, policies: PolicySet) -> DemandClass:
        if grouped not in self._classes:
            if len(self._classes) >= SHAPES_KEPT:
                self._classes.clear()
            selected, shape = grouped
            demand = compile_demand(_pod(shape), self._labels[selected], policies, self._state.knowledge)
            self._classes[grouped] = demand_class(replace(demand, cpu_milli=shape.cpu_milli))
        return self._classes[grouped]


class DemandLearning:
    """The expected demand of a cluster, made again when its workload, its free GPUs or the policies have changed."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._workload = GroupedWorkload(state)
        self._cache = ExpectedDemandCache()
        self._expected_demand: ExpectedDemand | None = None
        self._made_of: tuple[int, int] | None = None
        self._demands: dict[tuple[Demand, int, ExpectedDemand | None], Demand] = {}

    def expected_demand(self, policies: PolicySet) -> ExpectedDemand | None:
        """Return the expected demand under these policies; None while there are too few pods."""
        made_of = (self._workload.renewed(policies), self._state.free_gpus.generation)
        if made_of != self._made_of:
            self._made_of = made_of
            free = self._state.free_gpus.rounded()
            self._expected_demand = self._workload.expected_demand(policies, free, self._cache)
        return self._expected_demand

    def expecting(self, demand: Demand, cpu_milli: int, policies: PolicySet) -> Demand:
        """Add to a demand what scorers that look ahead need: the CPU of its pod, and the expected demand.

        Equal requests get the very same object, which is the key of cached verdicts.
        """
        key = (demand, cpu_milli, self.expected_demand(policies))
        known = self._demands.get(key)
        if known is None:
            if len(self._demands) >= DEMANDS_KEPT:
                self._demands.clear()
            known = self._demands[key] = expecting(*key)
        return known


def _pod(shape: PodShape) -> Pod:
    """Return a pod of a shape, as far as policies read it for the products on which it can run."""
    requests = {resource: Fraction(amount) for resource, amount in shape.units}
    annotations = {PRODUCTS: shape.products, WORKLOAD_CLASS: shape.workload_class}
    return Pod(
        name="",
        namespace="",
        uid="",
        labels={},
        annotations={key: text for key, text in annotations.items() if text},
        containers=(Container("", "containers", 0, False, "", (), requests, requests),),
        scheduler_name="",
        runtime_class_name=None,
        node_name=None,
    )
