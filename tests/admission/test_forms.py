# SPDX-License-Identifier: Apache-2.0
"""Admission of pod templates, and of pods of other schedulers (F18, S14).

See docs/reference/admission.md#reviewed-objects.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate, validate
from app.admission.reviewed_pod import PodForm
from app.kube.pods import DECISION
from app.policy.compiled import PolicySet
from app.values.reasons import Code
from app.world.fleet_facts import FleetFacts
from tests.admission.mutated import rules
from tests.builders import container, fleet, gpus, node, pod, setting, shipped

GPU = "nvidia.com/gpu"
TAINTED = node(taints=[{"key": GPU, "value": "present", "effect": "NoSchedule"}])
FLEET = fleet(TAINTED, classes=["nvidia"])
VISIBLE = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
EVERYTHING = rules(
    "runtimeClassName: nvidia, schedulerName: ours, priorityClassName: gold, rightSizing: true,"
    " extendedResources: {requestsOnly: CopyToLimits, mismatch: UseLimits}, affinity: {mode: Required},"
    " defaults: {cpuPerGPU: '4', sharedMemory: 1Gi, driverCapabilities: compute}, visibleDevices: Strip,"
    " tolerations: {fromNodeTaints: true}, migFallback: Enforce"
)
REQUESTS_ONLY = container(None, {GPU: "2"}, env=[VISIBLE])


def admit(
    document: dict[str, Any],
    policy_set: PolicySet | None = None,
    form: PodForm = PodForm.Pod,
    fleet_facts: FleetFacts = FLEET,
) -> ReviewResult:
    """Mutate an object of team-a."""
    context = replace(setting(policy_set, fleet_facts), form=form)
    return mutate(document, "team-a", {}, context)


def template(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Make a pod template, which has no kind, name or namespace."""
    made = pod(*containers, **more)
    annotations = made["metadata"].get("annotations", {})
    return {"metadata": {"labels": {"app": "a"}, "annotations": annotations}, "spec": made["spec"]}


def test_template_is_repaired_and_nothing_else() -> None:
    """F18: only extended resources are repaired, since GitOps tools would revert any other change."""
    document = template(REQUESTS_ONLY, initContainers=[container({GPU: "2"}, {GPU: "1"})])

    after = apply(document, admit(document, EVERYTHING, PodForm.Template).operations)

    assert after["metadata"] == document["metadata"]
    assert after["spec"] == {
        "containers": [container({GPU: "2"}, {GPU: "2"}, env=[VISIBLE])],
        "initContainers": [container({GPU: "2"}, {GPU: "2"})],
    }
    assert not admit(after, EVERYTHING, PodForm.Template).operations


@pytest.mark.parametrize("valid", [gpus(1), container({GPU: "1"}), container(), gpus(0)], ids=str)
def test_template_that_is_valid_as_sent_is_not_touched(valid: dict[str, Any]) -> None:
    """A `kubectl diff` stays empty (docs/reference/admission.md#reviewed-objects)."""
    assert not admit(template(valid, annotations={"products": "H100"}), EVERYTHING, PodForm.Template).operations


def test_repair_of_a_template_is_said_to_the_person_who_applies_it() -> None:
    verdict = admit(template(REQUESTS_ONLY), EVERYTHING, PodForm.Template)

    assert any("limits set to 2" in warning for warning in verdict.warnings)
    assert not any("runtimeClassName" in warning or "toleration" in warning for warning in verdict.warnings)


def test_template_has_on_record_what_its_pods_will_not_get() -> None:
    """F6, F18: the decision annotation says what the template's pods will not get."""
    verdict = admit(template(gpus(1)), EVERYTHING, PodForm.Template, fleet(TAINTED, classes=["kata"]))

    assert any("RuntimeClass nvidia does not exist" in action for action in verdict.record)
    assert not any("RuntimeClass" in warning for warning in verdict.warnings)


