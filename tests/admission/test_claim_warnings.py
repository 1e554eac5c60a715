# SPDX-License-Identifier: Apache-2.0
"""Warnings of claims that nothing serves, and affinity in a cluster without labels (S13, F10)."""

from dataclasses import replace
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate
from app.admission.reviewed_pod import PodForm, ReviewContext
from app.demo.sample_fleets import demo_fleet
from app.kube.objects import RuntimeClass
from app.policy.compiled import PolicySet
from app.world.state import State
from app.world.world import world_of
from tests.builders import container, gpus, node_document, pod, policies, policy, shipped, state_of
from tests.placement.test_claimed_devices import A100, H100, MIG, TAINT, exactly, gpu, on_node, template

ATTRIBUTES = "device.attributes['gpu.nvidia.com']"
MEMORY = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('141Gi')) >= 0"
USED = {"claims": [{"name": "g"}]}


def gpucluster(*requests: dict[str, Any], more: tuple[dict[str, Any], ...] = ()) -> State:
    """Make the cluster without labels, with a template of these requests."""
    return state_of([*demo_fleet("gpucluster"), template(*requests), *more])


def admit(
    state: State, document: dict[str, Any], policy_set: PolicySet | None = None, form: PodForm = PodForm.Pod
) -> ReviewResult:
    """Mutate a Pod of team-a."""
    return mutate(document, "team-a", {}, replace(ReviewContext(world_of(state, policy_set or shipped())), form=form))


def claiming(**annotations: str) -> dict[str, Any]:
    """Write a pod that claims by the template."""
    claims = [{"name": "g", "resourceClaimTemplateName": "gpus"}]
    return pod(container(resources=USED), annotations=annotations, resourceClaims=claims)


def about_claims(result: ReviewResult) -> list[str]:
    """Return the warnings about claims."""
    return [warning for warning in result.warnings if warning.startswith("claim")]


@pytest.mark.parametrize(
    ("request_", "warning"),
    [
        pytest.param(
            exactly(f"{ATTRIBUTES}.productName == 'NVIDIA B200'"),
            "claim: no device of DeviceClass gpu.nvidia.com in the cluster has productName == NVIDIA B200",
            id="product",
        ),
        pytest.param(
            exactly(MEMORY),
            "claim: no device of DeviceClass gpu.nvidia.com in the cluster has memory >= 141Gi",
            id="memory",
        ),
        pytest.param(
            exactly(f"{ATTRIBUTES}.profile == '3g.40gb'", device_class=MIG),
            "claim: no device of DeviceClass mig.nvidia.com in the cluster has profile == 3g.40gb",
            id="MIG profile",
        ),
        pytest.param(
            exactly(f"{ATTRIBUTES}.driverVersion.compareTo(semver('600.0.0')) >= 0"),
            "claim: no device of DeviceClass gpu.nvidia.com in the cluster has driverVersion >= 600.0.0",
            id="driver",
        ),
        pytest.param(
            exactly(count=16),
            "claim: wants 16 devices of DeviceClass gpu.nvidia.com, and no node has more than 8",
            id="count",
        ),
    ],
)
@pytest.mark.parametrize("form", [PodForm.Pod, PodForm.Template])
def test_claim_that_no_device_can_serve_is_warned_of(request_: dict[str, Any], warning: str, form: PodForm) -> None:
    """The pod is admitted: a node to come may bring the device."""
    result = admit(gpucluster(request_), claiming(), form=form)

    assert result.allowed
    assert about_claims(result) == [warning]


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(exactly(), id="any"),
        pytest.param(exactly(count=8), id="eight"),
        pytest.param(exactly(f"{ATTRIBUTES}.productName == '{H100}'"), id="a product of the fleet"),
        pytest.param(exactly(f"{ATTRIBUTES}.uuid == 'GPU-x'"), id="what identifies a device is not judged"),
        pytest.param(exactly(f"{ATTRIBUTES}.nothing == 'x'"), id="nor is an error"),
        pytest.param(exactly(device_class="own.example.com"), id="nor an unknown class"),
        pytest.param(
            {
                "name": "r",
                "firstAvailable": [
                    {"name": "a", "deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {"expression": MEMORY}}]},
                    {"name": "b", "deviceClassName": "gpu.nvidia.com"},
                ],
            },
            id="one alternative will do",
        ),
    ],
)
def test_claim_that_may_be_served_is_not_warned_of(request_: dict[str, Any]) -> None:
    assert about_claims(admit(gpucluster(request_), claiming())) == []


def test_cluster_without_devices_warns_of_nothing() -> None:
    assert about_claims(admit(state_of([node_document(), template(exactly(MEMORY))]), claiming())) == []


def test_class_without_a_device_is_warned_of() -> None:
    state = gpucluster(exactly(device_class=MIG))
    state.devices.drop_slice("mig-0-gpu.nvidia.com")

    assert about_claims(admit(state, claiming())) == [
        "claim: no device in the cluster is of DeviceClass mig.nvidia.com"
    ]


TOLERATING = policies(policy("p", f"admission: {{tolerations: {{keys: [{TAINT['key']}]}}}}"))


@pytest.mark.parametrize(
    ("tolerations", "policy_set", "warned"),
    [([], TOLERATING, True), ([{"key": TAINT["key"], "operator": "Exists"}], TOLERATING, False), ([], None, False)],
    ids=["policy tolerates it", "claim tolerates it", "nobody tolerates it"],
)
def test_device_taint_that_a_policy_tolerates_belongs_into_the_claim(
    tolerations: list[dict[str, str]], policy_set: PolicySet | None, warned: bool
) -> None:
    tainted = on_node(gpu("gpu-0", A100, taints=[TAINT]), node="sick")
    state = gpucluster(exactly(tolerations=tolerations), more=tuple(tainted))

    assert bool(about_claims(admit(state, claiming(), policy_set))) is warned


NEEDS = {"products": "H100", "cuda": "12.4", "gpu-memory": "40Gi", "compute-capability": "9.0"}


@pytest.mark.parametrize("product", ["H100", "B200"], ids=["in the fleet", "not yet in the fleet"])
@pytest.mark.parametrize("document", [claiming(), pod(gpus(1))], ids=["claim", "resource"])
def test_no_affinity_is_written_on_labels_that_nobody_sets(document: dict[str, Any], product: str) -> None:
    """F10: nodes without labels are all that this cluster has, and nodes to come are like them."""
    annotations = {f"gpu-usher.io/{key}": value for key, value in (NEEDS | {"products": product}).items()}
    asking = {**document, "metadata": {**document["metadata"], "annotations": annotations}}

    result = admit(gpucluster(exactly()), asking)

    assert result.allowed
    assert "affinity" not in apply(asking, result.operations)["spec"]


def test_first_labelled_node_brings_the_affinity_back() -> None:
    state = gpucluster(exactly())
    state.put_node(node_document("labelled"))

    result = admit(state, claiming(**NEEDS))

    assert "nvidia.com/gpu.product" in str(apply(claiming(**NEEDS), result.operations)["spec"]["affinity"])


def test_pod_in_the_cluster_without_labels_gets_no_runtime_class() -> None:
    state = gpucluster(exactly())
    state.put_runtime_class("nvidia", RuntimeClass("nvidia"))

    assert "runtimeClassName" not in apply(claiming(), admit(state, claiming()).operations)["spec"]
