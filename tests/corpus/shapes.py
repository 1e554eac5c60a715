# SPDX-License-Identifier: Apache-2.0
"""The shapes: documented GPU workloads as YAML files, and the cluster in which they are created."""

import base64
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import jsonpatch
import yaml
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from app.policy.case_document import Expectation
from app.server.service import Service
from tests.builders import make_service, node_document, review
from tests.finished import review as answer

Object = dict[str, Any]
FOLDER = Path(__file__).parent
PLURALS = {
    "Pod": ("v1", "pods"),
    "Deployment": ("apps/v1", "deployments"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "DaemonSet": ("apps/v1", "daemonsets"),
    "ReplicaSet": ("apps/v1", "replicasets"),
    "Job": ("batch/v1", "jobs"),
    "CronJob": ("batch/v1", "cronjobs"),
}
"""apiVersion and plural resource name by kind."""
CONTAINER_LISTS = ("initContainers", "containers")


class Expect(Expectation):
    """The expected result. A warning that is not named is an error, unless `otherWarnings` is set."""

    other_warnings: bool = False


class Shape(BaseModel):
    """One file: where the shape is documented, its object, and the expected result."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)

    source: str
    says: str
    namespace: str = "team-a"
    namespace_labels: dict[str, str] = {}
    object: Object
    expect: Expect

    @property
    def kind(self) -> str:
        """The object's kind."""
        return str(self.object["kind"])


SHAPES: Mapping[str, Shape] = {
    path.stem: Shape.model_validate(yaml.load(path.read_text("utf-8"), yaml.CSafeLoader))
    for path in sorted(FOLDER.glob("*.yaml"))
}


def pod_spec(document: Object) -> Object:
    """Return the pod spec of a Pod, or of a workload's template."""
    spec: Object = document["spec"]
    if document["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    return spec if document["kind"] == "Pod" else spec["template"]["spec"]


def containers(document: Object) -> list[Object]:
    """List the containers, init containers first."""
    spec = pod_spec(document)
    return [container for name in CONTAINER_LISTS for container in spec.get(name) or ()]


def defaulted(document: Object) -> Object:
    """Default an object as the API server does: amounts become text, and in a Pod limits become requests.

    Requests that are there stay, and templates get none (pkg/apis/core/v1/defaults.go SetDefaults_Pod is for Pods
    alone).
    """
    document = deepcopy(document)
    for container in containers(document):
        resources = container.get("resources") or {}
        for side in {"limits", "requests"} & resources.keys():
            resources[side] = {name: as_text(amount) for name, amount in resources[side].items()}
        if document["kind"] == "Pod" and resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    return document


def as_text(amount: str | float) -> str:
    """Write an amount as the API server does: a YAML number becomes text with the suffix that makes it shortest."""
    if isinstance(amount, str):
        return amount
    thousandths, suffixes = round(amount * 1000), iter("mxkMG")
    suffix = next(suffixes)
    while thousandths and thousandths % 1000 == 0:
        thousandths, suffix = thousandths // 1000, next(suffixes)
    return f"{thousandths}{suffix}".removesuffix("x") if thousandths else "0"


def amounts(document: Object) -> list[tuple[str, str, str, Any]]:
    """List (container, side, resource, amount) of the extended resources, which alone are kept as written."""
    return sorted(
        (container["name"], side, name, amount)
        for container in containers(document)
        for side in ("limits", "requests")
        for name, amount in ((container.get("resources") or {}).get(side) or {}).items()
        if "/" in name
    )


def refused_by_kubernetes(document: Object) -> bool:
    """Tell whether an extended resource has no limit, two different amounts, or an amount that is not a whole number
    from 0."""
    written = {(name, resource, side): as_text(amount) for name, side, resource, amount in amounts(document)}
    limits = {key[:2]: amount for key, amount in written.items() if key[2] == "limits"}
    requests = {key[:2]: amount for key, amount in written.items() if key[2] == "requests"}
    unequal = any(limits.get(key) != amount for key, amount in requests.items())
    return unequal or any(amount.startswith("-") or amount.endswith("m") for amount in written.values())


def admission_review(shape: Shape, document: Object) -> Object:
    """Wrap an object of the shape in the AdmissionReview of its creation."""
    api_version, plural = PLURALS[shape.kind]
    group, _, version = api_version.rpartition("/")
    return review(
        document,
        kind={"group": group, "version": version, "kind": shape.kind},
        resource={"group": group, "version": version, "resource": plural},
        namespace=shape.namespace,
    )


def taint(key: str, value: str) -> dict[str, str]:
    """Make a taint with the effect NoSchedule."""
    return {"key": key, "value": value, "effect": "NoSchedule"}


def fleet() -> list[Object]:
    """Make three nodes with taints against pods without GPUs; one belongs to a team, and one is like an AKS node."""
    present = taint("nvidia.com/gpu", "present")
    return [
        node_document("h100", taints=[present, taint("dedicated", "team-x")]),
        node_document("t4", "Tesla-T4", "535.104.05", {"nvidia.com/gpu": 4}, taints=[present, taint("sku", "gpu")]),
        node_document(
            "a100-mixed",
            "NVIDIA-A100-SXM4-80GB",
            offers={"nvidia.com/mig-1g.10gb": 7},
            labels={"nvidia.com/mig.strategy": "mixed"},
            taints=[present],
        ),
        {"kind": "RuntimeClass", "metadata": {"name": "nvidia"}},
    ]


@cache
def cluster() -> Service:
    """Make the service. Every namespace has its name as a label, as the API server ensures."""
    labels: dict[str, dict[str, str]] = {}
    for shape in SHAPES.values():
        labels.setdefault(shape.namespace, {"kubernetes.io/metadata.name": shape.namespace})
        labels[shape.namespace] |= shape.namespace_labels
    named = [
        {"kind": "Namespace", "metadata": {"name": name, "labels": namespace_labels}}
        for name, namespace_labels in labels.items()
    ]
    return make_service(Path(mkdtemp()), [*fleet(), *named])


@dataclass(frozen=True, slots=True)
class Answered:
    """The result for an object: the response, the reason codes, and the object after the patch."""

    response: Object
    codes: list[str]
    admitted: Object

    @property
    def changed(self) -> bool:
        """Whether there was a patch."""
        return "patch" in self.response


def ask(shape: Shape, document: Object, verb: str = "mutate") -> Answered:
    """Send an object of the shape through /mutate or /validate, and apply the patch as the API server would."""
    answered = answer(json.dumps(admission_review(shape, document)).encode(), verb, cluster())
    response = json.loads(answered.body)["response"]
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    admitted = jsonpatch.apply_patch(document, patch)
    return Answered(response, [reason.code.name for reason in answered.result.reasons], admitted)
