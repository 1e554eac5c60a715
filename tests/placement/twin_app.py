# SPDX-License-Identifier: Apache-2.0
"""The app's side of the comparison: raw wishes and nodes become documents, a State reads them, the engine judges."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from app.kube.device_models import NVIDIA_DRIVER
from app.kube.pods import read_pod
from app.nodes.gpu_health import Health
from app.nodes.model import Node
from app.placement.engine import judge
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from app.policy.match import ruling_for
from app.world.state import State
from tests.builders import container, knowledge, pod, policies, policy
from tests.placement.twin_world import HAMI, Part, Policy, RawDevice, RawNode, RawPod, Wish

Document = dict[str, Any]


def refusal(pod_demand: Demand, node: Node) -> tuple[str, bool] | None:
    """Return the app's first reason and whether an eviction could remove it, or None if it accepts."""
    rejection = judge(pod_demand, node, recount=True)
    return None if rejection is None else (rejection.code.name, rejection.preemptible)


def nodes_of(raw: Sequence[tuple[RawNode, Sequence[RawPod]]]) -> list[Node]:
    """Put nodes and the pods bound to them into a State, and read the nodes back."""
    state = State(knowledge())
    for index, (node, bound) in enumerate(raw):
        name = f"n{index}"
        state.put_node(node_document(name, node))
        if node.devices:
            state.devices.put_slice(slice_document(name, node.devices))
        if node.health is not None:
            state.put_health(name, Health(*node.health, ()))
        for number, raw_pod in enumerate(bound):
            state.put_pod(bound_document(name, f"{name}-{number}", raw_pod))
    return [state.nodes[f"n{index}"] for index in range(len(raw))]


def amounts(units: dict[str, int]) -> dict[str, str]:
    return {resource: str(amount) for resource, amount in units.items()}


def node_document(name: str, node: RawNode) -> Document:
    """Write a Node. The kubelet writes every resource into capacity too."""
    capacity = {**node.allocatable, **node.capacity}
    annotations = {"annotations": {HAMI: node.hami}} if node.hami else {}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(node.labels), **annotations},
        "spec": {},
        "status": {
            "allocatable": amounts(node.allocatable),
            "capacity": amounts(capacity),
            "conditions": [{"type": kind, "status": status} for kind, status in node.conditions],
        },
    }


def slice_document(name: str, devices: Sequence[RawDevice]) -> Document:
    """Write the ResourceSlice of a node as NVIDIA's DRA driver does."""
    spec = {"driver": NVIDIA_DRIVER, "nodeName": name, "pool": {"name": name}}
    items = [device_document(f"gpu-{index}", device) for index, device in enumerate(devices)]
    return {"metadata": {"name": f"{name}-gpus"}, "spec": {**spec, "devices": items}}


def device_document(name: str, device: RawDevice) -> Document:
    """Write a device of resource.k8s.io/v1."""
    attributes = {"type": {"string": "gpu"}, "productName": {"string": device.product}}
    if device.driver:
        attributes["driverVersion"] = {"version": device.driver}
    if device.capability:
        attributes["cudaComputeCapability"] = {"version": device.capability}
    capacity = {"memory": {"value": f"{device.memory}Mi"}} if device.memory else {}
    return {"name": name, "attributes": attributes, "capacity": capacity}


def bound_document(node: str, uid: str, bound: RawPod) -> Document:
    """Write a bound Pod."""
    held = amounts(dict(bound.holds))
    annotations = {} if bound.memory is None else {"gpu-memory": bound.memory}
    made = pod(container(held, held), annotations=annotations, nodeName=node)
    made["metadata"] |= {"name": uid, "uid": uid}
    return made | {"status": {"phase": "Succeeded" if bound.done else "Running"}}


