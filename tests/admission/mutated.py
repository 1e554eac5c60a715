# SPDX-License-Identifier: Apache-2.0
"""Fleets from the builder's arguments, and pods mutated on them."""

from typing import Any

from app.admission.fleet_facts import FleetFacts
from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate
from app.policy.compiled import PolicySet
from tests.builders import fleet as fleet_of
from tests.builders import node, setting


def fleet(*nodes: dict[str, Any], classes: set[str] | None = None) -> FleetFacts:
    """Make a fleet of nodes from the builder's arguments for each."""
    return fleet_of(*(node(**arguments) for arguments in nodes), classes=classes)


def admit(
    document: dict[str, Any], fleet_facts: FleetFacts | None = None, policy_set: PolicySet | None = None
) -> ReviewResult:
    """Mutate a Pod of team-a."""
    return mutate(document, "team-a", {}, setting(policy_set, fleet_facts or fleet()))


def spec_of(
    document: dict[str, Any], fleet_facts: FleetFacts | None = None, policy_set: PolicySet | None = None
) -> dict[str, Any]:
    """Return the spec after admission."""
    spec: dict[str, Any] = apply(document, admit(document, fleet_facts, policy_set).operations)["spec"]
    return spec
