# SPDX-License-Identifier: Apache-2.0
"""Mixed nodes and mixed pods for the real scheduler, drawn from a seed, and described as the twin describes them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.builders import policy
from tests.controlplane.fleet import registered
from tests.controlplane.kubectl import Object
from tests.e2e.stage import OURS
from tests.placement import twin_draw
from tests.placement.twin import GPU, Part, Policy, RawNode, Wish
from tests.placement.twin_app import container_document, node_document, spec_text
from tests.placement.twin_draw import IMAGES

POOLS: dict[str, tuple[Policy, ...]] = {
    "plain": (),
    "zone-a": (Policy(labels=(("zone", "a"),)),),
    "not-gold": (Policy(expressions=(("tier", "NotIn", ("gold",)), ("zone", "Exists", ()))),),
    "sxm": (Policy(forms=("SXM",)),),
    "strict": (Policy(unknown="Refuse", unhealthy="Refuse", memory="16Gi"),),
    "modern": (Policy(allow=("H100", "A100", "L4", "A10", "H200"), deny=("NVIDIA-A100-SXM4-40GB",), capability="8.0"),),
}
"""The policies of a namespace, as the twin reads them, by its label `pool`."""
SHARES = {"plain": 5}
"""Weight with which a pool is drawn; 1 unless named here."""
GPU_TAINT, TEAM_TAINT = "nvidia.com/gpu", "dedicated"
PRIORITIES: dict[str, Object] = {"urgent": {"value": 1000}, "patient": {"value": 1000, "preemptionPolicy": "Never"}}
"""PriorityClasses; most pods have none, which means the priority 0."""
SIZES = (4, 4, 4, 8)
"""Most units of a node, so that pods of low priority leave too few for those of high priority."""
LABEL_CHARACTERS = 63
"""Longest label value (apimachinery validation LabelValueMaxLength); the longest product names do not fit."""
MEMORIES = ("4Gi", "8GB", "12Gi", "16Gi", "20Gi", "20Gi")
EVERYDAY = (
    Wish(),
    Wish(),
    Wish(amount=2),
    Wish(amount=4),
    Wish(amount=8),
    Wish(amount=8, sharing="Exclusive"),
    Wish(sharing="Exclusive"),
    Wish(sharing="Shared"),
    Wish(products="A100, H100", amount=2),
    Wish(products="!T4"),
    Wish(cuda="12.4"),
    Wish(memory="40Gi"),
    Wish(resource=f"{GPU}.shared"),
    Wish(resource="nvidia.com/mig-1g.10gb"),
    Wish(resource="nvidia.com/mig-3g.40gb", amount=2),
    Wish(parts=(Part(), Part(amount=2), Part(kind="init", amount=4))),
    Wish(sharing="Shared", parts=(Part(), Part(kind="sidecar"))),
)
"""The wishes of most pods, since half of the twin's own wishes fit nowhere."""


@dataclass(frozen=True, slots=True)
class DrawnPod:
    """A pod as its author writes it.

    `admitted` is whether its namespace is one for which the webhooks are called. `tolerated` holds keys of taints.
    `priority` is a class of PRIORITIES, or "". `namespace` is one other than its pool's, or "".
    """

    name: str
    pool: str
    admitted: bool
    wish: Wish
    selector: tuple[tuple[str, str], ...] = ()
    tolerated: tuple[str, ...] = ()
    priority: str = ""
    namespace: str = ""

    @property
    def effective_namespace(self) -> str:
        """Return the name of the pod's namespace."""
        return self.namespace or pool_namespace(self.pool, self.admitted)

    def document(self) -> Object:
        """Write the Pod."""
        wish = self.wish
        stated = {
            "products": wish.products,
            "cuda": wish.cuda,
            "compute-capability": wish.capability,
            "gpu-memory": wish.memory,
            "sharing": None if wish.sharing == "Any" else wish.sharing,
            "mig-profile": wish.mig_profile,
            "interconnect": "NVLink" if wish.nvlink else None,
            **dict(wish.broken),
        }
        annotations = {f"gpu-usher.io/{key}": value for key, value in stated.items() if value is not None}
        parts = [(part.kind, container_document(part, f"c{index}")) for index, part in enumerate(wish.containers)]
        spec: Object = {
            "schedulerName": OURS,
            "containers": [document for kind, document in parts if kind == "app"],
            "initContainers": [document for kind, document in parts if kind != "app"],
            "nodeSelector": dict(self.selector),
            "tolerations": [{"key": key, "operator": "Exists"} for key in self.tolerated],
            **({"priorityClassName": self.priority} if self.priority else {}),
        }
        metadata = {"name": self.name, "namespace": self.effective_namespace, "annotations": annotations}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pool_namespace(pool: str, admitted: bool) -> str:
    """Return the name of a pool's namespace, of which there are two: the webhooks are called for one of them only."""
    return f"{pool}-{'admitted' if admitted else 'bare'}"


