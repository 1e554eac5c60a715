# SPDX-License-Identifier: Apache-2.0
"""The answer of explain: everything about one pod, as the commands and the API return it.

A part of it is the DRA equivalent of a device-plugin demand: the ResourceClaimTemplate, and the pod's part (S13).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from app.admission.claim_template import (
    NEWEST_VERSION,
    RequestedDevices,
    claim_template,
    device_class_of,
    not_expressible,
    request_name,
)
from app.explain.claim_funnel import RequestFunnel
from app.explain.counterfactual import Fix
from app.explain.funnel import Step
from app.intree.checks import InTreeCause
from app.knowledge.tables import Knowledge
from app.kube.finished_pods import Ending
from app.policy.demand import Demand
from app.values.reasons import counted, join_with_or

REFUSED_BY_API_SERVER = InTreeCause.RefusedByAPIServer.name
PENDING = "Pending"
"""status.phase of a pod that has not started."""


@dataclass(frozen=True, slots=True)
class Refused:
    """One reason, its remedy, and the number of nodes that it is a reason against.

    `have` are the values of those nodes in place of what the pod wants, the most frequent first; only the primary
    reason has them.
    """

    reason: str
    message: str
    nodes: int
    remedy: str
    have: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The message, and what the nodes have."""
        return f"{self.message}, has {join_with_or(self.have)}" if self.have else self.message


