# SPDX-License-Identifier: Apache-2.0
"""Nodes whose GPUs DRA serves have the facts of their ResourceSlices; kube-scheduler counts their devices (F135)."""

from dataclasses import replace
from typing import Any

import pytest

from app.placement.engine import judge
from app.policy.demand import Demand
from app.world.state import State
from tests.builders import demand, gpus, knowledge, node_document, pod

CLASS = {
    "kind": "DeviceClass",
    "metadata": {"name": "gpu.nvidia.com"},
    "spec": {"extendedResourceName": "nvidia.com/gpu"},
}


def device(product: str = "NVIDIA H100 80GB HBM3", **attributes: str) -> dict[str, Any]:
    """Write a device of resource.k8s.io/v1 as NVIDIA's driver does."""
    values = {
        "type": {"string": "gpu"},
        "productName": {"string": product},
        "driverVersion": {"version": "535.104.5"},
        "cudaDriverVersion": {"version": "12.2.0"},
        "cudaComputeCapability": {"version": "9.0.0"},
        **{key: {"string": value} for key, value in attributes.items()},
    }
    return {"name": "gpu-0", "attributes": values, "capacity": {"memory": {"value": "81559Mi"}}}


def slice_of(*devices: dict[str, Any], driver: str = "gpu.nvidia.com", node: str | None = "n") -> dict[str, Any]:
    return {"metadata": {"name": "s"}, "spec": {"driver": driver, "nodeName": node, "devices": list(devices)}}


def state(*documents: dict[str, Any], device_class: dict[str, Any] | None = CLASS) -> State:
    """Make a state of one node without labels and without allocatable GPUs, with these slices."""
    made = State(knowledge())
    made.put_node(node_document("n", product=None, driver=None, offers={}))
    for document in documents:
        made.devices.put_slice(document)
    if device_class:
        made.devices.put_device_class(device_class)
    return made


def refusal(made: State, pod_demand: Demand) -> str | None:
    reason = judge(pod_demand, made.nodes["n"], recount=True)
    return reason.code.name if reason else None


def test_facts_come_from_the_slices() -> None:
    """F135."""
    node_class = state(slice_of(device())).nodes["n"].node_class

    assert (node_class.product, node_class.driver, node_class.cuda) == ("h100-80gb-hbm3", (535, 104, 5), (12, 2))
    assert (node_class.compute_capability, node_class.memory_mib, node_class.nvlink) == ((9,), 81559, True)


