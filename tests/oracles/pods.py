# SPDX-License-Identifier: Apache-2.0
"""Random Pods as the API server sends them to a mutating webhook: decoded and defaulted, but not validated.

The shapes are those seen on a real API server (tests/contract), with absent, null and empty parents, and valid and
invalid values. No API server sends a spoiled Pod; the answer to it must be a 400 or a review that ignores the fault,
never a crash.
"""

import random
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from tests.oracles.pod_parts import LABELS, Part, affinity, container, maybe, tolerations, volume_list

ANNOTATIONS = {
    "products": ("H100", "A100, H100", "!T4", "NVIDIA-A100-SXM4-*", "L4, !L40S", "A10*", "", "grün", "H1000", ",,"),
    "cuda": ("12.4", ">=12.4", "13", "twelve", "", "99.9"),
    "gpu-memory": ("40Gi", "80GB", "16G", "-1", "0", "lots", ">=24Gi", "1e3Gi"),
    "compute-capability": ("8.0", ">=9.0", "7", "x"),
    "sharing": ("Exclusive", "Shared", "Any", "exclusive", "never"),
    "interconnect": ("NVLink", "nvlink", "InfiniBand"),
    "mig-profile": ("1g.10gb", ">=1g.10gb", ">=3g.40gb", "1g", "9g.99gb"),
    "workload-class": ("training", "inference", "batch-inference", "notebook", "Training", "gaming"),
    "unknown": ("x", "\n", "\u202e"),
    "prodcuts": ("H100",),
}
DECISIONS = (
    '{"v":1,"policies":["default"],"hash":"0","actions":["forged"],"of":"0"}',
    '{"v":2}',
    '{"v":1,"actions":[1,null]}',
    "null",
    "[]",
    "{",
    "",
    "[" * 2000,
    '{"v":1,"actions":[],"of":["a"]}',
)
OTHER_KEYS = ("team", "app.kubernetes.io/name", "example.com/a~b", "a~1b", "~", "example.com/~0~1", "a.b/C_d")
OWNERS = (("ReplicaSet", "web-7d9"), ("Job", "train"), ("StatefulSet", "db"), ("GPUJob", "x"))
BAD_VALUES: tuple[Any, ...] = ("abc", 1.5, True, [], {}, "")


def pods() -> st.SearchStrategy[dict[str, Any]]:
    """Generate Pods for Hypothesis, which shrinks what was drawn."""
    return st.randoms(use_true_random=False).map(random_pod)


def spoiled_pods() -> st.SearchStrategy[dict[str, Any]]:
    """Generate spoiled Pods for Hypothesis."""
    return st.randoms(use_true_random=False).map(spoiled_pod)


def random_pod(draw: random.Random) -> dict[str, Any]:
    """Draw a Pod."""
    pod: Part = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata(draw), "spec": spec(draw), "status": {}}
    if draw.random() < 0.02:
        del pod[draw.choice(["kind", "apiVersion", "status"])]
    return pod


def spoiled_pod(draw: random.Random) -> dict[str, Any]:
    """Draw a Pod with a value of a wrong type somewhere."""
    pod = random_pod(draw)
    parent, key = draw.choice(list(_places(pod)))
    parent[key] = draw.choice(BAD_VALUES)
    return pod


def metadata(draw: random.Random) -> Part:
    """Draw the metadata of a bare pod, or of one that a controller creates."""
    drawn: Part = {"namespace": draw.choice(["team-a", "team-a", "team-b", "default"])}
    if draw.random() < 0.6:
        drawn["name"] = draw.choice(["p", "train-0", "x" * 63])
    else:
        drawn["generateName"] = "train-"
    if draw.random() < 0.4:
        kind, name = draw.choice(OWNERS)
        owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "o-1", "controller": True}
        drawn["ownerReferences"] = [owner]
    maybe(draw, 0.4, lambda: _labels(draw), drawn, "labels")
    maybe(draw, 0.6, lambda: annotations(draw), drawn, "annotations")
    if draw.random() < 0.5:
        fields: Part = {"f:metadata": {}}
        if draw.random() < 0.3:
            fields = {"f:metadata": {"f:annotations": {"f:gpu-usher.io/decision": {}}}}
        drawn["managedFields"] = [{"manager": "kubectl", "operation": "Update", "fieldsV1": fields}]
    if draw.random() < 0.1:
        drawn |= {"creationTimestamp": None, "finalizers": ["batch.kubernetes.io/job-tracking"]}
    return drawn


