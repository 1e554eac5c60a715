# SPDX-License-Identifier: Apache-2.0
"""Pods whose node is chosen already: what is written into their affinity, which the kubelet alone reads (F10, F21).

NVIDIA/gpu-operator cmd/nvidia-validator/main.go creates such pods on a node whose driver was just upgraded.
"""

from dataclasses import replace
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.node_affinity import MOST_TERMS, REQUIRED_TERMS_PATH, value_at
from app.admission.preview import preview
from app.admission.review import ReviewResult, mutate, validate
from app.admission.reviewed_pod import PodForm
from app.nodes.conditions import MIG_STATE, PLUGIN, PRODUCT, UPGRADE_STATE
from app.policy.compiled import PolicySet
from app.values.reasons import Code
from tests.admission.affinity import LABELS
from tests.admission.mutated import rules
from tests.builders import container, fleet, gpus, node, pod, policies, policy, setting, shipped

UPGRADE_STATES = (
    "upgrade-required",
    "cordon-required",
    "wait-for-jobs-required",
    "pod-deletion-required",
    "drain-required",
    "node-maintenance-required",
    "post-maintenance-required",
    "pod-restart-required",
    "validation-required",
    "uncordon-required",
    "upgrade-failed",
    "upgrade-done",
)
"""NVIDIA/k8s-operator-libs pkg/upgrade/consts.go."""
MIG_STATES = ("pending", "rebooting", "failed", "success")
PASSING = {UPGRADE_STATE, MIG_STATE, PLUGIN}
DENIED = policies(policy("p", "admission: {affinity: {mode: Required}}, placement: {products: {deny: [H100]}}"))
DAEMON_SET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
IMAGE = "nvidia/cuda:12.4.1-base-ubuntu22.04"


def terms(document: dict[str, Any], policy_set: PolicySet, *labels: dict[str, str]) -> list[set[str]]:
    """Admit a pod on a fleet of nodes with these labels: the keys of each required term that it then has."""
    where = setting(policy_set, fleet(*(node(labels=extra) for extra in labels)))
    result = mutate(document, "nvidia", {}, where)
    assert result.allowed
    after = apply(document, result.operations)
    assert not mutate(after, "nvidia", {}, where).operations
    return [{each["key"] for each in term["matchExpressions"]} for term in value_at(after, REQUIRED_TERMS_PATH) or ()]


@pytest.mark.parametrize(
    "labels",
    [
        *(pytest.param({UPGRADE_STATE: state}, id=state) for state in UPGRADE_STATES),
        *(pytest.param({MIG_STATE: state}, id=f"MIG {state}") for state in MIG_STATES),
        pytest.param({PLUGIN: "paused-for-driver-upgrade"}, id="paused for the driver"),
        pytest.param({PLUGIN: "paused-for-mig-change"}, id="paused for MIG"),
    ],
)
def test_state_that_passes_is_written_into_no_pod_that_has_a_node(labels: dict[str, str]) -> None:
    elsewhere, placed = pod(gpus(1)), pod(gpus(1), nodeName="n")
    of_daemon_set = pod(gpus(1)) | {"metadata": {"name": "p", "ownerReferences": [DAEMON_SET]}}

    free, *chosen = (terms(one, shipped(), labels) for one in (elsewhere, placed, of_daemon_set))

    assert {key for keys in free for key in keys} >= PASSING
    assert not PASSING & {key for keys_of_pod in chosen for keys in keys_of_pod for key in keys}


def test_what_is_inferred_from_an_image_is_written_into_no_pod_with_a_node_name() -> None:
    """The image of CUDA 12.4 refuses the branch 545 in every release; the kubelet would refuse the pod by a guess."""
    drivers = fleet(*(node(driver=f"{branch}.99.99", labels=LABELS) for branch in (535, 545, 550)))
    documents = pod(gpus(1, image=IMAGE)), pod(gpus(1, image=IMAGE), nodeName="n")

    written = [mutate(one, "team-a", {}, setting(shipped(), drivers)).record for one in documents]

    assert ["cuda.driver-version.major" in " ".join(record) for record in written] == [True, False]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(pod(gpus(1), nodeName="n"), True, id="default scheduler"),
        pytest.param(pod(gpus(1), nodeName="n", schedulerName="volcano"), True, id="Volcano"),
        pytest.param(pod(gpus(1), nodeName="n", schedulerName="kai-scheduler"), True, id="KAI"),
        pytest.param(pod(gpus(1), nodeName="n", schedulerName="nobody"), True, id="no scheduler at all"),
        pytest.param(
            pod(gpus(1), nodeName="n", schedulerName="x", tolerations=[{"operator": "Exists"}]),
            True,
            id="tolerates all",
        ),
        pytest.param(pod(gpus(1), schedulerName="volcano"), False, id="Volcano places it"),
    ],
)
def test_denied_product_is_refused_by_the_kubelet_whichever_scheduler_is_named(
    document: dict[str, Any], expected: bool
) -> None:
    """The affinity stays where nobody else would look at the node."""
    written = terms(document, DENIED, {PRODUCT: "NVIDIA-H100-80GB-HBM3"}, {PRODUCT: "NVIDIA-L4"})

    assert [PRODUCT in keys for keys in written] == ([True] if expected else [])


def test_needs_of_annotations_stay_too() -> None:
    document = pod(gpus(1), nodeName="n", schedulerName="volcano", annotations={"products": "L4", "gpu-memory": "20Gi"})

    assert terms(document, shipped(), {}) == [{PRODUCT, "nvidia.com/gpu.memory"}]


