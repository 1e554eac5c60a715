# SPDX-License-Identifier: Apache-2.0
"""Reading nodes: new and deprecated labels, product suffixes, shares, slices, ghosts, and gaps filled from the
tables."""

from typing import Any

import pytest

from app.nodes.labels import LARGEST_LABELS_KEPT, _read_class
from app.nodes.model import NodeClass, Sharing
from app.nodes.reading import read_node
from app.placement.engine import judge_class
from app.values.errors import MalformedPod
from app.values.versions import Version
from tests.builders import demand, gpus, knowledge, node, node_document, pod, policies, policy

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
FIRST = "nvidia.com/"
A100 = "NVIDIA-A100-SXM4-40GB"


def made(**more: Any) -> NodeClass:
    """Return the class of a node that the builder makes; keys of `labels` come without `nvidia.com/`."""
    labels = {FIRST + key: value for key, value in more.pop("labels", {}).items()}
    return node(labels=labels, **more).node_class


PARTS = {"cuda.driver-version.major": "535", "cuda.driver-version.minor": "54", "cuda.driver-version.revision": "03"}
OLD = {"cuda.driver.major": "470", "cuda.driver.minor": "57", "cuda.driver.rev": "02"}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param({"cuda.driver-version.full": "580.95.05"}, (580, 95, 5), id="full"),
        pytest.param(PARTS, (535, 54, 3), id="parts with a leading zero"),
        pytest.param({**PARTS, "cuda.driver-version.revision": ""}, (535, 54), id="two fields, revision empty"),
        pytest.param({"cuda.driver-version.major": "455", "cuda.driver-version.minor": "06"}, (455, 6), id="06"),
        pytest.param(OLD, (470, 57, 2), id="deprecated parts (P37)"),
        pytest.param({**OLD, "cuda.driver.rev": ""}, (470, 57), id="deprecated, two fields"),
        pytest.param({**OLD, **PARTS}, (535, 54, 3), id="new before deprecated (P37)"),
        pytest.param({**PARTS, "cuda.driver-version.full": "550.54.15"}, (550, 54, 15), id="full before parts"),
        pytest.param({"cuda.driver-version.full": "unknown"}, None, id="no version"),
        pytest.param({"cuda.driver-version.full": ""}, None, id="empty"),
        pytest.param({"cuda.driver-version.full": "junk", **OLD}, (470, 57, 2), id="junk, deprecated parts help"),
        pytest.param({}, None, id="no label"),
    ],
)
def test_driver_is_read_from_new_and_deprecated_labels(labels: dict[str, str], expected: Version | None) -> None:
    """P37: GFD v0.20.0 still writes the three deprecated labels."""
    assert expected == made(driver=None, labels=labels).driver


@pytest.mark.parametrize(
    ("driver", "labels", "expected"),
    [
        pytest.param("580.95.05", {"cuda.runtime-version.full": "13.0"}, (13,), id="label"),
        pytest.param(
            "580.95.05", {"cuda.runtime-version.major": "12", "cuda.runtime-version.minor": "9"}, (12, 9), id="parts"
        ),
        pytest.param("580.95.05", {"cuda.runtime.major": "12", "cuda.runtime.minor": "8"}, (12, 8), id="deprecated"),
        pytest.param("535.54.03", {}, (12, 2), id="by the driver's branch"),
        pytest.param("450.80.02", {}, (11,), id="by another branch"),
        pytest.param("999.1", {}, None, id="branch unknown"),
        pytest.param(None, {}, None, id="nothing known"),
    ],
)
def test_highest_cuda_is_the_label_or_what_the_branch_reports(
    driver: str | None, labels: dict[str, str], expected: Version | None
) -> None:
    """The table is app/knowledge/cuda_driver.yaml, driver_branches."""
    assert expected == made(driver=driver, labels=labels).cuda


