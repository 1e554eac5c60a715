# SPDX-License-Identifier: Apache-2.0
"""Names that a policy sets: runtime class, scheduler and priority class, over the pod's own only if told (F5, F6,
F13)."""

from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.reviewed_pod import PodForm
from app.kube.objects import RuntimeClass, Scheduling
from app.values.reasons import Code
from app.world.fleet_facts import FleetFacts
from tests.admission.mutated import admit, rules, spec_of
from tests.builders import container, fleet, gpus, node, pod, policies, policy

CLASSES = {name: RuntimeClass(name) for name in ("nvidia", "nvidia-cdi", "amd")}
CLASSES["picky"] = RuntimeClass("picky", Scheduling({"pool": "gpu"}))
FLEET = FleetFacts(fleet(node()).node_groups, CLASSES)
OVERRIDE = ", override: true"


NVIDIA, PRIORITY, SCHEDULER = "runtimeClassName: nvidia", "priorityClassName: gold", "schedulerName: ours"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, "nvidia", id="none"),
        pytest.param({"runtimeClassName": None}, "nvidia", id="null"),
        pytest.param({"runtimeClassName": "mine"}, "mine", id="one of its own"),
        pytest.param({"runtimeClassName": "nvidia-cdi"}, "nvidia-cdi", id="another of the vendor"),
    ],
)
def test_runtime_class_is_never_set_over_the_pods_own(given: dict[str, Any], expected: str) -> None:
    assert spec_of(pod(gpus(1), **given), rules(NVIDIA), FLEET)["runtimeClassName"] == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, "nvidia", id="none"),
        pytest.param({"runtimeClassName": "mine"}, "nvidia", id="one of its own"),
        pytest.param({"runtimeClassName": "kata", "overhead": {"cpu": "1"}}, "kata", id="one that brought overhead"),
        pytest.param({"runtimeClassName": "mine", "overhead": {}}, "nvidia", id="no overhead"),
    ],
)
def test_override_replaces_the_runtime_class_unless_it_brought_overhead(given: dict[str, Any], expected: str) -> None:
    assert spec_of(pod(gpus(1), **given), rules(NVIDIA + OVERRIDE), FLEET)["runtimeClassName"] == expected


@pytest.mark.parametrize(
    "classes", [{"kata": RuntimeClass("kata")}, {}, None], ids=["others exist", "none exists", "not listed"]
)
@pytest.mark.parametrize("given", [{}, {"runtimeClassName": "mine"}], ids=["unset", "set"])
def test_missing_runtime_class_is_on_record_and_never_set_not_even_by_override(
    given: dict[str, Any], classes: Any
) -> None:
    """F6."""
    document = pod(gpus(1), **given)

    verdict = admit(document, rules(NVIDIA + OVERRIDE), FleetFacts((), classes))

    assert document["spec"] == apply(document, verdict.operations)["spec"]
    assert any("RuntimeClass nvidia" in action for action in verdict.record)
    assert not any("RuntimeClass nvidia" in warning for warning in verdict.warnings)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [({}, "picky"), (None, "picky"), ({"pool": "gpu"}, "picky"), ({"zone": "a"}, "picky"), ({"pool": "cpu"}, None)],
    ids=["none", "null", "the same", "another key", "another value"],
)
def test_runtime_class_that_selects_other_nodes_than_the_pod_is_not_set(selector: Any, expected: str | None) -> None:
    """The API server refuses such a pod (the RuntimeClass admission plugin reports a conflict)."""
    document = pod(gpus(1), nodeSelector=selector)

    verdict = admit(document, rules("runtimeClassName: picky"), FLEET)

    assert apply(document, verdict.operations)["spec"].get("runtimeClassName") == expected
    assert (expected is None) is any("selects nodes with pool=gpu" in warning for warning in verdict.warnings)


@pytest.mark.parametrize(
    ("resource", "name", "expected"),
    [("amd.com/gpu", "nvidia", None), ("amd.com/gpu", "amd", "amd"), ("nvidia.com/gpu", "amd", None)],
)
def test_runtime_class_of_one_vendor_is_not_set_for_another(resource: str, name: str, expected: str | None) -> None:
    spec = spec_of(pod(gpus(1, resource)), rules(f"runtimeClassName: {name}"), FLEET)

    assert spec.get("runtimeClassName") == expected


