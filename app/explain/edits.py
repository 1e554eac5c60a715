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

    `kind` is one of KINDS. `weight` orders fixes of equally many edits by its sum, the smallest first; of edits of one
    kind its fraction is the distance from what the pod asks. `pod` changes the Pod in place. `node`
    returns the changed node named `on`, `policies` the changed policy set. `evicts` are pods that must be evicted for
    the change.
    """

    kind: str
    text: str
    weight: float
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


def lower_to(resource: str, left: int) -> Callable[[Document], None]:
    """Return an edit of the Pod by which its containers together request at most `left` units of a resource.

    The request is lowered, and a limit that stands for it; of extended resources, whose limit is the request, both.
    """

    def lower(pod: Document) -> None:
        for container, amount in lowered(pod, resource, left):
            both = is_extended(resource) or not amount_of(container, resource, "requests")
            for kind in ("requests", "limits") if both else ("requests",):
                if amount_of(container, resource, kind):
                    container["resources"][kind][resource] = amount_text(resource, amount)

    return lower


def lowered(pod: Mapping[str, Any], resource: str, left: int) -> list[tuple[Document, int]]:
    """List the containers that would have to request less so that all of them request `left`, each with its amount.

    Of an extended resource the containers with most give first, and each keeps one unit; of others all give the same
    share. Init containers, which run by themselves, request at most `left`.
    """
    spec = pod.get("spec") or {}
    initial = spec.get("initContainers") or ()
    sidecars = (container for container in initial if container.get("restartPolicy") == "Always")
    running = [one for one in (*(spec.get("containers") or ()), *sidecars) if amount_of(one, resource)]
    total = sum(amount_of(one, resource) for one in running)
    changed: list[tuple[Document, int]] = []
    over = max(0, total - left)
    for container in sorted(running, key=lambda one: -amount_of(one, resource)):
        amount = amount_of(container, resource)
        new = amount - min(over, amount - 1) if is_extended(resource) else amount * min(left, total) // total
        over -= amount - new
        if new != amount:
            changed.append((container, new))
    first = [one for one in initial if one.get("restartPolicy") != "Always" and amount_of(one, resource) > left]
    return [*changed, *((container, left) for container in first)]


def lowered_text(pod: Mapping[str, Any], resource: str, left: int) -> str:
    """Name the containers that would request less, with their amounts; empty where the pod has one container."""
    spec = pod.get("spec") or {}
    if len((*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))) < 2:
        return ""
    names = (f"{container.get('name')} {amount_text(resource, new)}" for container, new in lowered(pod, resource, left))
    return f" ({', '.join(names)})"


def is_extended(resource: str) -> bool:
    """Tell whether a resource is counted in whole units, and its limit is its request, as is so of huge pages too."""
    return "/" in resource or resource.startswith("hugepages-")


def names_of_requesters(pod: Mapping[str, Any], resource: str) -> str:
    """Write ` in container NAME` for the containers that name a resource; empty where the pod has one container."""
    spec = pod.get("spec") or {}
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    names = [str(one.get("name")) for one in containers if names_resource(one, resource)]
    return f" in container{'s' * (len(names) > 1)} {', '.join(names)}" if len(containers) > 1 and names else ""


def names_resource(container: Mapping[str, Any], resource: str) -> bool:
    """Tell whether a container names a resource in its requests or limits."""
    resources = container.get("resources") or {}
    return any(resource in (resources.get(kind) or {}) for kind in ("requests", "limits"))


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


KINDS: Mapping[str, str] = {
    "recreate": "creating the pod again",
    "correct-resource": "another spelling of the resource",
    "correct-product": "another spelling of the product",
    "unname-node": "no spec.nodeName",
    "remove-gates": "no scheduling gates",
    "obey": "what admission wants",
    "drop-annotation": "no such annotation",
    "tolerate": "a toleration",
    "change-selector": "another nodeSelector",
    "drop-selector": "no nodeSelector",
    "drop-affinity": "less node affinity",
    "soften-spread": "a softer topology spread",
    "drop-host-port": "no hostPort",
    "drop-pod-affinity": "no pod affinity",
    "drop-pod-anti-affinity": "no pod anti-affinity",
    "allow-product": "another product",
    "lower-need": "a lower need",
    "drop-need": "no such need",
    "ask-fewer": "fewer GPUs",
    "request-less": "smaller requests",
    "drop-resource": "no such resource",
    "ask-another": "another GPU resource",
    "older-image": "an older image",
    "uncordon": "uncordoning a node",
    "free-gpus": "ending pods",
    "allow-in-policy": "another policy",
    "relax-policy": "no such rule of a policy",
}
"""Each kind of edit, and what an explanation calls it where none of its kind helps."""


def distance(wanted: float, offered: float) -> float:
    """Measure how far an offer is from what is wanted, from 0 to just below 1."""
    return min(0.99, abs(wanted - offered) / max(abs(wanted), abs(offered), 1e-9))