@pytest.mark.parametrize(
    ("product", "labels", "offers", "expected"),
    [
        pytest.param(A100, {}, {GPU: 8}, Sharing.Exclusive, id="whole"),
        pytest.param(A100, {"gpu.sharing-strategy": "none"}, {GPU: 8}, Sharing.Exclusive, id="strategy none"),
        pytest.param(f"{A100}-SHARED", {}, {GPU: 32}, Sharing.TimeSlicing, id="-SHARED before v0.15"),
        pytest.param(
            f"{A100}-SHARED",
            {"gpu.sharing-strategy": "time-slicing"},
            {GPU: 32},
            Sharing.TimeSlicing,
            id="time-slicing",
        ),
        pytest.param(f"{A100}-SHARED", {"gpu.sharing-strategy": "mps"}, {GPU: 32}, Sharing.MPS, id="MPS"),
        pytest.param(A100, {"gpu.sharing-strategy": "time-slicing"}, {SHARED: 32}, Sharing.Exclusive, id="renamed"),
        pytest.param(f"{A100}-MIG-1g.5gb", {"mig.strategy": "single"}, {GPU: 56}, Sharing.MIG, id="single"),
        pytest.param(
            f"{A100}-MIG-1g.5gb-SHARED", {"mig.strategy": "single"}, {GPU: 112}, Sharing.TimeSlicing, id="shared slices"
        ),
        pytest.param(
            A100, {"mig.strategy": "mixed"}, {GPU: 2, "nvidia.com/mig-1g.5gb": 42}, Sharing.Exclusive, id="mixed"
        ),
        pytest.param(f"{A100}-MIG-INVALID", {"gpu.sharing-strategy": ""}, {}, Sharing.Exclusive, id="invalid"),
    ],
)
def test_what_one_gpu_of_a_node_means(
    product: str, labels: dict[str, str], offers: dict[str, int], expected: Sharing
) -> None:
    """F67, F63: the labels are those of NVIDIA/k8s-device-plugin internal/lm/resource.go."""
    node_class = made(product=product, labels=labels, offers=offers)

    assert (expected, "a100-sxm4-40gb") == (node_class.sharing, node_class.product)


@pytest.mark.parametrize(
    ("product", "profile", "invalid"),
    [
        pytest.param(A100, None, False, id="none"),
        pytest.param(f"{A100}-MIG-1g.5gb", "1g.5gb", False, id="plain"),
        pytest.param(f"{A100}-MIG-1g.5gb.me", "1g.5gb.me", False, id="media engines"),
        pytest.param(f"{A100}-MIG-1g.5gb-SHARED", "1g.5gb", False, id="shared"),
        pytest.param("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-MIG-1g.24gb-me", "1g.24gb-me", False, id="-me"),
        pytest.param(f"{A100}-MIG-INVALID", None, True, id="invalid (F62, P15)"),
    ],
)
def test_profile_of_strategy_single_stands_in_the_product(product: str, profile: str | None, invalid: bool) -> None:
    """P15: the suffix is that of NVIDIA/k8s-device-plugin internal/lm/mig-strategy.go."""
    node_class = made(product=product)

    assert (profile, invalid) == (node_class.mig_profile, node_class.mig_invalid)


