# SPDX-License-Identifier: Apache-2.0
"""Edits: one change of a pod, of a policy or of the fleet; and the near miss for which edits are proposed."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.explain.funnel import Objection
from app.explain.survey import ClusterSnapshot, ScheduledPod
from app.intree.causes import InTreeCause, InTreeRefusal
from app.kube.gpu_usage import GPUUsage
from app.kube.pod_requests import quantity_units
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.values.reasons import Code

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A node that refuses the pod, with one of its objections, which an edit would have to remove."""

    scheduled_pod: ScheduledPod
    node: Node
    objection: Objection
    snapshot: ClusterSnapshot

    @property
    def code(self) -> InTreeCause | Code:
        """The cause or code of the objection."""
        return self.objection.cause if isinstance(self.objection, InTreeRefusal) else self.objection.code

    @property
    def about(self) -> tuple[str, ...]:
        """What a kube-scheduler objection is about; empty for the filters' reasons, which say it in their text only."""
        return self.objection.about if isinstance(self.objection, InTreeRefusal) else ()


@dataclass(frozen=True, slots=True)
class Edit:
    """One change.

    `weight` orders fixes of equally many edits by its sum, the smallest first. `pod` changes the Pod in place. `node`
    returns the changed node named `on`, `policies` the changed policy set. `evicts` are pods that must be evicted for
    the change.
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
        """What the edit changes: fleet, policy or pod."""
        return "fleet" if self.node else "policy" if self.policies else "pod"


EditProposer = Callable[[NearMiss], Iterator[Edit]]
"""A function that proposes edits for a near miss; none if its objection is not one that the function is for."""


def edited(document: Mapping[str, Any], edits: tuple[Edit, ...]) -> Document:
    """Return the edited Pod; its spec and the lists in it exist then, empty or not, so that an edit can extend them."""
    changed: Document = copy.deepcopy(dict(document))
    spec = changed["spec"] = changed.get("spec") or {}
    spec |= {name: spec.get(name) or [] for name in ("containers", "initContainers", "tolerations")}
    for edit in edits:
        if edit.pod is not None:
            edit.pod(changed)
    return changed


def containers_of(pod: Document) -> Iterator[Document]:
    """Iterate over the init containers and the containers of a Pod."""
    yield from (*pod["spec"]["initContainers"], *pod["spec"]["containers"])


def largest_requester(pod: Document, resource: str) -> Document:
    """Return the container that requests most of a resource; an empty one, outside the pod, where there are none."""
    return max(pod["spec"]["containers"], key=lambda container: amount_of(container, resource), default={})


def amount_of(container: Mapping[str, Any], resource: str, kind: str | None = None) -> int:
    """Read a container's amount of a resource, 0 where it has none. `kind` is limits or requests; None: the request."""
    resources = container.get("resources") or {}
    amounts = (
        (resources.get(kind) or {})
        if kind
        else {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    )
    return quantity_units(resource, str(amounts[resource])) if resource in amounts else 0


def amount_text(resource: str, amount: int) -> str:
    """Write an amount in the unit that people use."""
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    if resource in ("memory", "ephemeral-storage") and amount >= 1 << 30:
        return f"{amount / (1 << 30):.4g}Gi" if amount % (1 << 30) else f"{amount >> 30}Gi"
    return str(amount)


def set_annotation(key: str, value: str | None) -> Callable[[Document], None]:
    """Return an edit of the Pod that sets an annotation, or removes it (None)."""

    def annotate(pod: Document) -> None:
        metadata = pod["metadata"] = pod.get("metadata") or {}
        others = {name: text for name, text in (metadata.get("annotations") or {}).items() if name != key}
        metadata["annotations"] = others if value is None else {**others, key: value}

    return annotate
