# SPDX-License-Identifier: Apache-2.0
"""The one cause for which a pod is pending, and its sentence on the web page and in Events.

`primary_reason` chooses the reason to read first of all those that refuse nodes (docs/decisions/0021). A reason names
no value of a node, since kube-scheduler groups nodes by the text of their reasons (values/reasons.py); what the nodes
have instead is added here.

Pods of one template wait for the same cause: `template_hash` is over what of a pod decides it, so that such pods are
explained once. Its twin for the scheduler's calls is api/wire.py, which compares bytes, and that for edits of
policies is explain/policy_diff.py, which also sets aside what only kube-scheduler reads.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from app.admission.match_conditions import CONTAINER_LISTS
from app.explain.claim_changes import OTHER_CLASS
from app.explain.claim_funnel import erring
from app.explain.counterfactual import Fix, FixStep
from app.explain.explanation import Explanation, Refused
from app.explain.funnel import Objection, first_objection, is_transient, objection_name, objection_text
from app.explain.placed_by import silence_of
from app.explain.survey import Groups
from app.intree.checks import InTreeCause, InTreeRefusal
from app.knowledge.dcgm import GPUCondition
from app.kube.gangs import gang_of
from app.kube.pod_object import pod_object
from app.kube.pods import DECISION, PREFIX, VARIABLES, without_token_volumes
from app.nodes.conditions import TAINTS_WHILE_NOT_READY, NotReady
from app.nodes.model import Node, NodeClass
from app.policy.needs import WITH_FACT
from app.values.reasons import Code, counted
from app.values.versions import show_driver

HOLDERS = ", held by "
"""What stands between a change of the fleet and the pods in its way (edits_gpu.py)."""


@dataclass(frozen=True, slots=True)
class PendingCause:
    """Why a pod is pending. `reason` is a code, empty if the pod fits; `fix` is the smallest change that helps.

    `nodes` is the number of nodes with that reason, `all_nodes` that of all nodes. `remedy` is what helps against the
    reason in general. `change` is the fix for readers of the pod's Events: pods of other namespaces are not named.
    `opens` says which nodes the fix opens. `sentence` is the message with what the nodes have, empty where nothing is
    to be added. `gang` is how many pods of its gang fit together, empty where it is the message, or there is no gang.
    """

    reason: str
    message: str
    nodes: int
    fits: int
    fix: str
    all_nodes: int = 0
    remedy: str = ""
    change: str = ""
    opens: str = ""
    sentence: str = ""
    gang: str = ""

    @property
    def note(self) -> str:
        """The cause with its counts, and what helps, as sentences; first of all what is to say of the pod's gang."""
        return f"{self.gang[:1].upper()}{self.gang[1:]}. {self._note}" if self.gang else self._note

    @property
    def _note(self) -> str:
        if not self.nodes:
            return f"{self.message[:1].upper()}{self.message[1:]}." if self.reason == GANG_WAITS else f"{self.message}."
        first = f"0 of {self.all_nodes} nodes fit. {counted(self.nodes, 'node')}: {self.sentence or self.message}."
        if self.reason == InTreeCause.RefusedByAPIServer.name:
            first = f"The API server refuses it: {self.message}."
        if self.change:
            return f"{first} Smallest change that helps: {self.change} → {self.opens}."
        return f"{first} {self.remedy[:1].upper()}{self.remedy[1:]}." if self.remedy else first


def cause_of(explanation: Explanation) -> PendingCause:
    """Return the primary cause of an explanation."""
    primary, gang = explanation.primary, explanation.gang
    if explanation.not_started and (explanation.bound or primary is None):
        text = ": ".join(filter(None, (explanation.place, explanation.not_started[0])))
        return PendingCause(NOT_STARTED, text, 0, explanation.fits, "")
    if primary is None and explanation.fits and gang is not None and not gang.enough:
        return PendingCause(GANG_WAITS, gang.sentence, 0, explanation.fits, gang.change, change=gang.change)
    if primary is None:
        words = f"fits on {counted(explanation.fits, 'node')} now" if explanation.fits else "there are no nodes"
        return PendingCause("", words, 0, explanation.fits, "")
    smallest = next(iter(explanation.fixes), None)
    return PendingCause(
        primary.reason,
        primary.message,
        primary.nodes,
        explanation.fits,
        "; ".join(edit.text for edit in smallest.edits) if smallest else "",
        explanation.nodes,
        primary.remedy,
        _change(smallest.edits, explanation.pod.partition("/")[0]) if smallest else "",
        smallest.opened_nodes if smallest else "",
        primary.sentence,
        gang.sentence if gang is not None and not gang.enough else "",
    )