@pytest.mark.parametrize(
    ("tolerated", "warned"), [pytest.param([], True, id="no"), pytest.param([GPU], False, id="yes")]
)
def test_daemonset_is_warned_of_taints_that_nodes_have(tolerated: list[str], warned: bool) -> None:
    """F18: a toleration that its pods get for another key, which no node has as a taint, is no reason to warn."""
    document = template(gpus(1, f"{GPU}.shared"))
    document["spec"]["tolerations"] = [{"key": key, "operator": "Exists"} for key in tolerated]
    nodes = fleet(node(taints=[{"key": GPU, "effect": "NoSchedule"}], offers={f"{GPU}.shared": 4}))

    verdict = admit(document, form=PodForm.DaemonSet, fleet_facts=nodes)

    assert warned is any("stay off tainted nodes" in warning for warning in verdict.warnings)


def test_template_is_warned_of_what_a_policy_only_warns_of() -> None:
    warning = rules("runtimeClassName: nvidia", "Warn")

    verdict = admit(template(gpus(1)), warning, PodForm.Template)

    assert any("not done, policy only warns: runtimeClassName set to nvidia" in warning for warning in verdict.warnings)


@pytest.mark.parametrize(
    ("document", "words", "expected"),
    [
        pytest.param(template(gpus("500m")), "extendedResources: {fractional: Deny}", "QuantityFractional", id="half"),
        pytest.param(template(gpus(-1)), "maxGPUsPerPod: 8", "QuantityNegative", id="negative"),
        pytest.param(template(gpus(9)), "maxGPUsPerPod: 8", "TooManyGPUs", id="too many"),
        pytest.param(template(gpus(1, env=[VISIBLE])), "visibleDevices: Deny", "VisibleDevicesForbidden", id="taken"),
        pytest.param(
            template(gpus(1, securityContext={"privileged": True})), "privileged: Deny", "PrivilegedGPUPod", id="root"
        ),
        pytest.param(template(gpus(1), nodeName="n"), "bypass: Deny", "BypassesScheduling", id="node chosen"),
        pytest.param(
            template(gpus(1), annotations={"cuda": "new"}), "bypass: Deny", "InvalidAnnotation", id="annotation"
        ),
    ],
)
def test_template_is_refused_for_what_its_pods_would_be_refused_for(
    document: dict[str, Any], words: str, expected: str
) -> None:
    """F18: the person who applies the template sees the refusal; both webhooks refuse alike."""
    where = replace(setting(rules(words)), form=PodForm.Template)

    verdicts = [review(document, "team-a", {}, where) for review in (mutate, validate)]

    assert [[reason.code.name for reason in verdict.reasons] for verdict in verdicts] == [[expected]] * 2


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param(
            template(gpus(1, env=[VISIBLE])), "visibleDevices: Strip, privileged: Deny", id="the variable is stripped"
        ),
        pytest.param(template(gpus(1)), "schedulerName: ours, bypass: Deny", id="the scheduler is set"),
        pytest.param(
            template(container({GPU: "1"}, {GPU: "9"})),
            "maxGPUsPerPod: 1, extendedResources: {mismatch: UseLimits}",
            id="the amount is settled",
        ),
    ],
)
def test_template_is_not_refused_for_what_is_mended_in_its_pods(document: dict[str, Any], words: str) -> None:
    where = replace(setting(rules(words)), form=PodForm.Template)

    verdicts = [review(document, "team-a", {}, where) for review in (mutate, validate)]

    assert [verdict.allowed for verdict in verdicts] == [True, True]


def test_template_keeps_a_forged_record_and_is_warned_of_it() -> None:
    """F15: the template's pods lose the forged record."""
    document = template(gpus(1), annotations={"decision": "mine"})

    verdict = admit(document, None, PodForm.Template)

    assert not verdict.operations
    assert any(DECISION in warning for warning in verdict.warnings)


