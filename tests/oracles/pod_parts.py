# SPDX-License-Identifier: Apache-2.0
"""Random parts of Pods: containers with amounts, environment and mounts; tolerations; affinity."""

import random
from collections.abc import Callable
from typing import Any

from tests.oracles.node_affinity import REQUIRED

Part = dict[str, Any]

AMOUNTS: tuple[Any, ...] = (
    *["1"] * 14,
    *["2", "2", "4", "8", "1000m", "2000m", "1.0", "0", "0", 1, 2, 0],
    *["500m", "-1", "0.5", "1e3", "1k", "1Ki", "16", "99999999999999999999", "9223372036854775807", "1n", "+1", "1E"],
)
PLAIN = {"cpu": ("2", "100m", "1"), "memory": ("8Gi", "512Mi", "1e9"), "example.com/dongle": ("1",)}
GPUS = (
    *["nvidia.com/gpu"] * 10,
    *["nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb.shared"],
    *["amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe", "nvidia.com/mig-odd", "nvidia.com/pgpu"],
)
IMAGES = (
    *["registry.example.com/train:1", "busybox", "", "sha256:abc", "nvcr.io/nvidia/pytorch:24.05-py3"],
    *["nvcr.io/nvidia/pytorch:25.03-py3", "nvcr.io/nvidia/pytorch:99.99-py3", "nvidia/cuda:12.4.1-base-ubuntu22.04"],
    *["nvidia/cuda:13.0.0-devel-ubi9", "docker.io/nvidia/cuda:11.4.3-base", "pytorch/pytorch:2.4.0-cuda12.4-cudnn9"],
    *["localhost:5000/nvidia/cuda:12.8.0@sha256:00", "nvidia/cuda:latest", "vllm/vllm-openai:v0.6.0", "a:b:c/d"],
)
VARIABLES = {
    "NVIDIA_VISIBLE_DEVICES": ("all", "none", "void", "", "0", "0,1", "GPU-8f2b", "MIG-GPU-8f2b/1/0"),
    "NVIDIA_DRIVER_CAPABILITIES": ("all", "compute,utility", "", "nonsense"),
    "NVIDIA_REQUIRE_CUDA": ("cuda>=12.4", "cuda>=11.8 brand=tesla,driver>=470,driver<471", "driver>=535", "?", ""),
    "NVIDIA_REQUIRE_DRIVER": ("driver>=550",),
    "NVIDIA_DISABLE_REQUIRE": ("true", "1", "false", ""),
    "NVIDIA_MIG_CONFIG_DEVICES": ("all",),
    "CUDA_VISIBLE_DEVICES": ("0",),
    "HOME": ("/root", "grün"),
}
LABELS = {
    "zone": ("a", "b"),
    "nvidia.com/gpu.product": ("NVIDIA-H100-80GB-HBM3", "Tesla-T4"),
    "nvidia.com/gpu.memory": ("15360", "81559"),
    "karpenter.sh/nodepool": ("gpus",),
    "node.kubernetes.io/instance-type": ("p5.48xlarge",),
}
TOLERATIONS: tuple[Part, ...] = (
    {"operator": "Exists"},
    {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
    {"key": "nvidia.com/gpu", "operator": "Exists"},
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "value": "present"},
    {"key": "nvidia.com/gpu", "value": None, "operator": None, "effect": None},
    {"key": "nvidia.com/gpu", "operator": "Equal", "value": "", "effect": "NoExecute"},
    {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
    {"key": "odd", "operator": "Is", "value": "x"},
    {"key": "odd", "operator": "Exists", "value": "x", "effect": "Never"},
    {"value": "without key"},
    {},
)


def maybe(draw: random.Random, share: float, make: Callable[[], Any], part: Part, key: str) -> None:
    """Set a member with this probability; otherwise leave it out or, less often, set it to null."""
    if draw.random() < share:
        part[key] = make()
    elif draw.random() < 0.1:
        part[key] = None


def container(draw: random.Random, name: str, volumes: list[str]) -> Part:
    """Draw a container."""
    part: Part = {"name": name, "image": draw.choice(IMAGES)}
    maybe(draw, 0.9, lambda: resources(draw), part, "resources")
    maybe(draw, 0.4, lambda: environment(draw), part, "env")
    if volumes:
        maybe(draw, 0.6, lambda: mounts(draw, volumes), part, "volumeMounts")
    if draw.random() < 0.05:
        part["securityContext"] = {"privileged": draw.random() < 0.7}
    if draw.random() < 0.05:
        part["x-unknown"] = {"a/b~c": [1, None, {"deep": True}]}
    return part


def resources(draw: random.Random) -> Part:
    """Draw amounts with requests only, limits only, equal, defaulted or different sides, and null or empty ones."""
    sides: dict[str, Part] = {"requests": {}, "limits": {}}
    for name, amounts in PLAIN.items():
        if draw.random() < 0.15:
            sides[draw.choice(["requests", "limits"])][name] = draw.choice(amounts)
    for _ in range(draw.choice([0, 1, 1, 1, 1, 1, 1, 2])):
        name, amount = draw.choice(GPUS), draw.choice(AMOUNTS)
        shape = draw.choice(["equal", "equal", "equal", "requests", "requests", "limits", "different"])
        if shape != "limits":
            sides["requests"][name] = amount
        if shape != "requests":
            sides["limits"][name] = draw.choice(AMOUNTS) if shape == "different" else amount
    return {key: side or draw.choice([side, side, None]) for key, side in sides.items() if side or draw.random() < 0.2}


def environment(draw: random.Random) -> list[Part]:
    """Draw variables, some of NVIDIA's; some come from another object, and some occur twice."""
    variables: list[Part] = []
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        name = draw.choice(list(VARIABLES))
        shape = draw.random()
        if shape < 0.1:
            variables.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}})
        elif shape < 0.15:
            variables.append({"name": name})
        else:
            variables.append({"name": name, "value": draw.choice(VARIABLES[name])})
    return variables


