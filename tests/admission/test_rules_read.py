# SPDX-License-Identifier: Apache-2.0
"""The tables of mutators and validators name every rule that each of them reads."""

import random
from dataclasses import replace
from typing import Any

import pytest

from app.admission.mutators import MUTATOR_RULES, NEEDED_RULE, Mutator
from app.admission.review import begin_review
from app.admission.reviewed_pod import ReviewedPod
from app.admission.validators import VALIDATOR_RULES
from app.kube.pods import read_pod
from app.policy.merge_admission import RULES, AdmissionRules
from tests.admission.mutated import fleet
from tests.api.test_decision_recorder import STRICT, drawn
from tests.builders import container, pod, setting

ALL = AdmissionRules(
    runtime_class_name="nvidia", scheduler_name="gpu-usher-scheduler", tolerate=True, from_node_taints=True,
    toleration_keys=("pool",), requests_only="CopyToLimits", mismatch="UseLimits", fractional="Deny",
    affinity_mode="Required", max_gpus_per_pod=1, priority_class_name="high", right_sizing=True,
    mig_fallback="Smallest", convert_to_claims=True, visible_devices="Void", privileged="Deny",
    bypass="Deny", shared_replicas="Deny",
    override=frozenset({"scheduler_name", "runtime_class_name", "priority_class_name"}),
)  # fmt: skip


class RecordedRules:
    """Rules that note which of their fields are read."""

    def __init__(self, rules: AdmissionRules) -> None:
        self._rules = rules
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in RULES:
            self.read.add(name)
        return getattr(self._rules, name)


def reviews() -> list[ReviewedPod]:
    """Begin the reviews of pods with much that decides, on a fleet with taints and MIG slices."""
    chance = random.Random(3)
    taint = {"key": "pool", "value": "gpu", "effect": "NoSchedule"}
    facts = fleet(
        {"name": "a", "taints": [taint]},
        {"name": "m", "taints": [taint], "offers": {"nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-2g.20gb": 3}},
        classes={"nvidia"},
    )
    documents = [drawn(chance) for _ in range(60)]
    documents += [
        pod(container({"nvidia.com/mig-1g.5gb": "1"}), annotations={"mig-profile": ">=1g.5gb"}),
        pod(container({"nvidia.com/gpu": "1"}), annotations={"gpu-memory": "9Gi"}),
        pod(container({"nvidia.com/gpu": "2"})),
        pod(container()),
    ]
    context = setting(STRICT, facts)
    return [begin_review(document, read_pod(document), {}, context) for document in documents]


@pytest.mark.parametrize(("acts", "rules"), [*MUTATOR_RULES, *VALIDATOR_RULES])
def test_no_other_rule_is_read_than_the_table_names(acts: Any, rules: tuple[str, ...]) -> None:
    """F20: under other rules that agree in these it need not run again."""
    read: set[str] = set()
    for review in reviews():
        for base in (ALL, replace(ALL, requests_only="Deny", mismatch="Deny", visible_devices="Deny")):
            recorded: Any = RecordedRules(base)
            list(acts(replace(review, rules=recorded)))
            read |= recorded.read

    assert read <= set(rules)


@pytest.mark.parametrize(("mutator", "rule"), NEEDED_RULE.items())
def test_mutator_changes_nothing_without_its_rule(mutator: Mutator, rule: str) -> None:
    """F20: it need not run at all."""
    off = replace(ALL, **{rule: getattr(AdmissionRules(), rule)})

    changes = [change for review in reviews() for change in mutator(replace(review, rules=off))]

    assert changes == []
