# SPDX-License-Identifier: Apache-2.0
"""Pods that claim GPUs through DRA are recognised, completed and judged as GPU pods, and claims stay as they are (S13,
F5)."""

from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate, validate
from app.admission.reviewed_pod import ReviewContext
from app.cluster.snapshot import fill
from app.kube.objects import RuntimeClass
from app.policy.compiled import PolicySet
from app.values.errors import BadInput
from app.values.reasons import Code
from app.world.state import State
from app.world.world import world_of
from tests.admission.mutated import rules
from tests.builders import container, gpus, knowledge, node_document, pod, shipped

GPU = "nvidia.com/gpu"
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
COPIED = {**TAINT, "operator": "Equal"}
ENTRY = {"name": "g", "resourceClaimName": "one"}
USED = {"claims": [{"name": "g"}]}
GUARDED = {"gpu-usher.io/cpu-guard": "required"}


def requested(device_class: str, count: int) -> dict[str, Any]:
    """Write the spec of a claim with one request."""
    return {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": device_class, "count": count}}]}}


def claim(device_class: str = "gpu.nvidia.com", count: int = 1) -> dict[str, Any]:
    """Make the ResourceClaim `one` of the namespace team-a."""
    metadata = {"name": "one", "namespace": "team-a"}
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": requested(device_class, count)}


def state_of(*objects: dict[str, Any]) -> State:
    """Make a state with the runtime class nvidia and one tainted GPU node."""
    state = State(knowledge())
    state.put_runtime_class("nvidia", RuntimeClass("nvidia"))
    fill(state, [node_document(taints=[TAINT]), *objects])
    return state


def claiming(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Make a pod with one container that uses a claim."""
    return pod(container(resources=USED), resourceClaims=list(entries or [ENTRY]), **more)


def admit(
    document: dict[str, Any], state: State, policy_set: PolicySet | None = None, labels: dict[str, str] | None = None
) -> ReviewResult:
    """Mutate a Pod of team-a."""
    return mutate(document, "team-a", labels or {}, context(state, policy_set))


def context(state: State, policy_set: PolicySet | None = None) -> ReviewContext:
    """Make the context of a review in a cluster."""
    return ReviewContext(world_of(state, policy_set or shipped()))


def spec_of(document: dict[str, Any], state: State, policy_set: PolicySet | None = None) -> dict[str, Any]:
    """Return the spec after admission, which a second review leaves unchanged."""
    after = apply(document, admit(document, state, policy_set).operations)
    assert not admit(after, state, policy_set).operations
    spec: dict[str, Any] = after["spec"]
    return spec


@pytest.mark.parametrize("device_class", ["gpu.nvidia.com", "mig.nvidia.com"])
def test_pod_that_claims_a_gpu_gets_tolerations_and_no_runtime_class(device_class: str) -> None:
    """Claimed devices are injected by CDI, under any runtime class."""
    spec = spec_of(claiming(), state_of(claim(device_class)))

    assert "runtimeClassName" not in spec
    assert spec["tolerations"] == [COPIED]
    assert spec["containers"] == claiming()["spec"]["containers"]


def test_claim_by_template_counts_as_well() -> None:
    template = {**claim(), "kind": "ResourceClaimTemplate", "spec": {"spec": requested("gpu.nvidia.com", 1)}}
    document = claiming({"name": "g", "resourceClaimTemplateName": "one"})

    assert spec_of(document, state_of(template))["tolerations"] == [COPIED]


def test_device_class_that_serves_the_resource_is_one_of_gpus() -> None:
    own = {"kind": "DeviceClass", "metadata": {"name": "mine"}, "spec": {"extendedResourceName": GPU}}

    assert spec_of(claiming(), state_of(claim("mine"), own))["tolerations"] == [COPIED]


@pytest.mark.parametrize(
    ("device_class", "keys"),
    [
        pytest.param("gpu.amd.com", ["amd.com/gpu"], id="AMD"),
        pytest.param("nic.example.com", None, id="a network card"),
    ],
)
def test_claim_of_another_make_is_treated_as_its_own(device_class: str, keys: list[str] | None) -> None:
    spec = spec_of(claiming(), state_of(claim(device_class)))

    toleration_keys = [toleration["key"] for toleration in spec["tolerations"]] if "tolerations" in spec else None
    assert toleration_keys == keys


def test_claim_that_nobody_has_shown_us_is_said_and_nothing_is_done() -> None:
    document = claiming()

    verdict = admit(document, state_of())

    assert document["spec"] == apply(document, verdict.operations)["spec"]
    assert any("ResourceClaim team-a/one is not known yet" in warning for warning in verdict.warnings)


def test_claim_of_another_namespace_is_not_the_pods() -> None:
    foreign = claim()
    foreign["metadata"]["namespace"] = "team-b"

    verdict = admit(claiming(), state_of(foreign))

    assert any("not known yet" in warning for warning in verdict.warnings)


def test_needs_of_a_claiming_pod_are_written_as_affinity() -> None:
    """F10."""
    spec = spec_of(claiming(annotations={"products": "H100"}), state_of(claim()))

    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [expression["key"] for expression in terms[0]["matchExpressions"]] == ["nvidia.com/gpu.product"] * 2


@pytest.mark.parametrize(
    ("annotations", "code"),
    [({"cuda": "new"}, Code.InvalidAnnotation), ({"products": "H100, !H100"}, Code.NoProductLeft)],
)
def test_annotations_of_a_claiming_pod_are_judged(annotations: dict[str, str], code: Code) -> None:
    state = state_of(claim())
    document = claiming(annotations=annotations)

    verdicts = [review(document, "team-a", {}, context(state)) for review in (mutate, validate)]

    assert [[reason.code for reason in verdict.reasons] for verdict in verdicts] == [[code]] * 2


@pytest.mark.parametrize("beside", [container(), gpus(1)], ids=["a CPU container", "a GPU by resource"])
def test_claim_and_resources_stand_side_by_side(beside: dict[str, Any]) -> None:
    document = pod(container(resources=USED), beside | {"name": "beside"}, resourceClaims=[ENTRY])

    spec = spec_of(document, state_of(claim()))

    assert "runtimeClassName" not in spec
    assert spec["containers"] == document["spec"]["containers"]


def test_container_that_uses_the_claim_is_not_hidden_from_its_gpu() -> None:
    """F12."""
    void = rules("visibleDevices: Void")
    document = pod(container(resources=USED), container() | {"name": "beside"}, resourceClaims=[ENTRY])

    spec = spec_of(document, state_of(claim()), void)

    assert [bool(container.get("env")) for container in spec["containers"]] == [False, True]


def test_variable_beside_a_claim_is_refused_like_any_other() -> None:
    deny = rules("visibleDevices: Deny")
    document = claiming()
    document["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]

    reasons = admit(document, state_of(claim()), deny).reasons

    assert [reason.code for reason in reasons] == [Code.VisibleDevicesForbidden]


@pytest.mark.parametrize("entries", [None, []], ids=["null", "empty"])
def test_pod_with_an_empty_list_of_claims_is_a_cpu_pod(entries: Any) -> None:
    assert not admit(pod(container(), resourceClaims=entries), state_of(claim())).concerned


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [container()], "resourceClaims": 5},
        {"containers": [container()], "resourceClaims": [5]},
        {"containers": [container()], "resourceClaims": [{"name": []}]},
        {"containers": [container()], "resourceClaims": [{"name": "g", "resourceClaimName": {}}]},
        {"containers": [container(resources={"claims": 5})], "resourceClaims": [ENTRY]},
        {"containers": [container(resources={"claims": [None]})], "resourceClaims": [ENTRY]},
        {"containers": [container(resources={"claims": [{"name": 5}]})], "resourceClaims": [ENTRY]},
    ],
    ids=["claims", "claim", "name", "reference", "uses", "use", "used name"],
)
def test_claims_of_another_shape_are_bad_input(spec: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        admit(pod() | {"spec": spec}, state_of(claim()))


@pytest.mark.parametrize("device_class", ["gpu.nvidia.com", "fast-gpus"], ids=["a GPU", "a class of the cluster's own"])
def test_pod_that_claims_stays_among_gpu_nodes(device_class: str) -> None:
    """F47: the guard's matchConditions leave out every pod with claims, and the main webhook applies the guard then."""
    operations = admit(claiming(), state_of(claim(device_class)), labels=GUARDED).operations

    assert not any("affinity" in operation.path for operation in operations)


@pytest.mark.parametrize("count", [2, 8])
def test_claimed_gpus_count_towards_the_maximum(count: int) -> None:
    """F26."""
    limited = rules("maxGPUsPerPod: 1")

    reasons = admit(claiming(), state_of(claim(count=count)), limited).reasons

    assert [reason.code for reason in reasons] == [Code.TooManyGPUs]
