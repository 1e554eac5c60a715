# SPDX-License-Identifier: Apache-2.0
"""Checks of nodes by time: those that do not answer, and layouts and driver upgrades that are pending for long.

A label has no time of its own. What wrote it last is known by metadata.managedFields, whose time is the last change of
any field of that writer, so that a state is at least as old; the driver upgrade notes its start in annotations.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from app.doctor.cluster_objects import ExaminedCluster
from app.doctor.fleet_checks import Finding, advice, merged, problem
from app.knowledge.mig_profiles import profile_of
from app.kube.pending_pods import PendingPod
from app.nodes.conditions import MIG_CONFIG, MIG_STATE, UPGRADE_STATE, NotReady, read_time
from app.nodes.model import Node
from app.values.reasons import Code, counted

NOT_READY = "NodeNotReady"
STARTING = 600.0
"""Seconds. A node that is no older may be starting. A guess: machines with GPUs take minutes to install a driver."""
LONG, TOO_LONG = 900.0, 3600.0
"""Seconds. A change of a MIG layout or of a driver that is pending for longer is advice, then a problem. A guess:
either takes some minutes, a reboot included."""
START_ANNOTATIONS = ("wait-for-pod-completion-start-time", "validation-start-time")
"""Ends of the annotations that note when a step of an upgrade began, in seconds since 1970 (NVIDIA/k8s-operator-libs
pkg/upgrade/consts.go)."""


class _ManagedFields(msgspec.Struct, frozen=True, rename={"fields": "fieldsV1"}):
    """The labels that one writer of a Node has set, and when it last changed anything."""

    time: str = ""
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


class _NodeMetadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    annotations: dict[str, str] | None = None
    managed_fields: tuple[_ManagedFields, ...] | None = None


class _DatedNode(msgspec.Struct, frozen=True):
    """A Node with what tells the age of its labels."""

    metadata: _NodeMetadata


def read_ages(documents: Iterable[Mapping[str, Any]]) -> Mapping[tuple[str, str], float]:
    """Read when the labels of MIG layout and driver upgrade were set at the latest, as in ExaminedCluster."""
    since: dict[tuple[str, str], float] = {}
    for document in documents:
        try:
            metadata = msgspec.convert(document, _DatedNode).metadata
        except msgspec.ValidationError:
            continue  # such as a node of a snapshot that people wrote; its age is not known
        for key, value in (metadata.annotations or {}).items():
            if "-driver-upgrade-" in key and key.endswith(START_ANNOTATIONS) and re.fullmatch(r"\d{9,11}", value):
                since[metadata.name, UPGRADE_STATE] = float(value)
        for writer in metadata.managed_fields or ():
            labels = (writer.fields.get("f:metadata") or {}).get("f:labels") or {}
            for label in (MIG_STATE, UPGRADE_STATE):
                if f"f:{label}" in labels and (time := read_time(writer.time)):
                    since.setdefault((metadata.name, label), time)
    return since


def gpus_of(node: Node) -> int:
    """Count the GPUs of a node: those that its labels count, else those that it offers."""
    facts = node.node_class
    whole = (name for name, _ in (*facts.offered, *facts.unhealthy_units) if profile_of(name) is None)
    units = {name: facts.gpus(name, facts.capacity(name)) for name in whole}
    return facts.labelled_gpus or sum(units.values()) or len(node.free.gpus or ())


STATE_WORDS: Mapping[tuple[bool, bool], tuple[str, str]] = {
    (False, False): ("does not answer since", "do not answer since"),
    (True, False): ("is not Ready since", "are not Ready since"),
    (False, True): ("has never been Ready; created at", "have never been Ready; created at"),
    (True, True): ("has never been Ready; created at", "have never been Ready; created at"),
}
"""Whether the kubelet answers, and whether the node was never Ready → what is said of one node, and of several."""
REMEDIES = {
    False: "look at the machines, their network to the API server, and the kubelet's log (journalctl -u kubelet)",
    True: "read the kubelet's log on the nodes (journalctl -u kubelet): it reports, and says that it is not ready",
}


def nodes_not_ready(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report GPU nodes that do not answer, or are not Ready, together where their kubelets say the same."""
    groups: dict[tuple[bool, bool, str], list[tuple[NotReady, Node]]] = {}
    for node in cluster.nodes:
        if (state := node.not_ready) is not None and node.has_gpus:
            same = re.sub(r"\d+", "#", state.says)  # such as the seconds since something was last active
            groups.setdefault((state.answers, state.never, same), []).append((state, node))
    for (answers, never, _), members in groups.items():
        times = sorted({state.created if never else state.since for state, _ in members})
        begun = (times[0] or "an unknown time") + (f" and later, until {times[-1]}" if len(times) > 1 else "")
        nodes, gpus = counted(len(members), "GPU node"), counted(sum(gpus_of(node) for _, node in members), "GPU")
        says = next((f": {state.says}" for state, _ in members if state.says), "")
        text = f"{nodes} with {gpus} {STATE_WORDS[answers, never][len(members) > 1]} {begun}{says}"
        born = [read_time(state.created) for state, _ in members]
        starting = all(cluster.now - time <= STARTING if time else never for time in born)
        finding = advice if starting else problem
        yield finding(NOT_READY, text, REMEDIES[answers], nodes=tuple(node.name for _, node in members))


