# SPDX-License-Identifier: Apache-2.0
"""Policies of admission rules, fleets from the builder's arguments, and pods admitted under the one on the other."""

from dataclasses import replace
from typing import Any

from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate
from app.admission.reviewed_pod import PodForm
from app.policy.compiled import PolicySet
from app.world.fleet_facts import FleetFacts
from tests.builders import fleet as fleet_of
from tests.builders import node, policies, policy, setting


def rules(words: str = "", action: str = "Enforce", more: str = "") -> PolicySet:
    """Make one policy with these words in its block `admission`, and more beside the block."""
    return policies(policy("p", f"action: {action}, admission: {{{words}}}{more}"))


def fleet(*nodes: dict[str, Any], classes: set[str] | None = None) -> FleetFacts:
    """Make a fleet of nodes from the builder's arguments for each."""
    return fleet_of(*(node(**arguments) for arguments in nodes), classes=classes)


def admit(
    document: dict[str, Any],
    policy_set: PolicySet | None = None,
    fleet_facts: FleetFacts | None = None,
    form: PodForm = PodForm.Pod,
) -> ReviewResult:
    """Mutate an object of team-a, by the shipped policies and on an unknown fleet unless others are given."""
    return mutate(document, "team-a", {}, replace(setting(policy_set, fleet_facts), form=form))


def spec_of(
    document: dict[str, Any], policy_set: PolicySet | None = None, fleet_facts: FleetFacts | None = None
) -> dict[str, Any]:
    """Return the spec after admission, which a second review leaves unchanged."""
    after = apply(document, admit(document, policy_set, fleet_facts).operations)
    assert not admit(after, policy_set, fleet_facts).operations
    spec: dict[str, Any] = after["spec"]
    return spec
