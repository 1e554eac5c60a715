# SPDX-License-Identifier: Apache-2.0
"""Rules with action Warn or Audit are applied to the pod as what is enforced leaves it, and are only told."""

import random
from dataclasses import replace

import pytest

from app.admission.json_patch import apply
from app.admission.mutators import MUTATOR_RULES, MUTATORS, OF_VALIDATORS, Mutator
from app.admission.reviewed_pod import ReviewedPod, begin_review
from app.kube.pods import read_pod
from app.policy.merge import AdmissionRules
from app.policy.schema_admission import PerGPU
from tests.admission.mutated import admit, fleet
from tests.admission.slices import SMALL, slices, whole
from tests.api.test_decision_recorder import STRICT, drawn
from tests.builders import container, pod, policies, policy, setting
from tests.builders import fleet as slice_fleet

GPU = {"nvidia.com/gpu": "1"}
ALL = AdmissionRules(
    runtime_class_name="nvidia", scheduler_name="gpu-usher-scheduler", tolerate=True, from_node_taints=True,
    toleration_keys=("pool",), requests_only="CopyToLimits", mismatch="UseLimits", fractional="Deny",
    affinity_mode="Required", max_gpus_per_pod=1, priority_class_name="high", right_sizing=True,
    mig_fallback="Smallest", convert_to_claims=True, visible_devices="Void", privileged="Deny",
    bypass="Deny", shared_replicas="Deny", per_gpu=PerGPU.model_validate({"minCPU": "2"}),
    override=frozenset({"scheduler_name", "runtime_class_name", "priority_class_name"}),
)  # fmt: skip


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
        pod(container(GPU), annotations={"gpu-memory": "9Gi"}),
        pod(container({"nvidia.com/gpu": "2"})),
        pod(container()),
    ]
    context = setting(STRICT, facts)
    return [begin_review(document, read_pod(document), {}, context) for document in documents]


@pytest.mark.parametrize(("mutator", "rule"), [row for row in MUTATOR_RULES if row[1]])
def test_mutator_changes_nothing_without_its_rule(mutator: Mutator, rule: str) -> None:
    """F20: it need not run at all."""
    off = replace(ALL, **{rule: getattr(AdmissionRules(), rule)})

    changes = [change for review in reviews() for change in mutator(replace(review, rules=off))]

    assert changes == []


@pytest.mark.parametrize("mutator", MUTATORS)
def test_no_mutator_reads_a_rule_of_validators(mutator: Mutator) -> None:
    """F20: mutators do not run again for a level that says something else in these alone."""
    denying = replace(ALL, visible_devices="Deny")
    off = {name: getattr(AdmissionRules(), name) for name in OF_VALIDATORS}
    others = replace(denying, visible_devices="Leave", **off)

    for review in reviews():
        under_all, under_others = (list(mutator(replace(review, rules=rules))) for rules in (denying, others))
        assert under_all == under_others


def test_pod_is_not_warned_of_what_the_warned_rules_would_mend() -> None:
    """F20: the scheduler that a policy wants is set where the policy is enforced, so that nothing is refused then."""
    spec = "action: Warn, admission: {schedulerName: gpu-usher-scheduler, bypass: Deny}"

    result = admit(pod(container(GPU)), policies(policy("default", spec)))

    assert result.warnings == ("not done, policy only warns: schedulerName set to gpu-usher-scheduler",)


def test_warned_amounts_are_judged_as_the_warned_repairs_leave_them() -> None:
    """F20: CPU that a default would provide is not missing."""
    spec = "action: Warn, admission: {defaults: {cpuPerGPU: '4'}, perGPU: {minCPU: '2'}}"

    warned = admit(pod(container(GPU)), policies(policy("default", spec))).warnings
    other = admit(pod(container(GPU)), policies(policy("default", spec.replace("'4'", "'1'")))).warnings

    assert ([text for text in warned if "(warning only)" in text], len(other)) == ([], 2)


def test_each_level_records_what_it_adds_to_what_is_enforced() -> None:
    """F20: Audit includes what Warn would change."""
    documents = (
        policy("default", "admission: {tolerations: {fromNodeTaints: true, keys: [enforced]}}"),
        policy("warned", "action: Warn, admission: {tolerations: {keys: [warned]}}"),
        policy("audited", "action: Audit, admission: {tolerations: {keys: [audited]}}"),
    )
    taints = [{"key": key, "effect": "NoSchedule"} for key in ("audited", "enforced", "warned")]
    one = pod(container(GPU))

    result = admit(one, policies(*documents), fleet({"name": "a", "taints": taints}))

    assert [line for line in result.record if "toleration" in line] == [
        "toleration added for nvidia.com/gpu, enforced",
        "not done, policy only warns: toleration added for warned",
        "not done, policy only audits: toleration added for audited, warned",
    ]
    assert "warned" not in str(apply(one, result.operations)["spec"])


AUDITED = "not done, policy only audits: refusal: asks for 2 GPUs; at most 1 per pod is allowed (policy audited)"


@pytest.mark.parametrize(
    ("warned", "record"),
    [
        pytest.param("", [AUDITED], id="audited alone"),
        pytest.param("admission: {maxGPUsPerPod: 1}", [], id="warned of as well"),
        pytest.param("admission: {maxGPUsPerPod: 2}", [AUDITED], id="another limit is warned of"),
    ],
)
def test_what_an_audited_rule_would_refuse_is_recorded_and_not_told(warned: str, record: list[str]) -> None:
    """F20: who turns a rule on reads in the annotations, or in the audit log, whom it would hit."""
    documents = (
        policy("warned", f"priority: 2, action: Warn, {warned}"),
        policy("audited", "priority: 1, action: Audit, admission: {maxGPUsPerPod: 1}"),
    )

    result = admit(pod(container({"nvidia.com/gpu": "2"})), policies(*documents))

    assert result.allowed
    assert [line for line in result.record if "refusal" in line] == record
    assert [text for text in result.warnings if "audit" in text] == []
    assert len(result.warnings) == ("maxGPUsPerPod: 1" in warned)


def test_refusal_is_not_repeated_as_a_warning_of_a_policy_that_says_the_same() -> None:
    """F20."""
    documents = (
        policy("default", "priority: 1, admission: {maxGPUsPerPod: 1}"),
        policy("warned", "priority: 2, action: Warn, admission: {maxGPUsPerPod: 1}"),
    )

    result = admit(pod(container({"nvidia.com/gpu": "2"})), policies(*documents))

    assert (len(result.reasons), result.warnings) == (1, ())


def test_what_follows_from_a_change_that_is_only_warned_of_is_not_told() -> None:
    """F20: the slice that the pod would ask for needs a toleration, which no policy withholds."""
    documents = (
        policy("default", "admission: {tolerations: {keys: ['nvidia.com/mig-*'], fromNodeTaints: true}}"),
        policy("warned", "action: Warn, admission: {rightSizing: true}"),
    )
    one = pod(container(GPU), annotations={"gpu-memory": "10Gi"})

    result = admit(one, policies(*documents), slice_fleet(slices(SMALL), whole("NVIDIA-H100-80GB-HBM3")))

    withheld = [text for text in result.warnings if text.startswith("not done")]
    assert withheld == [f"not done, policy only warns: nvidia.com/gpu replaced by {SMALL}"]
