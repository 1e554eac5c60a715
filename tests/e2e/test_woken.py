# SPDX-License-Identifier: Apache-2.0
"""How soon a refused pod is tried again, once the cause has ended: docs/reference/woken.md has the table.

Each pod selects one node by a label, and waits out its back-off before the change. One namespace has the node affinity
that admission writes, so that kube-scheduler itself refuses most nodes; in the other one all is left to the extender.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from app.cluster.files import shipped_policies
from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, kubelets, node_object, pod_path
from tests.controlplane.kubectl import Object
from tests.dra.makes import device, device_class, slice_of
from tests.e2e.offers import dra_path
from tests.e2e.refusals import REFUSALS, Refusal
from tests.e2e.stage import (
    DEPLOY,
    Service,
    create_namespace,
    create_pod,
    gpu_pod,
    install_webhooks,
    pods_of,
    refusal,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)

WITH_AFFINITY, WITHOUT = "with-affinity", "without"
BAR_SECONDS = 5
"""Of the issue: from the change to the binding; kube-scheduler flushes its queue after 300 s."""
PATIENCE_SECONDS = 25


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service, a scheduler, and all refusals of both namespaces, each on a node of its own."""
    folder = tmp_path_factory.mktemp("policies")
    for file in shipped_policies().glob("*.yaml"):
        (folder / file.name).write_text(file.read_text("utf-8"), "utf-8")
    (folder / "off.yaml").write_text(
        policy("off", f"priority: 900, match: {{namespaces: [{WITHOUT}]}}, admission: {{affinity: {{mode: 'Off'}}}}"),
        "utf-8",
    )
    (folder / "health.yaml").write_text(policy("health", "placement: {health: {withdrawn: Refuse}}"), "utf-8")
    add_nodes(plane.api, [row.node_object(name_of(row, where)) for row in REFUSALS for where in PLACES])
    if os.environ.get("GPU_USHER_EVENTS"):
        create_namespace(plane, "gpu-usher")
        component = DEPLOY / "components" / "events"
        plane.kubectl("apply", *(w for f in ("rbac", "lease", "wake") for w in ("-f", str(component / f"{f}.yaml"))))
    with serving(plane, policies=str(folder)) as running, kubelets(plane.api):
        install_webhooks(plane, running)
        start_scheduler(plane, running)
        for where in PLACES:
            create_namespace(plane, where)
        for row in REFUSALS:
            for where in PLACES:
                make_refused(plane, row, where)
        yield running


PLACES = (WITH_AFFINITY, WITHOUT)


def name_of(row: Refusal, where: str) -> str:
    return f"{row.code.lower()}-{where}"


def make_refused(plane: ControlPlane, row: Refusal, where: str) -> None:
    """Create the holder, if there is one, and the pod that is refused."""
    name = name_of(row, where)
    selector = {"nodeSelector": {"turn": name}}
    if row.holder is not None:
        holder = gpu_pod(f"{name}-holder", where, **{**row.holder, **selector})
        create_pod(plane, holder)
        wait_for_node(plane, holder)
    pod = gpu_pod(name, where, **{**row.pod, **selector})
    create_pod(plane, pod)
    wait_for_refusal(plane, pod)


def end_refusal(plane: ControlPlane, row: Refusal, where: str) -> None:
    """Make the change that ends the refusal."""
    name = name_of(row, where)
    if row.labels:
        plane.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": row.labels}})
    elif row.allocatable:
        status = {"allocatable": row.allocatable, "capacity": row.allocatable}
        plane.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    else:
        plane.api.delete(f"/api/v1/namespaces/{where}/pods/{name}-holder")


def waiting(plane: ControlPlane, name: str, where: str) -> Object:
    return next(pod for pod in pods_of(plane, where) if pod["metadata"]["name"] == name)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row.code)
