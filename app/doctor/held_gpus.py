# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks of GPUs held to no use: by groups that are placed in part, and by namespaces that wait.

`with_pods` adds to the cluster what other checks read of its GPU pods: those that have ended, the schedulers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.doctor.cluster_objects import ExaminedCluster, asks_for_gpus
from app.doctor.fleet_checks import Finding, advice, problem
from app.intree.api_server import counts_for_pods
from app.knowledge.gpu_resources import Families
from app.knowledge.reported_faults import PodFailure
from app.knowledge.tables import Knowledge
from app.kube.admission_objects import AdmissionObjects, refused_replicas
from app.kube.finished_pods import FinishedPod, decisive_part, read_finished_pod, start_reports
from app.kube.gangs import read_workload
from app.kube.gpu_usage import GPUUsage, read_gpu_usage
from app.kube.pending_pods import PendingPod, read_pending_pod
from app.kube.pod_object import pod_object
from app.values.errors import BadInput, MalformedPod
from app.values.reasons import counted

SHOWN = 4
"""Names in one sentence."""


@dataclass(frozen=True, slots=True)
class HeldGPUs:
    """What holds GPUs and what waits for them.

    `holders` and `waiting` are by workload group (`workload_of`), the pods without one under "". `idle` are the
    seconds for which all GPUs of a pod have been idle for certain, by namespace/name; empty without metrics.
    """

    holders: Mapping[str, tuple[GPUUsage, ...]]
    waiting: Mapping[str, tuple[PendingPod, ...]]
    idle: Mapping[str, float] = field(default_factory=dict)


def read_held_gpus(
    pods: Iterable[Mapping[str, Any]], knowledge: Knowledge, idle: Mapping[str, float] | None = None
) -> HeldGPUs:
    """Read what the pods of a cluster hold and wait for; a pod that today's API would refuse is left out."""
    holders: dict[str, tuple[GPUUsage, ...]] = {}
    waiting: dict[str, tuple[PendingPod, ...]] = {}
    for document in pods:
        try:
            pod = pod_object(document)
            usage, pending = read_gpu_usage(pod, knowledge), read_pending_pod(pod, knowledge)
        except BadInput:
            continue
        if usage is not None and usage.bound:
            holders[usage.group] = (*holders.get(usage.group, ()), usage)
        elif pending is not None:
            group = read_workload(pod)
            waiting[group] = (*waiting.get(group, ()), pending)
    return HeldGPUs(holders, waiting, idle or {})


def partly_placed_groups(held: HeldGPUs) -> Iterator[Finding]:
    """Report groups of pods that work together of which some hold GPUs while others wait: the group makes no
    progress."""
    for group, waiting in sorted(held.waiting.items()):
        holders = held.holders.get(group, ())
        if not group or not holders:
            continue
        units = sum(amount for usage in holders for _, amount in usage.units)
        pods = len(holders) + len(waiting)
        text = f"{len(holders)} of {pods} pods hold {counted(units, 'GPU unit')}, and {len(waiting)} wait"
        remedy = (
            "let a queue admit the group as a whole (Kueue, or a scheduler with gang scheduling), or delete it until "
            "all of it fits; gpu-usher explain says what each waiting pod lacks"
        )
        nodes = tuple(sorted({usage.node for usage in holders}))
        yield advice("PartlyPlacedGroup", text, remedy, f"Group {group}", nodes=nodes)


def quotas_that_count_nothing(objects: AdmissionObjects, families: Families) -> Iterator[Finding]:
    """Report quotas on GPUs by a name that the API server does not count: only `requests.` counts extended resources.

    Source: k8s.io/kubernetes pkg/quota/v1/evaluator/core/pods.go MatchingResources.
    """
    for key, quota in objects.by_kind["ResourceQuota"].items():
        for name in quota.spec.hard or {}:
            resource = name.removeprefix("limits.")
            if families.of(resource) and not counts_for_pods(name):
                text = f"limits {name}, which the API server counts for no pod: nothing is bounded"
                yield problem("QuotaCountsNothing", text, f"name it requests.{resource}", f"ResourceQuota {key}")