@pytest.mark.parametrize(
    ("product", "labels", "expected"),
    [
        pytest.param("NVIDIA-H100-80GB-HBM3", {}, ((9,), 81_559, True), id="H100 by table"),
        pytest.param("Tesla-T4", {}, ((7, 5), 15_360, False), id="T4 by table"),
        pytest.param("A100-SXM4-40GB", {}, ((8,), 40_960, True), id="name without the vendor"),
        pytest.param("NVIDIA-H100-PCIe", {}, ((9,), 81_559, False), id="a bridge is no all-to-all"),
        pytest.param("NVIDIA-GH200-480GB", {}, ((9,), 97_871, False), id="C2C is no all-to-all"),
        pytest.param("NVIDIA-GB200", {}, ((10,), 189_471, True), id="NVL72 is"),
        pytest.param("NVIDIA-H100-80GB-HBM3", {"gpu.memory": "79000"}, ((9,), 79_000, True), id="label first"),
        pytest.param("NVIDIA-X1", {"gpu.memory": "1000"}, (None, 1_000, None), id="product not in the table"),
        pytest.param(
            "NVIDIA-X1", {"gpu.compute.major": "8", "gpu.compute.minor": "6"}, ((8, 6), None, None), id="labels alone"
        ),
        pytest.param("NVIDIA-X1", {"gpu.memory": "much"}, (None, None, None), id="labels that do not parse"),
        pytest.param(f"{A100}-MIG-1g.5gb", {"gpu.memory": "4864"}, ((8,), 4_864, True), id="a slice's own memory"),
        pytest.param(None, {}, (None, None, None), id="nothing known"),
    ],
)
def test_gaps_are_filled_from_the_tables(
    product: str | None, labels: dict[str, str], expected: tuple[Version | None, int | None, bool | None]
) -> None:
    """The rules are in docs/reference/compatibility.md#interconnect, and the facts in
    app/knowledge/gpu_products.yaml."""
    node_class = made(product=product, labels=labels)

    assert expected == (node_class.compute_capability, node_class.memory_mib, node_class.nvlink)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4", 4), ("1", 1), ("0", 1), ("", 1), ("-1", 1), ("many", 1)],
    ids=["four", "not shared", "0 on mixed nodes", "empty", "negative", "junk"],
)
def test_replicas_are_one_at_least(text: str, expected: int) -> None:
    """GFD writes 0 replicas on a node of strategy mixed (NVIDIA/k8s-device-plugin internal/lm/resource.go)."""
    assert expected == made(labels={"gpu.replicas": text}).replicas


@pytest.mark.parametrize(
    ("offers", "labels", "expected"),
    [
        pytest.param({GPU: 0}, {}, "GhostGPUs", id="promised, none offered (P38)"),
        pytest.param({}, {}, "GhostGPUs", id="promised, no device plugin"),
        pytest.param({}, {"gpu.count": "0"}, "ResourceNotOffered", id="nothing promised"),
        pytest.param({GPU: 1}, {}, None, id="one of eight"),
        pytest.param({SHARED: 8}, {}, "ResourceNotOffered", id="renamed share"),
    ],
)
def test_labels_that_promise_more_than_is_offered_make_a_ghost(
    offers: dict[str, int], labels: dict[str, str], expected: str | None
) -> None:
    """F46, P38."""
    refusal = judge_class(demand(pod()), made(offers=offers, labels=labels))

    assert expected == (refusal.code.name if refusal else None)


def test_only_gpu_resources_that_parse_are_offered() -> None:
    document = node_document()
    document["status"]["allocatable"] = {"cpu": "64", "nvidia.com/mig-1g.5gb": "7", GPU: "x", "amd.com/gpu": None}

    assert read_node(document, knowledge()).node_class.offered == (("nvidia.com/mig-1g.5gb", 7),)


def test_free_is_allocatable_without_what_pods_hold() -> None:
    free = node(offers={GPU: 8, SHARED: 4}, used={GPU: 3, "cpu": 9}).free

    assert (free.units, free.gpus) == ({GPU: 5, SHARED: 4}, None)


def test_nodes_of_one_make_are_of_one_class() -> None:
    """P26: facts belong to the node class, and what is free to the node (docs/reference/listeners.md#state)."""
    one, other = node("a", labels={"kubernetes.io/hostname": "a"}), node("b", used={GPU: 8})

    assert one.node_class == other.node_class
    assert hash(one.node_class) == hash(other.node_class)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "metadata: got none, wants one"),
        ({"metadata": {}}, "metadata.name: got nothing, wants the node's name"),
        ({"metadata": {"name": "n", "labels": {"a": 1}}}, "metadata.labels[a]: got an integer, wants a string"),
        ({"metadata": {"name": "n"}, "spec": {"taints": [1]}}, "spec.taints[0]: got an integer, wants an object"),
        ({"metadata": {"name": "n"}, "status": {"allocatable": []}}, "status.allocatable: got a list, wants an object"),
    ],
    ids=["no metadata", "no name", "label", "taint", "allocatable"],
)
def test_wrong_shape_is_named_by_its_path(document: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedPod) as raised:
        read_node(document, knowledge())

    assert message == str(raised.value)