@pytest.mark.parametrize(
    ("pod_demand", "expected"),
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
def test_class_filters_judge_and_counting_is_left_to_the_scheduler(pod_demand: Demand, expected: str | None) -> None:
    """F135: allocatable 0 means neither ghost GPUs nor a lack of GPUs."""
    assert expected == refusal(state(slice_of(device())), pod_demand)


@pytest.mark.parametrize(
    "made",
    [
        state(slice_of(device(), driver="gpu.example.com")),
        state(slice_of(device(), node="other")),
        state(slice_of(device(), node=None)),
        state(slice_of()),
    ],
    ids=["another vendor", "another node", "no node", "no devices"],
)
def test_node_that_dra_does_not_serve_is_judged_as_ever(made: State) -> None:
    assert refusal(made, demand(pod())) == "ResourceNotOffered"


@pytest.mark.parametrize("served", [None, {"metadata": {"name": "gpu.nvidia.com"}, "spec": {}}])
def test_gpus_for_claims_alone_are_told_from_gpus_that_are_absent(served: dict[str, Any] | None) -> None:
    """F135: the class is not there, or serves no extended resource."""
    assert refusal(state(slice_of(device()), device_class=served), demand(pod())) == "OfferedByClaimOnly"


MIXED = (device("NVIDIA A100-SXM4-80GB", driverVersion="535.104.5"), device())


def claims(**annotations: str) -> Demand:
    """Return the demand of a pod that claims a GPU and requests no resource."""
    pod_demand = demand(pod(annotations=annotations))
    return replace(pod_demand, resources=(), claims=(("gpu.nvidia.com", 1),))


@pytest.mark.parametrize(
    ("pod_demand", "expected"),
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
def test_node_of_several_makes_serves_what_each_of_them_does(pod_demand: Demand, expected: str | None) -> None:
    """F135: kube-scheduler takes any device that is free; selectors of a claim may choose among them."""
    older = {**MIXED[0], "attributes": {**MIXED[0]["attributes"], "cudaComputeCapability": {"version": "8.0.0"}}}

    assert expected == refusal(state(slice_of(older, device())), pod_demand)


def test_claims_are_judged_where_no_device_class_serves_a_resource() -> None:
    """F135, S13: where DRA serves claims alone, the node has GPUs, and they are no ghosts."""
    made = state(slice_of(device()), device_class=None)

    assert refusal(made, claims(products="H100")) is None
    assert refusal(made, claims(products="A100")) == "ProductNotAllowed"
    assert refusal(made, demand(pod())) == "OfferedByClaimOnly"
    assert made.nodes["n"].has_gpus


def test_gpus_of_a_device_plugin_stay_as_labelled_unless_dra_serves_them() -> None:
    made = state(slice_of(device("NVIDIA H200")), device_class=None)
    made.put_node(node_document("n", offers={"nvidia.com/gpu": 8}))

    assert made.nodes["n"].node_class.product == "h100-80gb-hbm3"
    assert made.nodes["n"].free.gpus is None


def test_resource_of_another_vendor_that_dra_serves_is_not_offered() -> None:
    """F135: a DeviceClass belongs to the cluster, the devices belong to the node."""
    made = state(slice_of(device()))
    made.devices.put_device_class(
        {"metadata": {"name": "gpu.amd.com"}, "spec": {"extendedResourceName": "amd.com/gpu"}}
    )

    assert refusal(made, demand(pod(gpus(1, "amd.com/gpu")))) == "ResourceNotOffered"
    assert refusal(made, demand(pod())) is None


def test_devices_of_two_makes_tell_only_what_they_share() -> None:
    """P26."""
    node_class = state(slice_of(*MIXED)).nodes["n"].node_class

    assert (node_class.product, node_class.driver) == (None, (535, 104, 5))
    assert [variant.product for variant in node_class.device_variants] == ["a100-sxm4-80gb", "h100-80gb-hbm3"]


def test_product_label_does_not_speak_for_gpus_of_several_makes() -> None:
    """GPU Feature Discovery labels a node with the first product that it meets."""
    made = state(slice_of(*MIXED))
    made.put_node(node_document("n", product="NVIDIA-H100-80GB-HBM3", offers={}))

    assert made.nodes["n"].node_class.product is None
    assert refusal(made, demand(pod(annotations={"products": "H100"}))) == "ProductNotAllowed"


def test_several_slices_of_a_node_are_read_together() -> None:
    """F135: this holds for slices of several pools, too."""
    second = {**slice_of(device("NVIDIA H200")), "metadata": {"name": "t"}}
    second["spec"]["pool"] = {"name": "another", "generation": 7}
    made = state(slice_of(device()), second)

    assert [variant.product for variant in made.nodes["n"].node_class.device_variants] == ["h100-80gb-hbm3", "h200"]
    made.devices.drop_slice("s")
    assert made.nodes["n"].node_class.product == "h200"


def tainted(device_document: dict[str, Any], effect: str) -> dict[str, Any]:
    """Taint a device as the driver does after an XID error (kubernetes-sigs/dra-driver-nvidia-gpu device_health.go)."""
    return {**device_document, "taints": [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": effect}]}


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
    """KEP-5055: kube-scheduler gives such a device to no new pod; the effect None only informs."""
    other = {**tainted(device("NVIDIA H200"), effect), "name": "gpu-1"}
    node = state(slice_of(device(), other)).nodes["n"]

    assert (node.node_class.product, node.free.gpus) == (product, milli)


def test_node_whose_gpus_are_all_withheld_is_sick() -> None:
    """F135: one withheld device leaves the others; policies judge it like a GPU that a device plugin withdrew."""
    sick = tainted(device(), "NoSchedule")
    some = state(slice_of(sick, {**device(), "name": "gpu-1"}))

    assert refusal(state(slice_of(sick)), demand(pod())) == "GPUUnhealthy"
    assert refusal(some, demand(pod())) is None
    assert some.nodes["n"].node_class.withdrawn == 1


def test_device_for_virtual_machines_is_ignored() -> None:
    """The driver gives it the type `vfio` and a DeviceClass of its own."""
    passed_on = device("NVIDIA H200")
    passed_on["attributes"]["type"] = {"string": "vfio"}

    assert state(slice_of(device(), passed_on)).nodes["n"].node_class.product == "h100-80gb-hbm3"


def test_node_of_slices_alone_has_no_whole_gpu() -> None:
    """F135: whatever its profiles are, it refuses a pod that demands a whole GPU."""
    several = state(slice_of(device(profile="1g.10gb", type="mig"), device(profile="3g.40gb", type="mig")))
    alone = demand(pod(annotations={"sharing": "Exclusive"}))

    assert refusal(several, alone) == "SharingNotAllowed"
    assert refusal(state(slice_of(device())), alone) is None


@pytest.mark.parametrize(
    ("wish", "expected"),
    [("1g.10gb", None), (">=2g.20gb", None), ("2g.20gb", "MIGProfileAbsent"), (">=4g.40gb", "MIGProfileAbsent")],
)
def test_pod_that_claims_a_slice_finds_it_among_those_shown(wish: str, expected: str | None) -> None:
    """F135, S13: the node's allocatable resources do not matter to a pod that requests none."""
    made = state(slice_of(device(profile="1g.10gb", type="mig"), device(profile="3g.40gb", type="mig")))

    assert expected == refusal(made, claims(**{"mig-profile": wish}))


def test_beta_shape_is_read_too() -> None:
    """resource.k8s.io/v1beta1 wraps a device in `basic`, and writes capacity as a plain quantity before v1beta1."""
    plain = device()
    wrapped = {"name": "gpu-0", "basic": {"attributes": plain["attributes"], "capacity": {"memory": "81559Mi"}}}

    assert state(slice_of(wrapped)).nodes["n"].node_class == state(slice_of(plain)).nodes["n"].node_class


def test_slice_that_goes_takes_its_facts_along() -> None:
    made = state(slice_of(device()))

    made.devices.drop_slice("s")

    assert refusal(made, demand(pod())) == "ResourceNotOffered"
    assert made.nodes["n"].node_class.product is None


def test_mig_device_is_a_slice_of_its_profile() -> None:
    assert state(slice_of(device(profile="1g.10gb+me"))).nodes["n"].node_class.mig_profile == "1g.10gb.me"


@pytest.mark.parametrize(
    "odd", [{"attributes": {"productName": 3}}, {"attributes": {"driverVersion": {"version": "new"}}}, {}]
)
def test_odd_device_is_unknown_and_no_crash(odd: dict[str, Any]) -> None:
    assert refusal(state(slice_of(odd)), demand(pod())) is None
