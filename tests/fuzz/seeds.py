# SPDX-License-Identifier: Apache-2.0
"""Seeds: the good documents that are made bad, from recorded requests of a control plane and from the demo fleets."""

import json
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from app.cluster.files import shipped_policies
from app.demo.sample_fleets import demo_fleet
from tests.builders import CONTRACT, container, gpus, knowledge, pod, policy, review

FLEETS = ("mixed", "sick", "dra", "shared")
Seeds = tuple[bytes, ...]


def as_json(document: Any) -> bytes:
    """Write a document as JSON."""
    return json.dumps(document).encode()


def _recorded(start: str) -> list[Any]:
    return [json.loads(path.read_text("utf-8")) for path in sorted(CONTRACT.glob(f"{start}*.request.json"))]


def _names() -> list[str]:
    """Name some nodes of every fleet, and one that no fleet has."""
    fleets = [
        [document["metadata"]["name"] for document in demo_fleet(name) if document["kind"] == "Node"] for name in FLEETS
    ]
    return [*(name for names in fleets for name in names[::3][:8]), "nowhere"]


def _pods() -> list[dict[str, Any]]:
    """List pods with needs that the recorded ones lack: our annotations, claims, images and old requirements."""
    asked = gpus(
        1, image="nvcr.io/nvidia/pytorch:24.05-py3", env=[{"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12.4"}]
    )
    terms = [
        {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H100-PCIe"]}]}
    ]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    annotations = {"products": "H100,!A10", "cuda": "12.4", "gpu-memory": "20Gi", "sharing": "allowed"}
    return [
        pod(),
        pod(asked, annotations=annotations, tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}]),
        pod(gpus(1, "nvidia.com/mig-1g.10gb"), annotations={"mig-profile": ">=1g.10gb"}, affinity=affinity),
        pod(gpus(2), container({"cpu": "8", "memory": "64Gi"}), initContainers=[gpus(1, restartPolicy="Always")]),
        pod({**container(), "resources": {"claims": [{"name": "gpu"}]}}, resourceClaims=claims),
        pod(gpus(1, "nvidia.com/gpu.shared"), annotations={"workload-class": "inference"}, nodeSelector={"a": "b"}),
    ]


def _reviews() -> Iterable[Any]:
    yield from _recorded("admission-")
    yield from map(review, _pods())
    yield from _policy_reviews()


def _policy_reviews() -> Iterable[Any]:
    mine = policy("mine", "priority: 3, placement: {gpuMemory: 40Gi}")
    labels = {"gpu-usher.io/policy": "true"}
    metadata = {"name": "mine", "namespace": "gpu-usher", "labels": labels}
    maps = {"group": "", "version": "v1", "resource": "configmaps"}
    yield review({"metadata": metadata, "data": {"a.yaml": mine}}, resource=maps, namespace="gpu-usher", name="mine")
    products = {"allow": ["H100", "A100"], "deny": ["NVIDIA-A100-PCIE-40GB"]}
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["train"]}]}
    spec = {"priority": 4, "match": {"podSelector": selector}, "placement": {"products": products}}
    theirs = {"apiVersion": "gpu-usher.io/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": "theirs"}, "spec": spec}
    kinds = {"group": "gpu-usher.io", "version": "v1alpha1", "resource": "gpupolicies"}
    yield review(theirs, resource=kinds, name="theirs")
    policies = {"group": "gpu-usher.io", "version": "v1alpha1", "resource": "gpupolicies"}
    spec = {"priority": 3, "action": "Warn", "placement": {"products": {"allow": ["H100"]}}}
    yield review({"kind": "GPUPolicy", "metadata": {"name": "mine"}, "spec": spec}, resource=policies, namespace=None)


