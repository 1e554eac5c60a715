# SPDX-License-Identifier: Apache-2.0
"""A live cluster as the doctor reads it: objects as the API server gave them, and what was found out beside them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.doctor.fleet_checks import Finding, FindingLevel
from app.knowledge.families import Families
from app.knowledge.tables import Knowledge
from app.nodes.model import Node

Object = Mapping[str, Any]
AMOUNTS = ("limits", "requests")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A serving certificate. `where`: in which object or at which address it was seen.

    `spent`: share of its life that is over, 0 to 1. `ends`: as a text. `wrong`: why its callers do not accept it.
    """

    where: str
    spent: float
    ends: str
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlippedReport:
    """A pod that runs past us. `kind`: unadmitted or misplaced; `why`: the refusal's code, empty for unadmitted."""

    pod: str
    kind: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is examined. `objects` by kind: a kind that the cluster does not serve is absent.

    `refused`: kinds (and whatever else) that could not be read, with the API server's words. `version`: its
    gitVersion. `ahead_seconds`: how far its clock is ahead of ours; None where it did not say. `rules`: the
    resourceRules of our service account; None where they could not be had. `namespace`: where gpu-usher runs.
    `runtime_classes`: those that its policies give to GPU pods. `reached`: the API server answered; else `refused`
    says what it did.
    """

    knowledge: Knowledge
    objects: Mapping[str, tuple[Object, ...]] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    ahead_seconds: float | None = None
    certificates: tuple[Certificate, ...] = ()
    rules: tuple[Object, ...] | None = None
    slipped: tuple[SlippedReport, ...] = ()
    namespace: str = "gpu-usher"
    runtime_classes: tuple[str, ...] = ("nvidia",)
    reached: bool = True

    def listed(self, kind: str) -> tuple[Object, ...]:
        """Give the objects of a kind; none where it is not served, or was refused."""
        return self.objects.get(kind, ())

    def read(self, kind: str) -> bool:
        """Tell whether a kind could be read."""
        return kind in self.objects

    def gpu_nodes(self) -> tuple[Node, ...]:
        """List the nodes with GPUs."""
        return tuple(node for node in self.nodes if node.has_gpus)


def named(kind: str, item: Object) -> str:
    """Call an object as kubectl does."""
    metadata = item.get("metadata") or {}
    namespace = metadata.get("namespace")
    return f"{kind} {namespace}/{metadata.get('name')}" if namespace else f"{kind} {metadata.get('name')}"


def problem(check: str, what: str, remedy: str, *objects: str, nodes: tuple[str, ...] = ()) -> Finding:
    """Say what hurts now."""
    return Finding(check, FindingLevel.Problem, what, remedy, nodes, objects)


def advice(check: str, what: str, remedy: str, *objects: str, nodes: tuple[str, ...] = ()) -> Finding:
    """Say what could hurt."""
    return Finding(check, FindingLevel.Advice, what, remedy, nodes, objects)


def containers(template: Any) -> Iterator[Object]:
    """Walk a document of any shape, and give everything that stands in a list `containers` or `initContainers`."""
    if isinstance(template, Mapping):
        for key, value in template.items():
            if key in ("containers", "initContainers") and isinstance(value, list):
                yield from (each for each in value if isinstance(each, Mapping))
            else:
                yield from containers(value)
    elif isinstance(template, list):
        for value in template:
            yield from containers(value)


def asks_for_gpus(pod: Object, families: Families) -> bool:
    """Tell whether a pod names a GPU resource, or claims devices through DRA, be it by the name of a resource."""
    spec = pod.get("spec") or {}
    lists = ((each.get("resources") or {}).get(amounts) or () for each in containers(spec) for amounts in AMOUNTS)
    return bool(spec.get("resourceClaims")) or any(
        families.of(name) or families.hands_on(name) or families.implicit_class(name)
        for names in lists
        for name in names
    )
