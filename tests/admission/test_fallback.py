# SPDX-License-Identifier: Apache-2.0
"""The exported policies have the right guards; tests/e2e/test_fallback.py tests their effect on an API server."""

import pytest
import yaml

from app.cli.made_texts import admission_policies_text
from tests.builders import knowledge, policies, policy


def text(*documents: str) -> str:
    return admission_policies_text(policies(*documents), knowledge())


def parts(*documents: str) -> dict[str, int]:
    """Count the validations and mutations of each exported policy, by the end of its name."""
    return {
        document["metadata"]["name"].removeprefix("gpu-usher-fallback") + document["kind"][:1]: len(
            document["spec"].get("validations", ()) or document["spec"].get("mutations", ())
        )
        for document in yaml.safe_load_all(text(*documents))
        if document and not document["kind"].endswith("Binding")
    }


@pytest.mark.parametrize(
    ("spec", "made"),
    [
        ("admission: {visibleDevices: Leave, privileged: Leave, bypass: Deny, maxGPUsPerPod: 2}", {}),
        ("admission: {visibleDevices: Void}", {"V": 5, "-devicesV": 1}),
        ("admission: {visibleDevices: Deny, privileged: Deny}", {"V": 6, "-devicesV": 3}),
        ("admission: {extendedResources: {requestsOnly: CopyToLimits}}", {"M": 1, "-templatesM": 1}),
        ("admission: {extendedResources: {requestsOnly: Deny, mismatch: UseLimits}}", {}),
        ("action: Warn, admission: {privileged: Deny}", {}),
    ],
)
def test_each_guard_that_is_enforced_is_written_and_nothing_else(spec: str, made: dict[str, int]) -> None:
    """F12, F14, F161."""
    assert parts(policy("default", spec)) == made


EXCEPTION = (
    "exceptions: [{match: {podSelector: {matchLabels: {app: old}}}, %s owner: a, reason: b, expires: 2999-01-01}]"
)


@pytest.mark.parametrize("owner", ["namespaceSelector", "podSelector"])
def test_guard_is_left_out_where_its_policy_does_not_select_every_pod(owner: str) -> None:
    """F12: the exported policies are never stricter than admission, also for pods that have a certain label."""
    match = f"match: {{{owner}: {{matchExpressions: [{{key: k, operator: NotIn, values: [v]}}]}}}}"

    written = text(policy("most", f"{match}, admission: {{privileged: Deny}}"))

    assert "is privileged" not in written
    assert "# privileged too: policy default says otherwise for some pods." in written


def test_guard_is_left_out_where_a_policy_has_an_exception_to_it() -> None:
    """F12."""
    excepted = policy(
        "default", f"admission: {{privileged: Deny, visibleDevices: Deny}}, {EXCEPTION % 'rules: [privileged],'}"
    )

    written = text(excepted)

    assert "is privileged" not in written
    assert "# privileged too: policy default says otherwise for some pods." in written
    assert "NVIDIA_VISIBLE_DEVICES" in written


def test_guard_is_left_out_where_some_policy_refuses_what_it_would_repair() -> None:
    """F161: the API server would change the pod before gpu-usher sees it, so that none would be refused."""
    copying = policy("every", "admission: {extendedResources: {requestsOnly: CopyToLimits}}")
    strict = "match: {workloadClass: [notebook]}, admission: {extendedResources: {requestsOnly: Deny}}"

    written = text(copying, policy("notebook", strict))

    assert "# extendedResources.requestsOnly too: policy notebook says otherwise for some pods." in written
    assert "JSONPatch" not in written


def test_guard_is_left_out_where_every_policy_with_it_has_an_exception() -> None:
    """F12: a pod may be of both exceptions."""
    excepted = f"admission: {{privileged: Deny}}, {EXCEPTION % 'rules: [privileged],'}"

    written = text(policy("one", excepted), policy("two", excepted))

    assert "is privileged" not in written
    assert "is privileged" in text(policy("one", excepted), policy("two", "admission: {privileged: Deny}"))


def test_policy_that_only_says_more_leaves_the_guards() -> None:
    """F13: a pod cannot leave a guard by an annotation that adds a stricter policy."""
    every, notebook = (
        policy("every", "priority: 1, match: {podSelector: {}}, admission: {privileged: Deny}"),
        policy("notebook", "priority: 10, match: {workloadClass: [notebook]}, admission: {maxGPUsPerPod: 1}"),
    )

    assert "is privileged" in text(every, notebook)
