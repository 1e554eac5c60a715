# SPDX-License-Identifier: Apache-2.0
"""Dates in policies: rules announced for a date, exceptions that end, and their effect on a pod."""

import pytest

from app.admission.review import mutate
from app.policy.compiled import PolicySet, expired_exceptions, in_force
from app.policy.schema import Action
from app.values.errors import PolicyError
from tests.builders import gpus, pod, policies, policy, setting

ANNOUNCED = policy("p", "priority: 5, enforceFrom: 2027-01-31, admission: {maxGPUsPerPod: 1}")
EXCEPTION = (
    "{match: {podSelector: {matchLabels: {team: x}}}, rules: [%s], owner: ann, reason: migration, expires: 2027-01-31}"
)


def on(day: str, document: str) -> PolicySet:
    return in_force(policies(document), day)


def refusals(policy_set: PolicySet, **labels: str) -> list[str]:
    document = pod(gpus(2))
    document["metadata"]["labels"] = labels
    return [reason.code.name for reason in mutate(document, "team-a", {}, setting(policy_set)).reasons]


@pytest.mark.parametrize(
    ("day", "expected"), [("2027-01-30", []), ("2027-01-31", ["TooManyGPUs"]), ("2028-01-01", ["TooManyGPUs"])]
)
def test_announced_rule_warns_until_its_day(day: str, expected: list[str]) -> None:
    """F138."""
    assert expected == refusals(on(day, ANNOUNCED))


def test_announced_rule_says_so_in_a_warning() -> None:
    """F138, F19."""
    verdict = mutate(pod(gpus(2)), "team-a", {}, setting(on("2027-01-30", ANNOUNCED)))

    assert verdict.allowed
    assert any("at most 1 per pod is allowed (policy " in warning for warning in verdict.warnings)


def test_day_changes_the_hash_only_where_it_changes_the_rules() -> None:
    before, eve, after = (on(day, ANNOUNCED).hash for day in ("2026-12-31", "2027-01-30", "2027-01-31"))

    assert before == eve
    assert eve != after


def test_milder_action_stays_mild_before_the_day() -> None:
    mild = on("2026-01-01", policy("p", "enforceFrom: 2027-01-31, action: Audit, actions: {products: Enforce}"))

    spec = mild.policies[0].spec
    assert spec.action is Action.Audit
    assert list(spec.actions.values()) == [Action.Warn]


@pytest.mark.parametrize(
    ("rules", "day", "labels", "expected"),
    [
        ("maxGPUsPerPod", "2027-01-31", {"team": "x"}, []),
        ("maxGPUsPerPod", "2027-02-01", {"team": "x"}, ["TooManyGPUs"]),
        ("maxGPUsPerPod", "2027-01-31", {"team": "y"}, ["TooManyGPUs"]),
        ("products", "2027-01-31", {"team": "x"}, ["TooManyGPUs"]),
        ("", "2027-01-31", {"team": "x"}, []),
    ],
    ids=["holds", "the day after", "another pod", "another rule", "all rules"],
)
def test_exception_turns_rules_off_for_some_pods_until_its_day(
    rules: str, day: str, labels: dict[str, str], expected: list[str]
) -> None:
    """F80."""
    document = policy("p", f"admission: {{maxGPUsPerPod: 1}}, exceptions: [{EXCEPTION % rules}]")

    assert expected == refusals(on(day, document), **labels)


def test_expired_exceptions_are_listed_with_their_owner() -> None:
    """F80."""
    written = policies(policy("p", f"exceptions: [{EXCEPTION % ''}]"))

    assert expired_exceptions(written, "2027-01-31") == ()
    assert expired_exceptions(written, "2027-02-01") == (("p", "ann", "2027-01-31"),)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("enforceFrom: soon", "wants a day such as 2027-01-31"),
        ("enforceFrom: 2027-13-01", "wants a day such as 2027-01-31"),
        ("exceptions: [{match: {}, owner: a, reason: b, expires: 2027-01-31}]", "selects every pod, wants a selector"),
        ("exceptions: [{match: {podSelector: {}}, reason: b, expires: 2027-01-31}]", "spec.exceptions[0].owner"),
        ("exceptions: [{match: {podSelector: {}}, owner: a, reason: b}]", "spec.exceptions[0].expires"),
    ],
)
def test_day_or_exception_that_is_not_whole_is_refused_with_its_place(spec: str, words: str) -> None:
    with pytest.raises(PolicyError, match=r"^0\.yaml:4:") as raised:
        policies(policy("p", spec))

    assert words in str(raised.value)
