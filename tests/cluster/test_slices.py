# SPDX-License-Identifier: Apache-2.0
"""Nodes whose GPUs DRA serves: facts from ResourceSlices, counting left to kube-scheduler, no ghosts (F135)."""

from typing import Any

import pytest

from app.cluster.state import State
from app.placement.engine import judge
from app.policy.demand import Demand
from tests.builders import demand, gpus, knowledge, node_document, pod

CLASS = {
    "kind": "DeviceClass",
    "metadata": {"name": "gpu.nvidia.com"},
    "spec": {"extendedResourceName": "nvidia.com/gpu"},
}


def device(product: str = "NVIDIA H100 80GB HBM3", **attributes: str) -> dict[str, Any]:
    """Write a device as NVIDIA's driver does, in resource.k8s.io/v1."""
    told = {
        "type": {"string": "gpu"},
        "productName": {"string": product},
        "driverVersion": {"version": "535.104.5"},
        "cudaDriverVersion": {"version": "12.2.0"},
        "cudaComputeCapability": {"version": "9.0.0"},
        **{key: {"string": value} for key, value in attributes.items()},
    }
    return {"name": "gpu-0", "attributes": told, "capacity": {"memory": {"value": "81559Mi"}}}


def slice_of(*devices: dict[str, Any], driver: str = "gpu.nvidia.com", node: str | None = "n") -> dict[str, Any]:
    return {"metadata": {"name": "s"}, "spec": {"driver": driver, "nodeName": node, "devices": list(devices)}}


def state(*documents: dict[str, Any], device_class: dict[str, Any] | None = CLASS) -> State:
    """Make a state of one node without labels and without allocatable GPUs, and these slices."""
    made = State(knowledge())
    made.put_node(node_document("n", product=None, driver=None, offers={}))
    for document in documents:
        made.put_slice(document)
    if device_class:
        made.put_device_class(device_class)
    return made


def refusal(made: State, asked: Demand) -> str | None:
    found = judge(asked, made.nodes["n"], recount=True)
    return found.code.name if found else None


def test_facts_come_from_the_slices() -> None:
    """F135."""
    found = state(slice_of(device())).nodes["n"].node_class

    assert (found.product, found.driver, found.cuda) == ("h100-80gb-hbm3", (535, 104, 5), (12, 2))
    assert (found.compute_capability, found.memory_mib, found.nvlink) == ((9,), 81559, True)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (demand(pod()), None),
        (demand(pod(gpus(16))), None),
        (demand(pod(annotations={"products": "H100"})), None),
        (demand(pod(annotations={"products": "A100"})), "ProductNotAllowed"),
        (demand(pod(annotations={"cuda": "13.0"})), "DriverTooOld"),
        (demand(pod(annotations={"gpu-memory": "141Gi"})), "GPUMemoryTooSmall"),
        (demand(pod(gpus(1, "amd.com/gpu"))), "ResourceNotOffered"),
    ],
    ids=["any", "sixteen: the scheduler counts", "the product", "another product", "CUDA", "memory", "another vendor"],
)
def test_class_filters_judge_and_counting_is_left_to_the_scheduler(asked: Demand, expected: str | None) -> None:
    """F135: allocatable 0 is no ghost and no lack of GPUs."""
    assert expected == refusal(state(slice_of(device())), asked)


@pytest.mark.parametrize(
    "made",
    [
        state(slice_of(device()), device_class=None),
        state(slice_of(device()), device_class={"metadata": {"name": "gpu.nvidia.com"}, "spec": {}}),
        state(slice_of(device(), driver="gpu.example.com")),
        state(slice_of(device(), node="other")),
        state(slice_of(device(), node=None)),
        state(slice_of()),
    ],
    ids=["no DeviceClass", "class without resource", "another vendor", "another node", "no node", "no devices"],
)
def test_node_that_dra_does_not_serve_is_judged_as_ever(made: State) -> None:
    assert refusal(made, demand(pod())) == "ResourceNotOffered"


def test_devices_of_two_makes_tell_only_what_they_share() -> None:
    found = state(slice_of(device(), device("NVIDIA H200"))).nodes["n"].node_class

    assert found.product is None
    assert found.driver == (535, 104, 5)


def test_beta_shape_is_read_too() -> None:
    """resource.k8s.io/v1beta1 wraps a device in `basic`, and writes capacity as a plain quantity before v1beta1."""
    plain = device()
    wrapped = {"name": "gpu-0", "basic": {"attributes": plain["attributes"], "capacity": {"memory": "81559Mi"}}}

    assert state(slice_of(wrapped)).nodes["n"].node_class == state(slice_of(plain)).nodes["n"].node_class


def test_slice_that_goes_takes_its_facts_along() -> None:
    made = state(slice_of(device()))

    made.drop_slice("s")

    assert refusal(made, demand(pod())) == "ResourceNotOffered"
    assert made.nodes["n"].node_class.product is None


def test_mig_device_is_a_slice_of_its_profile() -> None:
    found = state(slice_of(device(profile="1g.10gb+me"))).nodes["n"].node_class

    assert found.mig_profile == "1g.10gb.me"


@pytest.mark.parametrize(
    "odd", [{"attributes": {"productName": 3}}, {"attributes": {"driverVersion": {"version": "new"}}}, {}]
)
def test_odd_device_is_unknown_and_no_crash(odd: dict[str, Any]) -> None:
    assert refusal(state(slice_of(odd)), demand(pod())) is None
