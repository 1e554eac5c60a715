# SPDX-License-Identifier: Apache-2.0
"""Builders of slices, claims and DeviceClasses as documents of resource.k8s.io/v1."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from app.dra.allocator import NodeAllocation, allocate
from app.dra.cluster_devices import AllocatedDevices, ClusterDevices, PoolIndex
from app.dra.selectors import Selection
from app.kube.device_classes import DeviceClass, DeviceTaintRule
from app.kube.devices import ResourceSlice
from app.kube.records import read_record
from app.kube.resource_claims import ResourceClaim
from tests.builders import node

Document = dict[str, Any]
DRIVER = "gpu.example.com"
OWN = f"device.attributes['{DRIVER}']"
MODEL_A, MODEL_B = f"{OWN}.model == 'a'", f"{OWN}.model == 'b'"
TWO_SLOTS = f"{OWN}.?slots.orValue(0) >= 2"
"""Selectors; a device without slots has too few."""


def device(name: str, attributes: Mapping[str, Any] | None = None, **body: Any) -> Document:
    """Write a device with attributes of plain values: text, integers and booleans."""
    kinds = {str: "string", int: "int", bool: "bool"}
    typed = {
        key: value if isinstance(value, dict) else {kinds[type(value)]: value}
        for key, value in (attributes or {}).items()
    }
    return {"name": name, "attributes": typed, **body}


def slice_document(name: str, devices: Iterable[Document] = (), **spec: Any) -> Document:
    """Write a slice, of the pool and the node n unless told otherwise."""
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1, **spec.pop("pool", {})}
    where = {"nodeName": "n"} if not spec.keys() & {"nodeName", "allNodes", "nodeSelector"} else {}
    if spec.get("perDeviceNodeSelection"):
        where = {}
    devices = list(devices)
    body = {"devices": devices} if devices else {}
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "pool": pool, **where, **body, **spec}}


def request(name: str = "gpu", **exactly: Any) -> Document:
    """Write a request for devices of the class `any`; `selectors` are expressions."""
    return {"name": name, "exactly": body(**exactly)}


def body(**fields: Any) -> Document:
    """Write the fields of a request; `selectors` are expressions."""
    selectors = [{"cel": {"expression": expression}} for expression in fields.pop("selectors", ())]
    capacity = {"capacity": {"requests": fields.pop("capacity")}} if "capacity" in fields else {}
    return {"deviceClassName": "any", **fields, **capacity, **({"selectors": selectors} if selectors else {})}


def claim_document(name: str, *requests: Document, constraints: Sequence[Document] = (), **more: Any) -> Document:
    """Write a claim of the namespace default."""
    devices = {"requests": list(requests), "constraints": list(constraints)}
    return {"metadata": {"namespace": "default", "name": name}, "spec": {"devices": devices}, **more}


def allocated_document(name: str, *devices: str, **result: Any) -> Document:
    """Write a claim that has devices of the pool n."""
    results = [{"request": "gpu", "driver": DRIVER, "pool": "n", "device": one, **result} for one in devices]
    return claim_document(name, request(), status={"allocation": {"devices": {"results": results}}})


def class_document(name: str = "any", *expressions: str) -> Document:
    """Write a DeviceClass."""
    return {
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}} for expression in expressions]},
    }


def cluster(
    slices: Iterable[Document],
    claims: Iterable[Document] = (),
    classes: Iterable[Document] = (class_document(),),
    rules: Iterable[Document] = (),
) -> ClusterDevices:
    """Read the facts of a cluster from documents."""
    device_classes = [read_record(DeviceClass, one) for one in classes]
    return ClusterDevices(
        PoolIndex(map(partial(read_record, ResourceSlice), slices)),
        {device_class.name: device_class for device_class in device_classes},
        tuple([read_record(DeviceTaintRule, one) for one in rules]),
        AllocatedDevices(read_record(ResourceClaim, one) for one in claims),
    )


def decide(facts: ClusterDevices, *claims: Document, name: str = "n", **node_facts: Any) -> NodeAllocation:
    """Ask the allocator what claims get on a node."""
    return allocate(
        [read_record(ResourceClaim, claim) for claim in claims], node(name, **node_facts), facts, Selection()
    )


def devices_of(verdict: NodeAllocation) -> list[str]:
    """Name the devices of a verdict."""
    return [granted.device.name for granted in verdict.devices]
