# SPDX-License-Identifier: Apache-2.0
"""Our judge of claims against what kube-scheduler v1.36.3 did on recorded worlds of real DRA drivers."""

import pytest

from app.explain.survey import read_scheduled_pod
from app.world.world import world_of
from tests.builders import policies
from tests.dra.recorded_worlds import Case, cases, claim_and_pod, state_of


@pytest.mark.parametrize("case", tuple(cases()), ids=lambda case: f"{case.world}:{case.claim}:{case.node}")
def test_recorded_claim_is_judged_as_kube_scheduler_did(case: Case) -> None:
    """F135."""
    claim, pod = claim_and_pod(case)
    state = state_of(case.world, claim)

    scheduled = read_scheduled_pod(pod, world_of(state, policies()), admit=False)

    assert scheduled.claims is not None
    assert case.bound == (scheduled.claims.refusal(state.nodes[case.node]) is None)
    assert scheduled.claims.not_judged == ""
