# SPDX-License-Identifier: Apache-2.0
"""Admission makes claims of GPUs that a pod requests as resources, where a policy says so and the template is there.

S13. See docs/reference/dra.md#the-bridge.
"""

from dataclasses import replace
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate, validate
from app.admission.reviewed_pod import WARNING_LIMIT, PodForm, ReviewContext
from app.kube.objects import RuntimeClass
from app.kube.pods import read_pod
from app.policy.compiled import PolicySet
from app.world.state import State
from app.world.world import world_of
from tests.admission.converted import cluster, conversion_of
from tests.admission.mutated import rules
from tests.builders import container, gpus, pod

CONVERT = "convertToClaims: true"
GPU = "nvidia.com/gpu"
NEEDS = {"products": "H100"}


def review(document: dict[str, Any], state: State, policy_set: PolicySet, form: PodForm = PodForm.Pod) -> ReviewResult:
    return mutate(document, "team-a", {}, context(state, policy_set, form))


def context(state: State, policy_set: PolicySet, form: PodForm = PodForm.Pod) -> ReviewContext:
    return replace(ReviewContext(world_of(state, policy_set)), form=form)


def with_template(document: dict[str, Any], **changes: Any) -> State:
    """Make a cluster that has the template of a pod."""
    return cluster("h100", 8, {**conversion_of(document).template, **changes})


def test_pod_claims_what_it_requested() -> None:
    document = pod(gpus(2), container({"cpu": "1"}), annotations=NEEDS)
    converted = conversion_of(document)
    state = with_template(document)

    result = review(document, state, rules(CONVERT))

    after = apply(document, result.operations)["spec"]
    assert after["resourceClaims"] == [{"name": "gpu-usher", "resourceClaimTemplateName": converted.name}]
    assert after["containers"][0]["resources"] == {"limits": {}, "requests": {}, "claims": [{"name": "gpu-usher"}]}
    assert after["containers"][1] == document["spec"]["containers"][1]
    assert f"{GPU} converted to a claim of template {converted.name}" in result.record
    assert state.devices.claimed(read_pod({**document, "spec": after})).classes == (("gpu.nvidia.com", 2),)


def test_containers_name_their_own_requests_and_keep_other_claims() -> None:
    used = {"claims": [{"name": "nic"}], "limits": {GPU: "1"}, "requests": {GPU: "1"}}
    first = {**container(), "name": "a", "resources": used}
    document = pod(
        first, {**gpus(1), "name": "b"}, resourceClaims=[{"name": "nic", "resourceClaimName": "one"}], annotations=NEEDS
    )

    after = apply(document, review(document, with_template(document), rules(CONVERT)).operations)["spec"]

    assert [one["resources"]["claims"] for one in after["containers"]] == [
        [{"name": "nic"}, {"name": "gpu-usher", "request": "gpu-0"}],
        [{"name": "gpu-usher", "request": "gpu-1"}],
    ]
    assert [entry["name"] for entry in after["resourceClaims"]] == ["nic", "gpu-usher"]


def test_second_review_changes_nothing_and_the_pod_is_still_one_of_gpus() -> None:
    """S13, F14: with reinvocation admission sees the pod as it left it."""
    document = pod(gpus(2), annotations=NEEDS)
    state, policy_set = with_template(document), rules(f"{CONVERT}, maxGPUsPerPod: 1")
    converted = apply(document, review(document, state, rules(CONVERT)).operations)

    assert not review(converted, state, rules(CONVERT)).operations
    assert not validate(converted, "team-a", {}, context(state, rules(CONVERT))).reasons
    assert [one.code.name for one in review(converted, state, policy_set).reasons] == ["TooManyGPUs"]


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(cluster(), id="none"),
        pytest.param(
            with_template(pod(gpus(2), annotations=NEEDS), metadata={"name": "gpu-usher-2-gpu", "namespace": "team-a"}),
            id="of another name",
        ),
        pytest.param(
            cluster("h100", 8, {**conversion_of(pod(gpus(2), annotations=NEEDS)).template, "spec": {"spec": {}}}),
            id="of other content",
        ),
        pytest.param(
            with_template(
                pod(gpus(2), annotations=NEEDS),
                metadata={"name": conversion_of(pod(gpus(2), annotations=NEEDS)).name, "namespace": "team-b"},
            ),
            id="in another namespace",
        ),
    ],
)
def test_pod_without_its_template_stays_as_it_is_and_is_told_the_remedy(state: State) -> None:
    document = pod(gpus(2), annotations=NEEDS)

    result = review(document, state, rules(CONVERT))

    assert apply(document, result.operations)["spec"] == document["spec"]
    (warning,) = (words for words in result.warnings if words.startswith("not converted"))
    assert warning.startswith("not converted to a claim: namespace has no ResourceClaimTemplate gpu-usher-2-gpu-")
    assert warning.endswith("create it with gpu-usher plan claim-templates")
    assert len(warning) <= WARNING_LIMIT