def test_refused_pod_is_woken_in_time(plane: ControlPlane, service: Service, row: Refusal, where: str) -> None:
    """F140."""
    name = name_of(row, where)
    pod = waiting(plane, name, where)
    primary = service.explain({"namespace": where, "name": name})["primary"]
    message = refusal(pod)

    began = time.monotonic()
    end_refusal(plane, row, where)
    try:
        wait_for_node(plane, pod, PATIENCE_SECONDS)
        seconds = time.monotonic() - began
    except AssertionError:
        seconds = float("inf")
    finally:
        plane.api.delete(pod_path(pod))
    print(f"WOKEN | {row.code} | {where} | {primary['reason']} | {row.change} | {seconds:.2f} | {message}")

    assert primary["reason"] == row.code
    assert seconds <= BAR_SECONDS


def test_pod_with_a_claim_is_woken_by_what_ends_its_refusal(plane: ControlPlane, service: Service) -> None:
    """F140: by kube-scheduler's own hints where it refused; for a slice of other devices only by us."""
    namespace = create_namespace(plane, "claims")
    plane.api.create(f"{dra_path(plane)}/deviceclasses", device_class("gpu.nvidia.com", "gpu"))
    template = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}}
    path = f"{dra_path(plane)}/namespaces/{namespace}/resourceclaimtemplates"
    plane.api.create(path, {"metadata": {"name": "one"}, "spec": template})
    for name in ("no-slice", "in-use", "product"):
        add_nodes(plane.api, [node_object(f"claims-{name}", None, None, {}, labels={"turn": f"claims-{name}"})])
    slices = f"{dra_path(plane)}/resourceslices"
    plane.api.create(slices, slice_of("claims-in-use", [device(0, "gpu", "h100")]))
    product = plane.api.create(slices, slice_of("claims-product", [device(0, "gpu", "t4")]))
    plane.api.create(slices, slice_of("claims-no-slice", []))
    empty = plane.api.get(f"{slices}/claims-no-slice")
    holder = claiming("holder", namespace, "claims-in-use")
    create_pod(plane, holder)
    wait_for_node(plane, holder)
    changes: Mapping[str, tuple[Object, Callable[[], object]]] = {
        "slice gets a device": (
            claiming("no-slice", namespace, "claims-no-slice"),
            lambda: replace_devices(plane, empty, [device(0, "gpu", "h100")]),
        ),
        "holder is deleted": (
            claiming("in-use", namespace, "claims-in-use"),
            lambda: plane.api.delete(pod_path(holder)),
        ),
        "slice gets another device": (
            claiming("product", namespace, "claims-product", products="H100"),
            lambda: replace_devices(plane, product, [device(0, "gpu", "h100")]),
        ),
    }
    for pod, _ in changes.values():
        create_pod(plane, pod)
        wait_for_refusal(plane, pod)
    for what, (pod, change) in changes.items():
        settle(service)
        message = refusal(waiting(plane, pod["metadata"]["name"], namespace))
        began = time.monotonic()
        change()
        try:
            wait_for_node(plane, pod, PATIENCE_SECONDS)
            seconds = time.monotonic() - began
        except AssertionError:
            seconds = float("inf")
        print(f"WOKEN | claim | {what} | {seconds:.2f} | {message}")


def claiming(name: str, namespace: str, turn: str, **wishes: str) -> Object:
    """Write a pod that claims one device on one node."""
    pod = gpu_pod(name, namespace, {"cpu": "1"}, nodeSelector={"turn": turn}, annotations=wishes)
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return pod


def replace_devices(plane: ControlPlane, resource_slice: Object, devices: list[Object]) -> Object:
    """Replace the devices of a slice, as its driver does."""
    path = f"{dra_path(plane)}/resourceslices/{resource_slice['metadata']['name']}"
    pool = {**resource_slice["spec"]["pool"], "generation": 2}
    return plane.api.patch(path, {"spec": {"devices": devices, "pool": pool}})