def policy_texts() -> Iterator[tuple[str, str]]:
    """Write the policies of POOLS, by file name."""
    for pool, rules in POOLS.items():
        match = f"match: {{namespaceSelector: {{matchLabels: {{pool: {pool}}}}}}}"
        for rule in rules:
            yield f"{pool}.yaml", policy(pool, f"{match}, {spec_text(100, rule)}")


def nodes(draw: random.Random, prefix: str, count: int) -> Iterator[Object]:
    """Draw nodes of every kind that the twin knows; many have the GPU taint, some a team's taint, some are cordoned."""
    for index in range(count):
        document = registered(node_document(f"{prefix}-n{index}", _node(draw)))
        keys = [GPU_TAINT] * (draw.random() < 0.4) + [TEAM_TAINT] * (draw.random() < 0.08)
        spec: Object = {"taints": [{"key": key, "value": "x", "effect": "NoSchedule"} for key in keys]}
        yield {**document, "spec": spec | ({"unschedulable": True} if draw.random() < 0.03 else {})}


def _node(draw: random.Random) -> RawNode:
    """Draw a device plugin's node that the API server accepts, with few units; units that are withdrawn stay so."""
    units = draw.choice(SIZES)
    node = twin_draw.node(draw)
    while node.devices or any(len(value) > LABEL_CHARACTERS for value in node.labels.values()):
        node = twin_draw.node(draw)
    offers = {resource: min(count, units) for resource, count in node.allocatable.items()}
    return replace(
        node,
        allocatable=offers,
        capacity={resource: offers[resource] + node.withdrawn(resource) for resource in offers},
    )


def pods(draw: random.Random, prefix: str, count: int, high: float) -> list[DrawnPod]:
    """Draw pods; `high` is the share with a high priority, one in four of which may not preempt."""
    return [_pod(draw, f"{prefix}-{index}", high) for index in range(count)]


def _pod(draw: random.Random, name: str, high: float) -> DrawnPod:
    pool = draw.choice([name for name in POOLS for _ in range(SHARES.get(name, 1))])
    admitted = draw.random() < 0.5
    zone = (("zone", draw.choice(twin_draw.ZONES)),)
    keys = [GPU_TAINT] * (not admitted and draw.random() < 0.85) + [TEAM_TAINT] * (draw.random() < 0.15)
    return DrawnPod(
        name=name,
        pool=pool,
        admitted=admitted,
        wish=replace(_wish(draw), policies=POOLS[pool]),
        selector=zone if draw.random() < 0.05 else (),
        tolerated=tuple(keys),
        priority=draw.choice(["urgent", "urgent", "urgent", "patient"]) if draw.random() < high else "",
    )


def _wish(draw: random.Random) -> Wish:
    kind = draw.choice(["everyday"] * 4 + ["image", "memory", "memory", "memory", "shared", "shared", "odd", "odd"])
    if kind == "everyday":
        return draw.choice(EVERYDAY)
    if kind == "image":
        return Wish(amount=draw.choice([1, 2]), image=draw.choice(IMAGES))
    if kind == "memory":  # for shares of one GPU, whose memory is used up before its shares
        return Wish(sharing="Shared", memory=draw.choice(MEMORIES))
    if kind == "shared":
        return Wish(resource=f"{GPU}.shared", memory=draw.choice(MEMORIES))
    while (drawn := twin_draw.wish(draw)).claimed:
        pass  # pods of the crowd request resources, and claim nothing
    return replace(drawn, accept="ForwardCompatible")