NOT_STARTED = "NotStarted"
"""The reason of a pod that has a node or devices, and that does not start."""
GANG_WAITS = "GangDoesNotFit"
"""The reason of a pod that fits, and whose gang does not fit together."""
NOT_LOOKED_AT = "SchedulerSilent"
"""The reason of a pod that fits and that its scheduler has not looked at."""
UNSEEN_SECONDS = 120.0
"""Seconds after which a pod that no scheduler has tried is reported; a guess: kube-scheduler restarts in less."""


def told_of_scheduler(cause: PendingCause, unseen_by: str) -> PendingCause:
    """Return the cause of a pod that waits for a scheduler, as PendingPod names it; else the cause itself.

    No other change helps before that scheduler runs, so that none is named.
    """
    if not unseen_by:
        return cause
    besides = f"It {cause.message}" if not cause.reason else f"Once it does, {cause.sentence or cause.message}"
    words = f"{silence_of(unseen_by)}. {besides}"
    return replace(cause, reason=NOT_LOOKED_AT, message=words, nodes=0, fix="", change="", remedy="", sentence="")


def _change(edits: Iterable[FixStep], namespace: str) -> str:
    """Write the edits of a fix without the names of pods in other namespaces, which its reader may not list."""
    return "; ".join([text_for_namespace(edit, namespace) for edit in edits])


def text_for_namespace(edit: FixStep, namespace: str) -> str:
    """Write an edit for readers of one namespace: pods in its way are named only if all are of that namespace."""
    if all(evicted.pod.partition("/")[0] == namespace for evicted in edit.evicts):
        return edit.text
    return f"{edit.text.partition(HOLDERS)[0]}, held by pods of other namespaces"


MOST_NODE_VALUES = 3
"""Values that are named, those of most nodes first, so that a sentence stays one."""
Tell = Callable[[NodeClass], str | None]


def _driver(node: NodeClass) -> str | None:
    return f"driver {show_driver(node.driver)}" if node.driver else None


VALUES: Mapping[str, Tell] = {
    Code.DriverTooOld.name: _driver,
    Code.ImageRequirementUnmet.name: _driver,
    **{code.name: fact.have for need, fact in WITH_FACT for code in need.codes},
    Code.GPUUnhealthy.name: lambda node: " and ".join(
        name for name, severity in node.bad_conditions if severity is GPUCondition.Ill
    ),
    Code.GhostGPUs.name: lambda node: "; ".join(promise.words for promise in node.absent),
    Code.MIGLayoutFailed.name: lambda node: node.mig_layout_failed and f"{node.mig_layout_failed} failed",
}
"""The value of a node by the code of the reason for which it is refused."""


def values_of(code: str, nodes: Iterable[NodeClass]) -> tuple[str, ...]:
    """List the values that nodes have of what a code is about, those of most nodes first; none where it is unknown."""
    tell = VALUES.get(code)
    counts = Counter(value for node in nodes if (value := tell(node))) if tell else Counter[str]()
    return tuple(sorted(counts, key=lambda value: (-counts[value], value))[:MOST_NODE_VALUES])


OTHER_PRODUCTS = {Code.ProductNotAllowed.name, Code.GPUFactsMissing.name, Code.ResourceNotOffered.name}
"""Codes of the nodes whose product is another, or not known, or none."""
OFFER_NONE = {Code.OfferedByClaimOnly.name: 1, Code.GhostGPUs.name: 1, Code.ResourceNotOffered.name: 2}
"""Codes of the nodes that offer no GPUs, those that never will last."""


def primary_reason(groups: Groups, fixes: tuple[Fix, ...], nodes: Mapping[str, Node]) -> Refused | None:
    """Choose the reason to look at first: of the nodes with only transient objections, or else of the nearest nodes.

    A claim that kube-scheduler gives up on comes before all, and then nodes that do not answer.

    The nearest nodes are among those of a product that the pod allows, if there are any. They are those of the smallest
    fix, or without a fix those with the fewest objections. A node that offers no GPUs is chosen only where all nodes
    offer none.
    """
    transient = {
        objections: names for objections, names in groups.items() if objections and all(map(is_transient, objections))
    }
    if not (given_up := erring(groups)) and (silent := _not_answering(groups, nodes)) is not None:
        return silent
    candidates = given_up or transient or _of_allowed_products(groups) or groups
    as_asked = [fix for fix in fixes if fix.edits[0].kind != OTHER_CLASS]  # which is served by another kind of node
    fixed = (objections for fix in as_asked for objections, names in candidates.items() if fix.node in names)
    nearest = next(fixed, None) or min(candidates, key=_distance, default=None)
    if nearest is None:
        return None
    objection = first_objection(nearest)
    refusing = [
        nodes[name].node_class
        for objections, names in groups.items()
        if first_objection(objections) == objection
        for name in names
    ]
    refused = refused_by(objection, len(refusing))
    return replace(refused, have=values_of(refused.reason, refusing))


