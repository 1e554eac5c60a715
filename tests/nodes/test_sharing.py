# SPDX-License-Identifier: Apache-2.0
"""The unit of a GPU resource on a node whose labels say nothing or contradict themselves, or that HAMi shares out."""

import json
from typing import Any

import pytest

from app.doctor.fleet_checks import examine
from app.explain.gpu_inventory import inventory_key, take_inventory
from app.nodes.model import Node, Sharing
from app.nodes.reading import read_node
from app.nodes.sharing import COUNT_UNKNOWN, LONGEST_REGISTRATION, count_registered_gpus
from app.placement.engine import judge_class
from app.placement.scorers import PENALTIES
from app.policy.schema_placement import SharingWish
from tests.builders import demand, gpus, knowledge, node, node_document, pod, policies, policy
from tests.doctor.healthy_cluster import examined

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
A100 = "NVIDIA-A100-SXM4-80GB"
REFUSING = policies(policy("p", "placement: {unknownFacts: Refuse}"))
REGISTER = "hami.io/node-nvidia-register"


def code(made: Any, on: Node) -> str | None:
    """Return the reason code of the node's refusal, or None if it is accepted."""
    refusal = judge_class(made, on.node_class)
    return refusal.code.name if refusal else None


def checks(*nodes: Node) -> list[str]:
    tainted = {"UntaintedGPUNodes", "DriverUnknown"}
    return [finding.check for finding in examine(examined(*nodes)) if finding.check not in tainted]


def unlabelled(**more: Any) -> Node:
    return node(product=None, **more)


@pytest.mark.parametrize("wish", [SharingWish.Exclusive, SharingWish.Shared], ids=["exclusive", "shared"])
def test_unknown_sharing_is_accepted_or_refused_on_both_sides(wish: SharingWish) -> None:
    """F67: on a node without labels, one nvidia.com/gpu may be a whole GPU or a share of one."""
    document = pod(annotations={"sharing": wish.value})

    codes = code(demand(document), unlabelled()), code(demand(document, REFUSING), unlabelled())

    assert codes == (None, "GPUFactsMissing")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param({}, Sharing.Unknown, id="nothing"),
        pytest.param({"karpenter.k8s.aws/instance-gpu-name": "l4"}, Sharing.Unknown, id="a cloud without such a label"),
        pytest.param({"cloud.google.com/gke-accelerator": "nvidia-l4"}, Sharing.Exclusive, id="GKE would say so"),
        pytest.param({"nvidia.com/gpu.product": A100}, Sharing.Exclusive, id="GFD would say so"),
        pytest.param({"nvidia.com/gpu.sharing-strategy": "none"}, Sharing.Exclusive, id="it is not shared"),
        pytest.param({"nvidia.com/gpu.replicas": "1"}, Sharing.Exclusive, id="one replica"),
    ],
)
def test_sharing_is_known_where_somebody_labels_who_would_say(labels: dict[str, str], expected: Sharing) -> None:
    """F67."""
    assert expected is unlabelled(labels=labels).node_class.sharing


def test_renamed_share_on_an_unlabelled_node_is_a_share() -> None:
    """F67: the suffix of the resource's name says that it is a share."""
    made = demand(pod(gpus(1, SHARED), annotations={"sharing": "Exclusive"}))

    assert code(made, unlabelled(offers={SHARED: 8})) == "SharingNotAllowed"


@pytest.mark.parametrize(("units", "replicas"), [(16, 2), (32, 4), (12, 1)])
def test_shares_that_gpu_feature_discovery_did_not_see_are_counted_where_they_divide(units: int, replicas: int) -> None:
    """F67: renamed units say that they are shares; as many of each GPU, or it is not known how many."""
    offers = {SHARED: units}

    assert node(labels={"nvidia.com/gpu.replicas": "1"}, offers=offers, capacity=offers).node_class.replicas == replicas


MIG_ENABLED = node(product=A100, labels={"nvidia.com/gpu.replicas": "0", "nvidia.com/gpu.memory": "81920"})
"""All eight GPUs have MIG enabled, and the device plugin's strategy is none."""


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, None, id="any unit"),
        pytest.param({"sharing": "Exclusive"}, "SharingNotAllowed", id="whole GPU"),
        pytest.param({"sharing": "Shared"}, "SharingNotAllowed", id="share"),
        pytest.param({"gpu-memory": "40Gi"}, None, id="memory of a slice is unknown"),
        pytest.param({"gpu-memory": "100Gi"}, "GPUMemoryTooSmall", id="more than the whole GPU has"),
        pytest.param({"interconnect": "NVLink"}, "InterconnectAbsent", id="slices have no NVLink"),
    ],
)
def test_gpu_with_mig_enabled_is_no_whole_gpu(annotations: dict[str, str], expected: str | None) -> None:
    """F62: gpu.replicas is 0 where every GPU has MIG enabled; strategy none still offers them as nvidia.com/gpu."""
    assert expected == code(demand(pod(annotations=annotations)), MIG_ENABLED)


