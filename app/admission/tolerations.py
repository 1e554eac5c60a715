# SPDX-License-Identifier: Apache-2.0
"""The mutator of tolerations: for the taints that nodes really have, of allow-listed keys, never another team's.

A template of a workload gets none, because its pods get them (review.py, _is_applied).
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from app.admission.json_patch import append_all
from app.admission.reviewed_pod import PodChange, PodForm, ReviewedPod
from app.knowledge.gpu_resources import Families, Family
from app.kube.pods import toleration_covers
from app.policy.match import Ruling
from app.policy.merge import AdmissionRules
from app.world.fleet_facts import Taint

Toleration = dict[str, str]


def missing_tolerations(review: ReviewedPod, node_taints: Set[Taint]) -> list[Toleration]:
    """List the tolerations that the pod needs for the taints of nodes, and lacks, in a fixed order.

    A family's own taint key is tolerated even where no node has the taint now: an autoscaler may add such a node.
    """
    present = _present_tolerations(review.document)
    elsewhere = (name for name, _ in review.gpus.passthrough)
    own_keys = {*review.gpus.resources, *elsewhere, *(family.whole for family in review.families)}
    needed: list[Toleration] = []
    for key in _allowed_keys(review):
        taints = {taint for taint in node_taints if taint[0] == key}
        if not taints and key in own_keys:
            needed.append({"key": key, "operator": "Exists", "effect": "NoSchedule"})
        needed.extend(_tolerations_for(key, taints))
    return [toleration for toleration in needed if not any(toleration_covers(own, toleration) for own in present)]


def tolerated_keys(review: ReviewedPod) -> tuple[str, ...]:
    """List the keys of the taints that the policies tolerate for the pod; none where they tolerate nothing."""
    return _allowed_keys(review) if review.rules.tolerate else ()


def keys_added_with_nodes(ruling: Ruling, families: Families) -> frozenset[str]:
    """List the keys of the taints that admission tolerates for a pod on every node that could serve it."""
    rules, resources = ruling.enforced, [resource for resource, _ in ruling.demand.resources]
    if not (rules.tolerate and rules.from_node_taints):
        return frozenset()
    requested = (*filter(None, map(families.of, resources)), *ruling.claimed.families)
    return frozenset(_keys_of(requested, resources, rules))


def _allowed_keys(review: ReviewedPod) -> tuple[str, ...]:
    """List the taint keys that may be tolerated: those of the requested families, and those of the policies."""
    elsewhere = (name for name, _ in review.gpus.passthrough)
    return _keys_of(review.families, (*review.gpus.resources, *elsewhere), review.rules)


def _keys_of(families: Iterable[Family], resources: Iterable[str], rules: AdmissionRules) -> tuple[str, ...]:
    keys = [key for family in families for key in (family.whole, *family.taint_keys)]
    return tuple(dict.fromkeys((*keys, *resources, *rules.toleration_keys)))


def taints_of_fitting_nodes(review: ReviewedPod) -> set[Taint]:
    """Collect the taints of the nodes that could serve the pod, now or once other pods are gone."""
    if not review.rules.from_node_taints:
        return set()
    return {taint for group in review.fitting for taint in group.taints}


def _tolerations_for(key: str, taints: Iterable[Taint]) -> Iterator[Toleration]:
    """Copy a taint's value and effect; `Exists` is used only where taints of one effect have several values."""
    by_effect: dict[str, set[str]] = {}
    for _, value, effect in taints:
        by_effect.setdefault(effect, set()).add(value)
    for effect, values in sorted(by_effect.items()):
        if len(values) == 1:
            yield {"key": key, "operator": "Equal", "value": next(iter(values)), "effect": effect}
        else:
            yield {"key": key, "operator": "Exists", "effect": effect}


def taint_tolerated(review: ReviewedPod, taint: Taint) -> bool:
    """Tell whether a pod tolerates a taint, or would after the tolerations that may be added."""
    key, value, effect = taint
    if effect == "PreferNoSchedule":
        return True
    node_taint = {"key": key, "value": value, "effect": effect}
    addable = review.rules.tolerate and review.rules.from_node_taints and key in _allowed_keys(review)
    return addable or any(
        toleration_covers(toleration, node_taint) for toleration in _present_tolerations(review.document)
    )


def _present_tolerations(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spec = document.get("spec") or {}
    return [toleration for toleration in spec.get("tolerations") or () if isinstance(toleration, dict)]


def add_tolerations(review: ReviewedPod) -> Iterator[PodChange]:
    """Add tolerations for the GPU taints of the nodes that could serve the pod.

    A pod template gets none (review.py drops it, in _is_applied): its pods get them. For a DaemonSet's template that is
    too late, since the controller chooses nodes by the template, as Kueue does its flavor; the user is warned instead.
    """
    if not review.rules.tolerate:
        return
    node_taints = taints_of_fitting_nodes(review)
    if missing := missing_tolerations(review, node_taints):
        operations = append_all(review.document, ("spec", "tolerations"), missing)
        keys = dict.fromkeys(toleration["key"] for toleration in missing)
        listed = ", ".join(keys)
        problem = f"the template does not tolerate {listed}"
        if not any(key in keys for key, *_ in node_taints):
            pass  # no node has the taint now
        elif review.context.form is PodForm.DaemonSet:
            yield PodChange((), problem, f"{problem}: its pods stay off tainted nodes")
        elif review.context.queued and review.rules.queued_templates is None:
            remedy = "add the toleration, or set policy queuedTemplates: Write"
            yield PodChange((), problem, f"{problem}: Kueue gives it no flavor with that taint; {remedy}")
        yield PodChange(operations, f"toleration added for {listed}")
