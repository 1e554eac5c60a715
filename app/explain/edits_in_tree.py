# SPDX-License-Identifier: Apache-2.0
"""Edits for kube-scheduler's own objections to a node, one function for each cause.

Those against constraints between pods drop one inter-pod constraint of the pod.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import SequenceMatcher

from app.explain.container_requests import (
    amount_text,
    at_most_each,
    is_extended,
    lowered,
    names_of_requesters,
    requests_text,
    set_requests,
    total_after,
    without_resource,
)
from app.explain.edits import Edit, EditedDocument, NearMiss, containers_of, distance, several_parts
from app.intree.checks import InTreeCause
from app.knowledge.products import normal_form
from app.kube.pod_object import REQUIRED_TERMS
from app.kube.pod_requests import read_amounts
from app.nodes.conditions import FAMILY, PRODUCT
from app.nodes.model import Node
from app.policy.facts import architecture_of
from app.values.quantity import enough_memory


def tolerate(near_miss: NearMiss) -> Iterator[Edit]:
    """Add a toleration for a taint."""
    if near_miss.code is not InTreeCause.UntoleratedTaint:
        return
    key, value, effect = near_miss.about
    if near_miss.snapshot.knowledge.families.is_fault(key):
        return  # the taint says that something is wrong with the node
    toleration = {"key": key, "operator": "Equal" if value else "Exists", **({"value": value} if value else {})}

    def add(pod: EditedDocument) -> None:
        pod["spec"]["tolerations"].append({**toleration, "effect": effect})

    yield Edit("tolerate", f"add a toleration for {key}{f'={value}' if value else ''}:{effect}", 20, add)


def drop_selector(near_miss: NearMiss) -> Iterator[Edit]:
    """Drop a key of nodeSelector, or set it to the node's value."""
    if near_miss.code is InTreeCause.NodeAffinityMismatch and near_miss.about[0] == "nodeSelector":
        if several_parts(near_miss):
            return
        _, key, value = near_miss.about
        if key == OPERATING_SYSTEM:
            return  # an image for Windows runs on Windows alone
        present = near_miss.node.labels.get(key)
        architecture = _architecture(near_miss.node)
        wrong_label = key == FAMILY and bool(architecture) and present not in (None, architecture)
        to, new = (PRODUCT, near_miss.node.labels.get(PRODUCT)) if wrong_label else (key, present)

        def drop(pod: EditedDocument) -> None:
            del pod["spec"]["nodeSelector"][key]

        def change(pod: EditedDocument) -> None:
            drop(pod)
            pod["spec"]["nodeSelector"][to] = new

        if wrong_label and architecture.startswith(value) and new:
            text = f"set nodeSelector {to}: {new} instead of {key}: {value}, {_WRONG_LABEL.format(present)}"
            yield Edit("change-selector", text, 9, change)
        elif present is not None and not (wrong_label or (key == HOSTNAME and value in _hostnames(near_miss))):
            weight = 21 + (0 if key == HOSTNAME else _distance(value, present))
            by_form = near_miss.snapshot.knowledge.products.by_form
            rows = (by_form.get(normal_form(name)) for name in (value, present) if value not in present)
            asked, offered = [row.memory_mib or 0 if row else 0 for row in rows] or (0, 0)
            less = offered and not enough_memory(offered, asked)
            lesser = f": {offered} MiB of memory each, not {asked}" if less else ""
            text = f"set nodeSelector {key}: {present} instead of {value}{lesser}"
            yield Edit("change-selector", text, weight + 20 * bool(lesser), change)
        yield Edit("drop-selector", f"drop {key}: {value} from nodeSelector", 22, drop)


OPERATING_SYSTEM = "kubernetes.io/os"
HOSTNAME = "kubernetes.io/hostname"
"""The label that names a node: names of nodes are not near each other by their letters."""


_WRONG_LABEL = "which the node's label calls {}: the label is wrong"


def _architecture(node: Node) -> str:
    """Write the architecture of a node's GPUs as GPU Feature Discovery does since 0.17.1; empty if it is not known."""
    return (architecture_of(node.node_class) or "").lower().replace(" ", "-")


def _hostnames(near_miss: NearMiss) -> set[str]:
    """Name the nodes by that label: a name that is there was not misspelt."""
    return {node.labels.get(HOSTNAME, "") for node in near_miss.snapshot.nodes.values()}


def _distance(asked: str, present: str) -> float:
    """Return how far the text of a label is from what is asked, from 0 to below 1: a part of it is nearest."""
    one, other = asked.lower(), present.lower()
    return 0 if one in other or other in one else 0.99 * (1 - SequenceMatcher(None, one, other).ratio())


