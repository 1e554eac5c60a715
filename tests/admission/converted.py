# SPDX-License-Identifier: Apache-2.0
"""Clusters of NVIDIA's DRA driver as tests of the conversion to claims need them, and what a claim gets in them."""

from collections.abc import Mapping
from typing import Any

from app.admission.claim_conversion import Conversion, convert
from app.dra.allocator import NodeAllocation, allocate
from app.dra.selectors import Selection
from app.kube.pods import read_pod
from app.kube.records import read_record
from app.kube.resource_claims import ResourceClaimTemplate
from app.world.state import State
from tests.builders import demand, knowledge, state_of
from tests.dra.makes import device, device_class, slice_of

Object = dict[str, Any]
CLASSES = [
    {"kind": "DeviceClass", **device_class(name, kind)}
    for name, kind in (("gpu.nvidia.com", "gpu"), ("mig.nvidia.com", "mig"))
]


def cluster(make: str = "h100", count: int = 8, *objects: Object) -> State:
    """Make a cluster of one node without labels, which has so many GPUs of a make."""
    slices = [slice_of("n", [device(number, "gpu", make) for number in range(count)])]
    return cluster_of(*({"kind": "ResourceSlice", **one} for one in slices), *objects)


def cluster_of(*objects: Object) -> State:
    """Make a cluster of a node without labels, the DeviceClasses, and these objects."""
    return state_of([{"kind": "Node", "metadata": {"name": "n"}}, *CLASSES, *objects])


def conversion_of(document: Mapping[str, Any]) -> Conversion:
    """Convert a pod that has an equivalent."""
    outcome = convert(read_pod(document), demand(document), knowledge())
    assert isinstance(outcome, Conversion), outcome
    return outcome


def reasons_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return why a pod has no equivalent; nothing where it has one."""
    outcome = convert(read_pod(document), demand(document), knowledge())
    return () if isinstance(outcome, Conversion) else outcome.reasons


def allocated(conversion: Conversion, state: State) -> NodeAllocation:
    """Return what the allocator says of the claim on the node."""
    claim = read_record(ResourceClaimTemplate, conversion.template).claim
    return allocate([claim], state.nodes["n"], state.devices.dra.current, Selection())
