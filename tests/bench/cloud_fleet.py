# SPDX-License-Identifier: Apache-2.0
"""A fleet of any size as clouds write it, as JSON texts: nodes of the demo fleets, named by EKS, GKE and AKS, and pods.

Nodes are of 20 kB with some 60 labels, and pods of 4 kB, as real ones are (docs/reference/measurements.md#decoding).
"""

import json
import random
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.demo.sample_fleets import demo_fleet
from tests.bench.fleet import PADDING
from tests.bench.following import ENVIRONMENT, IMAGES, MANAGED
from tests.builders import knowledge

CLOUDS = ("eks", "gke", "aks", "mig", "shared")
"""Demo fleets whose nodes are the models; those of `mig` and `shared` are in no cloud, and are named as on EKS."""
MIXED = 8 / 65
"""Share of nodes with GPUs in a large cluster for everything: 8,000 of 65,000."""
ZONES = tuple(f"us-west-2{letter}" for letter in "abcd")
AGENTS = 2
"""Pods of DaemonSets on each node."""
MADE = "2026-11-23T10:00:00Z"
NAMESPACES = 400
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
SHAPES = (("100m", "128Mi"), ("250m", "512Mi"), ("500m", "1Gi"), ("1", "2Gi"), ("2", "8Gi"), ("1500m", "3Gi"))
NAME, NODE, UID, NAMESPACE, VERSION, ZONE = (
    f"%({field})s" for field in ("name", "node", "uid", "namespace", "version", "zone")
)
POOL_PART = {"gke": 2, "aks": 1}
"""Which part of a node's name is that of its pool."""


@dataclass(frozen=True, slots=True)
class Model:
    """A node of which many are made: its cloud, its pool, its JSON, and the resource of its GPUs; empty for none."""

    cloud: str
    pool: str
    text: str
    resource: str


@cache
def models() -> tuple[tuple[Model, ...], tuple[Model, ...]]:
    """Return the models with GPUs, and those without."""
    nodes = [(cloud, item) for cloud in CLOUDS for item in demo_fleet(cloud) if item["kind"] == "Node"]
    made = [_model(cloud, document) for cloud, document in nodes]
    return tuple(model for model in made if model.resource), tuple(model for model in made if not model.resource)


def _model(cloud: str, document: dict[str, Any]) -> Model:
    """Make a model of a demo fleet's node, as large as a real one."""
    metadata, allocatable = document["metadata"], document["status"]["allocatable"]
    resources = [key for key in allocatable if knowledge().families.of(key)]
    labels = {**PADDING, **metadata["labels"], "kubernetes.io/hostname": NODE, "topology.kubernetes.io/zone": ZONE}
    pool = metadata["name"].split("-")[POOL_PART.get(cloud, 0)]
    document["metadata"] = {"name": NODE, "uid": UID, "resourceVersion": "1", "labels": labels}
    document["metadata"]["managedFields"] = MANAGED
    document["status"] |= {"images": IMAGES, "conditions": [{"type": "Ready", "status": "True"}] * 5}
    return Model(cloud, pool, _text(document), max(resources, key=lambda key: int(allocatable[key]), default=""))


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


class CloudFleet:
    """Nodes and pods by index; `gpu_share` is the share of nodes with GPUs, from 0 to 1."""

    def __init__(self, nodes: int, pods: int, gpu_share: float) -> None:
        self.nodes, self.pods, self._share = nodes, pods, gpu_share
        self.names = [self._node_name(index) for index in range(nodes)]

    def has_gpus(self, index: int) -> bool:
        """Tell whether the node of an index has GPUs; those that do are spread evenly."""
        return int((index + 1) * self._share) > int(index * self._share)

    def model(self, index: int) -> Model:
        """Return the model of a node."""
        with_gpus, without = models()
        if self.has_gpus(index):
            return with_gpus[int(index * self._share) % len(with_gpus)]
        return without[index % len(without)]

    def _node_name(self, index: int) -> str:
        """Name a node as its cloud does."""
        model = self.model(index)
        if model.cloud == "gke":
            return f"gke-prod-{model.pool}-{index % 64 + 0x8D5B3C00:08x}-{_base36(index, 4)}"
        if model.cloud == "aks":
            return f"aks-{model.pool}-{12345678 + index % 64}-vmss{_base36(index, 6)}"
        return f"ip-10-{index >> 16}-{index >> 8 & 255}-{index & 255}.us-west-2.compute.internal"

    def node(self, index: int) -> str:
        """Write a Node."""
        fields = {"node": self.names[index], "uid": _uid(index), "zone": ZONES[index % len(ZONES)]}
        return self.model(index).text % fields

    def pod(self, index: int) -> str:
        """Write a running Pod; of the pods of a node with GPUs, the first two after its agents hold one each."""
        node = index % self.nodes
        wants_gpu = index // self.nodes - AGENTS in (0, 1)
        return self.pod_on(node, index, wants_gpu, "Running", 1)

    def pod_on(self, node: int, index: int, wants_gpu: bool, phase: str, version: int) -> str:
        """Write a Pod on a node; while it is Pending it is on none."""
        text = _pod_text(self.model(node).resource if wants_gpu else "", *SHAPES[index % len(SHAPES)], phase)
        return text % {
            "name": f"checkout-api-{index % 997:08x}-{_base36(index, 5)}",
            "node": self.names[node],
            "uid": _uid(index),
            "namespace": f"team-{index % NAMESPACES}",
            "version": version,
        }

    def pod_identity(self, index: int) -> str:
        """Write the metadata of a Pod alone, as in a PartialObjectMetadataList."""
        whole = json.loads(self.pod(index))
        return _text({"metadata": whole["metadata"]})

    def gpu_indexes(self) -> list[int]:
        """Return the indexes of the nodes with GPUs."""
        return [index for index in range(self.nodes) if self.has_gpus(index)]


@cache
def _pod_text(resource: str, cpu: str, memory: str, phase: str) -> str:
    amounts = {"cpu": cpu, "memory": memory, **({resource: "1"} if resource else {})}
    resources = {"requests": amounts, "limits": {resource: "1"} if resource else {"memory": memory}}
    container = {"name": "main", "image": "team/checkout:1", "env": ENVIRONMENT, "resources": resources}
    metadata = {"name": NAME, "namespace": NAMESPACE, "uid": UID, "resourceVersion": VERSION, "creationTimestamp": MADE}
    placed = {} if phase == "Pending" else {"nodeName": NODE}
    document = {
        "metadata": {**metadata, "managedFields": MANAGED[:1]},
        "spec": {**placed, "containers": [container]},
        "status": {"phase": phase},
    }
    return _text(document)


def _uid(index: int) -> str:
    return f"{index:08x}-77a1-4c3e-9d2b-{index:012x}"


def _base36(number: int, width: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = DIGITS[digit] + text
    return text.rjust(width, "0")


def sample(names: list[str], count: int) -> list[str]:
    """Draw names; the same ones in every run."""
    return random.Random(1).sample(names, count)
