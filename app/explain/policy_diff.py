# SPDX-License-Identifier: Apache-2.0
"""What an edit of policies would change for pods: who is refused, let in, left without a node, moved (F78, F123)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

import msgspec

from app.admission.json_patch import apply
from app.admission.match_conditions import CONTAINER_LISTS
from app.admission.redaction import redact_pod
from app.admission.review import ReviewContext, Verdict, denial_message, mutate
from app.admission.reviewed_pod import PodForm
from app.kube.pods import DECISION, read_pod
from app.policy.compiled import PodSelection, PolicySet
from app.policy.demand import Demand

TOKEN = "kube-api-access-"
"""plugin/pkg/admission/serviceaccount/admission.go ServiceAccountVolumeName, and five random letters."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class PodDifference(Enum):
    """What becomes of a pod; the first two, if new, are what an edit must not do unseen."""

    Refused = "newly refused"
    NoNode = "left without any node"
    Admitted = "no longer refused"
    Seated = "has a node now"
    Moved = "moved"
    Otherwise = "changed otherwise"


HURTS = frozenset({PodDifference.Refused, PodDifference.NoNode})


@dataclass(frozen=True, slots=True)
class ComparedPod:
    """A pod (or template) to be created. `uid`, `node`: of one that is there. `settled`, `before`: as in Case."""

    name: str
    namespace: str
    document: Mapping[str, Any]
    form: PodForm = PodForm.Pod
    uid: str = ""
    node: str = ""
    settled: frozenset[str] = frozenset()
    before: Mapping[str, Any] | None = None


class Placements(Protocol):
    """Where pods would go now."""

    def best(self, demand: Demand, uid: str) -> str | None:
        """Name the best node for a demand; a pod that is there leaves its own place first. None: none fits."""
        ...

    def why(self, demand: Demand) -> str:
        """Say what most nodes lack for a demand."""
        ...