EVENTS: Mapping[str, Callable[[ControlPlane, Object], object]] = {
    "label of another node": lambda plane, _: plane.api.patch(f"/api/v1/nodes/{BYSTANDER}", labels("a")),
    "annotation of another node": lambda plane, _: plane.api.patch(f"/api/v1/nodes/{BYSTANDER}", annotations("a")),
    "allocatable of another node": lambda plane, _: plane.api.patch(
        f"/api/v1/nodes/{BYSTANDER}/status", {"status": {"allocatable": {"cpu": "63"}}}
    ),
    "annotation of the pod itself": lambda plane, pod: plane.api.patch(pod_path(pod), annotations("a")),
    "label of the pod itself": lambda plane, pod: plane.api.patch(pod_path(pod), labels("a")),
    "another pod, created": lambda plane, _: create_pod(plane, bystander()),
    "label of another pod": lambda plane, _: plane.api.patch(pod_path(bystander()), labels("a")),
    "another pod, deleted": lambda plane, _: plane.api.delete(pod_path(bystander())),
    "ResourceSlice, created": lambda plane, _: plane.api.create(
        f"{dra_path(plane)}/resourceslices", slice_of(BYSTANDER, [device(0, "gpu", "a10")])
    ),
    "DeviceClass, created": lambda plane, _: plane.api.create(
        f"{dra_path(plane)}/deviceclasses", device_class("mig.nvidia.com", "mig")
    ),
    "CSIStorageCapacity, created": lambda plane, _: plane.api.create(CAPACITIES, capacity()),
    "CSIStorageCapacity, updated": lambda plane, _: plane.api.patch(f"{CAPACITIES}/wake", annotations("a")),
    "Lease, created": lambda plane, _: plane.api.create(
        "/apis/coordination.k8s.io/v1/namespaces/default/leases", {"metadata": {"name": "any"}}
    ),
}
"""What may happen in a cluster, none of which lets the refused pod run."""
BYSTANDER = "bystander"
CAPACITIES = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities"
WAKING_SECONDS = 15.0
"""The longest back-off is 10 s (podMaxBackoffSeconds)."""


def labels(value: str) -> Object:
    return {"metadata": {"labels": {"changed": value}}}


def annotations(value: str) -> Object:
    return {"metadata": {"annotations": {"changed": value}}}


def capacity() -> Object:
    return {"metadata": {"name": "wake"}, "storageClassName": "none-such"}


def bystander() -> Object:
    """Write a pod that some node takes, and that no scheduler has to place."""
    return gpu_pod("bystander", "default", {"cpu": "1"}, nodeName=BYSTANDER, schedulerName="nobody")


@pytest.mark.parametrize("where", PLACES)
def test_events_that_wake_a_refused_pod(plane: ControlPlane, service: Service, where: str) -> None:
    """F140: whether kube-scheduler asks again is seen by the calls of filter."""
    for row in REFUSALS:
        plane.api.delete(f"/api/v1/namespaces/{where}/pods/{name_of(row, where)}")
    add_nodes(plane.api, [node_object("old", driver="470.82.01", labels={"turn": "old"}), node_object(BYSTANDER)])
    pod = gpu_pod("still", where, nodeSelector={"turn": "old"}, annotations={"cuda": "12.4"})
    create_pod(plane, pod)
    wait_for_refusal(plane, pod)
    woken = {}
    for name, make in EVENTS.items():
        settle(service)
        before, began = service.calls("filter"), time.monotonic()
        make(plane, pod)
        while service.calls("filter") == before and time.monotonic() - began < WAKING_SECONDS:
            time.sleep(0.05)
        woken[name] = time.monotonic() - began if service.calls("filter") > before else None
        print(f"EVENT | {where} | {name} | {woken[name]}")


def settle(service: Service) -> None:
    """Wait until the scheduler has asked nothing for two seconds."""
    seen, since = service.calls("filter"), time.monotonic()
    while time.monotonic() - since < 2:
        time.sleep(0.1)
        if service.calls("filter") != seen:
            seen, since = service.calls("filter"), time.monotonic()
