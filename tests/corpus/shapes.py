# SPDX-License-Identifier: Apache-2.0
"""The shapes: documented GPU workloads as YAML files, and the cluster that they come to."""

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from app.explain.cases import Expectation
from app.service import Usher
from tests.builders import node_document, review, usher

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
"""apiVersion and resource by kind."""
CONTAINER_LISTS = ("initContainers", "containers")


class Expect(Expectation):
    """What is expected; a warning that is not named is a mistake, unless `otherWarnings`."""

    other_warnings: bool = False


class Shape(BaseModel):
    """One file: where the shape is documented, what it is and what should become of it."""

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

    @property
    def repaired(self) -> bool:
        """Whether amounts are expected to be repaired: the API server refuses such an object as it is."""
        return any(".resources." in path for path in self.expect.patched)


SHAPES: Mapping[str, Shape] = {
    path.stem: Shape.model_validate(yaml.safe_load(path.read_text("utf-8"))) for path in sorted(FOLDER.glob("*.yaml"))
}


def pod_spec(document: Object) -> Object:
    """Find the pod spec in a Pod, or in the template of a workload."""
    spec: Object = document["spec"]
    if document["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    return spec if document["kind"] == "Pod" else spec["template"]["spec"]


def containers(document: Object) -> list[Object]:
    """List the containers, init containers first."""
    spec = pod_spec(document)
    return [each for name in CONTAINER_LISTS for each in spec.get(name) or ()]


def defaulted(document: Object) -> Object:
    """Do what the API server does before it asks us: amounts become text, and in a Pod limits become requests.

    A request that is there stays; templates get none (pkg/apis/core/v1/defaults.go SetDefaults_Pod is for Pods alone).
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
    """Write an amount as the API server does: a number of YAML becomes text, a fraction becomes milli-units."""
    return f"{round(amount * 1000)}m" if isinstance(amount, float) else str(amount)


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
    """Make a taint that keeps pods from being scheduled."""
    return {"key": key, "value": value, "effect": "NoSchedule"}


def fleet() -> list[Object]:
    """Make three nodes that all keep pods without GPUs away; one belongs to a team, one is of AKS's kind."""
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
def certificates() -> Path:
    """Make the directory that all services of the corpus share."""
    return Path(mkdtemp())


@cache
def cluster() -> Usher:
    """Make the service; every namespace has its name as a label, as the API server sees to it."""
    labels: dict[str, dict[str, str]] = {}
    for shape in SHAPES.values():
        labels.setdefault(shape.namespace, {"kubernetes.io/metadata.name": shape.namespace})
        labels[shape.namespace] |= shape.namespace_labels
    named = [{"kind": "Namespace", "metadata": {"name": name, "labels": found}} for name, found in labels.items()]
    return usher(certificates(), [*fleet(), *named])
