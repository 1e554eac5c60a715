# SPDX-License-Identifier: Apache-2.0
"""What the doctor reads of a fleet's GPU pods, beside what they hold."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.doctor.cluster_objects import asks_for_gpus
from app.doctor.fleet_checks import ExaminedFleet
from app.knowledge.tables import Knowledge
from app.kube.finished_pods import DEFAULT_SCHEDULER, FinishedPod, read_finished_pod
from app.values.errors import MalformedPod


def with_pods(fleet: ExaminedFleet, pods: Iterable[Mapping[str, Any]], knowledge: Knowledge) -> ExaminedFleet:
    """Return the fleet with its GPU pods that have ended, the schedulers of each node's GPU pods, and the fact table.

    A pod that today's API would refuse is left out.
    """
    finished: list[FinishedPod] = []
    schedulers: dict[str, set[str]] = {}
    for document in pods:
        if not asks_for_gpus(document, knowledge.families):
            continue
        spec = document.get("spec") or {}
        if node := spec.get("nodeName"):
            schedulers.setdefault(node, set()).add(spec.get("schedulerName") or DEFAULT_SCHEDULER)
        try:
            pod = read_finished_pod(document, knowledge)
        except MalformedPod:
            continue
        if pod is not None:
            finished.append(pod)
    return replace(
        fleet,
        families=knowledge.families,
        labelled_by_cloud=frozenset(
            node.name
            for node in fleet.nodes
            if knowledge.clouds.labels_sharing(node.labels)
            and (node.node_class.product or node.node_class.possible_products)
        ),
        evidence=knowledge.evidence,
        finished=tuple(finished),
        schedulers={node: frozenset(names) for node, names in schedulers.items()},
    )
