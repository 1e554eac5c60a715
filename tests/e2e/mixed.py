# SPDX-License-Identifier: Apache-2.0
"""A mixed fleet of any size, and pods for which an independent oracle says which nodes can serve them."""

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
class PodRequest:
    """A pod to create, and the same request in the form that the oracle reads."""

    name: str
    wish: Wish
    annotations: dict[str, str] = field(default_factory=dict)
    image: str = "train:1"

    def pod(self, name: str, namespace: str, **more: Any) -> Object:
        """Write the Pod."""
        limits = {self.wish.resource: self.wish.amount}
        return gpu_pod(name, namespace, limits, annotations=self.annotations, image=self.image, **more)


def make_request(name: str, annotations: dict[str, str] | None = None, **wish: Any) -> PodRequest:
    """Make a request whose annotations say what its wish says."""
    stated = annotations or {}
    words = {"products": "products", "cuda": "cuda", "sharing": "sharing", "gpu-memory": "memory"}
    pod_wish = {words[key]: value for key, value in stated.items()}
    return PodRequest(name, Wish(**{**pod_wish, **wish}), stated, wish.get("image", "train:1"))


REQUESTS = (
    make_request("any GPU"),
    make_request("two", amount=2),
    make_request("A10 and never A100", {"products": "A10"}),
    make_request("A100 or H100", {"products": "A100, H100"}, amount=2),
    make_request("a whole GPU", {"sharing": "Exclusive"}),
    make_request("a shared one", {"sharing": "Shared"}),
    make_request("a new driver by the image", image=TORCH),
    make_request("a new driver by annotation", {"cuda": "12.4"}),
    make_request("much memory", {"gpu-memory": "40Gi", "sharing": "Exclusive"}),
    make_request("a slice", resource="nvidia.com/mig-1g.10gb"),
)


def fleet(count: int) -> Iterator[Object]:
    """Make that many nodes by repeating those of the demo fleet."""
    models = [document for document in demo_fleet() if document["kind"] == "Node"]
    for index in range(count):
        model = models[index % len(models)]
        name = f"{model['metadata']['name']}-{index // len(models)}"
        yield registered({**model, "metadata": {**model["metadata"], "name": name}})


def serves(pod_request: PodRequest, node: Object) -> bool:
    """Tell whether, by the oracle, a node could ever serve a request."""
    offers = {key: int(value) for key, value in node["status"]["allocatable"].items() if key.startswith("nvidia.com/")}
    return could_serve(pod_request.wish, node["metadata"].get("labels") or {}, offers)


def call_extender(service: Service, verb: str, pod: Object, names: Iterable[str]) -> Any:
    """Call a verb of the extender as kube-scheduler does."""
    with httpx.Client(verify=ssl.create_default_context(cafile=str(service.ca)), trust_env=False) as client:
        answer = client.post(f"{service.url}/scheduler/{verb}", json={"Pod": pod, "NodeNames": sorted(names)})
    return answer.json()


def winners(service: Service, pod: Object, names: Iterable[str]) -> set[str]:
    """Return the nodes to which the extender itself gives the highest score, several where they are equally good."""
    fitting = call_extender(service, "filter", pod, names)["NodeNames"]
    scores = call_extender(service, "prioritize", pod, fitting)
    return {str(score["Host"]) for score in scores if score["Score"] == 10}
