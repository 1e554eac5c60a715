# SPDX-License-Identifier: Apache-2.0
"""The script of the demo: recorded requests of a real kube-apiserver and kube-scheduler, some with one need added."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.admission.json_patch import escape
from app.demo.sample_fleets import demo_fleet
from app.kube.pods import DECISION
from app.nodes.conditions import DRIVER, PRODUCT

Send = Callable[[str, bytes], Any]
"""Posts a body to a path and returns the decoded answer."""

ADMISSION_PAYLOADS = (
    ("CPU pod", "admission-pod-create-plain"),
    ("GPUs in limits", "admission-pod-create-gpu-limits"),
    ("GPUs in requests only", "admission-pod-create-gpu-requests-only"),
    ("requests 1, limits 2", "admission-pod-create-gpu-request-ne-limit"),
    ("half a GPU", "admission-pod-create-gpu-fraction"),
    ("minus one GPU", "admission-pod-create-gpu-negative"),
    ("init container and sidecar", "admission-pod-create-init-and-sidecar"),
    ("MIG slice, of a StatefulSet", "admission-pod-create-from-statefulset"),
    ("label changed later", "admission-pod-update-label"),
)

QUESTIONS: tuple[tuple[str, str, dict[str, str], dict[str, str]], ...] = (
    ("any GPU, image pytorch:24.05 (CUDA 12.4)", "nvcr.io/nvidia/pytorch:24.05-py3", {}, {"nvidia.com/gpu": "1"}),
    ("an A10, whole", "train:1", {"products": "A10", "sharing": "Exclusive"}, {"nvidia.com/gpu": "1"}),
    ("a slice mig-1g.10gb", "train:1", {}, {"nvidia.com/mig-1g.10gb": "1"}),
)
"""(title, image, annotations, resources) of pods that are placed on the whole demo fleet."""


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """The result for one pod: its decision (denied, unchanged or patched), the actions, and the messages."""

    title: str
    decision: str
    actions: tuple[str, ...]
    messages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """A node that fits with its score, or all nodes refused for one reason. With `preemptible` eviction could help."""

    nodes: tuple[str, ...]
    score: int | None
    message: str
    preemptible: bool = False


def admit(send: Send, payloads: Path) -> Iterator[AdmittedPod]:
    """Send each admission payload and yield the result."""
    for title, name in ADMISSION_PAYLOADS:
        review = json.loads((payloads / f"{name}.request.json").read_text("utf-8"))
        yield _admit(send, title, review)


def _admit(send: Send, title: str, review: Mapping[str, Any]) -> AdmittedPod:
    response = send("/mutate", json.dumps(review).encode())["response"]
    warnings = tuple(response.get("warnings", ()))
    if not response["allowed"]:
        return AdmittedPod(title, "denied", (), (response["status"]["message"],))
    if "patch" not in response:
        return AdmittedPod(title, "unchanged", (), warnings)
    patch = json.loads(base64.b64decode(response["patch"]))
    return AdmittedPod(title, "patched", tuple(_actions(patch)), warnings)


def _actions(patch: list[dict[str, Any]]) -> Iterator[str]:
    """Return the actions in the decision annotation, which the patch may add with its parent."""
    for operation in patch:
        value = operation["value"]
        if operation["path"].endswith(escape(DECISION)):
            yield from json.loads(value)["actions"]
        elif isinstance(value, dict) and DECISION in value:
            yield from json.loads(value[DECISION])["actions"]


def place(send: Send, payloads: Path, question: tuple[str, str, dict[str, str], dict[str, str]]) -> list[NodeOutcome]:
    """Send filter and prioritize for a pod and the whole demo fleet; the best node first, refusals by reason."""
    args = json.loads((payloads / "extender-filter-nodecachecapable-true.request.json").read_text("utf-8"))
    _, image, annotations, resources = question
    pod = args["Pod"]
    pod["metadata"]["annotations"] = {f"gpu-usher.io/{key}": value for key, value in annotations.items()}
    pod["spec"]["containers"][0] |= {"image": image, "resources": {"limits": resources, "requests": resources}}
    facts = _facts()
    args["NodeNames"] = list(facts)
    answer = send("/scheduler/filter", json.dumps(args).encode())
    args["NodeNames"] = answer["NodeNames"]
    scores = send("/scheduler/prioritize", json.dumps(args).encode()) if answer["NodeNames"] else []
    outcomes = [NodeOutcome((score["Host"],), score["Score"], facts[score["Host"]]) for score in scores]
    outcomes.sort(key=lambda outcome: -(outcome.score or 0))
    preemptible = _by_reason(answer["FailedNodes"], preemptible=True)
    return [*outcomes, *preemptible, *_by_reason(answer["FailedAndUnresolvableNodes"], preemptible=False)]


def _facts() -> dict[str, str]:
    """Return a description of each GPU node of the demo fleet."""
    labels_by_node = {
        document["metadata"]["name"]: document["metadata"]["labels"]
        for document in demo_fleet()
        if document["kind"] == "Node"
    }
    return {
        name: f"{labels[PRODUCT]}, driver {labels[f'{DRIVER[0]}.full']}"
        for name, labels in labels_by_node.items()
        if PRODUCT in labels
    }


def _by_reason(failures: Mapping[str, str], preemptible: bool) -> list[NodeOutcome]:
    names_by_message: dict[str, list[str]] = {}
    for name, message in failures.items():
        names_by_message.setdefault(message, []).append(name)
    return [NodeOutcome(tuple(names), None, message, preemptible) for message, names in names_by_message.items()]


def preempt_candidates(send: Send, payloads: Path) -> tuple[list[str], list[str]]:
    """Send preempt for a pod that needs an H100; return the candidates sent and those left."""
    args = json.loads((payloads / "extender-preempt-nodecachecapable-true.request.json").read_text("utf-8"))
    args["Pod"]["metadata"]["annotations"] = {"gpu-usher.io/products": "H100"}
    answer = send("/scheduler/preempt", json.dumps(args).encode())
    return sorted(args["NodeNameToMetaVictims"]), sorted(answer["NodeNameToMetaVictims"])