def compiled(wish: Wish) -> Demand:
    """Compile a wish as a Pod under its policies."""
    stated = {
        "products": wish.products,
        "cuda": wish.cuda,
        "compute-capability": wish.capability,
        "gpu-memory": wish.memory,
        "sharing": wish.sharing,
        "mig-profile": wish.mig_profile,
        "interconnect": "NVLink" if wish.nvlink else None,
        **dict(wish.broken),
    }
    annotations = {key: value for key, value in stated.items() if value is not None}
    parts = [(part, container_document(part, f"c{index}")) for index, part in enumerate(wish.containers)]
    starting = (
        {"initContainers": starters}
        if (starters := [document for part, document in parts if part.kind != "app"])
        else {}
    )
    if any(part.claims for part in wish.containers):
        starting["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    made = pod(*(document for part, document in parts if part.kind == "app"), annotations=annotations, **starting)
    read = read_pod(made)
    return ruling_for(
        read, {}, policy_set(wish.accept, wish.policies), knowledge(), claims_known().devices.claimed(read)
    ).demand


def container_document(part: Part, name: str) -> Document:
    """Write a container."""
    always = {"restartPolicy": "Always"} if part.kind == "sidecar" else {}
    held = {} if part.claims else {part.resource: str(part.amount)}
    env = {"NVIDIA_REQUIRE_CUDA": part.require, "NVIDIA_DISABLE_REQUIRE": "true" if part.lifted else None}
    variables = [{"name": key, "value": value} for key, value in env.items() if value]
    more = {"env": variables} if variables else {}
    made = container(held, held, name=name, image=part.image or "train:1", **always, **more)
    return made | {"resources": {"claims": [{"name": "gpu"}]}} if part.claims else made


@lru_cache(1)
def claims_known() -> State:
    """Make the state that knows the template of all claims, which asks for one GPU of NVIDIA's DeviceClass."""
    state, request = State(knowledge()), {"name": "gpu", "exactly": {"deviceClassName": NVIDIA_DRIVER, "count": 1}}
    metadata = {"name": "one", "namespace": "team-a"}
    state.devices.put_claim_template({"metadata": metadata, "spec": {"spec": {"devices": {"requests": [request]}}}})
    return state


@lru_cache(4096)
def policy_set(accept: str, rules: tuple[Policy, ...]) -> PolicySet:
    """Write the policies as YAML, and load them."""
    base = policy("base", f"placement: {{cuda: {{fromImage: true, accept: {accept}}}}}")
    more = [policy(f"p{index}", spec_text(index + 1, rule)) for index, rule in enumerate(rules)]
    return policies(base, *more)


def listed(words: Sequence[str]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


def spec_text(priority: int, rule: Policy) -> str:
    """Write a policy's spec in YAML's flow style."""
    products = [f"{key}: {listed(words)}" for key, words in (("allow", rule.allow), ("deny", rule.deny)) if words]
    health = {"ill": rule.ill, "ailing": rule.ailing, "unhealthyDevices": rule.unhealthy}
    health["conditions"] = rule.conditions
    expressions = [
        f"{{key: {key}, operator: {operator}{f', values: {listed(values)}' if values else ''}}}"
        for key, operator, values in rule.expressions
    ]
    selector = [f"matchLabels: {{{', '.join(f'{key}: {value}' for key, value in rule.labels)}}}"] if rule.labels else []
    selector += [f"matchExpressions: [{', '.join(expressions)}]"] if expressions else []
    fields = {
        "products": f"{{{', '.join(products)}}}" if products else None,
        "gpuMemory": rule.memory,
        "computeCapability": f"'{rule.capability}'" if rule.capability else None,
        "cuda": f"{{minimum: '{rule.cuda}'}}" if rule.cuda else None,
        "sharing": rule.sharing,
        "interconnect": "NVLink" if rule.nvlink else None,
        "unknownFacts": rule.unknown,
        "nodeSelector": f"{{{', '.join(selector)}}}" if selector else None,
        "formFactor": listed(rule.forms) if rule.forms else None,
        "health": f"{{{', '.join(f'{key}: {action}' for key, action in health.items() if action)}}}",
    }
    placement = ", ".join(f"{key}: {value}" for key, value in fields.items() if value and value != "{}")
    return f"priority: {priority}, action: {rule.action}, placement: {{{placement}}}"
