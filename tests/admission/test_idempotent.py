# SPDX-License-Identifier: Apache-2.0
"""Reviews of random pods: the patch applies as in the JSON Patch library, and a second review changes nothing."""

import copy
from typing import Any

import jsonpatch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.admission.json_patch import apply
from app.admission.review import mutate
from app.admission.reviewed_pod import MOST_WARNINGS, WARNING_LIMIT
from app.kube.objects import RuntimeClass
from app.policy.compiled import PolicySet
from app.world.fleet_facts import FleetFacts, NodeGroup
from tests.admission.test_review import FLEET, REPAIR
from tests.builders import policies, policy, setting, shipped
from tests.oracles.pods import pods

PREFERRED = policies(policy("p", "admission: {affinity: {mode: Preferred}, schedulerName: ours}, action: Enforce"))
WARNING = policies(policy("w", f"action: Warn, {REPAIR}"), policy("d", "admission: {affinity: {mode: Required}}"))


@given(
    pods(), st.sampled_from([shipped(), PREFERRED, WARNING]), st.lists(st.sampled_from(FLEET.node_groups), unique=True)
)
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_second_review_changes_nothing_and_the_library_agrees(
    document: dict[str, Any], policy_set: PolicySet, group: list[NodeGroup]
) -> None:
    """Fault 20."""
    before = copy.deepcopy(document)
    where = setting(policy_set, FleetFacts(tuple(group), {"nvidia": RuntimeClass("nvidia")}))

    verdict = mutate(document, "team-a", {}, where)
    after = apply(document, verdict.operations)
    again = mutate(after, "team-a", {}, where)

    assert before == document
    assert after == jsonpatch.apply_patch(document, [operation.as_json() for operation in verdict.operations])
    assert not verdict.operations or verdict.allowed
    assert not again.operations
    assert verdict.allowed is again.allowed
    assert all(len(warning) <= WARNING_LIMIT and warning.isprintable() for warning in verdict.warnings)
    assert len(verdict.warnings) <= MOST_WARNINGS