PASSING = {Code.InsufficientGPUs.name, InTreeCause.InsufficientResource.name, InTreeCause.TooManyPods.name}
"""Names of the objections that end with other pods; what a node that does not answer has left is not known."""


def _not_answering(groups: Groups, nodes: Mapping[str, Node]) -> Refused | None:
    """Return the nodes that do not answer as the reason, where otherwise the pod would fit on one, or could on most.

    Nothing but their taints, and the pods that they still have, is in the way on these nodes.
    """
    silent, usable = list[NotReady](), [0, 0]
    would_fit = False
    for objections, names in groups.items():
        left = [one for one in objections if not _is_lifecycle_taint(one)]
        if not all(is_transient(one) or objection_name(one) in PASSING for one in left):
            continue
        states = [nodes[name].not_ready for name in names]
        silent += (found := [state for state in states if state is not None])
        would_fit = would_fit or bool(found and not left)
        usable = [usable[0] + len(found), usable[1] + len(states) - len(found)]
    if not (would_fit or usable[0] > usable[1]) or not silent:
        return None
    says = Counter(state.says for state in silent).most_common(1)[0][0].removesuffix(".")
    since = min((state.since for state in silent if state.since), default="")
    state = "not Ready" if all(state.answers for state in silent) else "not answering"
    message = f"{state}{f' since {since}' * bool(since)}{f': {says}' * bool(says)}"
    return Refused("NodeNotReady", message, len(silent), "look at the kubelets and the network of these nodes")


def _is_lifecycle_taint(objection: Objection) -> bool:
    return isinstance(objection, InTreeRefusal) and bool({*objection.about[:1]} & {*TAINTS_WHILE_NOT_READY})


def _of_allowed_products(groups: Groups) -> Groups:
    """Return the nodes whose product is known to be allowed; none where the pod allows every product."""
    codes = {objections: set(map(objection_name, objections)) for objections in groups}
    if not any(Code.ProductNotAllowed.name in names for names in codes.values()):
        return {}
    return {objections: names for objections, names in groups.items() if not codes[objections] & OTHER_PRODUCTS}


def _distance(objections: tuple[Objection, ...]) -> tuple[int, int]:
    names = set(map(objection_name, objections))
    return max((OFFER_NONE.get(name, 0) for name in names), default=0), len(objections)


def refused_by(objection: Objection, count: int) -> Refused:
    """Count the nodes that one objection refuses."""
    return Refused(objection_name(objection), objection_text(objection), count, objection.remedy)


OWN_NAMES = ("hostname", "subdomain")
"""Fields of the spec in which a StatefulSet, an Indexed Job or a JobSet name the pod."""
RUN = ("command", "args")
"""Fields of a container that say what it runs, as each Job of a sweep does otherwise."""


def template_hash(document: Mapping[str, Any], label_keys: Collection[str]) -> str:
    """Return a hash of the part of a pod on which its cause depends; pods of one template share it.

    `label_keys` are the labels that policies match on (`policy_diff.label_keys`). Other labels need not be compared:
    those by which pods are spread or kept apart are in the spec as selectors, and the pods that a running service would
    hold against them are not known to it. Controllers write an index, a name or a UID of their own into many. Of
    annotations only ours decide. What is left of the spec is compared whole, so that an unforeseen field makes two
    templates of one, rather than one cause of two. Pods of different gangs wait for different causes.
    """
    metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key in label_keys}
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key.startswith(PREFIX) and key != DECISION
    }
    namespace = metadata.get("namespace")
    parts = (namespace, labels, annotations, gang_of(pod_object(document)), _template_spec(spec))
    return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _template_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    template = {key: value for key, value in spec.items() if key not in OWN_NAMES}
    template["volumes"] = without_token_volumes(spec.get("volumes") or ())
    for name in CONTAINER_LISTS:
        template[name] = [_template_container(container) for container in spec.get(name) or ()]
    return template


def _template_container(container: Mapping[str, Any]) -> dict[str, Any]:
    template = {key: value for key, value in container.items() if key not in RUN}
    template["env"] = [
        variable for variable in container.get("env") or () if str(variable.get("name", "")).startswith(VARIABLES)
    ]
    template["volumeMounts"] = without_token_volumes(container.get("volumeMounts") or ())
    return template