@dataclass(frozen=True, slots=True)
class AdmissionOutcome:
    """What admission did, or would do, with a pod."""

    allowed: bool
    message: str
    warnings: tuple[str, ...]
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FittingNode:
    """A node that fits, with its score for kube-scheduler and the parts of the score.

    `gives` is the kind of unit by resource. `score` is the score on the wire, `total` the weighted mean of
    `scores`, from 0 to 1, with the penalties.
    `scores` are the parts by scorer. `lowered_by` names the penalties that halve the total. `product` and `driver` are
    those of the node, `memory_mib` is the memory of one unit; empty and None where they are not known or not asked for.
    """

    node: str
    gives: Mapping[str, str]
    score: int
    total: float
    scores: Mapping[str, Mapping[str, float]]
    lowered_by: tuple[str, ...]
    product: str = ""
    memory_mib: int | None = None
    driver: str = ""

    @property
    def gpu(self) -> str:
        """What the pod gets there, for people: product, what one unit is, its memory, and driver."""
        units = " and ".join(dict.fromkeys(self.gives.values()))
        units += f" of {round(self.memory_mib / 1024, 1):g} GiB" if self.memory_mib and units else ""
        return ", ".join(filter(None, (self.product, units, self.driver and f"driver {self.driver}")))


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """All objections to one node; none where the pod fits."""

    node: str
    fits: bool
    reasons: tuple[str, ...]
    messages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GangVerdict:
    """Of `pods` waiting pods of a gang, `fits` fit at once; `enough` says whether the gang can start with them.

    `lacks` is the reason that keeps the others, and `change` the smallest change with which the gang fits. `unjudged`
    says why nothing is known of the gang; empty where it was placed. `preempts` says that the gang can start once
    kube-scheduler has preempted pods of lower priority for it.
    """

    gang: str
    pods: int
    fits: int
    bound: int
    enough: bool
    lacks: str = ""
    change: str = ""
    unjudged: str = ""
    preempts: bool = False

    @property
    def sentence(self) -> str:
        """What is said of the gang to people, without a final stop."""
        if self.unjudged:
            return f"whether all {self.pods} waiting pods of {self.gang} fit together is not known ({self.unjudged})"
        if self.fits == self.pods:
            return f"all {self.pods} waiting pods of {self.gang} fit together"
        first = f"{self.fits} of {self.pods} waiting pods of {self.gang} fit together"
        enough = ", which is enough to start it" if self.enough else ""
        change = f"; smallest change with which it fits: {self.change}" if self.change else ""
        preempts = "; kube-scheduler can make room by preempting pods of lower priority" if self.preempts else ""
        who = "the others lack" if self.fits else "they lack"
        return f"{first}{enough}; {who}: {self.lacks}{change}{preempts}"

    @property
    def of_replicas(self) -> str:
        """What is said where the gang is a workload whose pods are placed one by one."""
        wanted, of = self.pods + self.bound, f"pods of {self.gang}"
        if not self.pods:
            return f"all {wanted} {of} have a node"
        have = f"{self.bound} of {wanted} {of} have a node; " if self.bound else ""
        these = f"the {self.pods} without one" if have else f"{wanted} {of}"
        if self.unjudged:
            return f"{have}how many of {these} fit now is not known ({self.unjudged})"
        if self.fits == self.pods:
            return f"{have}{'' if have else 'all '}{these} fit{'s' if self.pods == 1 else ''} now"
        who, change = "the others lack" if self.fits else "they lack", ""
        if self.preempts or self.change:
            change = f"; smallest change with which all fit: {self.change or 'preempting pods of lower priority'}"
        return (
            f"{have}{self.fits or 'none'} of {these} fit{'' if self.fits > 1 else 's'} now; {who}: {self.lacks}{change}"
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything about one pod.

    `refused` counts nodes by the first reason of gpu-usher's filters, `in_tree` by each of kube-scheduler's own.
    `primary` is the reason to look at first; None where the pod fits somewhere. `also` are the reasons of the other
    nodes that the pod could use but for them.
    `bound` is the node that the pod has already, with today's objections to it; None where it has none. The pod's own
    resources count as released. `unhealthy` are the devices that it holds and its kubelet reports as unhealthy, each
    with its resource. `fixes` are ordered, the smallest first. `verdicts` is None unless it was requested.
    `unjudged` are the constraints that only kube-scheduler can judge. `ending` is how a pod of the cluster ended; it is
    then judged as if it were created again. `devices` is the funnel of each request of its ResourceClaims, where these
    get no devices on some node. `gang` is how many of the pods of its gang fit together,
    and `replicas` how many pods of the workload that was asked about fit now. `tried` are the kinds of
    changes that were tried for `fixes`, in words. `not_started` says why it does not start though it has a node or
    devices, each with the reason of the kubelet's Event, and `phase` is its status.phase. `notes` say which containers
    would run without the devices that the pod claims, what the conditions of its node report, what ends it, and what no
    score shows. `asked_by` are the units that each container asks for, by resource and by name of the container.
    `live` says that the pod exists, so that it is judged by placement alone; `admission.actions` are then what
    admission has changed in it. `claims` are the most devices by DeviceClass, and `claimed` says in words what claims
    ask for, alternatives too.
    """

    pod: str
    policies: tuple[str, ...]
    asks: Mapping[str, int]
    needs: tuple[str, ...]
    origins: tuple[Mapping[str, str], ...]
    conflicts: tuple[str, ...]
    nodes: int
    fits: int
    primary: Refused | None
    refused: tuple[Refused, ...]
    in_tree: tuple[Refused, ...]
    funnel: tuple[Step, ...]
    fixes: tuple[Fix, ...]
    best: tuple[FittingNode, ...]
    claims: Mapping[str, Any]
    dra: Any
    unsourced: tuple[str, ...]
    unjudged: tuple[str, ...]
    admission: AdmissionOutcome
    verdicts: tuple[NodeVerdict, ...] | None = None
    bound: NodeVerdict | None = None
    ending: Ending | None = None
    unhealthy: tuple[str, ...] = ()
    not_started: tuple[str, ...] = ()
    devices: tuple[RequestFunnel, ...] = ()
    notes: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    gang: GangVerdict | None = None
    replicas: GangVerdict | None = None
    asked_by: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    phase: str = ""
    claimed: tuple[str, ...] = ()
    also: tuple[Refused, ...] = ()
    live: bool = False

    @property
    def headline(self) -> str:
        """The answer in one line, without the pod's name: whether the pod fits, and what keeps it from the nodes."""
        verdict = f"fits on {self.fits or 'none'} of {counted(self.nodes, 'node')}"
        if self.primary is None:
            return verdict if self.nodes else "fits nowhere: there are no nodes"
        if self.primary.reason == REFUSED_BY_API_SERVER:
            verdict = "is refused by the API server"
        causes = (self.primary, *self.also)
        of = f"; of the {sum(each.nodes for each in causes)} that come nearest" if self.also else ""
        words = (f"{each.sentence} ({each.reason}, {counted(each.nodes, 'node')})" for each in causes)
        return f"{verdict}{of}: {'; '.join(words)}"

    @property
    def place(self) -> str:
        """Say which node the pod has, and whether it has started there; empty where it has none."""
        if self.bound is None:
            return ""
        return f"bound to {self.bound.node}" + (", not started" if self.phase == PENDING else "")

    @property
    def no_change(self) -> str:
        """Say that no change was found, which changes were tried, and what helps in general."""
        remedy = f"; {self.primary.remedy}" if self.primary and self.primary.remedy else ""
        if self.tried:
            return f"no small change helps (tried: {', '.join(self.tried)}){remedy}"
        return f"no small change is known to help{remedy}"


class _Dumper(yaml.SafeDumper):
    """Writes CEL as a YAML block, so that its quotes are not doubled."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "'" in text else None)


_Dumper.add_representer(str, _text)


def templates_as_yaml(*templates: Any) -> str:
    """Write templates as YAML documents, with CEL as blocks."""
    return yaml.dump_all(templates, Dumper=_Dumper, sort_keys=False)


def dra_equivalent(
    demand: Demand, knowledge: Knowledge, name: str = "gpus", version: str = NEWEST_VERSION
) -> dict[str, Any]:
    """Write the ResourceClaimTemplate for the same devices, the pod's part of it, and what DRA cannot express.

    `version` is the version of resource.k8s.io that the template is written in, one that the cluster serves.
    In the result `template` and `pod` are None where no requested resource has a DeviceClass. `yaml` is the template
    as lines of text for people. `not_expressible` are sentences.
    """
    devices = tuple(_devices(demand, knowledge))
    template = claim_template(devices, demand, knowledge, name, version)
    pod = {
        "resourceClaims": [{"name": name, "resourceClaimTemplateName": name}],
        "containers": [{"name": "main", "resources": {"claims": [{"name": name}]}}],
    }
    return {
        "template": template if devices else None,
        "pod": pod if devices else None,
        "yaml": templates_as_yaml(template).splitlines() if devices else [],
        "not_expressible": [*_without_class(demand, knowledge), *not_expressible(demand, devices)],
    }


def _devices(demand: Demand, knowledge: Knowledge) -> Iterator[RequestedDevices]:
    """List one request for each resource that has a DeviceClass, for the pod as a whole."""
    served = [(resource, count, device_class_of(resource, demand, knowledge)) for resource, count in demand.resources]
    with_class = [(resource, count, place) for resource, count, place in served if place is not None]
    for resource, count, (device_class, profiles) in with_class:
        name = request_name(resource, several=len(with_class) > 1)
        yield RequestedDevices(name, resource, count, device_class, profiles)


def _without_class(demand: Demand, knowledge: Knowledge) -> Iterator[str]:
    for resource, count in demand.resources:
        if device_class_of(resource, demand, knowledge) is None:
            yield f"{count} x {resource}: no DeviceClass of its family is known"
