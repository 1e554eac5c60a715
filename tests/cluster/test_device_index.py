# SPDX-License-Identifier: Apache-2.0
"""Nodes whose GPUs DRA serves: facts from ResourceSlices, counting left to kube-scheduler, no ghosts (F135)."""

from dataclasses import replace
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


MIXED = (device("NVIDIA A100-SXM4-80GB", driverVersion="535.104.5"), device())


def claims(**annotations: str) -> Demand:
    """Make the demand of a pod that claims a GPU and names no resource."""
    asked = demand(pod(annotations=annotations))
    return replace(asked, resources=(), claims=(("gpu.nvidia.com", 1),))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (demand(pod()), None),
        (demand(pod(annotations={"products": "H100"})), "ProductNotAllowed"),
        (demand(pod(annotations={"products": "A100"})), "ProductNotAllowed"),
        (demand(pod(annotations={"products": "A100, H100"})), None),
        (demand(pod(annotations={"products": "!T4"})), None),
        (demand(pod(annotations={"products": "!A100"})), "ProductNotAllowed"),
        (demand(pod(annotations={"gpu-memory": "80GB"})), None),
        (demand(pod(annotations={"compute-capability": "8.0"})), None),
        (demand(pod(annotations={"compute-capability": "9.0"})), "ComputeCapabilityTooLow"),
        (claims(products="H100"), None),
        (claims(products="A100"), None),
        (claims(products="H200"), "ProductNotAllowed"),
    ],
)
def test_node_of_several_makes_serves_what_each_of_them_does(asked: Demand, expected: str | None) -> None:
    """F135: kube-scheduler takes whichever device is free; a claim may choose among them by its own selectors."""
    older = {**MIXED[0], "attributes": {**MIXED[0]["attributes"], "cudaComputeCapability": {"version": "8.0.0"}}}

    assert expected == refusal(state(slice_of(older, device())), asked)


def test_claims_are_judged_where_no_device_class_serves_a_resource() -> None:
    """F135, S13: DRA by claims alone; such a node has GPUs, and is no ghost."""
    made = state(slice_of(device()), device_class=None)

    assert refusal(made, claims(products="H100")) is None
    assert refusal(made, claims(products="A100")) == "ProductNotAllowed"
    assert refusal(made, demand(pod())) == "ResourceNotOffered"
    assert made.nodes["n"].has_gpus


def test_gpus_of_a_device_plugin_stay_as_labelled_unless_dra_serves_them() -> None:
    made = state(slice_of(device("NVIDIA H200")), device_class=None)
    made.put_node(node_document("n", offers={"nvidia.com/gpu": 8}))

    assert made.nodes["n"].node_class.product == "h100-80gb-hbm3"
    assert made.nodes["n"].free.gpus is None


def test_other_vendors_resource_that_dra_serves_is_none_of_this_nodes() -> None:
    """F135: a DeviceClass is the cluster's, the devices are the node's."""
    made = state(slice_of(device()))
    made.put_device_class({"metadata": {"name": "gpu.amd.com"}, "spec": {"extendedResourceName": "amd.com/gpu"}})

    assert refusal(made, demand(pod(gpus(1, "amd.com/gpu")))) == "ResourceNotOffered"
    assert refusal(made, demand(pod())) is None


def test_devices_of_two_makes_tell_only_what_they_share() -> None:
    """P26."""
    found = state(slice_of(*MIXED)).nodes["n"].node_class

    assert (found.product, found.driver) == (None, (535, 104, 5))
    assert [each.product for each in found.device_variants] == ["a100-sxm4-80gb", "h100-80gb-hbm3"]


def test_product_label_does_not_speak_for_gpus_of_several_makes() -> None:
    """GPU Feature Discovery labels a node with the first product that it finds."""
    made = state(slice_of(*MIXED))
    made.put_node(node_document("n", product="NVIDIA-H100-80GB-HBM3", offers={}))

    assert made.nodes["n"].node_class.product is None
    assert refusal(made, demand(pod(annotations={"products": "H100"}))) == "ProductNotAllowed"


def test_several_slices_of_a_node_are_read_together() -> None:
    """F135: also of several pools."""
    second = {**slice_of(device("NVIDIA H200")), "metadata": {"name": "t"}}
    second["spec"]["pool"] = {"name": "another", "generation": 7}
    made = state(slice_of(device()), second)

    assert [each.product for each in made.nodes["n"].node_class.device_variants] == ["h100-80gb-hbm3", "h200"]
    made.drop_slice("s")
    assert made.nodes["n"].node_class.product == "h200"


def tainted(found: dict[str, Any], effect: str) -> dict[str, Any]:
    """Taint a device as the driver does after an XID error (kubernetes-sigs/dra-driver-nvidia-gpu device_health.go)."""
    return {**found, "taints": [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": effect}]}


@pytest.mark.parametrize(
    ("effect", "product", "milli"),
    [
        ("NoSchedule", "h100-80gb-hbm3", (1000, 0)),
        ("NoExecute", "h100-80gb-hbm3", (1000, 0)),
        ("None", None, (1000, 1000)),
    ],
)
def test_withheld_device_says_nothing_of_what_pods_get(
    effect: str, product: str | None, milli: tuple[int, ...]
) -> None:
    """KEP-5055: kube-scheduler gives it to no new pod; the effect None only informs."""
    other = {**tainted(device("NVIDIA H200"), effect), "name": "gpu-1"}
    found = state(slice_of(device(), other)).nodes["n"]

    assert (found.node_class.product, found.free.gpus) == (product, milli)


def test_node_whose_gpus_are_all_withheld_is_sick() -> None:
    """F135: some that are withheld leave the others; policies judge both as they judge what a plugin withdraws."""
    sick = tainted(device(), "NoSchedule")
    some = state(slice_of(sick, {**device(), "name": "gpu-1"}))

    assert refusal(state(slice_of(sick)), demand(pod())) == "GPUUnhealthy"
    assert refusal(some, demand(pod())) is None
    assert some.nodes["n"].node_class.withdrawn == 1


def test_device_for_virtual_machines_is_none_of_ours() -> None:
    """The driver's type `vfio`, of a DeviceClass of its own."""
    passed_on = device("NVIDIA H200")
    passed_on["attributes"]["type"] = {"string": "vfio"}

    assert state(slice_of(device(), passed_on)).nodes["n"].node_class.product == "h100-80gb-hbm3"


def test_node_of_slices_alone_has_no_whole_gpu() -> None:
    """F135: whatever their profiles; a pod that insists on a whole GPU has no use for it."""
    several = state(slice_of(device(profile="1g.10gb", type="mig"), device(profile="3g.40gb", type="mig")))
    alone = demand(pod(annotations={"sharing": "Exclusive"}))

    assert refusal(several, alone) == "SharingNotAllowed"
    assert refusal(state(slice_of(device())), alone) is None


@pytest.mark.parametrize(
    ("wish", "expected"),
    [("1g.10gb", None), (">=2g.20gb", None), ("2g.20gb", "MIGProfileAbsent"), (">=4g.40gb", "MIGProfileAbsent")],
)
def test_pod_that_claims_a_slice_finds_it_among_those_shown(wish: str, expected: str | None) -> None:
    """F135, S13: what a node's resources offer says nothing to a pod that names none."""
    made = state(slice_of(device(profile="1g.10gb", type="mig"), device(profile="3g.40gb", type="mig")))

    assert expected == refusal(made, claims(**{"mig-profile": wish}))


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
