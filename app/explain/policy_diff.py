# SPDX-License-Identifier: Apache-2.0
"""The effect of a policy edit on pods: which are refused, admitted, left without a node, or moved."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import msgspec

from app.admission.match_conditions import CONTAINER_LISTS
from app.admission.redaction import redact_pod
from app.admission.review import ReviewResult, mutate_reviewed
from app.admission.reviewed_pod import PodForm, ReviewContext, begin_review, denial_message
from app.explain.fleet_placements import FleetPlacements
from app.kube.pod_object import REQUIRED_TERMS
from app.kube.pods import DECISION, read_pod, without_token_volumes
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from app.values.reasons import counted


class PodDifference(Enum):
    """How the result for a pod changes; an edit must never cause the first two unseen."""

    Refused = "newly refused"
    NoNode = "left without any node"
    Admitted = "no longer refused"
    Placed = "has a node now"
    Moved = "moved"
    Fewer = "fits on fewer nodes"
    More = "fits on more nodes"
    Otherwise = "changed otherwise"


MOST_NAMED = 3
"""Nodes that are named of those on which a pod fits no longer."""
HARMFUL = frozenset({PodDifference.Refused, PodDifference.NoNode})


@dataclass(frozen=True, slots=True)
class ComparedPod:
    """A pod (or template) to be created. `uid` and `node` are those of an existing pod, else empty.

    `existing_ephemeral` and `old_template` are as in ReviewedPod.
    """

    name: str
    namespace: str
    document: Mapping[str, Any]
    form: PodForm = PodForm.Pod
    uid: str = ""
    node: str = ""
    existing_ephemeral: frozenset[str] = frozenset()
    old_template: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PolicySide:
    """One of the two policy sets that are compared, with the context of its reviews; `labels_of` a namespace."""

    context: ReviewContext
    labels_of: Callable[[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The change for one pod. `node` is its present node; empty where it is pending, or read from a log."""

    change: str
    pod: str
    node: str
    was: str
    now: str


@dataclass(frozen=True, slots=True)
class Differences:
    """All changes. `templates` is the number of different pods that were judged. `counts` are pods by change."""

    pods: int
    templates: int
    unchanged: int
    counts: Mapping[str, int]
    differences: tuple[Difference, ...]

    @property
    def hurts(self) -> bool:
        """True where some pod is newly refused or left without a node."""
        return any(self.counts.get(change.value) for change in HARMFUL)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result for a template under one side's policies."""

    result: ReviewResult
    demand: Demand


@dataclass(slots=True)
class _Judged:
    """The results for a template under both sides, and the best nodes (old, new) by the pod's present node."""

    old: _Outcome
    new: _Outcome
    best_nodes: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)


def without_cluster_fields(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod of a cluster as it was created: without what the cluster and gpu-usher wrote into it since.

    So pods of one template become equal again. What is removed is the node, the matchFields by which a DaemonSet's pod
    is bound to its node (pkg/controller/daemon/util ReplaceDaemonSetPodNodeNameNodeAffinity), and the volume of the
    ServiceAccount admission plugin with its random name.
    """
    metadata, spec = dict(pod.get("metadata") or {}), dict(pod.get("spec") or {})
    spec.pop("nodeName", None)
    metadata.pop("managedFields", None)
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != DECISION}
    if spec.get("volumes"):
        spec["volumes"] = without_token_volumes(spec["volumes"])
    for name in CONTAINER_LISTS:
        if spec.get(name):
            spec[name] = [
                {**container, "volumeMounts": without_token_volumes(container["volumeMounts"])}
                if container.get("volumeMounts")
                else container
                for container in spec[name]
            ]
    if required := _required(spec):
        affinity = spec["affinity"]
        terms = [{key: term[key] for key in term if key != "matchFields"} for term in required["nodeSelectorTerms"]]
        required_terms = {**required, "nodeSelectorTerms": [term for term in terms if term]}
        node_affinity = {**affinity["nodeAffinity"], REQUIRED_TERMS: required_terms}
        if not required_terms["nodeSelectorTerms"]:
            del node_affinity[REQUIRED_TERMS]
        spec["affinity"] = {**affinity, "nodeAffinity": node_affinity}
    return {"metadata": {**metadata, "annotations": annotations}, "spec": spec}


def _required(spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the required node affinity if it names nodes by a field; else None."""
    required: Mapping[str, Any] | None = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED_TERMS)
    names_nodes = required and any(term.get("matchFields") for term in required.get("nodeSelectorTerms") or ())
    return required if names_nodes else None