@pytest.mark.parametrize(
    "document", [{}, {"metadata": None}, {"spec": None}, {"spec": {}}, {"spec": {"containers": None}}]
)
@pytest.mark.parametrize("form", [PodForm.Template, PodForm.Ephemeral, PodForm.Pod])
def test_empty_object_concerns_nobody(document: dict[str, Any], form: PodForm) -> None:
    verdicts = [review(document, "a", {}, replace(setting(EVERYTHING), form=form)) for review in (mutate, validate)]

    assert [verdict.concerned for verdict in verdicts] == [False, False]


@pytest.mark.parametrize("scheduler", ["volcano", "kai-scheduler", "user-scheduler"])
def test_pods_of_other_schedulers_are_repaired_and_guarded_only(scheduler: str) -> None:
    """P19, S14."""
    document = pod(REQUESTS_ONLY, schedulerName=scheduler)

    spec = apply(document, admit(document, EVERYTHING).operations)["spec"]

    assert spec == {"containers": [container({GPU: "2"}, {GPU: "2"}, env=[])], "schedulerName": scheduler}


@pytest.mark.parametrize("scheduler", ["default-scheduler", "gpu-usher-scheduler", "ours", None, ""])
def test_pods_of_schedulers_that_ask_us_are_completed(scheduler: str | None) -> None:
    document = pod(gpus(1), schedulerName=scheduler)

    spec = apply(document, admit(document, EVERYTHING).operations)["spec"]

    assert {"runtimeClassName", "tolerations", "priorityClassName"} <= set(spec)


def test_valid_pod_of_another_scheduler_is_left_as_it_is() -> None:
    assert not admit(pod(gpus(1), schedulerName="volcano"), shipped()).operations


@pytest.mark.parametrize("resource", ["nvidia.com/pgpu", "nvidia.com/GA102GL_A10", "gpu.intel.com/bmg_vfio"])
def test_valid_pod_of_another_scheduler_with_gpus_passed_through_is_left_as_it_is(resource: str) -> None:
    asked = container({resource: "1"}, {resource: "1"})

    assert not admit(pod(asked, schedulerName="volcano"), shipped()).operations


def test_pod_of_another_scheduler_is_refused_as_any_other() -> None:
    reasons = admit(pod(gpus("500m"), schedulerName="volcano"), shipped()).reasons

    assert [reason.code for reason in reasons] == [Code.QuantityFractional]


def cpu_seconds(make: Callable[[int], dict[str, Any]], containers: int, reviews: int) -> float:
    """Measure the CPU time of some reviews of a pod with many containers, the least of several rounds."""
    document = pod(*({**make(index), "name": f"c{index}"} for index in range(containers)))
    spent = []
    for _ in range(reviews):
        started = time.process_time()
        admit(document, EVERYTHING)
        spent.append(time.process_time() - started)
    return min(spent)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda index: gpus(1, f"nvidia.com/mig-{index % 100}"), id="many resources"),
        pytest.param(lambda _: container(None, {GPU: "1"}), id="requests only"),
        pytest.param(lambda _: gpus(1), id="provided for"),
    ],
)
def test_time_grows_with_the_containers_and_not_with_their_square(make: Callable[[int], dict[str, Any]]) -> None:
    """The API server limits containers only after the webhooks; eight times as many may take sixteen times as long."""
    few, many = cpu_seconds(make, 30, reviews=5), cpu_seconds(make, 240, reviews=5)

    assert many < 16 * few


def test_edit_of_requests_alone_is_followed_by_the_limits_that_we_added() -> None:
    """F18: `kubectl apply` of requests 2 over requests 1 leaves the limits 1 that we added, which must not win."""
    before = pod(container({GPU: "1"}, {GPU: "1"}))
    edited = pod(container({GPU: "1"}, {GPU: "2"}))
    where = replace(setting(), form=PodForm.Template, old_template=before)

    verdict = mutate(edited, "team-a", {}, where)

    amounts = apply(edited, verdict.operations)["spec"]["containers"][0]["resources"]
    assert amounts == {"limits": {GPU: "2"}, "requests": {GPU: "2"}}
    assert "requests must equal limits" in verdict.warnings[0]
