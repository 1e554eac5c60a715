# SPDX-License-Identifier: Apache-2.0
"""The doctor: what is wrong with a fleet, and what to do about it. One function a check; the tuple is the product."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from app.nodes.gpu_health import Health
from app.nodes.model import Node, Sharing
from app.nodes.sharing import PRODUCT, WHOLE
from app.values.reasons import Code


class FindingLevel(Enum):
    """Whether pods are hurt now, or could be."""

    Problem = "problem"
    Advice = "advice"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found: the check that found it (a reason code where pods are refused for it), on which nodes.

    `objects`: what else of the cluster it is about, as "Kind name" or "Kind namespace/name".
    """

    check: str
    level: FindingLevel
    what: str
    remedy: str
    nodes: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExaminedFleet:
    """What is examined. `overrun`: nodes on which pods declare more memory of shared GPUs than there is."""

    nodes: tuple[Node, ...]
    health: Mapping[str, Health] = field(default_factory=dict)
    overrun: frozenset[str] = frozenset()


Check = Callable[[ExaminedFleet], Iterator[Finding]]
SEVERAL_MODELS_REMEDY = (
    "put GPUs of one model into a node, or let the DRA driver serve them, where a claim selects by productName; if all "
    "are of one model, GPU Feature Discovery has not run since some were added: restart it"
)
KEEPS_OFF = ("NoSchedule", "NoExecute")


def open_to_cpu_pods(fleet: ExaminedFleet) -> Iterator[Finding]:
    """Find GPU nodes that no taint keeps CPU pods off (F47)."""
    open_nodes = (node for node in _gpu(fleet) if not any(effect in KEEPS_OFF for _, _, effect in node.taints))
    yield from _finding(
        "UntaintedGPUNodes",
        FindingLevel.Advice,
        "no taint keeps CPU pods off",
        "taint them nvidia.com/gpu=present:NoSchedule (GPU pods get the toleration), or add the component cpu-guard",
        open_nodes,
    )


def ghosts(fleet: ExaminedFleet) -> Iterator[Finding]:
    """Find nodes whose labels promise GPUs that nobody can get (F46)."""

    def empty(node: Node) -> bool:
        return node.node_class.labelled > 0 and not any(units for _, units in node.node_class.offered)

    found = (node for node in _gpu(fleet) if empty(node) and not node.node_class.by_dra and not node.node_class.lacking)
    yield from _by_code(Code.GhostGPUs, "labels promise GPUs, allocatable has none", found)


def withdrawn(fleet: ExaminedFleet) -> Iterator[Finding]:
    """Find nodes of which the device plugin offers less than there is (F70)."""
    for node in _gpu(fleet):
        for resource, units in node.node_class.lacking:
            of = node.node_class.capacity(resource)
            what = f"{units} of {of} {resource} withdrawn by the device plugin"
            remedy = "look at the device plugin's log and the node's XID errors (doctor --prometheus shows them)"
            yield from _finding(Code.GPUUnhealthy.name, FindingLevel.Problem, what, remedy, [node])


def reported_sick(fleet: ExaminedFleet) -> Iterator[Finding]:
    """Find nodes whose GPUs DCGM calls ill or ailing (F72)."""
    for name, health in sorted(fleet.health.items()):
        ill = health.ill > 0
        what = f"{health.ill if ill else health.ailing} GPUs {'ill' if ill else 'ailing'}: {'; '.join(health.causes)}"
        remedy = "drain the node and reset its GPUs" if ill else "reset the GPUs when the node is idle"
        level = FindingLevel.Problem if ill else FindingLevel.Advice
        yield Finding(Code.GPUUnhealthy.name, level, what, remedy, (name,))


def stale_labels(fleet: ExaminedFleet) -> Iterator[Finding]:
    """Find nodes whose labels contradict what they have (F73)."""
    for node in fleet.nodes:
        if node.node_class.stale:
            facts = node.node_class
            has = ", ".join(f"{units} {name}" for name, _ in facts.offered if (units := facts.capacity(name)))
            told = f"gpu.count {facts.labelled} x gpu.replicas {facts.replicas}"
            what = f"{'counts of MIG slices' if facts.mig_strategy == 'mixed' else told}, but capacity has {has}"
            remedy = "restart GPU Feature Discovery there: what else its labels say may be old too"
            yield Finding("StaleLabels", FindingLevel.Problem, what, remedy, (node.name,))