def compare_policies(
    pods: Iterable[ComparedPod], old: PolicySide, new: PolicySide, placements: FleetPlacements | None
) -> Differences:
    """Judge every pod under the old and the new policies. `placements` is None where no fleet is known.

    Pods of one template are judged once; best nodes are computed only where the pod's demand changes.

    Raises MalformedPod, QuantityError.
    """
    keys = label_keys(old.context.world.policies) | label_keys(new.context.world.policies)
    judged_by_template: dict[Any, _Judged] = {}
    differences: list[Difference] = []
    count = 0
    for pod in pods:
        count += 1
        key = _template(pod, keys)
        if (judged := judged_by_template.get(key)) is None:
            judged = judged_by_template[key] = _Judged(_judge(pod, old), _judge(pod, new))
        if judged.old != judged.new and (difference := _difference(pod, judged, placements)) is not None:
            differences.append(difference)
    order = {change.value: index for index, change in enumerate(PodDifference)}
    differences.sort(key=lambda difference: (order[difference.change], difference.pod))
    counts = Counter(difference.change for difference in differences)
    return Differences(count, len(judged_by_template), count - len(differences), dict(counts), tuple(differences))


def label_keys(policies: PolicySet) -> frozenset[str]:
    """List the pod labels that the policies match on; other labels do not distinguish templates."""
    matches = [policy.match for policy in policies.policies]
    matches += [selection for policy in policies.policies for selection, _ in policy.exceptions]
    return frozenset(requirement.key for match in matches for requirement in match.pod or ())


def _template(pod: ComparedPod, keys: frozenset[str]) -> Any:
    """Reduce a pod to what its result depends on, as a hashable key."""
    redacted = redact_pod(pod.document)
    labels = redacted["metadata"].get("labels") or {}
    matched_labels = [(key, labels[key]) for key in labels if key in keys]
    annotations = redacted["metadata"].get("annotations") or {}
    text = msgspec.json.encode([matched_labels, annotations, redacted["spec"]])
    old_template = None if pod.old_template is None else msgspec.json.encode(redact_pod(pod.old_template))
    return pod.namespace, text, pod.form, pod.existing_ephemeral, old_template


def _judge(compared: ComparedPod, side: PolicySide) -> _Outcome:
    """Compute what admission does with a pod, and the demand of the admitted pod; of a template that of its pods."""
    labels = side.labels_of(compared.namespace)
    context = replace(
        side.context,
        form=compared.form,
        existing_ephemeral=compared.existing_ephemeral,
        old_template=compared.old_template,
    )
    pod = read_pod(compared.document, compared.namespace)
    review = begin_review(compared.document, pod, labels, context)
    result = mutate_reviewed(review)
    return _Outcome(_without_hash(result), (result.mutated or review).ruling.demand)


def _without_hash(result: ReviewResult) -> ReviewResult:
    """Remove what differs between any two policy sets: the policy hash, and the decision annotation with it."""
    operations = tuple(one for one in result.operations if one not in result.decision)
    return replace(result, policy_hash="", policies=(), operations=operations, mutated=None, decision=())


def _difference(pod: ComparedPod, judged: _Judged, placements: FleetPlacements | None) -> Difference | None:
    old, new = judged.old, judged.new

    def difference(change: PodDifference, was: str, now: str) -> Difference:
        return Difference(change.value, pod.name, pod.node, was, now)

    if old.result.allowed is not new.result.allowed:
        change = PodDifference.Admitted if new.result.allowed else PodDifference.Refused
        return difference(change, _outcome_text(old.result), _outcome_text(new.result))
    if new.result.allowed and placements is not None and pod.form is PodForm.Pod and old.demand != new.demand:
        was, now = _best_nodes(pod, judged, placements)
        if was != now:
            change = (
                PodDifference.NoNode if now is None else PodDifference.Placed if was is None else PodDifference.Moved
            )
            return difference(change, was or placements.why(old.demand), now or placements.why(new.demand))
        before, after = (placements.fitting(demand, pod.uid) for demand in (old.demand, new.demand))
        if lost := sorted(before - after):
            named = ", ".join(lost[:MOST_NAMED]) + (" …" if len(lost) > MOST_NAMED else "")
            nodes = f"{counted(len(after), 'node')}, no longer on {named}"
            return difference(PodDifference.Fewer, counted(len(before), "node"), nodes)
        if before != after:
            return difference(PodDifference.More, counted(len(before), "node"), counted(len(after), "node"))
    if old.result == new.result:
        return None
    return difference(PodDifference.Otherwise, *_otherwise(old.result, new.result))


def _best_nodes(pod: ComparedPod, judged: _Judged, placements: FleetPlacements) -> tuple[str | None, str | None]:
    """Name the best nodes under both sides; pods of one template that have the same node share the result."""
    if pod.node not in judged.best_nodes:
        was, now = (placements.best(side.demand, pod.uid) for side in (judged.old, judged.new))
        judged.best_nodes[pod.node] = was, now
    return judged.best_nodes[pod.node]


def _outcome_text(result: ReviewResult) -> str:
    return "allowed" if result.allowed else denial_message(result.reasons).removeprefix("gpu-usher: ")


def _otherwise(old: ReviewResult, new: ReviewResult) -> tuple[str, str]:
    """Write what only one of two review results does or warns of."""
    if not old.allowed:
        return _outcome_text(old), _outcome_text(new)
    was, now = ([*result.record, *(f"warns: {text}" for text in result.warnings)] for result in (old, new))
    old_only, new_only = ([text for text in one if text not in other] for one, other in ((was, now), (now, was)))
    return "; ".join(old_only) or "not done", "; ".join(new_only) or "not done"
