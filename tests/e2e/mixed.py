# SPDX-License-Identifier: Apache-2.0
"""A mixed fleet of any size, and the questions that an independent oracle answers about it."""

import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.demo.sample_fleets import demo_fleet
from tests.controlplane.fleet import registered
from tests.controlplane.kubectl import Object
from tests.e2e.stage import Service, gpu_pod
from tests.placement.twin import Wish, could_serve

TORCH = "nvcr.io/nvidia/pytorch:24.05-py3"
"""CUDA 12.4: runs on drivers from 525.60.13 on."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A pod to make, and the same wish in the oracle's words."""

    name: str
    wish: Wish
    annotations: dict[str, str] = field(default_factory=dict)
    image: str = "train:1"

    def pod(self, name: str, where: str, **more: Any) -> Object:
        """Make the pod."""
        limits = {self.wish.resource: self.wish.amount}
        return gpu_pod(name, where, limits, annotations=self.annotations, image=self.image, **more)


def ask(name: str, annotations: dict[str, str] | None = None, **wish: Any) -> Ask:
    """Make an ask whose annotations say what the wish says."""
    found = annotations or {}
    words = {"products": "products", "cuda": "cuda", "sharing": "sharing", "gpu-memory": "memory"}
    said = {words[key]: value for key, value in found.items()}
    return Ask(name, Wish(**{**said, **wish}), found, wish.get("image", "train:1"))


ASKS = (
    ask("any GPU"),
    ask("two", amount=2),
    ask("A10 and never A100", {"products": "A10"}),
    ask("A100 or H100", {"products": "A100, H100"}, amount=2),
    ask("a whole GPU", {"sharing": "Exclusive"}),
    ask("a shared one", {"sharing": "Shared"}),
    ask("a new driver by the image", image=TORCH),
    ask("a new driver by annotation", {"cuda": "12.4"}),
    ask("much memory", {"gpu-memory": "40Gi", "sharing": "Exclusive"}),
    ask("a slice", resource="nvidia.com/mig-1g.10gb"),
)


def fleet(count: int) -> Iterator[Object]:
    """Make that many nodes: the demo fleet's, again and again."""
    models = [each for each in demo_fleet() if each["kind"] == "Node"]
    for index in range(count):
        model = models[index % len(models)]
        name = f"{model['metadata']['name']}-{index // len(models)}"
        yield registered({**model, "metadata": {**model["metadata"], "name": name}})


def serves(asked: Ask, node: Object) -> bool:
    """Ask the oracle whether a node could ever serve an ask."""
    offers = {key: int(value) for key, value in node["status"]["allocatable"].items() if key.startswith("nvidia.com/")}
    return could_serve(asked.wish, node["metadata"].get("labels") or {}, offers)


def asked_of(service: Service, verb: str, pod: Object, names: Iterable[str]) -> Any:
    """Ask an extender verb as the scheduler does."""
    with httpx.Client(verify=ssl.create_default_context(cafile=str(service.ca)), trust_env=False) as client:
        answer = client.post(f"{service.url}/scheduler/{verb}", json={"Pod": pod, "NodeNames": sorted(names)})
    return answer.json()


def winner(service: Service, pod: Object, names: Iterable[str]) -> str:
    """Ask the extender itself which node it would have."""
    fitting = asked_of(service, "filter", pod, names)["NodeNames"]
    return next(str(each["Host"]) for each in asked_of(service, "prioritize", pod, fitting) if each["Score"] == 10)
