# SPDX-License-Identifier: Apache-2.0
"""How soon a refused pod is tried again, once the cause has ended: docs/reference/woken.md has the table.

Each pod selects one node by a label, and waits out its back-off before the change. One namespace has the node affinity
that admission writes, so that kube-scheduler itself refuses most nodes; in the other one all is left to the extender.
"""

import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from app.cluster.files import shipped_policies
from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object, pod_path
from tests.controlplane.kubectl import Object
from tests.dra.makes import device, device_class, slice_of
from tests.e2e.offers import dra_path
from tests.e2e.refusals import POLICIES, REFUSALS, Refusal
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    gpu_pod,
    pods_of,
    refusal,
    wait_for_node,
    wait_for_refusal,
)
from tests.e2e.woken_stage import PATIENCE_SECONDS, seconds_until_bound, waking_service

HEALTH = "placement: {health: {unhealthyDevices: Refuse, conditions: Refuse}}"
WITH_AFFINITY, WITHOUT = "with-affinity", "without"


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service, a scheduler, and all refusals of both namespaces, each on a node of its own."""
    folder = tmp_path_factory.mktemp("policies")
    for file in shipped_policies().glob("*.yaml"):
        (folder / file.name).write_text(file.read_text("utf-8"), "utf-8")
    selected = f"namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {WITHOUT}}}}}"
    bare = f"priority: 900, match: {{{selected}}}, admission: {{affinity: {{mode: 'Off'}}}}"
    (folder / "bare.yaml").write_text(policy("bare", bare), "utf-8")
    (folder / "health.yaml").write_text(policy("health", HEALTH), "utf-8")
    for code, placement in POLICIES.items():
        only = f"priority: 800, match: {{podSelector: {{matchLabels: {{only: {code}}}}}}}"
        text = policy(f"only-{code.lower()}", f"{only}, placement: {{{placement}}}")
        (folder / f"{code}.yaml").write_text(text, "utf-8")
    add_nodes(plane.api, [row.node_object(name_of(row, where)) for row in REFUSALS for where in PLACES])
    with waking_service(plane, policies=str(folder)) as running:
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
    """F140, F162."""
    name = name_of(row, where)
    pod = waiting(plane, name, where)
    explanation = service.explain({"namespace": where, "name": name}, nodes="true")
    (reasons,) = (verdict["reasons"] for verdict in explanation["verdicts"] if verdict["node"] == name)
    message = refusal(pod)

    seconds = seconds_until_bound(plane, pod, lambda: end_refusal(plane, row, where), PATIENCE_SECONDS)
    print(f"WOKEN | {row.code} | {where} | {row.change} | {seconds:.2f} | {message}")

    assert row.code in reasons
    assert seconds < float("inf")


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
WAKING_SECONDS = 6.0
"""Longer than any back-off that a pod of this test has; one without a wake-up waits for 300 s."""


def labels(value: str) -> Object:
    return {"metadata": {"labels": {"changed": value}}}


def annotations(value: str) -> Object:
    return {"metadata": {"annotations": {"changed": value}}}


def capacity() -> Object:
    return {"metadata": {"name": "wake"}, "storageClassName": "none-such"}


def bystander() -> Object:
    """Write a pod that some node takes, and that no scheduler has to place."""
    return gpu_pod("bystander", "default", {"cpu": "1"}, nodeName=BYSTANDER, schedulerName="nobody")


@pytest.mark.long
def test_events_that_wake_a_refused_pod(plane: ControlPlane, service: Service) -> None:
    """F140: whether kube-scheduler asks again is seen by the calls of filter."""
    where = WITHOUT
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

    assert {name for name, seconds in woken.items() if seconds is None} == {"ResourceSlice, created", "Lease, created"}


def settle(service: Service) -> None:
    """Wait until the scheduler has asked nothing for two seconds."""
    seen, since = service.calls("filter"), time.monotonic()
    while time.monotonic() - since < 2:
        time.sleep(0.1)
        if service.calls("filter") != seen:
            seen, since = service.calls("filter"), time.monotonic()