def changes_pending(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report MIG layouts and driver upgrades that are pending for long, and nodes that wait for an upgrade."""
    pending: dict[tuple[str, str, str], list[tuple[float, str]]] = {}
    required = []
    for node in cluster.nodes:
        for label, settled in ((MIG_STATE, MIG_SETTLED), (UPGRADE_STATE, UPGRADE_SETTLED)):
            state, since = node.labels.get(label, ""), cluster.since.get((node.name, label))
            if state and state not in settled and since is not None and cluster.now - since >= LONG:
                wished = node.labels.get(MIG_CONFIG, "") if label == MIG_STATE else ""
                pending.setdefault((label, state, wished), []).append((since, node.name))
        if node.labels.get(UPGRADE_STATE) == UPGRADE_REQUIRED:
            required.append(node.name)
    for (label, state, wished), members in sorted(pending.items()):
        since, names = min(members)[0], tuple(name for _, name in sorted(members))
        code, change, remedy = PENDING_CHANGES[label]
        finding = problem if cluster.now - since >= TOO_LONG else advice
        layout = f" (asked for: {MIG_CONFIG}={wished})" if wished else ""
        hours = (cluster.now - since) / 3600
        age = f"{hours:.0f} h" if hours >= 1 else f"{hours * 60:.0f} min"
        text = f"{change} is not finished: {label}={state} for {age} or longer{layout}"
        yield finding(code.name, text, remedy, nodes=names)
    if required:
        text = f"{counted(len(required), 'node')} {'waits' if len(required) == 1 else 'wait'} for a driver upgrade"
        yield advice("DriverUpgradeRequired", f"{text} ({UPGRADE_STATE}={UPGRADE_REQUIRED}); pods still run there",
                     UPGRADE_NOT_BEGUN, nodes=tuple(required))  # fmt: skip


def schedulers_absent(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report GPU pods that the scheduler which they name has not looked at for long: it does not run."""
    waiting: dict[str, list[PendingPod]] = {}
    for pod in cluster.world.state.waiting_pods():
        created = read_time(pod.created)
        if pod.unseen_by and created is not None and cluster.now - created >= UNSEEN:
            waiting.setdefault(pod.unseen_by, []).append(pod)
    for name, pods in sorted(waiting.items()):
        oldest, verb = min(pod.created for pod in pods), "names" if len(pods) == 1 else "name"
        text = f"{counted(len(pods), 'GPU pod')} {verb} scheduler {name}, which has not looked at them, since {oldest}"
        remedy = cluster.knowledge.evidence.schedulers_without_gpus.get(name) or (
            f"start a scheduler with a profile {name}, or correct schedulerName in the policy or the pods that name it"
        )
        yield problem("SchedulerAbsent", text, remedy, *(f"Pod {pod.key}" for pod in pods))


UNSEEN = 120.0
"""As long as for pod Events (explain/pending_cause.py UNSEEN_SECONDS)."""
MIG_SETTLED = frozenset({"success", "failed"})
UPGRADE_REQUIRED = "upgrade-required"
UPGRADE_SETTLED = frozenset({UPGRADE_REQUIRED, "upgrade-done", "upgrade-failed"})
UPGRADE_NOT_BEGUN = (
    "see in the ClusterPolicy whether driver.upgradePolicy.autoUpgrade is on, and maxParallelUpgrades and "
    "maxUnavailable leave room; gpu-operator's log says why it does not begin"
)
PENDING_CHANGES: Mapping[str, tuple[Code, str, str]] = {
    MIG_STATE: (
        Code.MIGReconfiguring,
        "a change of the MIG layout",
        "read the log of MIG Manager's pod on the node: it waits for what still uses the GPUs, or for a reboot",
    ),
    UPGRADE_STATE: (
        Code.DriverUpgrading,
        "a driver upgrade",
        "read the log of gpu-operator and of the driver's pod on the node; pods that do not end, or that a "
        "PodDisruptionBudget keeps from eviction, hold it up",
    ),
}
"""Label → the reason code, what is changed, and the remedy where it is pending for long."""
CHECKS = (nodes_not_ready, schedulers_absent, changes_pending)


def examine_node_states(cluster: ExaminedCluster) -> tuple[Finding, ...]:
    """Run every check."""
    return merged(finding for check in CHECKS for finding in check(cluster))


def is_outage(findings: Iterable[Finding], nodes: Iterable[Node]) -> bool:
    """Tell whether half of the GPU nodes are not Ready, so that what else is found is likely a consequence."""
    silent = {name for finding in findings if finding.check == NOT_READY for name in finding.nodes}
    return 2 * len(silent) >= sum(node.has_gpus for node in nodes) and bool(silent)
