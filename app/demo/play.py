# SPDX-License-Identifier: Apache-2.0
"""The demo's script: recorded payloads of a real kube-apiserver and kube-scheduler, some with one need added."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.admission.json_patch import escape
from app.demo.sample_fleets import demo_fleet
from app.kube.pods import DECISION
from app.nodes.labels import DRIVER, PRODUCT

Send = Callable[[str, bytes], Any]
"""Posts a body to a path and gives the decoded answer."""

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
"""(title, image, annotations, resources), asked over the whole demo fleet."""


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """What became of one pod: allowed, patched or denied, what was done, what was said."""

    title: str
    decision: str
    done: tuple[str, ...]
    said: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """A node that fits with its score, or all nodes refused for one cause; `preemptible`: evicting could help."""

    nodes: tuple[str, ...]
    score: int | None
    why: str
    preemptible: bool = False


def admit(send: Send, payloads: Path) -> Iterator[AdmittedPod]:
    """Send each admission payload; a patched pod is sent a second time and must come back unchanged."""
    for title, name in ADMISSION_PAYLOADS:
        review = json.loads((payloads / f"{name}.request.json").read_text("utf-8"))
        yield _admit(send, title, review)


def _admit(send: Send, title: str, review: Mapping[str, Any]) -> AdmittedPod:
    response = send("/mutate", json.dumps(review).encode())["response"]
    said = tuple(response.get("warnings", ()))
    if not response["allowed"]:
        return AdmittedPod(title, "denied", (), (response["status"]["message"],))
    if "patch" not in response:
        return AdmittedPod(title, "unchanged", (), said)
    patch = json.loads(base64.b64decode(response["patch"]))
    return AdmittedPod(title, "patched", tuple(_record(patch)), said)


def _record(patch: list[dict[str, Any]]) -> Iterator[str]:
    """Read what was done off the decision annotation, which may come with its parent."""
    for operation in patch:
        value = operation["value"]
        if operation["path"].endswith(escape(DECISION)):
            yield from json.loads(value)["actions"]
        elif isinstance(value, dict) and DECISION in value:
            yield from json.loads(value[DECISION])["actions"]


def seat(send: Send, payloads: Path, question: tuple[str, str, dict[str, str], dict[str, str]]) -> list[NodeOutcome]:
    """Ask filter and prioritize about a pod over the whole demo fleet; best node first, refusals grouped by cause."""
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
    seats = [NodeOutcome((each["Host"],), each["Score"], facts[each["Host"]]) for each in scores]
    seats.sort(key=lambda each: -(each.score or 0))
    busy = _by_cause(answer["FailedNodes"], preemptible=True)
    return [*seats, *busy, *_by_cause(answer["FailedAndUnresolvableNodes"], preemptible=False)]


def _facts() -> dict[str, str]:
    """Say of each GPU node of the demo fleet what it is."""
    found = {each["metadata"]["name"]: each["metadata"]["labels"] for each in demo_fleet() if each["kind"] == "Node"}
    return {
        name: f"{labels[PRODUCT]}, driver {labels[f'{DRIVER[0]}.full']}"
        for name, labels in found.items()
        if PRODUCT in labels
    }


def _by_cause(failures: Mapping[str, str], preemptible: bool) -> list[NodeOutcome]:
    causes: dict[str, list[str]] = {}
    for name, why in failures.items():
        causes.setdefault(why, []).append(name)
    return [NodeOutcome(tuple(names), None, why, preemptible) for why, names in causes.items()]


def spared(send: Send, payloads: Path) -> tuple[list[str], list[str]]:
    """Ask preempt for a pod that only H100 will do for: (candidates given, candidates left)."""
    args = json.loads((payloads / "extender-preempt-nodecachecapable-true.request.json").read_text("utf-8"))
    args["Pod"]["metadata"]["annotations"] = {"gpu-usher.io/products": "H100"}
    answer = send("/scheduler/preempt", json.dumps(args).encode())
    return sorted(args["NodeNameToMetaVictims"]), sorted(answer["NodeNameToMetaVictims"])
