# SPDX-License-Identifier: Apache-2.0
"""A pod that requests GPUs as resources claims the same GPUs: as many for each container, and of the same makes.

The allocator (app/dra), which agrees with kube-scheduler's, and the filter are the judges (S13).
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.admission.claim_conversion import Conversion, convert
from app.dra.allocator import Outcome
from app.kube.pods import read_pod
from app.kube.records import read_record
from app.kube.resource_claims import ResourceClaimTemplate
from app.placement.engine import judge
from app.policy.needs import NVLINK
from tests.admission.converted import CLASSES, allocated, cluster, conversion_of, reasons_of
from tests.builders import container, demand, gpus, knowledge, pod
from tests.dra.makes import IMAGES, MAKES, WISHES

GPU = "nvidia.com/gpu"
SERVING = {**CLASSES[0], "spec": {**CLASSES[0]["spec"], "extendedResourceName": GPU}}
"""With it the node's devices are there for pods that request them as resources, too (KEP-5004)."""
AMOUNTS = st.integers(0, 3)


def named(name: str, amount: int, **more: Any) -> dict[str, Any]:
    return {**gpus(amount, **more), "name": name}


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a pod of containers, init containers and sidecars, with GPUs or without."""
    containers = [named(f"c{n}", draw(AMOUNTS)) for n in range(draw(st.integers(1, 3)))]
    before = [
        named(f"i{n}", draw(AMOUNTS), **draw(st.sampled_from([{}, {"restartPolicy": "Always"}])))
        for n in range(draw(st.integers(0, 3)))
    ]
    return pod(*containers, initContainers=before)


@settings(deadline=None, max_examples=60)
@given(pods(), st.integers(0, 12))
def test_each_container_uses_as_many_devices_as_it_requested_and_the_pod_as_kubernetes_counts(
    document: dict[str, Any], free: int
) -> None:
    """S13: containers have their own devices, and init containers use those of the containers after them."""
    read, pod_demand = read_pod(document), demand(document)
    if not pod_demand.resources:
        return
    outcome = convert(read, pod_demand, knowledge())
    if not isinstance(outcome, Conversion):
        assert any(one.sidecar for one in read.containers), outcome
        assert outcome.reasons == (f"{GPU}: a sidecar takes over devices of an init container",)
        return

    verdict = allocated(outcome, cluster("h100", free))

    assert (verdict.outcome is Outcome.ALLOCATED) == (free >= read.amount(GPU))
    counts = {
        request.name: request.count
        for (request,) in read_record(ResourceClaimTemplate, outcome.template).claim.spec.requests
    }
    assert sum(counts.values()) == read.amount(GPU)
    for one in read.containers:
        assert sum(counts[request] for user, request in outcome.uses if user is one) == one.requested(GPU)
    kept = [request for user, request in outcome.uses if user.list_name == "containers" or user.sidecar]
    assert len(kept) == len(set(kept))


@st.composite
def needs(draw: st.DrawFn) -> dict[str, Any]:
    keys = draw(st.lists(st.sampled_from(sorted(WISHES)), unique=True, max_size=3))
    annotations = {key: draw(st.sampled_from(WISHES[key])) for key in keys}
    return pod(gpus(draw(st.integers(1, 2)), image=draw(st.sampled_from(IMAGES))), annotations=annotations)


@settings(deadline=None, max_examples=30)
@given(needs())
def test_claim_gets_gpus_on_just_the_nodes_that_filter_accepts_for_the_pod_as_it_was(document: dict[str, Any]) -> None:
    """S13, F135: forward compatibility is for data-centre GPUs only, which a claim cannot say and filter still does."""
    pod_demand = demand(document)
    converted = conversion_of(document)
    for make in MAKES:
        state = cluster(make, 8, SERVING)

        accepted = judge(pod_demand, state.nodes["n"], recount=True) is None

        if accepted or not any("forward compatibility" in words for words in converted.unsaid):
            assert (allocated(converted, state).outcome is Outcome.ALLOCATED) == accepted, make


def test_pods_with_equal_needs_share_a_template_whatever_they_are_called() -> None:
    one = conversion_of(pod(named("a", 2), annotations={"products": "H100"}))
    other = conversion_of({**pod(named("b", 2), annotations={"products": "H100"}), "metadata": {
        "name": "q", "namespace": "team-a", "annotations": {"gpu-usher.io/products": "H100"}}})  # fmt: skip

    assert one.template == other.template
    assert one.name.startswith("gpu-usher-2-gpu-")


@pytest.mark.parametrize(
    "document",
    [pod(gpus(1)), pod(gpus(2), annotations={"products": "A100"}), pod(named("a", 1), named("b", 1))],
    ids=["count", "product", "containers"],
)
def test_other_content_has_another_name(document: dict[str, Any]) -> None:
    assert conversion_of(document).name != conversion_of(pod(gpus(2), annotations={"products": "H100"})).name


def test_name_is_the_same_in_each_version_of_the_api() -> None:
    document = pod(gpus(1), annotations={"products": "H100"})

    outcomes = [
        convert(read_pod(document), demand(document), knowledge(), version=version) for version in ("v1", "v1beta1")
    ]

    assert [outcome.name for outcome in outcomes if isinstance(outcome, Conversion)] == [
        conversion_of(document).name
    ] * 2


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param(pod(gpus(1, "amd.com/gpu")), "amd.com/gpu: only the devices of NVIDIA's", id="another make"),
        pytest.param(pod(gpus(1), gpus(1, "amd.com/gpu")), "amd.com/gpu: only the devices", id="two makes"),
        pytest.param(pod(gpus(1, "nvidia.com/gpu.shared")), "a share of a GPU", id="a share by its name"),
        pytest.param(
            pod(container({GPU: "1", "nvidia.com/gpumem": "3000"})),
            "nvidia.com/gpumem: a claim cannot request",
            id="HAMi",
        ),
        pytest.param(pod(annotations={"sharing": "Shared"}), "a share of a GPU", id="a share by annotation"),
        pytest.param(pod(annotations={"mig-profile": ">=1g.10gb"}), "mig-profile with >=", id="slice or more"),
        pytest.param(pod(gpus(33)), "33 devices: a claim gets at most 32", id="33 GPUs"),
        pytest.param(
            pod(*(named(f"c{n}", 1) for n in range(33))), "33 requests: a claim has at most 32", id="33 containers"
        ),
        pytest.param(pod(gpus("1500m")), "main: a fraction of nvidia.com/gpu", id="a fraction"),
        pytest.param(pod(nodeName="n"), "nodeName is set", id="bound"),
        pytest.param(
            pod(resourceClaims=[{"name": "gpu-usher", "resourceClaimName": "c"}]), "an entry gpu-usher", id="name taken"
        ),
        pytest.param(pod(annotations={"gpu-memory": "lots"}), "gpu-memory", id="unreadable"),
    ],
)
def test_pod_that_would_lose_something_has_no_equivalent(document: dict[str, Any], words: str) -> None:
    assert any(words in reason for reason in reasons_of(document))


def test_slices_are_claimed_by_profile_and_in_requests_of_their_own() -> None:
    converted = conversion_of(pod(named("a", 1, resource="nvidia.com/mig-1g.10gb"), named("b", 2), container()))

    requests = converted.template["spec"]["spec"]["devices"]["requests"]
    assert [(one["name"], one["exactly"]["deviceClassName"], one["exactly"]["count"]) for one in requests] == [
        ("nvidia-com-gpu", "gpu.nvidia.com", 2),
        ("nvidia-com-mig-1g-10gb", "mig.nvidia.com", 1),
    ]
    assert [(user.name, name) for user, name in converted.uses] == [
        ("b", "nvidia-com-gpu"),
        ("a", "nvidia-com-mig-1g-10gb"),
    ]
    assert converted.resources == ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb")


def test_what_a_claim_does_not_express_is_said_though_filter_goes_on_judging_it() -> None:
    document = pod(annotations={"interconnect": "NVLink"})

    assert NVLINK.value(demand(document))
    assert [words for words in conversion_of(document).unsaid if words.startswith("NVLink")]