def mounts(draw: random.Random, volumes: list[str]) -> list[Part]:
    """Draw mounts of the volumes, with different paths."""
    paths = ["/dev/shm", "/dev/shm/", "/var/run/nvidia-container-devices/all", "/data", "/dev"]
    chosen = draw.sample(paths, draw.choice([1, 1, 2]))
    return [{"name": draw.choice(volumes), "mountPath": path} for path in chosen]


def volume_list(draw: random.Random) -> list[Part]:
    """Draw volumes with different names."""
    shapes: list[Part] = [
        {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {"emptyDir": {"medium": "Memory"}},
        {"emptyDir": {}},
        {"emptyDir": {"sizeLimit": "500m"}},
        {"hostPath": {"path": "/dev/null"}},
        {"hostPath": {"path": "/dev/shm"}},
        {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
    ]
    names = draw.sample(["shm", "dshm", "data", "cache", "gpu-usher-shm", "kube-api-access-x"], draw.choice([1, 1, 2]))
    return [{"name": name, **draw.choice(shapes)} for name in names]


def tolerations(draw: random.Random) -> list[Part]:
    """Draw tolerations, valid and invalid."""
    weights = [3] * (len(TOLERATIONS) - 4) + [1] * 4
    return [dict(toleration) for toleration in draw.choices(TOLERATIONS, weights, k=draw.choice([0, 1, 1, 2, 3]))]


def affinity(draw: random.Random) -> Part | None:
    """Draw an affinity of any shape."""
    kind = draw.choice(["empty", "null", "pod", "required", "required", "required", "preferred", "both"])
    node: Part = {}
    if kind in ("required", "both"):
        terms = [_term(draw) for _ in range(draw.choice([1, 1, 1, 2, 3, 4]))]
        node[REQUIRED] = draw.choice([*[{"nodeSelectorTerms": terms}] * 9, None])
    if kind in ("preferred", "both"):
        preferred = [{"weight": draw.choice([1, 50, 100]), "preference": _term(draw)}]
        node["preferredDuringSchedulingIgnoredDuringExecution"] = draw.choice([preferred, preferred, [], None])
    made: Part = {"nodeAffinity": node} if node else {"nodeAffinity": draw.choice([None, {}])}
    if kind == "pod" or draw.random() < 0.1:
        made["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": []}
    return {"empty": {}, "null": None}.get(kind, made)


def _term(draw: random.Random) -> Part:
    if draw.random() < 0.1:
        return draw.choice([{}, {"matchExpressions": []}, {"matchExpressions": None}, {"matchFields": []}])
    term: Part = {}
    if draw.random() < 0.85:
        term["matchExpressions"] = [_expression(draw) for _ in range(draw.choice([1, 1, 2]))]
    if draw.random() < 0.2:
        term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": ["h100-0"]}]
    return term


def _expression(draw: random.Random) -> Part:
    key = draw.choice(list(LABELS))
    operator = draw.choice(["In", "In", "NotIn", "Exists", "DoesNotExist", "Gt"])
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator}
    return {"key": key, "operator": operator, "values": ["5"] if operator == "Gt" else [draw.choice(LABELS[key])]}