def _questions(start: str) -> Iterable[Any]:
    """Yield calls of filter and prioritize: the recorded ones, shortened, and others about nodes of the fleets."""
    for args in _recorded(f"extender-{start}"):
        for member, inside in (("NodeNames", None), ("Nodes", "items")):
            if args.get(member):
                listed = args[member] if inside is None else args[member][inside]
                del listed[3:]
        yield args
    for document in _pods():
        yield {"Pod": document, "Nodes": None, "NodeNames": _names()}
    nodes = [document for name in FLEETS for document in demo_fleet(name) if document["kind"] == "Node"][::9][:5]
    yield {"Pod": pod(), "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}


def _preemptions() -> Iterable[Any]:
    yield from _recorded("extender-preempt")
    for document in _pods()[:3]:
        victims = {
            name: {"Pods": [{"UID": f"busy-{name}"}, {"UID": "u"}], "NumPDBViolations": 1} for name in _names()[::4]
        }
        yield {"Pod": document, "NodeNameToMetaVictims": victims}


def _of_kind(kind: str) -> list[Any]:
    return [document for name in FLEETS for document in demo_fleet(name) if document["kind"] == kind]


def _claims(kind: str) -> list[Any]:
    request = {"deviceClassName": "gpu.nvidia.com", "count": 1, "selectors": [{"cel": {"expression": "device.x > 1"}}]}
    spec = {"devices": {"requests": [{"name": "a", "exactly": request}, {"name": "b", "firstAvailable": [request]}]}}
    held = {"allocation": {"devices": {"results": [{"driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-0"}]}}}
    metadata = {"name": "one-gpu", "namespace": "team-a", "uid": "c"}
    if kind == "ResourceClaim":
        return [{"kind": kind, "metadata": metadata, "spec": spec, "status": held}]
    return [{"kind": kind, "metadata": metadata, "spec": {"spec": spec}}]


def _snapshots() -> Iterable[Any]:
    for name in FLEETS:
        objects = demo_fleet(name)
        few = [
            document
            for kind in {item["kind"]: 0 for item in objects}
            for document in objects
            if document["kind"] == kind
        ][::7]
        yield {"kind": "List", "apiVersion": "v1", "items": [*few[:8], *_claims("ResourceClaim")]}


def _series() -> list[tuple[dict[str, str], str]]:
    words = {"gpu": "0", "UUID": "GPU-1", "Hostname": "h100-0", "modelName": "NVIDIA H100 80GB HBM3", "err_code": "79"}
    return [({"__name__": metric, **words}, value) for metric in knowledge().dcgm.readings for value in ("0", "79")]


def _answers() -> list[Any]:
    result = [{"metric": words, "value": [1.7e9, value]} for words, value in _series()]
    return [
        {"status": "success", "data": {"resultType": "vector", "result": result}, "warnings": ["one store is down"]}
    ]


def _exposition() -> Seeds:
    lines = ["# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error.", "# TYPE DCGM_FI_DEV_XID_ERRORS gauge"]
    for words, value in _series():
        labels = ",".join(f'{key}="{word}"' for key, word in words.items() if key != "__name__")
        lines.append(f"{words['__name__']}{{{labels}}} {value}")
    return ("\n".join([*lines, ""]).encode(),)


def _events(kinds: tuple[str, ...]) -> list[Any]:
    objects = [document for kind in kinds for document in _of_kind(kind)[::11][:6]]
    claims = [claim for kind in ("ResourceClaim", "ResourceClaimTemplate") for claim in _claims(kind)]
    return [{"type": "ADDED", "object": document} for document in (*objects, *claims)]


def _texts(part: str) -> Seeds:
    """List the shipped policies or cases, as they are written and as JSON, which is YAML too."""
    return tuple(path.read_bytes() for path in sorted(shipped_policies().glob(part)))


_DOCUMENTS: dict[str, Callable[[], Iterable[Any]]] = {
    "review": _reviews,
    "review of a policy": _policy_reviews,
    "filter": lambda: _questions("filter"),
    "prioritize": lambda: _questions("prioritize"),
    "preempt": _preemptions,
    "pod": lambda: [*_pods(), *(review["request"]["object"] for review in _recorded("admission-pod-create"))],
    "node": lambda: _of_kind("Node"),
    "holding": lambda: _of_kind("Pod"),
    "slice": lambda: _of_kind("ResourceSlice"),
    "device class": lambda: _of_kind("DeviceClass"),
    "claim": lambda: _claims("ResourceClaim"),
    "claim template": lambda: _claims("ResourceClaimTemplate"),
    "event": lambda: _events(("Node", "Pod", "ResourceSlice", "DeviceClass", "Namespace", "RuntimeClass")),
    "snapshot": _snapshots,
    "Prometheus": _answers,
}
_TEXTS: dict[str, Callable[[], Seeds]] = {
    "policy": lambda: _texts("*.yaml"),
    "case": lambda: _texts("cases/*.yaml"),
    "exposition": _exposition,
}


@cache
def seeds(kind: str) -> Seeds:
    """Return the good inputs of a kind."""
    return _TEXTS[kind]() if kind in _TEXTS else tuple(map(as_json, _DOCUMENTS[kind]()))