def test_doctor_names_gpus_with_mig_that_are_offered_as_whole() -> None:
    assert checks(MIG_ENABLED) == ["MIGWithoutStrategy"]


def test_slice_has_the_memory_that_its_label_says() -> None:
    """A 1g.10gb slice of an A100 has 9,856 MiB, which is less than its name says.

    See docs/reference/sharing-and-memory.md#memory.
    """
    profile = "nvidia.com/mig-1g.10gb"
    mixed = node(
        product=A100, offers={profile: 16}, labels={f"{profile}.memory": "9856", "nvidia.com/mig.strategy": "mixed"}
    )
    large, small = (demand(pod(gpus(1, profile), annotations={"gpu-memory": f"{mib}Mi"})) for mib in (11_000, 10_000))

    assert (code(large, mixed), code(small, mixed)) == ("GPUMemoryTooSmall", None)


def test_time_slices_of_mig_slices_are_counted_as_the_slices_that_they_share() -> None:
    """F89: 8 slices, each time-sliced by four, count as 8 slices; renamed shares beside named slices count as
    shares."""
    profile = "nvidia.com/mig-1g.10gb"
    by_four = {f"{profile}.count": "8", f"{profile}.replicas": "4", f"{profile}.sharing-strategy": "time-slicing"}
    labels = {**by_four, "nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}
    shared = node(
        product=A100,
        offers={SHARED: 16, f"{profile}.shared": 32},
        labels={**labels, "nvidia.com/mig.strategy": "mixed"},
    )

    kind = take_inventory({"n": shared}, {}, knowledge().products).kinds[0]

    assert (kind.unit, kind.gpus, kind.units) == ("a time-slice", 4, 16)
    assert [(piece.profile, piece.all, piece.free) for piece in kind.slices] == [("1g.10gb", 8, 8)]


SEVERAL = node(
    product="NVIDIA-A30",
    offers={GPU: 6},
    capacity={GPU: 6},
    labels={"nvidia.com/gpu.count": "4", "nvidia.com/gpu.memory": "24576", "nvidia.com/gpu.compute.major": "8",
            "nvidia.com/gpu.compute.minor": "0"},
)  # fmt: skip
"""Two A100 and four A30. The labels describe the A30, and may describe the A100 after the next run."""


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, None, id="any GPU"),
        pytest.param({"products": "A30"}, "GPUFactsMissing", id="the product that the labels tell"),
        pytest.param({"products": "A100"}, "GPUFactsMissing", id="another one"),
        pytest.param({"products": "!A30"}, "GPUFactsMissing", id="not that one"),
        pytest.param({"gpu-memory": "40Gi"}, None, id="memory is unknown"),
        pytest.param({"sharing": "Exclusive"}, None, id="sharing is known"),
    ],
)
def test_product_is_unsure_where_labels_count_fewer_gpus_than_there_are(
    annotations: dict[str, str], expected: str | None
) -> None:
    """F73: GFD writes the count and product of one model, perhaps another one at each run; a pod may get either
    model."""
    assert expected == code(demand(pod(annotations=annotations)), SEVERAL)


def test_several_models_are_no_stale_labels() -> None:
    """F73: the score is not halved, and the doctor's remedy is the right one."""
    (finding,) = (candidate for candidate in examine(examined(SEVERAL)) if candidate.check == "GPUCountsDiffer")

    assert (SEVERAL.node_class.stale, checks(SEVERAL)) == (False, ["GPUCountsDiffer"])
    assert not any(doubt(demand(pod()), SEVERAL.node_class) for doubt in PENALTIES)
    assert "6 nvidia.com/gpu, but the labels count 4 NVIDIA-A30" in finding.what
    assert inventory_key(SEVERAL, knowledge().products)[0] == "A30 and others"


def test_fewer_gpus_than_labelled_are_still_stale() -> None:
    assert node(offers={GPU: 7}, capacity={GPU: 7}).node_class.stale


def hami(registration: str | None, offers: int = 80) -> Node:
    document = node_document(product=A100, offers={GPU: offers}, capacity={GPU: offers})
    if registration is not None:
        document["metadata"]["annotations"] = {REGISTER: registration}
    return read_node(document, knowledge())


