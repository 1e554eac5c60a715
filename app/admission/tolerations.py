# SPDX-License-Identifier: Apache-2.0
"""Tolerations from the taints that nodes really carry; only allow-listed keys, never another team's taint (F3)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.admission.case import ReviewedPod
from app.admission.fleet_facts import Taint, serving

Toleration = dict[str, str]


def wanted_tolerations(case: ReviewedPod) -> list[Toleration]:
    """List the tolerations that the pod needs and lacks, in a fixed order.

    A family's own taint key is tolerated even where no node carries it now: an autoscaler may bring one.
    """
    if not case.rules.tolerate:
        return []
    present = _present(case.document)
    seen = seen_taints(case)
    own = {*case.gpu_resources, *(family.whole for family in case.families())}
    wanted: list[Toleration] = []
    for key in _allowed_keys(case):
        taints = {taint for taint in seen if taint[0] == key}
        if not taints and key in own:
            wanted.append({"key": key, "operator": "Exists", "effect": "NoSchedule"})
        wanted.extend(_of_key(key, taints))
    return [toleration for toleration in wanted if not any(covers(each, toleration) for each in present)]


def _allowed_keys(case: ReviewedPod) -> tuple[str, ...]:
    """List the taint keys that may be tolerated: those of the asked families, and those of the policies."""
    keys = [key for family in case.families() for key in (family.whole, *family.taint_keys)]
    return tuple(dict.fromkeys((*keys, *case.gpu_resources, *case.rules.toleration_keys)))


def seen_taints(case: ReviewedPod) -> set[Taint]:
    """Collect the taints of the nodes that could serve the pod, now or with other pods gone."""
    if not case.rules.from_node_taints:
        return set()
    return {taint for group in serving(case.ruling.demand, case.fleet) for taint in group.taints}


def _of_key(key: str, taints: Iterable[Taint]) -> Iterator[Toleration]:
    """Copy value and effect; `Exists` only where one effect comes with two values."""
    by_effect: dict[str, set[str]] = {}
    for _, value, effect in taints:
        by_effect.setdefault(effect, set()).add(value)
    for effect, values in sorted(by_effect.items()):
        if len(values) == 1:
            yield {"key": key, "operator": "Equal", "value": next(iter(values)), "effect": effect}
        else:
            yield {"key": key, "operator": "Exists", "effect": effect}


def tolerable(case: ReviewedPod, taint: Taint) -> bool:
    """Tell whether a pod tolerates a taint, or would by what may be added."""
    key, value, effect = taint
    if effect == "PreferNoSchedule":
        return True
    asked = {"key": key, "value": value, "effect": effect}
    mine = case.rules.tolerate and case.rules.from_node_taints and key in _allowed_keys(case)
    return mine or any(covers(each, asked) for each in _present(case.document))


def _present(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spec = document.get("spec") or {}
    return [each for each in spec.get("tolerations") or () if isinstance(each, dict)]


def covers(toleration: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether a toleration tolerates all that another one does (core/v1 Toleration.ToleratesTaint)."""
    if toleration.get("effect") and toleration.get("effect") != other.get("effect"):
        return False
    if toleration.get("key") and toleration.get("key") != other.get("key"):
        return False
    if (toleration.get("operator") or "Equal") == "Exists":
        return True
    same_value = (toleration.get("value") or "") == (other.get("value") or "")
    return bool(toleration.get("key")) and (other.get("operator") or "Equal") == "Equal" and same_value
