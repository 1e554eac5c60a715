# SPDX-License-Identifier: Apache-2.0
"""How soon a pod with a ResourceClaim is tried again, once the cause has ended: docs/reference/woken.md has the table.

Some causes kube-scheduler refuses for by itself, and others only our filter knows: that the devices which a claim can
take are not what the pod's annotations want. Each pod selects one node by a label. And a node that a device plugin and
a DRA driver both serve gives its GPUs to one side at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object, pod_path
from tests.controlplane.kubectl import Object
from tests.dra.makes import MAKES, device, device_class, slice_of
from tests.e2e.offers import dra_path, dra_version, try_slice
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    read_pod,
    refusal,
    wait_for_node,
    wait_for_refusal,
)
from tests.e2e.woken_stage import PATIENCE_SECONDS, seconds_until_bound, waking_service

NAMESPACE, CLASS = "claims", "gpu.nvidia.com"
TAINT = {"key": "ill", "effect": "NoSchedule"}
WANTED = {"products": "H100"}
OLD = "v100"
"""A make that no pod of these tests wants."""


@dataclass(frozen=True)
class ClaimRefusal:
    """One refusal: who refuses, what the pod's annotations want, and what is there before; `end` is what ends it.

    `devices` are the makes of the node's devices. `late` is what does not exist before the end: a template, a claim or
    a class.
    """

    name: str
    by: str
    end: Callable[["RefusedClaims", str], object]
    devices: tuple[str, ...] = ("h100",)
    annotations: tuple[tuple[str, str], ...] = ()
    device_class: str = CLASS
    late: str = ""
    tainted: bool = False
    held: bool = False


class RefusedClaims:
    """Writes the objects of refusals, all with the name of the refusal."""

    def __init__(self, plane: ControlPlane, service: Service) -> None:
        self.plane = plane
        self._service = service
        self.classes, self.slices = (f"{dra_path(plane)}/{kind}" for kind in ("deviceclasses", "resourceslices"))
        self._of_namespace = f"{dra_path(plane)}/namespaces/{NAMESPACE}"

    def prepare(self, row: ClaimRefusal) -> Object:
        """Create all but what is late, and the pod; return it when it is refused."""
        add_nodes(self.plane.api, [node_object(row.name, None, None, {}, labels={"turn": row.name})])
        if row.devices:
            self.publish(row.name, *row.devices, tainted=row.tainted)
        if row.device_class != CLASS and row.late != "class":
            self.plane.api.create(self.classes, one_make(row.device_class, OLD))
        if row.late not in ("template", "claim"):
            self.template(row.name, row.device_class)
        if row.held:
            holder = claiming_pod(row, f"{row.name}-holder")
            create_pod(self.plane, holder)
            wait_for_node(self.plane, holder)
        pod = claiming_pod(row, row.name)
        create_pod(self.plane, pod)
        if row.late in ("template", "claim"):  # kube-scheduler does not try such a pod, and says nothing of it
            asked = {"namespace": NAMESPACE, "name": row.name}
            eventually("we know that the pod waits", lambda: "ResourceClaim" in str(self._service.explain(asked)))
        else:
            wait_for_refusal(self.plane, pod)
        return pod

    def publish(self, name: str, *makes: str, tainted: bool = False, again: bool = False) -> None:
        """Create the ResourceSlice of a node, or replace it by one of a new generation, as a driver does."""
        taints = {"taints": [TAINT]} if tainted else {}
        written = slice_of(name, [{**device(number, "gpu", make), **taints} for number, make in enumerate(makes)])
        if again:
            written["spec"]["pool"]["generation"] = 2
            self.plane.api.patch(f"{self.slices}/{name}", {"spec": written["spec"]})
        else:
            self.plane.api.create(self.slices, written)

    def template(self, name: str, device_class_name: str = CLASS) -> None:
        self.plane.api.create(
            f"{self._of_namespace}/resourceclaimtemplates",
            {"metadata": {"name": name}, "spec": {"spec": claim_spec(device_class_name)}},
        )

    def claim(self, name: str) -> None:
        self.plane.api.create(
            f"{self._of_namespace}/resourceclaims", {"metadata": {"name": name}, "spec": claim_spec(CLASS)}
        )


def claim_spec(device_class_name: str) -> Object:
    exactly = {"deviceClassName": device_class_name, "allocationMode": "ExactCount", "count": 1}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def one_make(name: str, make: str) -> Object:
    """Write a DeviceClass that selects the devices of one make."""
    product = f"device.attributes['{CLASS}'].productName == '{MAKES[make][0]}'"
    driver = f"device.driver == '{CLASS}'"
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": f"{driver} && {product}"}}]}}


def claiming_pod(row: ClaimRefusal, name: str) -> Object:
    by_name = {"resourceClaimName": row.name} if row.late == "claim" else {"resourceClaimTemplateName": row.name}
    more: dict[str, Any] = {"nodeSelector": {"turn": row.name}, "resourceClaims": [{"name": "gpu", **by_name}]}
    pod = gpu_pod(name, NAMESPACE, {}, annotations=dict(row.annotations), **more)
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return pod


def create_class(stage: RefusedClaims, name: str) -> None:
    stage.plane.api.create(stage.classes, one_make(name, "h100"))


def change_class(stage: RefusedClaims, name: str) -> None:
    stage.plane.api.patch(f"{stage.classes}/{name}", {"spec": one_make(name, "h100")["spec"]})


THEIRS, OURS = "kube-scheduler", "our filter"
H100_WANTED = tuple(WANTED.items())
ROWS = (
    ClaimRefusal("slice-created", THEIRS, lambda stage, name: stage.publish(name, "h100"), devices=()),
    ClaimRefusal("slice-of-other-devices", OURS, lambda stage, name: stage.publish(name, "h100", again=True),
                 devices=(OLD,), annotations=H100_WANTED),
    ClaimRefusal("driver-upgraded", OURS, lambda stage, name: stage.publish(name, "h100", again=True),
                 devices=("t4",), annotations=(("cuda", "12.4"),)),
    ClaimRefusal("taint-removed", THEIRS, lambda stage, name: stage.publish(name, "h100", again=True), tainted=True),
    ClaimRefusal("holder-deleted", THEIRS,
                 lambda stage, name: stage.plane.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}-holder"),
                 held=True),
    ClaimRefusal("class-created", THEIRS, create_class, device_class="class-created", late="class"),
    ClaimRefusal("class-changed", OURS, change_class, devices=(OLD, "h100"), annotations=H100_WANTED,
                 device_class="class-changed"),
    ClaimRefusal("template-created", THEIRS, lambda stage, name: stage.template(name), late="template"),
    ClaimRefusal("claim-created", THEIRS, lambda stage, name: stage.claim(name), late="claim"),
)  # fmt: skip


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service, a scheduler, the DeviceClass of NVIDIA's driver, and the namespace."""
    if dra_version(plane) == "v1beta1":
        pytest.skip("The claims need resource.k8s.io/v1beta2, which the API server lacks. Choose a newer version.")
    plane.api.create(f"{dra_path(plane)}/deviceclasses", device_class(CLASS, "gpu"))
    with waking_service(plane, "--every-pod") as running:
        create_namespace(plane, NAMESPACE)
        yield running


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_pod_with_a_claim_is_woken_in_time(plane: ControlPlane, service: Service, row: ClaimRefusal) -> None:
    """F140: whoever has refused it."""
    if row.tainted and "taints" not in repr(try_slice(plane, devices=[{"name": "d", "taints": [TAINT]}])):
        pytest.skip("The API server drops taints of devices. Choose a newer version of Kubernetes.")
    stage = RefusedClaims(plane, service)
    pod = stage.prepare(row)
    message = refusal(read_pod(plane, pod))

    seconds = seconds_until_bound(plane, pod, partial(row.end, stage, row.name), PATIENCE_SECONDS)
    print(f"WOKEN | {row.name} | {row.by} | {seconds:.2f} | {message}")

    assert seconds < float("inf")