def _labels(draw: random.Random) -> Part:
    return {draw.choice(OTHER_KEYS[:2]): draw.choice(["a", "x-1", ""]) for _ in range(draw.choice([0, 1, 2]))}


def annotations(draw: random.Random) -> Part:
    """Draw annotations of ours and of others, valid and invalid."""
    drawn: Part = {}
    for _ in range(draw.choice([0, 1, 1, 1, 2, 3])):
        key = draw.choice(list(ANNOTATIONS))
        good = ANNOTATIONS[key][:2] if draw.random() < 0.7 else ANNOTATIONS[key]
        drawn[f"gpu-usher.io/{key}"] = draw.choice(good)
    if draw.random() < 0.15:
        drawn[draw.choice(OTHER_KEYS)] = draw.choice(["", "x", "höhö ✓", '{"a": "b/c~d"}'])
    if draw.random() < 0.1:
        drawn["gpu-usher.io/decision"] = draw.choice(DECISIONS)
    return drawn


def spec(draw: random.Random) -> Part:
    """Draw a spec."""
    drawn: Part = {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "securityContext": {}}
    maybe(draw, 0.3, lambda: volume_list(draw), drawn, "volumes")
    names = [volume["name"] for volume in drawn.get("volumes") or []]
    count = draw.choice([1, 1, 1, 1, 2, 3, 5])
    drawn["containers"] = [container(draw, f"c{index}", names) for index in range(count)]
    if draw.random() < 0.25:
        drawn["initContainers"] = [_starter(draw, index, names) for index in range(draw.choice([0, 1, 1, 2]))]
    maybe(draw, 0.5, lambda: tolerations(draw), drawn, "tolerations")
    maybe(draw, 0.35, lambda: affinity(draw), drawn, "affinity")
    _scheduling(draw, drawn)
    _odds(draw, drawn, names)
    return drawn


def _starter(draw: random.Random, index: int, volumes: list[str]) -> Part:
    """Draw an init container, or a sidecar."""
    starter = container(draw, f"init{index}", volumes)
    if draw.random() < 0.4:
        starter["restartPolicy"] = "Always"
    return starter


def _scheduling(draw: random.Random, drawn: Part) -> None:
    """Draw the members for scheduler, priority, runtime class, node and node selector."""
    drawn["schedulerName"] = draw.choice(["default-scheduler"] * 4 + ["gpu-usher-scheduler", "volcano"])
    drawn["priority"] = 0
    if draw.random() < 0.1:
        drawn |= {"priorityClassName": "high", "priority": 1000, "preemptionPolicy": "PreemptLowerPriority"}
    if draw.random() < 0.15:
        drawn["runtimeClassName"] = draw.choice(["nvidia", "nvidia-cdi", "kata", None])
    if draw.random() < 0.05:
        drawn["nodeName"] = draw.choice(["h100-0", "cpu-0", "gone"])
    if draw.random() < 0.1:
        key = draw.choice(list(LABELS))
        drawn["nodeSelector"] = {key: LABELS[key][0]}


def _odds(draw: random.Random, drawn: Part, volumes: list[str]) -> None:
    """Draw members that few pods have."""
    if draw.random() < 0.05:
        drawn["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    if draw.random() < 0.03:
        debugger = container(draw, "debug", volumes)
        debugger.pop("resources", None)
        drawn["ephemeralContainers"] = [debugger]
    if draw.random() < 0.03:
        drawn["resources"] = {"limits": {"cpu": "4"}}
    if draw.random() < 0.05:
        drawn["x-unknown/~field"] = draw.choice([None, [], {"a": [{}]}, "text", 1.5])


def _places(part: Any) -> Iterator[tuple[Any, Any]]:
    """List every member of every object and list, as (parent, key)."""
    for key in list(part) if isinstance(part, dict) else range(len(part)):
        yield part, key
        if isinstance(part[key], dict | list):
            yield from _places(part[key])
