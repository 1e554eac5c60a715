# SPDX-License-Identifier: Apache-2.0
"""Builders of pods, nodes, admission reviews, and a service in memory."""

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from app.admission.reviewed_pod import ReviewContext
from app.cluster.files import read_knowledge, read_policies, shipped_policies
from app.cluster.policy_watch import PolicyBook
from app.cluster.snapshot import fill
from app.demo.sample_fleets import demo_fleet
from app.knowledge.tables import Knowledge
from app.kube.objects import RuntimeClass
from app.kube.pods import read_pod
from app.nodes.model import Node
from app.nodes.reading import read_node
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from app.policy.match import Ruling, ruling_for
from app.server.service import Service
from app.settings import Settings
from app.tls.serving_certificates import Certificates, issue_if_needed
from app.world.fleet_facts import FleetFacts, fleet_facts_of
from app.world.state import State
from app.world.world import World, world_of
from tests.finished import load_policies

CONTRACT = Path(__file__).parent / "contract"


@cache
def knowledge() -> Knowledge:
    """Load the shipped fact tables, once."""
    return read_knowledge()


@cache
def shipped() -> PolicySet:
    """Load the shipped policies, once."""
    return read_policies(shipped_policies(), knowledge())


def policies(*documents: str) -> PolicySet:
    """Load policies from YAML texts."""
    texts = {f"{index}.yaml": text for index, text in enumerate(documents)}
    return load_policies(texts, knowledge(), shipped().fallback)


def policy(name: str, spec: str) -> str:
    """Write a policy document around a spec in flow style, such as `priority: 1, action: Warn`."""
    header = "apiVersion: gpu-usher.io/v1alpha1\nkind: GPUPolicy\n"
    return f"{header}metadata: {{name: {name}}}\nspec: {{{spec}}}\n"


def container(
    limits: Mapping[str, Any] | None = None, requests: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Write a container; without amounts it has no resources."""
    resources = {key: dict(value) for key, value in (("limits", limits), ("requests", requests)) if value is not None}
    return {"name": "main", "image": "train:1", "resources": resources, **more}


def gpus(amount: int | str, resource: str = "nvidia.com/gpu", **more: Any) -> dict[str, Any]:
    """Write a container with equal limits and requests, as the API server sends it after defaulting."""
    return container({resource: str(amount)}, {resource: str(amount)}, **more)


def pod(*containers: Mapping[str, Any], annotations: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Write a Pod of these containers, or of one that requests one GPU."""
    metadata: dict[str, Any] = {"name": "p", "namespace": "team-a", "uid": "u-1"}
    if annotations:
        metadata["annotations"] = {f"gpu-usher.io/{key}": value for key, value in annotations.items()}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": {"containers": list(containers) or [gpus(1)], **spec},
    }


def node_document(
    name: str = "n",
    product: str | None = "NVIDIA-H100-80GB-HBM3",
    driver: str | None = "570.124.06",
    offers: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
    capacity: Mapping[str, int] | None = None,
    conditions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write a Node, by default of eight H100; `labels` are added last, `capacity` is left out unless given.

    `conditions` are statuses by type.
    """
    known_labels = {
        "nvidia.com/gpu.product": product,
        "nvidia.com/cuda.driver-version.full": driver,
        "nvidia.com/cuda.driver-version.major": driver.partition(".")[0] if driver else None,
        "nvidia.com/gpu.count": "8" if product else None,
    }
    offered = {"nvidia.com/gpu": 8} if offers is None else offers
    return {
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**{k: v for k, v in known_labels.items() if v is not None}, **(labels or {})},
        },
        "spec": {"taints": taints} if taints else {},
        "status": {
            "allocatable": {key: str(amount) for key, amount in offered.items()},
            **({"capacity": {key: str(amount) for key, amount in capacity.items()}} if capacity else {}),
            **({"conditions": [{"type": k, "status": v} for k, v in conditions.items()]} if conditions else {}),
        },
    }


def node(name: str = "n", used: Mapping[str, int] | None = None, **more: Any) -> Node:
    """Read a built Node; `used` holds the units that pods hold."""
    return read_node(node_document(name, **more), knowledge(), used)


def ruling(
    document: Mapping[str, Any], policy_set: PolicySet | None = None, labels: Mapping[str, str] | None = None
) -> Ruling:
    """Rule on a Pod, by the shipped policies unless others are given."""
    return ruling_for(read_pod(document), labels or {}, policy_set or shipped(), knowledge())


def demand(document: Mapping[str, Any], policy_set: PolicySet | None = None) -> Demand:
    """Compile a Pod's demand."""
    return ruling(document, policy_set).demand


def fleet(*nodes: Node, classes: Iterable[str] | None = None) -> FleetFacts:
    """Return the facts of built nodes; `classes` names the RuntimeClasses, None where they could not be listed."""
    return fleet_facts_of(
        nodes, None if classes is None else {name: RuntimeClass(name) for name in classes}, knowledge()
    )


def setting(
    policy_set: PolicySet | None = None, fleet: FleetFacts | None = None, state: State | None = None, **known: Any
) -> ReviewContext:
    """Return the context of a review, by default with the shipped policies, an unknown fleet and no devices."""
    world = world_of(state or State(knowledge()), policy_set or shipped(), **known)
    return ReviewContext(replace(world, fleet=fleet or FleetFacts()))


def review(document: Mapping[str, Any] | None, **request: Any) -> dict[str, Any]:
    """Write the AdmissionReview of a Pod's creation."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "r-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "team-a",
            "operation": "CREATE",
            "object": document,
            **request,
        },
    }


def state_of(objects: list[dict[str, Any]]) -> State:
    """Make the state of a cluster of these objects."""
    made = State(knowledge())
    fill(made, objects)
    return made


def world_with(*nodes: Node, **parts: Any) -> World:
    """Make a World of these nodes under the shipped policies; `parts` are further fields."""
    world = world_of(State(knowledge()), parts.pop("policies", None) or shipped())
    return replace(world, nodes={node.name: node for node in nodes}, **parts)


def make_service(
    directory: Path, objects: list[dict[str, Any]] | None = None, policy_set: PolicySet | None = None, **settings: Any
) -> Service:
    """Make a service in memory, by default with the demo fleet and the shipped policies.

    Unless `settings` say otherwise, filter names all nodes that fit, so that a test sees the verdict on each.
    """
    chosen = Settings(
        demo=True,
        certs=directory,
        port=0,
        ops_port=0,
        ui_address="127.0.0.1:0",
        **{"filter_answer": "all", **settings},
    )
    book = PolicyBook(settings.get("policies") or shipped_policies(), knowledge(), lambda: "2026-11-21")
    book.current = policy_set or book.current
    now = dt.datetime.now(dt.UTC)
    made = state_of(demo_fleet() if objects is None else objects)
    built = Service(chosen, Certificates(issue_if_needed(directory, now), now), made, book)
    built.synced = True
    return built
