# SPDX-License-Identifier: Apache-2.0
"""The exported policies have the right rules; tests/e2e/test_fallback.py and test_floor.py test their effect."""

from dataclasses import fields
from typing import Any

import pytest

from app.admission.admission_policies import validating_policies
from app.admission.fallback_scope import GENERATED, fallback_scope
from app.admission.mutating_policies import BY_THE_API_SERVER, LEFT_OUT, mutating_policies
from app.cli.export import admission_policies_text
from app.policy.merge_admission import RULES, AdmissionRules
from tests.builders import knowledge, policies, policy


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ("admission: {visibleDevices: Leave, privileged: Leave, bypass: Leave}", 0),
        ("admission: {maxGPUsPerPod: 2}", 1),
        ("admission: {visibleDevices: Void}", 6),
        ("admission: {bypass: Deny}", 1),
        ("admission: {bypass: Deny, schedulerName: ours}", 2),
        ("admission: {privileged: Deny}", 3),
    ],
)
def test_each_rule_of_the_policies_is_said_and_nothing_else(spec: str, count: int) -> None:
    """F12, F14, F26."""
    documents = validating_policies(fallback_scope(policies(policy("default", spec)), knowledge()), knowledge())

    assert sum(len(document["spec"].get("validations", ())) for document in documents) == count


def test_what_is_only_warned_of_is_bound_with_warn() -> None:
    """F12."""
    scope = fallback_scope(policies(policy("default", "action: Warn, admission: {privileged: Deny}")), knowledge())

    made, binding, *_ = validating_policies(scope, knowledge())

    assert binding["spec"] == {"policyName": made["metadata"]["name"], "validationActions": ["Warn"]}
    assert mutating_policies(scope, knowledge()) == []


@pytest.mark.parametrize(
    ("spec", "mutations"),
    [
        ("admission: {extendedResources: {requestsOnly: CopyToLimits}}", {"": 1, "-templates": 1}),
        ("admission: {extendedResources: {requestsOnly: Deny, mismatch: Deny}}", {}),
        ("admission: {extendedResources: {requestsOnly: CopyToLimits, mismatch: UseLimits}}", {"": 2, "-templates": 2}),
        ("admission: {tolerations: {fromNodeTaints: true}}", {"": 1}),
        ("admission: {runtimeClassName: nvidia}", {"-runtime-class": 1}),
        ("admission: {runtimeClassName: Auto}", {}),
        ("admission: {schedulerName: ours, priorityClassName: high}", {"": 2}),
        ("admission: {visibleDevices: Deny}", {}),
        ("admission: {visibleDevices: Void}", {"": 2}),
        ("admission: {memoryRequests: UseLimits}", {"": 1}),
    ],
)
def test_each_repair_of_the_policies_is_said_and_nothing_else(spec: str, mutations: dict[str, int]) -> None:
    """F161, F7."""
    documents = mutating_policies(fallback_scope(policies(policy("default", spec)), knowledge()), knowledge())

    assert {
        document["metadata"]["name"].removeprefix("gpu-usher-fallback"): len(document["spec"]["mutations"])
        for document in documents
        if document["kind"] == "MutatingAdmissionPolicy"
    } == mutations


def test_every_rule_is_generated_or_left_out_with_a_cause() -> None:
    """F12."""
    left_out = [field for row in LEFT_OUT for field in row.fields if row.applies is None]

    assert sorted((*left_out, *GENERATED, *BY_THE_API_SERVER)) == sorted(RULES)
    assert all(row.cause for row in LEFT_OUT)
    assert set(RULES) == {field.name for field in fields(AdmissionRules) if field.compare}


def text(*documents: str) -> str:
    return admission_policies_text(policies(*documents), knowledge())


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("admission: {affinity: {mode: Required}}", "# - affinity: it is made"),
        ("admission: {runtimeClassName: Auto}", "# - runtimeClassName: Auto chooses"),
        ("admission: {idle: {after: 4h}}", "# - idle: CEL does not know"),
    ],
)
def test_rule_that_is_left_out_is_named_where_it_is_in_force(spec: str, line: str) -> None:
    """F12."""
    assert line in text(policy("default", spec))
    assert line not in text(policy("default", "admission: {privileged: Deny}"))


EXCEPTION = (
    "exceptions: [{match: {podSelector: {matchLabels: {app: old}}}, %s owner: a, reason: b, expires: 2999-01-01}]"
)


@pytest.mark.parametrize(
    ("other", "fields", "condition"),
    [
        ("priority: 10, match: {namespaceSelector: {matchLabels: {team: a}}}, admission: {schedulerName: x}",
         "scheduler_name", "'team' in namespaceObject.metadata.labels"),
        ("priority: 10, match: {podSelector: {matchExpressions: [{key: k, operator: NotIn, values: [v]}]}}, "
         "admission: {schedulerName: x}", "scheduler_name", "!((has(object.metadata.labels) && 'k'"),
        (EXCEPTION % "rules: [privileged],", "privileged", "object.metadata.labels['app'] in ['old']"),
    ],
    ids=["namespaces", "labels", "exception"],
)  # fmt: skip
def test_pods_of_which_another_policy_says_less_are_left_to_admission(other: str, fields: str, condition: str) -> None:
    """F12, F14: the exported policies are never stricter than admission, and change nothing else."""
    base = policy("base", "admission: {schedulerName: ours, privileged: Deny, bypass: Deny}")

    scope = fallback_scope(policies(base, policy("other", other)), knowledge())

    if fields == "privileged":
        scope = fallback_scope(policies(policy("base", f"admission: {{privileged: Deny}}, {other}")), knowledge())
    assert {rule for rule, names in scope.looser.items() if names} >= {fields}
    assert any(condition in expression for expression in scope.selections.values()), scope.selections
    assert "variables.selected0" in str(scope.limited("x", (fields,), "true"))


def test_policy_that_only_says_more_is_no_exception() -> None:
    """F13: a pod cannot leave a limit by an annotation that adds a stricter policy."""
    notebook = policy("notebook", "priority: 10, match: {workloadClass: [notebook]}, admission: {maxGPUsPerPod: 1}")

    scope = fallback_scope(policies(policy("default", "admission: {maxGPUsPerPod: 8}"), notebook), knowledge())

    assert scope.looser == {}


def test_file_says_what_it_cannot() -> None:
    """F12."""
    written: Any = text(policy("default", "admission: {privileged: Deny}"))

    assert "# - know the fleet" in written
    assert "&id" not in written
