# SPDX-License-Identifier: Apache-2.0
"""What is kept of a stranger's request is short: names are bounded, and long records are shortened."""

import json

from app.admission.review import MOST_ACTIONS
from app.api.decision_line import Decision, RecentDecisions
from app.kube.pod_limits import LONGEST_NAME
from tests.api.client import post
from tests.builders import pod, review


def test_names_of_a_review_that_are_longer_than_any_are_refused() -> None:
    """F103: the last decisions and the log keep these names."""
    for key in ("uid", "namespace", "name"):
        response = post("/mutate", json.dumps(review(pod(), **{key: "x" * (LONGEST_NAME + 1)})).encode())

        assert response.status_code == 400
        assert f"request.{key}: got 254 characters, wants at most 253" in response.json()["message"]


def test_last_decisions_keep_a_part_of_a_long_record() -> None:
    """F103: 512 actions of each pod would make the 500 kept decisions take 75 MB."""
    tail = RecentDecisions()

    tail.note("mutate", Decision("patched", actions=tuple(map(str, range(512)))), 0)

    assert tail.since(0)[0].decision.actions == (*map(str, range(MOST_ACTIONS - 1)), "and 481 more")