def drop_affinity(near_miss: NearMiss) -> Iterator[Edit]:
    """Drop the expressions of one required affinity term that the node does not fulfil; the term, if none is left."""
    if near_miss.code is not InTreeCause.NodeAffinityMismatch or near_miss.about[0] != "affinity":
        return
    for index, term in enumerate(near_miss.scheduled_pod.own.terms or ()):
        unmet = [position for position, (key, rule) in enumerate(term.expressions)
                 if rule is None or not rule.allows(near_miss.node.labels.get(key))]  # fmt: skip
        keys = ", ".join(term.expressions[position][0] for position in unmet)
        unnamed = any((name == near_miss.node.name) is not within for within, name in term.names)

        def drop(pod: EditedDocument, index: int = index, unmet: list[int] = unmet, unnamed: bool = unnamed) -> None:
            affinity = pod["spec"]["affinity"]["nodeAffinity"]
            terms = affinity[REQUIRED_TERMS]["nodeSelectorTerms"]
            expressions = terms[index].get("matchExpressions") or []
            terms[index]["matchExpressions"] = [
                expression for position, expression in enumerate(expressions) if position not in unmet
            ]
            if unnamed:
                terms[index]["matchFields"] = []
            if not (terms[index]["matchExpressions"] or terms[index].get("matchFields")):
                del affinity[REQUIRED_TERMS]

        labels, names = near_miss.node.labels, _architecture(near_miss.node)
        if keys == FAMILY and not unnamed and names and labels.get(FAMILY) not in (None, names) and PRODUCT in labels:
            rule = term.expressions[unmet[0]][1]
            product = {"key": PRODUCT, "operator": "In", "values": [labels[PRODUCT]]}

            def change(
                pod: EditedDocument, index: int = index, position: int = unmet[0], new: object = product
            ) -> None:
                terms = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED_TERMS]["nodeSelectorTerms"]
                terms[index]["matchExpressions"][position] = new

            if rule and any(map(rule.allows, (names, names.partition("-")[0]))):
                text = f"require {PRODUCT}: {labels[PRODUCT]} in the node affinity instead of {FAMILY}"
                yield Edit("change-affinity", f"{text}, {_WRONG_LABEL.format(labels[FAMILY])}", 9, change)
        what = ", ".join(filter(None, (keys, "metadata.name" if unnamed else "")))
        yield Edit("drop-affinity", f"drop {what} from the required node affinity", 22 + len(unmet), drop)


def remove_node_name(near_miss: NearMiss) -> Iterator[Edit]:
    """Remove spec.nodeName, so that the scheduler chooses the node."""
    if near_miss.code is InTreeCause.NodeNameMismatch:
        yield Edit("unname-node", "remove spec.nodeName", 10, lambda pod: pod["spec"].pop("nodeName", None))


def remove_gates(near_miss: NearMiss) -> Iterator[Edit]:
    """Remove the scheduling gates."""
    if near_miss.code is InTreeCause.SchedulingGated:
        text = f"remove the scheduling gates {', '.join(near_miss.about)}: their controller has not let the pod go"
        yield Edit("remove-gates", text, 10, lambda pod: pod["spec"].pop("schedulingGates", None))


def uncordon(near_miss: NearMiss) -> Iterator[Edit]:
    """Uncordon the node."""
    if near_miss.code is InTreeCause.NodeUnschedulable:
        yield Edit("uncordon", f"kubectl uncordon {near_miss.node.name}", 50,
                   node=lambda node: replace(node, unschedulable=False), on=near_miss.node.name)  # fmt: skip


def request_less(near_miss: NearMiss) -> Iterator[Edit]:
    """Request only as much of a resource as the node has left, or none of an extended one of which it has none."""
    if near_miss.code is not InTreeCause.InsufficientResource:
        return
    resource, pod = near_miss.about[0], near_miss.scheduled_pod.pod
    overhead = read_amounts(near_miss.scheduled_pod.document["spec"].get("overhead")).get(resource, 0)
    left = node_left(near_miss.node, near_miss.snapshot.used.get(near_miss.node.name, {}), resource) - overhead
    wanted = dict(near_miss.scheduled_pod.pod_constraints.requests)[resource] - overhead
    if left > 0 and (requests := lowered(pod, resource, left)):
        text = f"request {amount_text(resource, left)} of {resource} instead of {amount_text(resource, wanted)}"
        text += requests_text(pod, resource, requests)
        yield Edit("request-less", text, 22.4 + distance(wanted, left) / 2, set_requests(resource, requests))
    elif left <= 0 and is_extended(resource) and not _is_of_gpus(near_miss, resource):
        text = f"request no {resource}{names_of_requesters(pod, resource)}"
        yield Edit("drop-resource", text, 32, without_resource(resource))


def change_scheduler(near_miss: NearMiss) -> Iterator[Edit]:
    """Name the scheduler whose extender counts a resource that no node offers, for a node that its project shares."""
    if near_miss.code is not InTreeCause.InsufficientResource or near_miss.node.node_class.hami_gpus < 1:
        return
    for resources, schedulers, _ in near_miss.snapshot.knowledge.families.counted_by_others:
        if near_miss.about[0] in resources:
            name = min(schedulers)
            text = f"set schedulerName {name}: its extender counts {min(resources)} and the like, which no node offers"
            yield Edit("change-scheduler", text, 25, lambda pod, name=name: pod["spec"].update(schedulerName=name))  # type: ignore[misc]


