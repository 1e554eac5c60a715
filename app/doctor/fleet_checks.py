# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks of nodes, each with a remedy: one function per check; the table of checks stands at the end."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from app.doctor.cluster_objects import ExaminedCluster
from app.doctor.label_checks import absent_gpus, differing_counts, layout_to_come, strategy_remedy
from app.knowledge.dcgm import GPUCondition
from app.knowledge.gpu_resources import Family
from app.knowledge.tables import Knowledge
from app.kube.finished_pods import FinishedPod
from app.nodes.conditions import MIG_CONFIG
from app.nodes.mig_state import MIG_FAILED, TO_COME, explained_by_node
from app.nodes.model import Node, Sharing
from app.values.reasons import Code, counted


class FindingLevel(Enum):
    """Whether pods are hurt now, or could be; Info is an answer about the cluster, with which nothing is wrong."""

    Problem = "problem"
    Advice = "advice"
    Info = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `check` names the check; it is a reason code where the filters refuse nodes for the same cause.

    `what` describes it, `nodes` are the nodes concerned. `objects` are the other objects concerned, as "Kind name" or
    "Kind namespace/name".
    """

    check: str
    level: FindingLevel
    what: str
    remedy: str
    nodes: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()


def problem(check: str, what: str, remedy: str, *objects: str, nodes: tuple[str, ...] = ()) -> Finding:
    """Build a finding of something that hurts pods now."""
    return Finding(check, FindingLevel.Problem, what, remedy, nodes, objects)


def advice(check: str, what: str, remedy: str, *objects: str, nodes: tuple[str, ...] = ()) -> Finding:
    """Build a finding of something that could hurt pods."""
    return Finding(check, FindingLevel.Advice, what, remedy, nodes, objects)


STOPS_PODS = frozenset(
    {
        "NodeNotReady",
        "GPUPodRefused",
        "NoReadyEndpoint",
        "CABundleAbsent",
        "Certificate",
        "ReplicasUnavailable",
        "SchedulerConfiguration",
        "RightsMissing",
        "ExemptsTooLittle",
        "ClockSkew",
        "KubernetesVersion",
        "RuntimeClassSelector",
        "SchedulerAbsent",
        "WebhookAbsent",
        "WebhookNeverCalled",
    }
)
"""The checks whose problems refuse GPU pods, let them pass unreviewed, or keep them from being scheduled or started, in
the whole cluster."""
UNKNOWN_VENDOR = Family("", frozenset(), (), "gpu", (), cuda=True)
FleetCheck = Callable[[ExaminedCluster], Iterator[Finding]]
REPELLING_EFFECTS = ("NoSchedule", "NoExecute")


def untainted_gpu_nodes(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report GPU nodes without a taint that keeps CPU pods off."""
    for family, nodes in _by_family(cluster):
        remedy = f"taint them {family.whole}=present:NoSchedule (GPU pods get the toleration)"
        guard = ", or add the component cpu-guard" if family.cuda and not cluster.cpu_guard else ""
        open_nodes = [node for node in nodes if not any(effect in REPELLING_EFFECTS for _, _, effect in node.taints)]
        what = "have no taint that keeps CPU pods off"
        yield from _finding("UntaintedGPUNodes", FindingLevel.Advice, what, f"{remedy}{guard}", open_nodes)


