# SPDX-License-Identifier: Apache-2.0
"""Remedies for what kube-scheduler itself objects to, one function for each kind."""

from collections.abc import Iterator
from dataclasses import replace

from app.explain.edits import Document, Edit, Near, amount_text, asked, hungriest
from app.intree.checks import Cause
from app.intree.existing_pods import REQUIRED
from app.kube.pod_requests import amounts_of


def tolerate(near: Near) -> Iterator[Edit]:
    """Add a toleration for a taint."""
    if near.code is not Cause.UntoleratedTaint:
        return
    key, value, effect = near.about
    said = {"key": key, "operator": "Equal" if value else "Exists", **({"value": value} if value else {})}

    def add(pod: Document) -> None:
        pod["spec"]["tolerations"].append({**said, "effect": effect})

    yield Edit("tolerate", f"add a toleration for {key}{f'={value}' if value else ''}:{effect}", 20, add)


def drop_selector(near: Near) -> Iterator[Edit]:
    """Drop a key of nodeSelector."""
    if near.code is Cause.NodeAffinityMismatch and near.about[0] == "nodeSelector":
        _, key, value = near.about
        there = near.node.labels.get(key)

        def drop(pod: Document) -> None:
            del pod["spec"]["nodeSelector"][key]

        def change(pod: Document) -> None:
            pod["spec"]["nodeSelector"][key] = there

        if there is not None:
            yield Edit("change-selector", f"set nodeSelector {key}: {there} instead of {value}", 21, change)
        yield Edit("drop-selector", f"drop {key}: {value} from nodeSelector", 22, drop)


def drop_affinity(near: Near) -> Iterator[Edit]:
    """Drop the expressions of one required affinity term that the node does not fulfil; all, where none is left."""
    if near.code is not Cause.NodeAffinityMismatch or near.about[0] != "affinity":
        return
    for index, term in enumerate(near.posed.own.terms or ()):
        unmet = [place for place, (key, wanted) in enumerate(term.expressions)
                 if wanted is None or not wanted.allows(near.node.labels.get(key))]  # fmt: skip
        keys = ", ".join(term.expressions[place][0] for place in unmet)
        unnamed = any((name == near.node.name) is not within for within, name in term.names)

        def drop(pod: Document, index: int = index, unmet: list[int] = unmet, unnamed: bool = unnamed) -> None:
            affinity = pod["spec"]["affinity"]["nodeAffinity"]
            terms = affinity[REQUIRED]["nodeSelectorTerms"]
            said = terms[index].get("matchExpressions") or []
            terms[index]["matchExpressions"] = [each for place, each in enumerate(said) if place not in unmet]
            if unnamed:
                terms[index]["matchFields"] = []
            if not (terms[index]["matchExpressions"] or terms[index].get("matchFields")):
                del affinity[REQUIRED]

        what = ", ".join(filter(None, (keys, "metadata.name" if unnamed else "")))
        yield Edit("drop-affinity", f"drop {what} from the required node affinity", 22 + len(unmet), drop)


def unname_node(near: Near) -> Iterator[Edit]:
    """Leave the choice of the node to the scheduler."""
    if near.code is Cause.NodeNameMismatch:
        yield Edit("unname-node", "remove spec.nodeName", 10, lambda pod: pod["spec"].pop("nodeName", None))


def remove_gates(near: Near) -> Iterator[Edit]:
    """Remove the scheduling gates."""
    if near.code is Cause.SchedulingGated:
        text = f"remove the scheduling gates {', '.join(near.about)}: their controller has not let the pod go"
        yield Edit("remove-gates", text, 10, lambda pod: pod["spec"].pop("schedulingGates", None))


def uncordon(near: Near) -> Iterator[Edit]:
    """Uncordon the node."""
    if near.code is Cause.NodeUnschedulable:
        yield Edit("uncordon", f"kubectl uncordon {near.node.name}", 50,
                   node=lambda node: replace(node, unschedulable=False), on=near.node.name)  # fmt: skip


def request_less(near: Near) -> Iterator[Edit]:
    """Ask for as much CPU or memory as the node has left."""
    if near.code is not Cause.InsufficientResource:
        return
    resource = near.about[0]
    used = near.world.used.get(near.node.name, {})
    left = amounts_of(near.node.allocatable).get(resource, 0) - used.get(resource, 0)
    short = dict(near.posed.seeker.requests)[resource] - left
    if left <= 0:
        return

    def lower(pod: Document) -> None:
        most = hungriest(pod, resource)
        for kind in ("requests", "limits") if not asked(most, resource, "requests") else ("requests",):
            if asked(most, resource, kind):
                most["resources"][kind][resource] = amount_text(resource, asked(most, resource, kind) - short)

    text = f"request {amount_text(resource, left)} of {resource} in all, {amount_text(resource, short)} less"
    yield Edit("request-less", text, 30, lower)


IN_TREE = (
    remove_gates,
    unname_node,
    tolerate,
    drop_selector,
    drop_affinity,
    request_less,
    uncordon,
)