@dataclass(frozen=True, slots=True)
class PolicySide:
    """Policies, and the setting in which they are tried."""

    setting: ReviewContext
    labels_of: Callable[[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Difference:
    """What changes for one pod. `node`: where it is now; empty where it is pending, or from a log."""

    change: str
    pod: str
    node: str
    was: str
    now: str


@dataclass(frozen=True, slots=True)
class Differences:
    """What changes for all. `templates`: so many kinds of pods were judged. `counts`: pods by change."""

    pods: int
    templates: int
    unchanged: int
    counts: Mapping[str, int]
    differences: tuple[Difference, ...]

    @property
    def hurts(self) -> bool:
        """Tell whether anybody is newly refused or left without a node."""
        return any(self.counts.get(each.value) for each in HURTS)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one side says of a template."""

    verdict: Verdict
    demand: Demand


@dataclass(slots=True)
class _Judged:
    """Both sides' words on a template, and the seats that were looked up already."""

    old: _Outcome
    new: _Outcome
    seats: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)


def as_created(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Give a pod of a cluster as it was when it was created: without what the cluster and we wrote into it since.

    That makes pods of one template equal again: the node, the node that a DaemonSet's pod is bound to by matchFields
    (pkg/controller/daemon/util ReplaceDaemonSetPodNodeNameNodeAffinity), and the ServiceAccount admission plugin's
    volume with its random name.
    """
    metadata, spec = dict(pod.get("metadata") or {}), dict(pod.get("spec") or {})
    spec.pop("nodeName", None)
    metadata.pop("managedFields", None)
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != DECISION}
    if spec.get("volumes"):
        spec["volumes"] = _without_tokens(spec["volumes"])
    for name in CONTAINER_LISTS:
        if spec.get(name):
            spec[name] = [
                {**each, "volumeMounts": _without_tokens(each["volumeMounts"])} if each.get("volumeMounts") else each
                for each in spec[name]
            ]
    if required := _required(spec):
        affinity = spec["affinity"]
        terms = [{key: term[key] for key in term if key != "matchFields"} for term in required["nodeSelectorTerms"]]
        kept = {**required, "nodeSelectorTerms": [term for term in terms if term]}
        node_affinity = {**affinity["nodeAffinity"], REQUIRED: kept}
        if not kept["nodeSelectorTerms"]:
            del node_affinity[REQUIRED]
        spec["affinity"] = {**affinity, "nodeAffinity": node_affinity}
    return {"metadata": {**metadata, "annotations": annotations}, "spec": spec}


def _without_tokens(items: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [each for each in items if not str(each.get("name", "")).startswith(TOKEN)]


def _required(spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Give the required node affinity if it names nodes by a field; else None."""
    found: Mapping[str, Any] | None = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    named = found and any(term.get("matchFields") for term in found.get("nodeSelectorTerms") or ())
    return found if named else None


def compare(asked: Iterable[ComparedPod], old: PolicySide, new: PolicySide, seats: Placements | None) -> Differences:
    """Try every pod under the old and the new policies. `seats`: None where no fleet is known.

    Pods of one template are judged once; where they would go is asked only where what they need changed.

    Raises MalformedPod, QuantityError.
    """
    keys = label_keys(old.setting.policies) | label_keys(new.setting.policies)
    known: dict[Any, _Judged] = {}
    found: list[Difference] = []
    pods = 0
    for each in asked:
        pods += 1
        key = _template(each, keys)
        if (judged := known.get(key)) is None:
            judged = known[key] = _Judged(_judge(each, old), _judge(each, new))
        if judged.old != judged.new and (difference := _difference(each, judged, seats)) is not None:
            found.append(difference)
    order = {change.value: index for index, change in enumerate(PodDifference)}
    found.sort(key=lambda each: (order[each.change], each.pod))
    counts = Counter(each.change for each in found)
    return Differences(pods, len(known), pods - len(found), dict(counts), tuple(found))


def label_keys(policies: PolicySet) -> frozenset[str]:
    """List the labels of pods that the policies look at; others tell templates apart for nothing."""
    matches = [policy.match for policy in policies.policies]
    matches += [selected for policy in policies.policies for selected, _ in policy.exceptions]
    return frozenset(each.key for each in _requirements(matches))


def _requirements(matches: Iterable[PodSelection]) -> Iterator[Any]:
    for match in matches:
        yield from match.pod or ()


def _template(asked: ComparedPod, keys: frozenset[str]) -> Any:
    """Reduce a pod to what decides, as a hashable key."""
    reduced = redact_pod(asked.document)
    labels = reduced["metadata"].get("labels") or {}
    kept = [(key, labels[key]) for key in labels if key in keys]
    annotations = reduced["metadata"].get("annotations") or {}
    text = msgspec.json.encode([kept, annotations, reduced["spec"]])
    before = None if asked.before is None else msgspec.json.encode(redact_pod(asked.before))
    return asked.namespace, text, asked.form, asked.settled, before


def _judge(asked: ComparedPod, side: PolicySide) -> _Outcome:
    """Say what admission does, and what the pod then needs of a node."""
    labels = side.labels_of(asked.namespace)
    setting = replace(side.setting, form=asked.form, settled=asked.settled, before=asked.before)
    verdict = mutate(asked.document, asked.namespace, labels, setting)
    admitted = apply(asked.document, verdict.operations)
    pod = read_pod(admitted, asked.namespace)
    return _Outcome(_without_hash(verdict), setting.ruling(pod, labels).demand)


def _without_hash(verdict: Verdict) -> Verdict:
    """Leave out what differs between any two sets of policies: their hash, and our record with it."""
    kept = tuple(each for each in verdict.operations if DECISION not in each.path and not _whole_record(each.value))
    return replace(verdict, policy_hash="", policies=(), operations=kept)


def _whole_record(value: Any) -> bool:
    return isinstance(value, dict) and list(value) == [DECISION]


def _difference(asked: ComparedPod, judged: _Judged, seats: Placements | None) -> Difference | None:
    old, new = judged.old, judged.new

    def told(change: PodDifference, was: str, now: str) -> Difference:
        return Difference(change.value, asked.name, asked.node, was, now)

    if old.verdict.allowed is not new.verdict.allowed:
        change = PodDifference.Admitted if new.verdict.allowed else PodDifference.Refused
        return told(change, _words(old.verdict), _words(new.verdict))
    if new.verdict.allowed and seats is not None and asked.form is PodForm.Pod and old.demand != new.demand:
        was, now = _seats(asked, judged, seats)
        if was != now:
            change = (
                PodDifference.NoNode if now is None else PodDifference.Seated if was is None else PodDifference.Moved
            )
            return told(change, was or seats.why(old.demand), now or seats.why(new.demand))
    if old.verdict == new.verdict:
        return None
    return told(PodDifference.Otherwise, *_otherwise(old.verdict, new.verdict))


def _seats(asked: ComparedPod, judged: _Judged, seats: Placements) -> tuple[str | None, str | None]:
    """Name the best nodes under both; pods of one template that are on one node have the same."""
    key = asked.node
    if key not in judged.seats:
        judged.seats[key] = (seats.best(judged.old.demand, asked.uid), seats.best(judged.new.demand, asked.uid))
    return judged.seats[key]


def _words(verdict: Verdict) -> str:
    return "allowed" if verdict.allowed else denial_message(verdict).removeprefix("gpu-usher: ")


def _otherwise(old: Verdict, new: Verdict) -> tuple[str, str]:
    """Say what only one of two does or says."""
    if not old.allowed:
        return _words(old), _words(new)
    was, now = ([*each.record, *(f"warns: {text}" for text in each.warnings)] for each in (old, new))
    lost, won = ([text for text in one if text not in other] for one, other in ((was, now), (now, was)))
    return "; ".join(lost) or "not done", "; ".join(won) or "not done"
