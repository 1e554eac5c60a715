# SPDX-License-Identifier: Apache-2.0
"""The exported ValidatingAdmissionPolicy has the right rules; tests/e2e/test_fallback.py tests their effect."""

import pytest

from app.admission.admission_policies import fallback_policies
from app.cli.policy_changes import vap_text
from tests.builders import knowledge, pod, policies, policy, ruling


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
    pod_ruling = ruling(pod(), policies(policy("default", spec)))

    documents = fallback_policies(pod_ruling.enforced, pod_ruling.warned, knowledge())

    assert sum(len(document["spec"].get("validations", ())) for document in documents) == count


def test_what_is_only_warned_of_is_bound_with_warn() -> None:
    pod_ruling = ruling(pod(), policies(policy("default", "action: Warn, admission: {privileged: Deny}")))

    made, binding, *_ = fallback_policies(pod_ruling.enforced, pod_ruling.warned, knowledge())

    assert binding["spec"] == {"policyName": made["metadata"]["name"], "validationActions": ["Warn"]}


def test_file_says_what_it_cannot() -> None:
    text = vap_text(policies(policy("default", "admission: {privileged: Deny}")), knowledge())

    assert "# - repair anything" in text
    assert "&id" not in text