def _is_of_gpus(near_miss: NearMiss, resource: str) -> bool:
    """Tell whether a resource is GPUs by another's name, or how much of them, such as HAMi's nvidia.com/gpucores.

    Without it the pod would get none, or another's share of them.
    """
    families, domain = near_miss.snapshot.knowledge.families, resource.partition("/")[0]
    of_vendor = any(domain == family.whole.partition("/")[0] for family in families.all)
    return of_vendor or families.elsewhere(resource) is not None


def node_left(node: Node, used: Mapping[str, int], resource: str) -> int:
    """Count the units of a resource that no pod on a node has requested. `used` are the requests of its pods."""
    return read_amounts(node.allocatable).get(resource, 0) - used.get(resource, 0)


def keep_to_limit(near_miss: NearMiss) -> Iterator[Edit]:
    """Ask for what a ResourceQuota has left, or for the maximum of a LimitRange."""
    match near_miss.code, near_miss.about:
        case InTreeCause.RefusedByAPIServer, (_, _, resource, text, each) if text not in ("", "0"):
            most, pod = int(text), near_miss.scheduled_pod.pod
        case _:
            return
    requests = at_most_each(pod, resource, most) if each == "Container" else lowered(pod, resource, most)
    after, asked = total_after(pod, resource, requests), total_after(pod, resource, ())
    if 0 < after < asked:
        words = f"{amount_text(resource, after)} {resource} instead of {amount_text(resource, asked)}"
        words = f"ask for {words}{requests_text(pod, resource, requests)}"
        yield Edit("ask-fewer", words, 30 + distance(asked, after), set_requests(resource, requests))


MISSING: dict[str, tuple[str, ...]] = {"RuntimeClass": ("runtimeClassName",), "Priority": ("priorityClassName",)}
MISSING["ServiceAccount"] = "serviceAccountName", "serviceAccount"  # a stored template has the deprecated one, too
"""Plugins of the API server that refuse a pod for a name that is not there → the fields with the name."""


def drop_name(near_miss: NearMiss) -> Iterator[Edit]:
    """Drop the name of an object that is not there."""
    match near_miss.code, near_miss.about:
        case InTreeCause.RefusedByAPIServer, (plugin, name) if plugin in MISSING:

            def drop(pod: EditedDocument) -> None:
                for field in MISSING[plugin]:
                    pod["spec"].pop(field, None)

            yield Edit("drop-name", f"drop {MISSING[plugin][0]}: {name}, which does not exist", 12, drop)


IN_TREE = (
    keep_to_limit,
    drop_name,
    remove_gates,
    remove_node_name,
    tolerate,
    drop_selector,
    drop_affinity,
    request_less,
    change_scheduler,
    uncordon,
)


def drop_host_port(near_miss: NearMiss) -> Iterator[Edit]:
    """Drop a host port that another pod on the node uses."""
    if near_miss.code is not InTreeCause.HostPortTaken:
        return
    number, protocol = near_miss.about

    def drop(pod: EditedDocument) -> None:
        for container in containers_of(pod):
            for port in container.get("ports") or ():
                if (str(port.get("hostPort")), port.get("protocol") or "TCP") == (number, protocol):
                    del port["hostPort"]

    yield Edit("drop-host-port", f"drop hostPort {number}/{protocol}", 22, drop)


def drop_pod_affinity(near_miss: NearMiss) -> Iterator[Edit]:
    """Drop one required term of pod affinity or anti-affinity."""
    if near_miss.code is InTreeCause.PodAffinityMismatch:
        kind, words = "podAffinity", "affinity"
    elif near_miss.code is InTreeCause.PodAntiAffinityConflict:
        kind, words = "podAntiAffinity", "anti-affinity"
    else:
        return
    key, index = near_miss.about

    def drop(pod: EditedDocument) -> None:
        del pod["spec"]["affinity"][kind][REQUIRED_TERMS][int(index)]

    yield Edit(f"drop-pod-{words}", f"drop the required pod {words} over {key}", 23, drop)


def soften_spread(near_miss: NearMiss) -> Iterator[Edit]:
    """Make a required topology spread constraint a preferred one."""
    if near_miss.code is not InTreeCause.TopologySpreadConflict:
        return
    key, index = near_miss.about

    def soften(pod: EditedDocument) -> None:
        pod["spec"]["topologySpreadConstraints"][int(index)]["whenUnsatisfiable"] = "ScheduleAnyway"

    constraint = near_miss.scheduled_pod.document["spec"]["topologySpreadConstraints"][int(index)]
    if constraint.get("nodeTaintsPolicy") != "Honor":

        def honor(pod: EditedDocument) -> None:
            pod["spec"]["topologySpreadConstraints"][int(index)]["nodeTaintsPolicy"] = "Honor"

        text = f"set nodeTaintsPolicy: Honor for the spread over {key}, so that nodes with other taints do not count"
        yield Edit("honor-taints", text, 20, honor)
    yield Edit("soften-spread", f"set whenUnsatisfiable: ScheduleAnyway for the spread over {key}", 21, soften)


EXISTING_PODS = (
    drop_host_port,
    drop_pod_affinity,
    soften_spread,
)