def test_no_number_of_terms_of_its_own_keeps_the_policy_out() -> None:
    own = [{"matchExpressions": [{"key": f"k{n}", "operator": "DoesNotExist"}]} for n in range(3 * MOST_TERMS)]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*own, {}]}}}
    labels = {PRODUCT: "NVIDIA-H100-80GB-HBM3"}
    document = pod(gpus(1), nodeName="n", affinity=affinity)
    where = setting(DENIED, fleet(node(labels=labels)))

    after = apply(document, mutate(document, "team-a", {}, where).operations)

    written = [term.get("matchExpressions", []) for term in value_at(after, REQUIRED_TERMS_PATH)]
    assert len(written) == len(own) + 1
    assert all(not term or PRODUCT in {each["key"] for each in term} for term in written)


def test_no_preference_is_written_that_no_scheduler_reads() -> None:
    document = pod(gpus(1), nodeName="n", annotations={"preferred-products": "L4"})

    after = apply(document, mutate(document, "team-a", {}, setting(shipped(), fleet(node()))).operations)

    assert "preferredDuringSchedulingIgnoredDuringExecution" not in str(after)


MIRROR = {"kubernetes.io/config.mirror": "0123"}


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        pytest.param({"annotations": MIRROR}, "a mirror pod", id="mirror pod"),
        pytest.param({"labels": {"app": "nvidia-cuda-validator"}}, "NVIDIA's GPU Operator", id="CUDA validator"),
        pytest.param({"labels": {"app": "nvidia-device-plugin-validator"}}, "clusterpolicies", id="plugin validator"),
        pytest.param({"labels": {"app": "kai-resource-reservation"}}, "create pods/binding", id="KAI's reservation"),
    ],
)
def test_preview_shows_a_pod_that_its_maker_places_as_it_is(metadata: dict[str, Any], said: str) -> None:
    document = pod(gpus(1), nodeName="n") | {"metadata": {"name": "p", **metadata}}
    strict = rules("bypass: Deny, privileged: Deny, visibleDevices: Deny")

    shown = preview(document, "nvidia", lambda _name: {}, setting(strict, fleet(node())))

    assert (shown.allowed, shown.patch, shown.object) == (True, (), document)
    assert said in " ".join(shown.warnings)
    assert "else" in " ".join(shown.warnings)


@pytest.mark.parametrize("metadata", [{"annotations": MIRROR}, {"labels": {"app": "nvidia-cuda-validator"}}])
@pytest.mark.parametrize("judge", [mutate, validate])
def test_what_a_tenant_can_write_exempts_nothing(metadata: dict[str, Any], judge: Any) -> None:
    """The API server sends no such pod of a kubelet or an operator; one that comes is somebody else's."""
    document = pod(gpus(1), nodeName="n") | {"metadata": {"name": "p", **metadata}}

    result = judge(document, "team-a", {}, setting(rules("bypass: Deny"), fleet(node())))

    assert [reason.code for reason in result.reasons] == [Code.BypassesScheduling]


def resized(policy_set: PolicySet, requests: dict[str, str], limits: dict[str, str], **spec: Any) -> ReviewResult:
    """Judge a running pod of one GPU whose amounts become these."""
    main = container({"nvidia.com/gpu": "1", **limits}, {"nvidia.com/gpu": "1", **requests})
    where = replace(setting(policy_set, fleet(node())), form=PodForm.Resize)
    return mutate(pod(main, nodeName="n", **spec), "team-a", {}, where)


@pytest.mark.parametrize(
    ("rule", "requests", "limits", "code"),
    [
        pytest.param("perGPU: {maxCPU: '4'}", {"cpu": "64"}, {}, Code.AmountPerGPUOutOfBounds, id="more CPU"),
        pytest.param("perGPU: {maxCPU: '4'}", {"cpu": "4"}, {}, None, id="as much CPU as allowed"),
        pytest.param("perGPU: {minCPU: '4'}", {"cpu": "1"}, {}, Code.AmountPerGPUOutOfBounds, id="less CPU"),
        pytest.param("perGPU: {maxMemory: 8Gi}", {"memory": "9Gi"}, {}, Code.AmountPerGPUOutOfBounds, id="more memory"),
        pytest.param(
            "memoryRequests: Deny", {"memory": "1Gi"}, {"memory": "2Gi"}, Code.MemoryRequestNotLimit, id="not the limit"
        ),
        pytest.param("bypass: Deny, maxGPUsPerPod: 0, privileged: Deny", {"cpu": "64"}, {}, None, id="other rules"),
    ],
)
def test_resize_is_judged_by_the_rules_about_cpu_and_memory(
    rule: str, requests: dict[str, str], limits: dict[str, str], code: Code | None
) -> None:
    result = resized(rules(rule), requests, limits)
    foreign = resized(rules(rule), requests, limits, schedulerName="volcano")

    assert [reason.code for reason in result.reasons] == ([code] if code else [])
    assert foreign.reasons == result.reasons
    assert not result.operations


def test_resize_keeps_memory_requests_equal_to_limits() -> None:
    """Nothing but the amounts of a running pod can be written, so that it gets no record of the decision either."""
    result = resized(rules("memoryRequests: UseLimits"), {"memory": "1Gi"}, {"memory": "2Gi"})

    paths = ["/".join(operation.path) for operation in result.operations]
    assert paths == ["spec/containers/0/resources/requests/memory"]


def test_resize_beyond_a_policy_that_warns_is_told() -> None:
    result = resized(rules("perGPU: {maxCPU: '4'}", action="Warn"), {"cpu": "64"}, {})

    assert result.allowed
    assert "requests more cpu than 4" in " ".join(result.warnings)
