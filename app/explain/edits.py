# SPDX-License-Identifier: Apache-2.0
"""Edits: one change of a pod, of a policy or of the fleet, and what a remedy looks at when it proposes one."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.explain.funnel import Objection
from app.explain.survey import ClusterSnapshot, ScheduledPod
from app.intree.checks import InTreeCause, InTreeRefusal
from app.kube.gpu_usage import GPUUsage
from app.kube.pod_requests import units
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.values.reasons import Code

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A node that the pod misses, and one of the things that stand between them."""

    scheduled_pod: ScheduledPod
    node: Node
    objection: Objection
    world: ClusterSnapshot

    @property
    def code(self) -> InTreeCause | Code:
        """What stands between them."""
        return self.objection.cause if isinstance(self.objection, InTreeRefusal) else self.objection.code

    @property
    def about(self) -> tuple[str, ...]:
        """What it is about; the filters' reasons say that in their text only."""
        return self.objection.about if isinstance(self.objection, InTreeRefusal) else ()


@dataclass(frozen=True, slots=True)
class Edit:
    """One change. `weight`: among edits of one sort, smaller ones come first.

    `pod` changes the Pod in place; `node` gives the node `on`, `policies` the policy set, as they would be.
    `evicts`: pods that must go for it.
    """

    kind: str
    text: str
    weight: int
    pod: Callable[[Document], None] | None = None
    node: Callable[[Node], Node] | None = None
    on: str = ""
    policies: Callable[[PolicySet], PolicySet] | None = None
    evicts: tuple[GPUUsage, ...] = ()

    @property
    def of(self) -> str:
        """What is edited."""
        return "fleet" if self.node else "policy" if self.policies else "pod"


Remedy = Callable[[NearMiss], Iterator[Edit]]


def edited(document: Mapping[str, Any], edits: tuple[Edit, ...]) -> Document:
    """Give the Pod as it would be; a spec and its lists are there to be edited, be they empty."""
    changed: Document = copy.deepcopy(dict(document))
    spec = changed["spec"] = changed.get("spec") or {}
    spec |= {name: spec.get(name) or [] for name in ("containers", "initContainers", "tolerations")}
    for edit in edits:
        if edit.pod is not None:
            edit.pod(changed)
    return changed


def containers_of(pod: Document) -> Iterator[Document]:
    """Iterate over the init containers and the containers."""
    yield from (*pod["spec"]["initContainers"], *pod["spec"]["containers"])


def hungriest(pod: Document, resource: str) -> Document:
    """Give the container that asks most of a resource; one that is not in the pod where there are none."""
    return max(pod["spec"]["containers"], key=lambda each: asked(each, resource), default={})


def asked(container: Mapping[str, Any], resource: str, kind: str | None = None) -> int:
    """Count what a container says of a resource. `kind`: limits or requests; None: what it asks."""
    resources = container.get("resources") or {}
    said = (
        (resources.get(kind) or {})
        if kind
        else {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    )
    return units(resource, str(said[resource])) if resource in said else 0


def amount_text(resource: str, amount: int) -> str:
    """Write an amount as people do."""
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    if resource in ("memory", "ephemeral-storage") and amount >= 1 << 30:
        return f"{amount / (1 << 30):.4g}Gi" if amount % (1 << 30) else f"{amount >> 30}Gi"
    return str(amount)


def annotated(key: str, value: str | None) -> Callable[[Document], None]:
    """Set an annotation, or remove it."""

    def annotate(pod: Document) -> None:
        metadata = pod["metadata"] = pod.get("metadata") or {}
        kept = {name: each for name, each in (metadata.get("annotations") or {}).items() if name != key}
        metadata["annotations"] = kept if value is None else {**kept, key: value}

    return annotate