def ghost_gpus(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report nodes of which labels promise GPUs that no pod can get, and what is missing there."""
    for node in cluster.machines():
        for what, remedy, comes_up in absent_gpus(node, cluster.knowledge.evidence):
            finding = advice if comes_up else problem
            yield finding(Code.GhostGPUs.name, what, remedy, nodes=(node.name,))


def withdrawn_devices(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report nodes of which the device plugin offers fewer devices than there are; `tainted_devices` reports DRA's."""
    for family, nodes in _by_family(cluster):
        remedy = f"read the device plugin's log and {family.health_source}"
        for node in [node for node in nodes if not node.node_class.claims_only]:
            for resource, units in node.node_class.unhealthy_units:
                capacity = node.node_class.capacity(resource)
                text = f"{units} of {capacity} {resource} withdrawn by the device plugin"
                yield from _finding(Code.GPUUnhealthy.name, FindingLevel.Problem, text, remedy, [node])
    for node in cluster.machines():
        for resource, units, capacity in node.node_class.withdrawn_elsewhere:
            text = f"{units} of {capacity} {resource} withdrawn by the device plugin"
            remedy = "read the log of the device plugin that offers them, and check the devices on the node"
            yield problem(Code.GPUUnhealthy.name, text, remedy, nodes=(node.name,))


def unhealthy_gpus(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report nodes whose GPUs DCGM reports as unhealthy or as degraded."""
    for name, health in sorted(cluster.health.items()):
        ill = health.ill > 0
        count = health.ill if ill else health.ailing
        state = "unhealthy" if ill else "degraded"
        text = f"{counted(count, 'GPU')} {state}: {'; '.join(health.causes)}"
        remedy = "drain the node and reset its GPUs" if ill else "reset the GPUs when the node is idle"
        finding = problem if ill else advice
        yield finding(Code.GPUUnhealthy.name, text, remedy, nodes=(name,))


def node_conditions(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report GPU nodes of which a condition reports a fault of the GPUs, or of what joins them."""
    for node in (one for one in cluster.machines() if one.has_gpus):
        for condition in node.conditions:
            finding = problem if condition.severity is GPUCondition.Ill else advice
            text = f"condition {condition.words}: {condition.explained}"
            yield finding(Code.GPUUnhealthy.name, text, condition.remedy, nodes=(node.name,))


def counts_differ(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report nodes whose capacity differs from what their labels count."""
    for node in cluster.machines():
        if doubt := node.node_class.count_doubt:
            yield problem("GPUCountsDiffer", *differing_counts(node, doubt), nodes=(node.name,))


def partitions_missing(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report nodes with fewer partitions than their GPUs have: the device plugin sees only the first of each GPU.

    ROCm/k8s-device-plugin#157, #167. Where the number of GPUs is unknown, it may be one.
    """
    evidence = cluster.knowledge.evidence
    for node in cluster.machines():
        facts, gpus = node.node_class, evidence.machine_count(node.labels)
        units = sum(facts.capacity(name) for name, _ in facts.offered)
        row = next((row for row in evidence.clouds.vendors if row.family == facts.vendor), None)
        if units and row and (found := row.partitioned(node.labels)) and units < (gpus or 2) * found[1]:
            each = f"a GPU in {found[0]} has {found[1]} partitions, and {gpus or 'more than one'} of them have more"
            remedy = (
                "compare with amd-smi on the node; a device plugin that sees fewer wants a restart, or another version"
            )
            finding = problem if gpus else advice
            yield finding("PartitionsMissing", f"the node offers {units} units: {each}", remedy, nodes=(node.name,))


def sliced_gpus_offered_whole(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report nodes that offer GPUs with MIG enabled as whole GPUs."""
    what = (
        "all GPUs have MIG enabled, and nvidia.com/gpu offers them as whole: CUDA sees one slice of such a GPU or none"
    )
    for node in cluster.machines():
        facts = node.node_class
        sliced = any(facts.unit(name) is Sharing.MIG for name, units in facts.offered if units)
        if sliced and not facts.mig_profile:
            yield problem("MIGWithoutStrategy", what, strategy_remedy(node), nodes=(node.name,))


def mig_layout_failed(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report nodes whose MIG layout is invalid, is not made yet, or could not be changed."""
    invalid = (node for node in cluster.machines() if node.node_class.mig_invalid)
    yield from _by_code(Code.MIGInvalid, "have a MIG layout that strategy single does not allow", invalid)
    for node in cluster.machines():
        if node.node_class.mig_state == MIG_FAILED:
            layout = node.node_class.mig_layout_failed
            what = f"MIG Manager failed to make the layout{f' {MIG_CONFIG}={layout}' if layout else ''}"
            yield problem(Code.MIGLayoutFailed.name, what, Code.MIGLayoutFailed.remedy, nodes=(node.name,))
        if node.node_class.mig_state == TO_COME:
            yield problem(Code.MIGReconfiguring.name, *layout_to_come(node), nodes=(node.name,))


def upgrade_failed(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report nodes on which a driver upgrade failed."""
    failed = (node for node in cluster.machines() if node.node_class.upgrade_state == "upgrade-failed")
    yield from _finding(
        Code.DriverUpgrading.name,
        FindingLevel.Problem,
        "driver upgrade failed",
        "read the driver pod's log, and set nvidia.com/gpu-driver-upgrade-state=upgrade-required to try again",
        failed,
    )


def memory_overrun(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report nodes on which pods declare more memory of shared GPUs than these have."""
    nodes = (node for node in cluster.machines() if node.name in cluster.world.state.overrun)
    yield from _by_code(Code.GPUMemoryBudgetExceeded, "pods declare more gpu-memory than the shared GPUs have", nodes)


def refused_by_kubelets(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report pods that a kubelet refused to start: they stay Failed until they are deleted."""
    refused: dict[tuple[str, str, str], list[FinishedPod]] = {}
    nodes = {node.name: node for node in cluster.machines()}
    for pod in cluster.finished:
        if pod.ending.refused:
            pod = _with_cause(explained_by_node(pod, nodes.get(pod.ending.node)), cluster)
            refused.setdefault((pod.ending.reason, pod.ending.why, pod.ending.cause), []).append(pod)
    for (reason, why, cause), pods in refused.items():
        likely = f"; likely cause: {cause}" if cause else ""
        text = f"{counted(len(pods), 'GPU pod')} refused by the kubelet ({reason}): {why}{likely}"
        remedy = "delete them, since they never start again; gpu-usher explain says what to do about each"
        by_node = Counter(pod.ending.node for pod in pods)
        most = ", ".join(f"{node} ({count})" for node, count in by_node.most_common(3) if len(by_node) > 1)
        text, names = f"{text}{most and f'; most on {most}'}", tuple(sorted(by_node))
        yield advice("RefusedByKubelet", text, remedy, *(f"Pod {pod.name}" for pod in pods), nodes=names)


def _with_cause(pod: FinishedPod, cluster: ExaminedCluster) -> FinishedPod:
    """Return the pod with several schedulers of its node as the cause, where there are several."""
    schedulers = cluster.schedulers.get(pod.ending.node, frozenset())
    if not pod.chosen or len(schedulers) < 2:
        return pod
    return pod.because(f"several schedulers place GPU pods there: {', '.join(sorted(schedulers))}")


def facts_missing(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report GPU nodes of which no label tells the product or the driver."""
    for family, nodes in _by_family(cluster):
        # Nothing discovers GPUs that are absent, and labels that a cloud keeps itself need no other labeller.
        known = [node for node in nodes if not (node.node_class.absent or _labelled_by_cloud(node, cluster.knowledge))]
        unknown = [node for node in known if node.node_class.product is None and not node.node_class.several_models]
        remedy = f"install {family.labeller}, which labels nodes with their GPUs"
        what = "have no label that names the GPU product"
        yield from _finding(Code.GPUFactsMissing.name, FindingLevel.Problem, what, remedy, unknown)
        no_driver = [node for node in known if node.node_class.product and node.node_class.driver is None]
        if family.cuda:  # nothing compares the drivers of other vendors
            remedy = Code.DriverUnknown.remedy
            yield from _finding(
                Code.DriverUnknown.name, FindingLevel.Advice, "have no label with the driver version", remedy, no_driver
            )


def _labelled_by_cloud(node: Node, knowledge: Knowledge) -> bool:
    """Tell whether a cloud's own device plugin writes the GPU labels of a node, and a product is known by them."""
    known = node.node_class.product or node.node_class.possible_products
    return bool(known) and knowledge.clouds.labels_sharing(node.labels)


def _by_family(cluster: ExaminedCluster) -> Iterator[tuple[Family, list[Node]]]:
    """Group the GPU nodes by vendor; a node of none is of the vendor whose GPUs run CUDA."""
    known = {family.name: family for family in cluster.knowledge.families.all}
    usual = next((family for family in cluster.knowledge.families.all if family.cuda), UNKNOWN_VENDOR)
    groups: dict[Family, list[Node]] = {}
    for node in (one for one in cluster.machines() if one.has_gpus):
        facts = node.node_class
        name = facts.vendor or next((promise.family for promise in facts.promises), "")
        groups.setdefault(known.get(name, usual), []).append(node)
    yield from groups.items()


def _by_code(code: Code, what: str, nodes: Iterable[Node]) -> Iterator[Finding]:
    return _finding(code.name, FindingLevel.Problem, what, code.remedy, nodes)


def _finding(check: str, level: FindingLevel, what: str, remedy: str, nodes: Iterable[Node]) -> Iterator[Finding]:
    names = tuple(sorted(node.name for node in nodes))
    if names:
        yield Finding(check, level, what, remedy, names)


CHECKS: tuple[FleetCheck, ...] = (
    ghost_gpus,
    withdrawn_devices,
    unhealthy_gpus,
    node_conditions,
    counts_differ,
    partitions_missing,
    sliced_gpus_offered_whole,
    mig_layout_failed,
    upgrade_failed,
    memory_overrun,
    refused_by_kubelets,
    facts_missing,
    untainted_gpu_nodes,
)
"""The order in which people read the findings: what hurts pods now comes first."""


def examine(cluster: ExaminedCluster) -> tuple[Finding, ...]:
    """Run every check; findings that differ only in their nodes are merged."""
    return merged(finding for check in CHECKS for finding in check(cluster))


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Join the findings that differ only in their nodes and objects."""
    by_words: dict[tuple[str, FindingLevel, str, str], Finding] = {}
    for finding in findings:
        key = (finding.check, finding.level, finding.what, finding.remedy)
        first = by_words.get(key, replace(finding, nodes=(), objects=()))
        by_words[key] = replace(first, nodes=(*first.nodes, *finding.nodes), objects=(*first.objects, *finding.objects))
    return tuple(by_words.values())


def by_urgency(findings: Iterable[Finding], first: str = "") -> tuple[Finding, ...]:
    """Sort by what hurts now: the check `first`, what stops pods, all other problems, advice; else the order stays."""

    def urgency(found: Finding) -> tuple[bool, ...]:
        is_problem = found.level is FindingLevel.Problem
        is_cause = is_problem or found.check == "NodeNotReady"  # of what is advised of our replicas there
        return found.check != first, not is_problem, found.check not in STOPS_PODS, not is_cause

    return tuple(sorted(findings, key=urgency))