def test_slice_without_a_memory_label_is_as_small_as_its_profile() -> None:
    """A slice's own memory counts, and GKE's labels give its profile alone.

    See docs/reference/sharing-and-memory.md#memory.
    """
    large = demand(pod(annotations={"gpu-memory": "40Gi"}))

    refusal = judge_class(large, made(product=f"{A100}-MIG-1g.5gb", labels={"mig.strategy": "single"}))

    assert (refusal.code.name if refusal else None) == "GPUMemoryTooSmall"


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (pod(gpus(2, SHARED)), "SharedReplicasAskedAsGPUs"),
        (pod(gpus(1, SHARED), annotations={"gpu-memory": "80Gi"}), "GPUMemoryTooSmall"),
    ],
    ids=["two replicas", "more than a share of the memory"],
)
def test_replicas_of_mps_are_judged_under_the_renamed_resource_too(document: dict[str, Any], code: str) -> None:
    """The kubelet rejects a pod with two replicas of an MPS GPU; each has an equal part of the memory, 40,779 MiB.

    See docs/reference/sharing-and-memory.md#units and #memory.
    """
    shared = made(offers={SHARED: 16}, labels={"gpu.sharing-strategy": "mps", "gpu.replicas": "2"})
    refusal = judge_class(demand(document), shared)

    assert (refusal.code.name if refusal else None) == code


def test_geforce_is_no_data_centre_gpu_even_where_the_table_lacks_it() -> None:
    """Forward compatibility does not support GeForce (app/knowledge/cuda_driver.yaml, forward_compat)."""
    accepting = policies(policy("p", "placement: {cuda: {fromImage: true, accept: ForwardCompatible}}"))
    torch = demand(pod(gpus(1, image="nvcr.io/nvidia/pytorch:24.05-py3")), accepting)

    refusal = judge_class(torch, made(product="NVIDIA-GeForce-RTX-3090", driver="470.57.02"))

    assert (refusal.code.name if refusal else None) == "DriverTooOld"


def test_make_with_endless_labels_is_read_and_not_remembered() -> None:
    """F125: the cache of node classes is bounded in bytes."""
    before = _read_class.cache_info()

    large = made(labels={"gpu.memory": "0" * LARGEST_LABELS_KEPT})
    after_large = _read_class.cache_info()

    assert large == made(labels={"gpu.memory": "0"})
    assert after_large == before
    assert _read_class.cache_info() != before


@pytest.mark.parametrize(
    ("labels", "offers", "has_gpus"),
    [
        pytest.param({"kubernetes.io/os": "windows"}, {}, False, id="Windows"),
        pytest.param({"eks.amazonaws.com/compute-type": "fargate"}, {}, False, id="Fargate"),
        pytest.param({"eks.amazonaws.com/compute-type": "hybrid"}, {}, True, id="EKS, another compute type"),
        pytest.param({"kubernetes.io/os": "linux"}, {}, True, id="Linux"),
        pytest.param({"type": "virtual-kubelet"}, {"nvidia.com/gpu": 100}, True, id="virtual, with what it offers"),
    ],
)
def test_node_without_device_plugins_is_promised_no_gpu(
    labels: dict[str, str], offers: dict[str, int], has_gpus: bool
) -> None:
    """Labels of machine type and product say that GPUs are missing only where a device plugin could offer them."""
    made = node(product=None, driver=None, offers=offers,
                labels={"node.kubernetes.io/instance-type": "Standard_NC4as_T4_v3", **labels})  # fmt: skip

    assert (has_gpus, ()) == (made.has_gpus, made.node_class.absent if offers or not has_gpus else ())