@pytest.mark.parametrize(
    ("given", "override", "expected"),
    [
        pytest.param({}, "", {"priorityClassName": "gold"}, id="none"),
        pytest.param({"priorityClassName": ""}, "", {"priorityClassName": "gold"}, id="empty"),
        pytest.param({"priorityClassName": None}, "", {"priorityClassName": "gold"}, id="null"),
        pytest.param(
            {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"},
            "",
            {"priorityClassName": "gold"},
            id="what was computed from no class goes",
        ),
        pytest.param({"priority": None}, "", {"priorityClassName": "gold"}, id="null priority goes"),
        pytest.param(
            {"priorityClassName": "tin", "priority": 5}, "", {"priorityClassName": "tin", "priority": 5}, id="its own"
        ),
        pytest.param(
            {"priorityClassName": "tin", "priority": 5}, OVERRIDE, {"priorityClassName": "gold"}, id="overridden"
        ),
        pytest.param(
            {"priorityClassName": "gold", "priority": 9},
            OVERRIDE,
            {"priorityClassName": "gold", "priority": 9},
            id="the same: what was computed stays",
        ),
    ],
)
def test_priority_class_is_set_without_what_was_computed_from_another(
    given: dict[str, Any], override: str, expected: dict[str, Any]
) -> None:
    spec = spec_of(pod(gpus(1), **given), rules(PRIORITY + override), FLEET)

    assert {key: value for key, value in spec.items() if key != "containers"} == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, "ours", id="none"),
        pytest.param({"schedulerName": "default-scheduler"}, "ours", id="the default one"),
        pytest.param({"schedulerName": "ours"}, "ours", id="the policy's"),
        pytest.param({"schedulerName": "volcano"}, "volcano", id="another one (S14)"),
        pytest.param({"schedulerName": "gpu-usher-scheduler"}, "gpu-usher-scheduler", id="our second one"),
    ],
)
def test_scheduler_is_set_over_one_that_the_pod_chose_by_override_alone(given: dict[str, Any], expected: str) -> None:
    """A value of the user stays without override (docs/reference/policy.md#merge)."""
    assert spec_of(pod(gpus(1), **given), rules(SCHEDULER + OVERRIDE), FLEET)["schedulerName"] == "ours"
    assert spec_of(pod(gpus(1), **given), rules(SCHEDULER), FLEET)["schedulerName"] == expected


@pytest.mark.parametrize("words", [NVIDIA, PRIORITY, SCHEDULER])
@pytest.mark.parametrize("document", [pod(container()), pod(gpus(0))], ids=["no GPU", "zero GPUs"])
def test_pod_without_gpus_gets_no_name(document: dict[str, Any], words: str) -> None:
    assert document["spec"] == spec_of(document, rules(words), FLEET)


@pytest.mark.parametrize(("action", "spoken"), [("Warn", 3), ("Audit", 0), ("'Off'", 0)])
def test_names_that_are_not_enforced_are_only_spoken_of(action: str, spoken: int) -> None:
    """F20."""
    document = pod(gpus(1))

    verdict = admit(document, rules(f"{NVIDIA}, {PRIORITY}, {SCHEDULER}", action), FLEET)

    assert document["spec"] == apply(document, verdict.operations)["spec"]
    assert len([warning for warning in verdict.warnings if "policy only warns" in warning]) == spoken


def test_single_rule_has_an_action_of_its_own() -> None:
    spec = spec_of(pod(gpus(1)), rules(f"{NVIDIA}, {PRIORITY}", more=", actions: {priorityClassName: Warn}"), FLEET)

    assert spec["runtimeClassName"] == "nvidia"
    assert "priorityClassName" not in spec


def test_exception_turns_off_the_rule_that_it_names_and_no_other() -> None:
    lenient = "{match: {podSelector: {matchLabels: {a: b}}}, rules: [runtimeClassName]"
    until = f", exceptions: [{lenient}, owner: o, reason: r, expires: 2999-01-01}}]"
    document = pod(gpus(1))
    document["metadata"]["labels"] = {"a": "b"}

    spec = spec_of(document, rules(f"{NVIDIA}, {PRIORITY}", more=until), FLEET)

    assert "runtimeClassName" not in spec
    assert spec["priorityClassName"] == "gold"


@pytest.mark.parametrize("second", ["", OVERRIDE], ids=["no override", "override of the lower one"])
def test_highest_priority_wins_and_only_its_own_override_counts(second: str) -> None:
    two = policies(
        policy("high", f"priority: 1, admission: {{{NVIDIA}}}"),
        policy("low", f"admission: {{runtimeClassName: nvidia-cdi{second}}}"),
    )

    unset, mine = pod(gpus(1)), pod(gpus(1), runtimeClassName="mine")

    assert [spec_of(document, two, FLEET)["runtimeClassName"] for document in (unset, mine)] == ["nvidia", "mine"]


def test_bypass_is_refused_where_policy_says_so() -> None:
    """F13, F14: a bypass is a nodeName, or another scheduler than the policy's."""
    strict = rules(f"{SCHEDULER}, bypass: Deny")

    documents = pod(gpus(1), nodeName="n"), pod(gpus(1), schedulerName="volcano"), pod(gpus(1))

    verdicts = [admit(document, strict, FLEET) for document in documents]

    bypass = Code.BypassesScheduling
    assert [[reason.code for reason in verdict.reasons] for verdict in verdicts] == [[bypass], [bypass], []]


@pytest.mark.parametrize("classes", [["kata"], [], ["nvidia"], None], ids=["missing", "none", "there", "not listed"])
def test_template_that_names_a_missing_runtime_class_is_warned_of(classes: list[str] | None) -> None:
    document = pod(gpus(1), runtimeClassName="nvidia")

    verdict = admit(document, rules("bypass: Leave"), fleet(classes=classes), PodForm.Template)

    assert (classes in (["kata"], [])) is any(
        "RuntimeClass nvidia does not exist" in warning for warning in verdict.warnings
    )


def test_workload_class_that_a_pod_gives_itself_takes_nothing_of_the_fallback_away() -> None:
    """A policy that is selected by an annotation can only tighten (docs/reference/policy.md#match)."""
    own = policies(policy("mine", "priority: 9, match: {workloadClass: [training]}, placement: {sharing: Exclusive}"))
    half = pod(gpus("500m"), annotations={"workload-class": "training"})

    assert not admit(pod(gpus("500m")), own, FLEET).allowed
    assert not admit(half, own, FLEET).allowed
