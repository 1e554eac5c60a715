# SPDX-License-Identifier: Apache-2.0
"""Where a pod could run, judged without the product, on nodes that are up and on an autoscaler's node templates.

The rules are kube-scheduler's NodeAffinity, TaintToleration and the count of GPUs, in their simplest form. CPU, memory
and other resources are assumed to suffice.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import yaml

from tests.corpus.manifests import Object, amounts
from tests.corpus.shapes import FOLDER
from tests.oracles.node_affinity import REQUIRED, eligible
from tests.oracles.quantities import quantity


@dataclass(frozen=True)
class Place:
    """A node that is up, or (`template`) the template of nodes that an autoscaler may add to a group."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    offers: Mapping[str, int] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    template: bool = False

    def document(self) -> Object:
        """Write the place as a Node."""
        return {
            "kind": "Node",
            "metadata": {"name": self.name, "labels": dict(self.labels)},
            "spec": {"taints": [dict(taint) for taint in self.taints]},
            "status": {"allocatable": {"cpu": "64", **{key: str(amount) for key, amount in self.offers.items()}}},
        }


@dataclass(frozen=True)
class Cluster:
    """One of the eight fleets. `classes` are its RuntimeClasses; fleets.yaml explains `tolerated`."""

    name: str
    nodes: tuple[Place, ...]
    groups: tuple[Place, ...]
    classes: tuple[str, ...]
    tolerated: tuple[str, ...]

    def objects(self) -> list[Object]:
        """Write the objects that exist in the cluster."""
        classes: list[Object] = [{"kind": "RuntimeClass", "metadata": {"name": name}} for name in self.classes]
        return [node.document() for node in self.nodes] + classes

    def sent(self, pod: Object) -> Object:
        """Return the pod as this cluster's API server sends it to webhooks."""
        own = [{"key": name, "operator": "Exists"} for name in amounts(pod) if name in self.tolerated]
        if not own:
            return pod
        spec = pod["spec"]
        return {**pod, "spec": {**spec, "tolerations": [*(spec.get("tolerations") or []), *own]}}

    def places(self, pod: Object) -> Iterator[Place]:
        """Yield the nodes, the group templates and, if there are groups, a group made for the pod."""
        yield from self.nodes
        yield from self.groups
        if self.groups:
            yield group_for(pod, self.groups[-1])


def clusters() -> tuple[Cluster, ...]:
    """Read the eight fleets."""
    rows = yaml.safe_load((FOLDER / "data" / "fleets.yaml").read_text("utf-8"))
    return tuple(
        Cluster(
            name,
            tuple(_place(node, False) for node in row["nodes"]),
            tuple(_place(group, True) for group in row["groups"]),
            tuple(row["classes"]),
            tuple(row.get("tolerated", ())),
        )
        for name, row in rows.items()
    )


def _place(row: Object, template: bool) -> Place:
    name = f"group {row['name']}" if template else row["name"]
    return Place(name, row.get("labels") or {}, row.get("offers") or {}, tuple(row.get("taints") or ()), template)


def group_for(pod: Object, group: Place) -> Place:
    """Make a group whose nodes have all labels and GPUs that the pod itself selects and asks for."""
    spec = pod["spec"]
    labels = {**group.labels, **(spec.get("nodeSelector") or {})}
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}
    for term in (affinity.get("nodeSelectorTerms") or [])[:1]:
        for expression in term.get("matchExpressions") or ():
            if expression.get("operator") in ("In", "Exists"):
                labels[expression["key"]] = (expression.get("values") or ["true"])[0]
    offers = {name: max(8, int(_total(quantities))) for name, quantities in amounts(pod).items()}
    return Place("group made for the pod", labels, offers, template=True)


def could_run(pod: Object, place: Place) -> bool:
    """Tell whether the pod passes kube-scheduler's filters on an empty node of this kind."""
    requested = amounts(pod)
    enough = all(_total(quantities) <= place.offers.get(name, 0) for name, quantities in requested.items())
    tolerations = pod["spec"].get("tolerations") or []
    hard = [taint for taint in place.taints if taint["effect"] in ("NoSchedule", "NoExecute")]
    tolerated = all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in hard)
    return enough and tolerated and eligible(pod, place.labels, place.name)


def _total(amounts_asked: list[str]) -> Fraction:
    return sum((Fraction(quantity(amount) or 0) for amount in amounts_asked), Fraction(0))


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    """Tell whether a toleration matches a taint, as core/v1 Toleration.ToleratesTaint does."""
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == taint.get("value", "")