def refused_pods(documents: Iterable[Mapping[str, Any]], families: Families) -> Iterator[Finding]:
    """Report workloads with GPUs whose pods the API server refuses, in its own words."""
    for document in documents:
        if (words := refused_replicas(document)) and asks_for_gpus({"spec": document.get("spec")}, families):
            metadata, remedy = document["metadata"], "gpu-usher explain says the smallest change of the workload"
            name = f"{document['kind']} {metadata.get('namespace') or 'default'}/{metadata['name']}"
            yield problem("PodsRefused", f"the API server refuses its pods: {words}", remedy, name)


def pods_that_fail_to_start(pods: Iterable[Mapping[str, Any]], knowledge: Knowledge) -> Iterator[Finding]:
    """Report the nodes on which GPU pods do not start for a cause in the node, one finding for each node and cause."""
    failing: dict[tuple[str, PodFailure], dict[str, str]] = {}
    for document in pods:
        pod = pod_object(document)
        for reason, message in start_reports(pod) if pod.spec.node_name else ():
            row = next((row for row in knowledge.pod_starts if row.explains_start(reason, message)), None)
            if row is not None and row.on_node and asks_for_gpus(dict(document), knowledge.families):
                said = failing.setdefault((pod.spec.node_name, row), {})
                said[f"Pod {pod.key}"] = decisive_part(message, row.message)
    for (node, row), said in failing.items():
        text = f"{counted(len(said), 'GPU pod')} of {node} cannot start: {row.why} ({next(iter(said.values()))})"
        yield problem("PodsFailToStart", text, row.remedy, *said, nodes=(node,))


def idle_while_waiting(held: HeldGPUs) -> Iterator[Finding]:
    """Report namespaces whose pods wait for GPUs while others of them hold GPUs that are idle."""
    waiting: dict[str, int] = {}
    for pod in (pod for pods in held.waiting.values() for pod in pods):
        waiting[pod.namespace] = waiting.get(pod.namespace, 0) + 1
    usages = {usage.name: usage for some in held.holders.values() for usage in some}
    for namespace, count in sorted(waiting.items()):
        idle = [name for name in held.idle if name in usages and name.partition("/")[0] == namespace]
        if not idle:
            continue
        longest = sorted(idle, key=lambda name: (-held.idle[name], name))
        names = ", ".join(f"{name} ({held.idle[name] / 3600:.0f} h)" for name in longest[:SHOWN])
        more = f" and {len(idle) - SHOWN} more" if len(idle) > SHOWN else ""
        pods = "1 pod waits" if count == 1 else f"{count} pods wait"
        text = f"{pods} for GPUs in {namespace}, where idle GPUs are held by {names}{more}"
        nodes = tuple(sorted({usages[name].node for name in idle}))
        remedy = "stop pods that have finished, or give them less (gpu-usher plan right-size); see gpu-usher usage"
        yield advice("IdleWhileWaiting", text, remedy, f"Namespace {namespace}", nodes=nodes)


HELD_CHECKS: tuple[Callable[[HeldGPUs], Iterator[Finding]], ...] = (partly_placed_groups, idle_while_waiting)


def examine_held(held: HeldGPUs) -> tuple[Finding, ...]:
    return tuple(finding for check in HELD_CHECKS for finding in check(held))


def with_pods(cluster: ExaminedCluster, pods: Iterable[Mapping[str, Any]]) -> ExaminedCluster:
    """Add the GPU pods that have ended, and the schedulers of each node's GPU pods.

    A pod that today's API would refuse is left out.
    """
    knowledge = cluster.knowledge
    finished: list[FinishedPod] = []
    schedulers: dict[str, set[str]] = {}
    for document in pods:
        if not asks_for_gpus(document, knowledge.families):
            continue
        try:
            pod = pod_object(document)
        except MalformedPod:
            continue
        if node := pod.spec.node_name:
            schedulers.setdefault(node, set()).add(pod.scheduler)
        if (ended := read_finished_pod(pod, knowledge)) is not None:
            finished.append(ended)
    return replace(
        cluster,
        finished=tuple(finished),
        schedulers={node: frozenset(names) for node, names in schedulers.items()},
    )
