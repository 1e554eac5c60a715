# SPDX-License-Identifier: Apache-2.0
"""Wishes for devices on a cluster without labels: the real kube-scheduler places or refuses them, and `explain` said so
beforehand, with a primary cause in plain words (S13, F83).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.demo.sample_fleets import demo_fleet
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.e2e.offers import dra_path, dra_version, keeps_extended_resources
from tests.e2e.settling import QUICK
from tests.e2e.stage import Service, create_namespace, create_pod, eventually, read_pod, refusal, serving

PLAIN = "plain-scheduler"
GPU, SLICE = "gpu.nvidia.com", "mig.nvidia.com"
ATTRIBUTES = "device.attributes['gpu.nvidia.com']"
MEMORY = "device.capacity['gpu.nvidia.com'].memory"


def asks(device_class: str, *selectors: str, count: int = 1) -> Object:
    """Write a request without its name."""
    cel = [{"cel": {"expression": expression}} for expression in selectors]
    return {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count, "selectors": cel}


def one(*arguments: Any, **more: Any) -> list[Object]:
    """Write the requests of a claim that has one."""
    return [{"name": "gpu", "exactly": asks(*arguments, **more)}]


@dataclass(frozen=True)
class Wish:
    """What a pod asks, in words, as a claim's requests or as an extended resource; the start of the node's name that it
    gets, or the words of the primary cause.
    """

    words: str
    requests: list[Object] = field(default_factory=list)
    constraints: tuple[Object, ...] = ()
    limit: int = 0
    node: str = ""
    cause: str = ""


WISHES = (
    Wish("a GPU", one(GPU), node=""),
    Wish("an L4 by name", one(GPU, f"{ATTRIBUTES}.productName == 'NVIDIA L4'"), node="l4-"),
    Wish("40Gi of memory", one(GPU, f"{MEMORY}.compareTo(quantity('40Gi')) >= 0"), node="h100-"),
    Wish("a slice 1g.10gb", one(SLICE, f"{ATTRIBUTES}.profile == '1g.10gb'"), node="mig-0"),
    Wish("a slice 3g.40gb, or else an L4", [{"name": "gpu", "firstAvailable": [
        {"name": "slice", **asks(SLICE, f"{ATTRIBUTES}.profile == '3g.40gb'")},
        {"name": "l4", **asks(GPU, f"{ATTRIBUTES}.productName == 'NVIDIA L4'")}]}], node="l4-"),
    Wish("nvidia.com/gpu: 2", limit=2, node=""),
    Wish("nvidia.com/gpu: 9", limit=9,
         cause="request gpu of container main: wants 9 devices of DeviceClass gpu.nvidia.com, more than the node has"),
    Wish("141Gi of memory", one(GPU, f"{MEMORY}.compareTo(quantity('141Gi')) >= 0"),
         cause="request gpu: wants a device with memory >= 141Gi"),
    Wish("a slice 3g.40gb", one(SLICE, f"{ATTRIBUTES}.profile == '3g.40gb'"),
         cause="request gpu: wants a device with profile == 3g.40gb"),
    Wish("9 GPUs", one(GPU, count=9),
         cause="request gpu: wants 9 devices of DeviceClass gpu.nvidia.com, more than the node has"),
    Wish("two GPUs with the same UUID", one(GPU, count=2), ({"matchAttribute": "gpu.nvidia.com/uuid"},),
         cause="no set of devices serves all requests with the same uuid for all of them"),
    Wish("a profile of whole GPUs", one(GPU, f"{ATTRIBUTES}.profile == '1g.10gb'"),
         cause="a selector reads attribute gpu.nvidia.com/profile, which some devices"),
    Wish("a driver as text", one(GPU, f"{ATTRIBUTES}.driverVersion == '580.95.5'"),
         cause="a selector fails, as driverVersion is a version and is compared with the text '580.95.5'"),
    Wish("a class that is not there", one("gpu.nvidia.co"),
         cause="request gpu: DeviceClass gpu.nvidia.co does not exist"),
)  # fmt: skip


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> Iterator[tuple[ControlPlane, Service, str]]:
    """The nodes, slices and classes of the fleet gpucluster, a scheduler without an extender, and the service."""
    if dra_version(plane) == "v1beta1" or not keeps_extended_resources(plane):
        pytest.skip("The API server drops extendedResourceName of DeviceClasses. Choose a newer version.")
    documents = demo_fleet("gpucluster")
    nodes = [document["metadata"]["name"] for document in documents if document["kind"] == "Node"]
    add_nodes(plane.api, [node_object(name, None, None, {}) for name in nodes])
    for kind, plural in (("ResourceSlice", "resourceslices"), ("DeviceClass", "deviceclasses")):
        written = [{**one, "apiVersion": f"resource.k8s.io/{dra_version(plane)}"} for one in documents]
        plane.api.create_all(f"{dra_path(plane)}/{plural}", [one for one in written if one["kind"] == kind])
    header = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    plane.start_scheduler({**header, **QUICK, "profiles": [{"schedulerName": PLAIN}]}, PLAIN)
    with serving(plane) as service:
        yield plane, service, create_namespace(plane, "wishes")


def pod_of(wish: Wish, number: int, namespace: str) -> Object:
    """Write the pod of a wish."""
    resources: Object = {"limits": {"nvidia.com/gpu": str(wish.limit)}} if wish.limit else {"claims": [{"name": "gpu"}]}
    claims = [] if wish.limit else [{"name": "gpu", "resourceClaimTemplateName": f"wish-{number}"}]
    containers = [{"name": "main", "image": "x", "resources": resources}]
    metadata = {"name": f"p{number}", "namespace": namespace}
    return {"metadata": metadata, "spec": {"schedulerName": PLAIN, "containers": containers, "resourceClaims": claims}}


def decided(plane: ControlPlane, document: Object) -> Object:
    """Wait until a pod is bound or refused, and return it."""
    stored: list[Object] = []

    def known() -> bool:
        stored[:] = [read_pod(plane, document)]
        return bool(stored[0]["spec"].get("nodeName") or "waiting for" not in (refusal(stored[0]) or "waiting for"))

    eventually(f"{document['metadata']['name']} is bound or refused", known, 60)
    return stored[0]


def test_wish_is_placed_or_refused_as_explain_says_and_the_cause_is_plain(
    stage: tuple[ControlPlane, Service, str],
) -> None:
    """S13, F83: ten and more wishes, by claim and by extended resource, one after the other."""
    plane, service, namespace = stage
    templates = f"{dra_path(plane)}/namespaces/{namespace}/resourceclaimtemplates"
    differences = []
    for number, wish in enumerate(WISHES):
        spec = {"spec": {"devices": {"requests": wish.requests, "constraints": list(wish.constraints)}}}
        if not wish.limit:
            plane.api.create(templates, {"metadata": {"name": f"wish-{number}"}, "spec": spec})
        document = pod_of(wish, number, namespace)
        explained: Object = {}

        def judged(document: Object = document, explained: Object = explained) -> bool:
            explained.update(service.explain(document))
            return not explained["unjudged"] and "ResourceClaimTemplate" not in str(explained["primary"])

        eventually("the template is known", judged)
        pod = decided(plane, create_pod(plane, document))
        node, cause = pod["spec"].get("nodeName") or "", (explained["primary"] or {}).get("message", "")
        outcome = f"placed on {node}" if node else f"refused: {cause} (kube-scheduler: {refusal(pod)[:110]})"
        print(f"{wish.words}: {outcome}")
        if bool(node) is bool(wish.cause) or not node.startswith(wish.node) or wish.cause not in cause:
            differences.append((wish.words, node, cause, refusal(pod)))
        if bool(node) is not bool(explained["fits"]):
            differences.append((wish.words, "explain", explained["fits"], refusal(pod)))

    assert not differences