def test_template_whose_device_class_is_gone_makes_no_claim() -> None:
    """A pod that claims a class that does not exist fits no node, with an error on all of them."""
    document = pod(gpus(2), annotations=NEEDS)
    state = with_template(document)
    state.devices.drop_device_class("gpu.nvidia.com")

    assert apply(document, review(document, state, rules(CONVERT)).operations)["spec"] == document["spec"]


def test_without_the_field_nothing_is_converted() -> None:
    document = pod(gpus(2), annotations=NEEDS)

    for words in ("", "convertToClaims: false"):
        result = review(document, with_template(document), rules(words))
        assert apply(document, result.operations)["spec"] == document["spec"]
        assert all(warning.startswith("fits on none") for warning in result.warnings)


def test_policy_that_warns_says_what_it_would_convert() -> None:
    document = pod(gpus(2), annotations=NEEDS)

    result = review(document, with_template(document), rules(CONVERT, "Warn"))

    assert apply(document, result.operations)["spec"] == document["spec"]
    assert [
        words for words in result.warnings if "not done, policy only warns" in words and "converted to a claim" in words
    ]


def test_template_of_a_workload_is_left_to_its_pods_and_warned_of_what_is_missing() -> None:
    """S13, F18."""
    document = pod(gpus(2), annotations=NEEDS)

    quiet = review(document, with_template(document), rules(CONVERT), PodForm.Template)
    warned = review(document, cluster(), rules(CONVERT), PodForm.Template)

    assert not quiet.operations
    assert not quiet.warnings
    assert [words for words in warned.warnings if "ResourceClaimTemplate" in words]


def test_pod_that_has_no_equivalent_is_told_why() -> None:
    result = review(pod(annotations={"sharing": "Shared"}), cluster(), rules(CONVERT))

    assert [words for words in result.warnings if words.startswith("not converted to a claim: a share of a GPU")]


@pytest.mark.parametrize("resource", ["amd.com/gpu", "example.com/fpga"])
def test_devices_of_others_are_no_matter(resource: str) -> None:
    result = review(pod(gpus(1, resource)), cluster(), rules(CONVERT))

    assert not [words for words in result.warnings if "claim" in words]


def test_defaults_are_counted_by_what_the_pod_requested() -> None:
    """The claims come after what each GPU adds: CPU, memory, /dev/shm."""
    document = pod(gpus(2), annotations=NEEDS)
    policy_set = rules(CONVERT + ", defaults: {cpuPerGPU: '4'}")

    after = apply(document, review(document, with_template(document), policy_set).operations)["spec"]

    assert after["containers"][0]["resources"]["requests"] == {"cpu": "8"}


def test_pods_of_other_schedulers_keep_their_requests() -> None:
    """S14."""
    document = pod(gpus(2), annotations=NEEDS, schedulerName="volcano")

    result = review(document, with_template(document), rules(CONVERT))

    assert apply(document, result.operations)["spec"] == document["spec"]


def test_pod_gets_the_tolerations_of_what_it_claims() -> None:
    """F3: after the conversion the pod is one that claims GPUs, also for the mutators that come later."""
    document = pod(gpus(2), annotations=NEEDS)
    policy_set = rules(CONVERT + ", tolerations: {fromNodeTaints: true}")

    after = apply(document, review(document, with_template(document), policy_set).operations)["spec"]

    assert after["tolerations"] == [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]


@pytest.mark.parametrize("name", ["Auto", "nvidia"])
def test_converted_pod_gets_no_runtime_class(name: str) -> None:
    """F5, S13: it claims its devices, which come by CDI; beside that the class would add what its variables name."""
    document = pod(gpus(1))
    state = with_template(document)
    state.put_runtime_class("nvidia", RuntimeClass("nvidia"))

    spec = apply(document, review(document, state, rules(f"{CONVERT}, runtimeClassName: {name}")).operations)["spec"]

    assert spec["resourceClaims"]
    assert "runtimeClassName" not in spec
