# SPDX-License-Identifier: Apache-2.0
"""The policies that the benchmark compares: lists of our scorers, and published baselines.

The baseline FGD: Weng et al., "Beware of Fragmentation", USENIX ATC '23, and its artifact's scheduler plugin.

The demands of tasks: tasks as Pods, compiled by our policies, with the current expected demand.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp
from typing import Any

from app.demo.sample_fleets import WHOLE_GPU
from app.knowledge.products import WHOLE_MILLI
from app.knowledge.tables import Knowledge
from app.kube.pods import read_pod
from app.nodes.model import Node
from app.placement.scheduler_demand import demand_class
from app.placement.scorers import uses_expected_demand
from app.placement.unusable_capacity import STATES_KEPT, GPUs, free_gpus, placements
from app.policy.compiled import PolicySet
from app.policy.demand import Demand, DemandClass, ExpectedDemand
from app.policy.match import compile_demand
from app.policy.schema_placement import ScorerName
from app.values.errors import BadInput
from tests.bench.simulate.trace import Task
from tests.placement.expected_demand import unusable_milli

COVERED = 0.95
"""Share of the arrivals whose classes count, the most popular first; the FGD paper includes pods without GPU."""
LEVELS = 100
"""Steps of a score, which is a whole number from 0 to 100 in the plugin."""
SQUASH_MILLI = 1000.0
"""The plugin divides the change of F, in thousandths of a GPU, by this number and takes the sigmoid of the result."""
EXPECTED_DEMANDS_KEPT = 16
"""Expected demands whose popular classes are cached. A guess: a run has one at a time, and few runs share a process."""


def fgd(demand: Demand, node: Node) -> float:
    """Prefer the node where the fragmentation F grows least."""
    if demand.expected_demand is None:
        return 0.5
    product, cpu = node.node_class.product, node.free_cpu_milli
    return _score(demand, popular(demand.expected_demand), product, cpu, free_gpus(node.free))


@lru_cache(STATES_KEPT)
def _score(demand: Demand, expected_demand: ExpectedDemand, product: str | None, cpu: int | None, gpus: GPUs) -> float:
    results = placements(gpus, sum(amount for _, amount in demand.resources), demand.share_milli)
    if not results:
        return 0.0
    left = None if cpu is None else cpu - demand.cpu_milli
    gain = unusable_milli(expected_demand, product, cpu, gpus) - min(
        unusable_milli(expected_demand, product, left, result) for result in results
    )
    return int(LEVELS / (1.0 + exp(-gain / SQUASH_MILLI))) / LEVELS


@lru_cache(EXPECTED_DEMANDS_KEPT)
def popular(expected_demand: ExpectedDemand) -> ExpectedDemand:
    """Return the most popular classes that together cover COVERED of the arrivals."""
    classes = []
    covered = 0.0
    for kind, probability in expected_demand.classes:
        if covered >= COVERED:
            break
        classes.append((kind, probability))
        covered += probability
    return ExpectedDemand(tuple((kind, probability / covered) for kind, probability in classes))


LARGEST_CPU_MILLI = 128_000
LARGEST_GPU_MILLI = 8_000
"""The largest node of the openb trace, by which BestFit normalises."""


@dataclass(frozen=True, slots=True)
class BenchmarkPolicy:
    """A way to choose a node.

    `scores` are the engine's scorers, empty for those of the shipped policy; `baseline` is a formula instead of them.
    `prioritize` is whether our prioritize verb is configured, `in_tree` whether kube-scheduler's own scores count.
    `shortlist` is whether filter names the best nodes alone. Only where pods come and go: with `repack_hours` the pods
    that wait get room by `plan repack` so often, and with `right_sized` half of the pods with one GPU ask for half.
    With `packs_in_tree` kube-scheduler packs GPU pods by itself, as `scheduler-config --no-extender` has it.
    """

    name: str
    scores: tuple[tuple[ScorerName, int], ...] = ()
    baseline: Callable[[Demand, Node], float] | None = None
    prioritize: bool = True
    in_tree: bool = True
    shortlist: bool = False
    repack_hours: int = 0
    right_sized: bool = False
    packs_in_tree: bool = False


def best_fit(demand: Demand, node: Node) -> float:
    """Prefer the node with the least CPU and GPU left: BestFit of the published simulator, with its 100 levels."""
    gpus = placements(node.free.gpus or (), sum(amount for _, amount in demand.resources), demand.share_milli)
    if not gpus:
        return 0.0
    cpu = (node.free_cpu_milli or 0) - demand.cpu_milli
    return int(100 * (1 - cpu / LARGEST_CPU_MILLI / 2 - sum(gpus[0]) / LARGEST_GPU_MILLI / 2)) / 100


POLICIES: tuple[BenchmarkPolicy, ...] = (
    BenchmarkPolicy("shipped"),
    BenchmarkPolicy("shortlist", prioritize=False, shortlist=True),
    BenchmarkPolicy("repack", prioritize=False, shortlist=True, repack_hours=1),
    BenchmarkPolicy("right-sized", prioritize=False, shortlist=True, right_sized=True),
    BenchmarkPolicy("packing", ((ScorerName.Packing, 1),)),
    BenchmarkPolicy("spread", ((ScorerName.Spreading, 1),)),
    BenchmarkPolicy("fgd", baseline=fgd),
    BenchmarkPolicy("bestfit", baseline=best_fit),
    BenchmarkPolicy("kubernetes", prioritize=False),
    BenchmarkPolicy("no-extender", prioritize=False, packs_in_tree=True),
    BenchmarkPolicy("random", prioritize=False, in_tree=False),
)
"""`shipped` has the scores of the shipped policy, and so has `shortlist`, where filter names a shortlist; `repack` and
`right-sized` are `shortlist` but for what their names say. `kubernetes` is kube-scheduler with our filter alone,
`no-extender` the same as `scheduler-config --no-extender` configures it, and `random` takes any node that fits."""


def read_policy(text: str) -> BenchmarkPolicy:
    """Return a policy by its name, or one of our scorers with weights, such as `Fragmentation=5+Packing=1`.

    Raises BadInput.
    """
    for policy in POLICIES:
        if policy.name == text:
            return policy
    scores = []
    for part in text.split("+"):
        name, _, weight = part.partition("=")
        if name not in {item.value for item in ScorerName} or not weight.isdecimal() or not 0 < int(weight[:9]) <= 100:
            known = ", ".join(item.name for item in POLICIES)
            raise BadInput(f"policy {text[:60]!r}: wants one of {known}, or scorers as Packing=5+DriverHeadroom=1")
        scores.append((ScorerName(name), int(weight)))
    return BenchmarkPolicy(text, tuple(scores))


def pod_document(task: Task, name: str = "task") -> dict[str, Any]:
    """Return a task as a Pod. Pods cannot ask for a share of a GPU: the Pod asks for one, the Demand has the share."""
    gpus = {WHOLE_GPU: str(task.gpus)} if task.gpus else {}
    requests = {"cpu": f"{task.cpu_milli}m", "memory": f"{task.memory_mib}Mi", **gpus}
    annotations = {"gpu-usher.io/products": ",".join(task.products)} if task.products else {}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "simulated", "uid": name, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"limits": gpus, "requests": requests}}]},
    }


class Demands:
    """The demands of tasks under one policy of the benchmark."""

    def __init__(self, policies: PolicySet, knowledge: Knowledge, policy: BenchmarkPolicy) -> None:
        self._policies = policies
        self._knowledge = knowledge
        self._policy = policy
        self._compiled: dict[Task, tuple[Demand, DemandClass]] = {}
        self._current: dict[Task, Demand] = {}
        self._expected_demand: ExpectedDemand | None = None

    def expect(self, expected_demand: ExpectedDemand | None) -> None:
        """Give this expected demand to all demands from now on."""
        if expected_demand is not self._expected_demand:
            self._expected_demand = expected_demand
            self._current = {}

    def class_of(self, task: Task) -> DemandClass:
        """Return the demand class of a task."""
        return self._compile(task)[1]

    def of(self, task: Task) -> Demand:
        """Return the demand of a task."""
        if task not in self._current:
            demand = self._compile(task)[0]
            self._current[task] = (
                replace(demand, expected_demand=self._expected_demand) if uses_expected_demand(demand) else demand
            )
        return self._current[task]

    def _compile(self, task: Task) -> tuple[Demand, DemandClass]:
        if task not in self._compiled:
            pod = read_pod(pod_document(task))
            demand = compile_demand(pod, {}, self._policies, self._knowledge)
            demand = replace(
                demand,
                share_milli=task.gpu_milli % WHOLE_MILLI,
                cpu_milli=task.cpu_milli,
                scores=self._policy.scores or demand.scores,
            )
            self._compiled[task] = (demand, demand_class(demand))
        return self._compiled[task]