def several_models(fleet: ExaminedFleet) -> Iterator[Finding]:
    """Find nodes with GPUs of several models, of which GPU Feature Discovery labels one."""
    for node in fleet.nodes:
        facts = node.node_class
        if facts.several_models:
            has = ", ".join(f"{units} {name}" for name, _ in facts.offered if (units := facts.capacity(name)))
            what = (
                f"{has}, but the labels count {facts.labelled} {node.labels.get(PRODUCT, 'GPUs')}: "
                "the GPUs are of several models, and no pod can choose between them"
            )
            yield Finding("SeveralGPUModels", FindingLevel.Problem, what, SEVERAL_MODELS_REMEDY, (node.name,))


def mig_without_strategy(fleet: ExaminedFleet) -> Iterator[Finding]:
    """Find nodes that offer GPUs with MIG enabled as whole ones."""
    found = (
        node
        for node in fleet.nodes
        if node.node_class.sharing is Sharing.MIG
        and not node.node_class.mig_profile
        and node.node_class.allocatable(WHOLE)
    )
    yield from _finding(
        "MIGWithoutStrategy",
        FindingLevel.Problem,
        "all GPUs have MIG enabled, and nvidia.com/gpu offers them as whole: CUDA sees one slice of such a GPU or none",
        "set the device plugin's MIG strategy to single or mixed, or turn MIG off (nvidia.com/mig.config=all-disabled)",
        found,
    )


def half_configured(fleet: ExaminedFleet) -> Iterator[Finding]:
    """Find nodes whose MIG layout is invalid, or could not be changed (F62)."""
    invalid = (node for node in fleet.nodes if node.node_class.mig_invalid)
    yield from _by_code(Code.MIGInvalid, "MIG layout invalid under strategy single", invalid)
    failed = (node for node in fleet.nodes if node.node_class.mig_state == "failed")
    yield from _by_code(Code.MIGReconfiguring, "MIG Manager failed to change the layout", failed)


def upgrade_failed(fleet: ExaminedFleet) -> Iterator[Finding]:
    """Find nodes on which a driver upgrade failed (F44)."""
    failed = (node for node in fleet.nodes if node.node_class.upgrade_state == "upgrade-failed")
    yield from _finding(
        Code.DriverUpgrading.name,
        FindingLevel.Problem,
        "driver upgrade failed",
        "look at the driver pod's log, and set nvidia.com/gpu-driver-upgrade-state=upgrade-required to try again",
        failed,
    )


def memory_overrun(fleet: ExaminedFleet) -> Iterator[Finding]:
    """Find shared GPUs of which pods declare more memory than they have (F65)."""
    found = (node for node in fleet.nodes if node.name in fleet.overrun)
    yield from _by_code(Code.GPUMemoryBudgetExceeded, "pods declare more gpu-memory than the shared GPUs have", found)


def facts_missing(fleet: ExaminedFleet) -> Iterator[Finding]:
    """Find GPU nodes of which nothing says what they have."""
    unknown = (node for node in _gpu(fleet) if node.node_class.product is None and not node.node_class.several_models)
    yield from _by_code(Code.GPUFactsMissing, "no label tells the GPU product", unknown)
    no_driver = (node for node in _gpu(fleet) if node.node_class.product and node.node_class.driver is None)
    yield from _finding(
        Code.DriverUnknown.name, FindingLevel.Advice, "no label tells the driver", Code.DriverUnknown.remedy, no_driver
    )


def _gpu(fleet: ExaminedFleet) -> Iterator[Node]:
    return (node for node in fleet.nodes if node.has_gpus)


def _by_code(code: Code, what: str, nodes: Iterable[Node]) -> Iterator[Finding]:
    return _finding(code.name, FindingLevel.Problem, what, code.remedy, nodes)


def _finding(check: str, level: FindingLevel, what: str, remedy: str, nodes: Iterable[Node]) -> Iterator[Finding]:
    names = tuple(sorted(node.name for node in nodes))
    if names:
        yield Finding(check, level, what, remedy, names)


CHECKS: tuple[Check, ...] = (
    ghosts,
    withdrawn,
    reported_sick,
    stale_labels,
    several_models,
    mig_without_strategy,
    half_configured,
    upgrade_failed,
    memory_overrun,
    facts_missing,
    open_to_cpu_pods,
)
"""In this order people read them: what hurts now first. One that finds the same on several nodes says so once."""


def examine(fleet: ExaminedFleet) -> tuple[Finding, ...]:
    """Run every check; findings that differ only in the node are one."""
    merged: dict[tuple[str, FindingLevel, str, str], tuple[str, ...]] = {}
    for check in CHECKS:
        for each in check(fleet):
            key = (each.check, each.level, each.what, each.remedy)
            merged[key] = (*merged.get(key, ()), *each.nodes)
    return tuple(Finding(*key, nodes) for key, nodes in merged.items())