DEVICES = json.dumps([{"id": f"GPU-{index}", "count": 10, "devmem": 81920, "health": True} for index in range(8)])
OLD_TEXT = "".join(f"GPU-{index},10,81920,100,NVIDIA-A100,0,true:" for index in range(8))


@pytest.mark.parametrize("registration", [DEVICES, OLD_TEXT, "junk"], ids=["JSON", "text", "unreadable"])
def test_node_that_hami_shares_out_has_its_gpus_and_no_stale_labels(registration: str) -> None:
    """F73, F89: HAMi registers each of eight GPUs as ten nvidia.com/gpu.

    Without a readable annotation, the labels still count eight GPUs.
    """
    shared = hami(registration)

    kind = take_inventory({"n": shared}, {}, knowledge().products).kinds[0]

    assert (kind.unit, kind.gpus, kind.units, checks(shared)) == ("a HAMi vGPU", 8, 80, [])


@pytest.mark.parametrize(
    ("amount", "annotations", "expected"),
    [
        pytest.param(16, {"sharing": "Exclusive"}, "SharingNotAllowed", id="whole GPUs"),
        pytest.param(16, {}, "RequestExceedsNode", id="more than there are GPUs"),
        pytest.param(8, {}, None, id="as many as there are GPUs"),
        pytest.param(1, {"sharing": "Shared"}, None, id="share"),
    ],
)
def test_vgpu_of_hami_is_a_share_of_a_gpu_of_its_own(
    amount: int, annotations: dict[str, str], expected: str | None
) -> None:
    """F67: HAMi gives a container as many GPUs as it requests vGPUs (its pkg/device/nvidia/device.go, Fit)."""
    assert expected == code(demand(pod(gpus(amount), annotations=annotations)), hami(DEVICES))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DEVICES, 8),
        (OLD_TEXT, 8),
        ("[]", 0),
        ("{}", 0),
        ("[1,", COUNT_UNKNOWN),
        ("[" * 9_000, COUNT_UNKNOWN),
        ("[" + "1," * LONGEST_REGISTRATION + "1]", COUNT_UNKNOWN),
    ],
    ids=["JSON", "text", "none", "no list", "broken", "deep", "long"],
)
def test_registration_is_read_within_bounds(text: str, expected: int) -> None:
    assert expected == count_registered_gpus(text)


@pytest.mark.parametrize(
    ("offers", "capacity", "withdrawn"),
    [
        pytest.param({GPU: 8, SHARED: 0}, {GPU: 8, SHARED: 8}, (), id="shared before"),
        pytest.param({GPU: 0, SHARED: 32}, {GPU: 8, SHARED: 32}, (), id="whole before"),
        pytest.param({"amd.com/gpu": 0, "amd.com/cpx_nps4": 64}, {"amd.com/gpu": 8, "amd.com/cpx_nps4": 64}, (),
                     id="AMD, by the names of partitions now"),
        pytest.param({"amd.com/spx_nps1": 0, "amd.com/cpx_nps1": 64}, {"amd.com/spx_nps1": 8, "amd.com/cpx_nps1": 64},
                     (), id="AMD, other partitions before"),
        pytest.param({GPU: 0}, {GPU: 8}, ((GPU, 8),), id="no other name"),
        pytest.param({GPU: 0, SHARED: 0}, {GPU: 8, SHARED: 8}, ((GPU, 8), (SHARED, 8)), id="nothing offered"),
        pytest.param({GPU: 7, SHARED: 0}, {GPU: 8, SHARED: 8}, ((GPU, 1),), id="and one is broken"),
        pytest.param({GPU: 7, "nvidia.com/mig-1g.5gb": 0}, {GPU: 7, "nvidia.com/mig-1g.5gb": 7},
                     (("nvidia.com/mig-1g.5gb", 7),), id="slices are devices of their own"),
        pytest.param({"gpu.intel.com/i915": 0, "gpu.intel.com/xe": 1}, {"gpu.intel.com/i915": 1, "gpu.intel.com/xe": 1},
                     (("gpu.intel.com/i915", 1),), id="Intel, two drivers, two GPUs"),
    ],
)  # fmt: skip
def test_name_that_the_kubelet_remembers_is_no_withdrawn_device(
    offers: dict[str, int], capacity: dict[str, int], withdrawn: tuple[tuple[str, int], ...]
) -> None:
    """The kubelet keeps a name in its capacity after the device plugin offers the same GPUs by another one."""
    assert withdrawn == node(product=None, driver=None, offers=offers, capacity=capacity).node_class.unhealthy_units