BOTH = ClaimRefusal("both", OURS, lambda *_: None)
"""The node that a device plugin and a DRA driver both serve."""
JUDGED_SECONDS = 120


def test_pods_of_one_side_at_a_time_are_bound_to_a_node_served_twice(plane: ControlPlane, service: Service) -> None:
    """F135: pods of both sides at once; four of one side are bound, and the other side's when these are gone."""
    stage = RefusedClaims(plane, service)
    add_nodes(plane.api, [node_object(BOTH.name, offers={"nvidia.com/gpu": 4}, labels={"turn": BOTH.name})])
    stage.publish(BOTH.name, *["h100"] * 4)
    stage.template(BOTH.name)
    pods = [
        gpu_pod(f"by-plugin-{n}", NAMESPACE, nodeSelector={"turn": BOTH.name})
        if n % 2
        else claiming_pod(BOTH, f"by-claim-{n}")
        for n in range(8)
    ]
    for pod in pods:
        create_pod(plane, pod)

    def bound(side: str) -> list[Object]:
        stored = (read_pod(plane, pod) for pod in pods if pod["metadata"]["name"].startswith(f"by-{side}"))
        return [pod for pod in stored if pod["spec"].get("nodeName")]

    def settled() -> bool:
        stored = [read_pod(plane, pod) for pod in pods]
        return all(pod["spec"].get("nodeName") or refusal(pod) for pod in stored) and bool(bound(""))

    eventually("all pods are judged", settled, JUDGED_SECONDS)
    by_plugin, by_claim = bound("plugin"), bound("claim")
    first, other = ("plugin", "claim") if by_plugin else ("claim", "plugin")
    for pod in [pod for pod in pods if pod["metadata"]["name"].startswith(f"by-{first}")]:
        plane.api.delete(pod_path(pod))
    pods = [pod for pod in pods if pod["metadata"]["name"].startswith(f"by-{other}")]

    assert (len(by_plugin), len(by_claim)) in ((4, 0), (0, 4))
    eventually("the other side has the node", lambda: len(bound(other)) == 4, JUDGED_SECONDS)
    for pod in pods:
        plane.api.delete(pod_path(pod))
