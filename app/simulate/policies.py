# SPDX-License-Identifier: Apache-2.0
"""The policies that the benchmark compares: lists of our scorers, and published baselines."""

from collections.abc import Callable
from dataclasses import dataclass

from app.nodes.model import Node
from app.placement.unusable_capacity import placements
from app.policy.demand import Demand
from app.policy.schema_placement import ScorerName
from app.simulate.fgd import fgd
from app.values.errors import BadInput

LARGEST_CPU_MILLI = 128_000
LARGEST_GPU_MILLI = 8_000
"""The largest node of the openb trace, by which BestFit normalises."""


@dataclass(frozen=True, slots=True)
class BenchmarkPolicy:
    """A way to choose a node.

    `scores` are the engine's scorers, empty for those of the shipped policy; `baseline` is a formula instead of them.
    `prioritize` is whether our prioritize verb is configured, `in_tree` whether kube-scheduler's own scores count.
    `shortlist` is whether filter names the best nodes alone. Only where pods come and go: with `repack_hours` the pods
    that wait get room by `advise repack` so often, and with `right_sized` half of the pods with one GPU ask for half.
    """

    name: str
    scores: tuple[tuple[ScorerName, int], ...] = ()
    baseline: Callable[[Demand, Node], float] | None = None
    ranked: bool = True
    prioritize: bool = True
    in_tree: bool = True
    shortlist: bool = False
    repack_hours: int = 0
    right_sized: bool = False


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
    BenchmarkPolicy("fgd-proportional", baseline=fgd, ranked=False),
    BenchmarkPolicy("bestfit", baseline=best_fit),
    BenchmarkPolicy("kubernetes", prioritize=False),
    BenchmarkPolicy("random", prioritize=False, in_tree=False),
)
"""`shipped` has the scores of the shipped policy, and so has `shortlist`, where filter names a shortlist; `repack` and
`right-sized` are `shortlist` but for what their names say. `kubernetes` is kube-scheduler with our filter alone,
`random` takes any node that fits."""


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
