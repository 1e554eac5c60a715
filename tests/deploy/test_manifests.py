# SPDX-License-Identifier: Apache-2.0
"""The manifests: conditions generated from the families, rights to read and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from app.admission.reach import match_conditions
from tests.builders import knowledge

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
READ = {"get", "list", "watch"}


def documents(*parts: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(DEPLOY.joinpath(*parts).read_text("utf-8")))


def webhooks() -> list[dict[str, Any]]:
    return [each for document in documents("base", "webhooks.yaml") for each in document["webhooks"]]


@pytest.mark.parametrize("webhook", webhooks(), ids=lambda each: each["name"])
def test_match_conditions_are_those_generated_from_the_families(webhook: dict[str, Any]) -> None:
    """F22: one without quotes or a family that changed would show here."""
    assert match_conditions(knowledge().families) == webhook["matchConditions"]


@pytest.mark.parametrize("webhook", webhooks(), ids=lambda each: each["name"])
def test_exempt_namespaces_are_those_of_the_families(webhook: dict[str, Any]) -> None:
    """F21, F107: a selector knows no prefix, so every named namespace must be one that the service exempts too."""
    named = webhook["namespaceSelector"]["matchExpressions"][0]
    exact = {name for name in knowledge().families.infrastructure_namespaces if not name.endswith("*")}

    assert named["operator"] == "NotIn"
    assert exact <= set(named["values"])
    assert all(map(knowledge().families.infrastructure, named["values"]))


def test_mutation_fails_open_and_validation_fails_closed() -> None:
    """F106, ADM-01, ADM-02, ADM-09."""
    found = {each["name"]: each for each in webhooks()}

    assert found["mutate.gpu-usher.io"]["failurePolicy"] == "Ignore"
    assert found["validate.gpu-usher.io"]["failurePolicy"] == "Fail"
    assert found["mutate.gpu-usher.io"]["reinvocationPolicy"] == "IfNeeded"
    for each in found.values():
        assert each["sideEffects"] == "None"
        assert each["timeoutSeconds"] <= 3


@pytest.mark.parametrize(
    "parts",
    [("base", "rbac.yaml"), ("components", "dra", "rbac.yaml"), ("components", "crd", "rbac.yaml")],
    ids=["base", "dra", "crd"],
)
def test_the_serving_identity_may_read_and_nothing_else(parts: tuple[str, ...]) -> None:
    """F104: no write, no secrets."""
    rules = [rule for document in documents(*parts) for rule in document.get("rules", [])]

    assert rules
    for rule in rules:
        assert set(rule["verbs"]) == READ
        assert "secrets" not in rule["resources"]
