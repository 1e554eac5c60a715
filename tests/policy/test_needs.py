# SPDX-License-Identifier: Apache-2.0
"""The descriptors of needs name fields, rules and reason codes that exist, and leave none of them out."""

from dataclasses import fields

from app.policy.demand import Demand
from app.policy.needs import NEEDS
from app.policy.schema import Spec
from app.policy.schema_admission import Admission
from app.policy.schema_placement import Rule
from app.values.reasons import Code, FunnelStage, ReasonKind

MERGED_APART = {Rule.Health, Rule.UnknownFacts, Rule.Scores, Rule.ScoreSpread}
"""Rules of the placement block that state no need of a pod, but how nodes are judged (policy/merge.py)."""
NOT_FROM_A_POLICY = {
    Code.ComputeCapabilityUnsupported: "the image's toolkit",
    Code.ImageRequirementUnmet: "the image's own variables",
    Code.ImageForOtherMachine: "the image",
    Code.ImageWithoutCodeForGPU: "the image",
    Code.DriverUnknown: "unknownFacts",
    Code.GPUFactsMissing: "unknownFacts",
    Code.MIGProfileAbsent: "the annotation or the resource",
    Code.MIGInvalid: "the node's state",
    Code.ResourceNotOffered: "the resource",
    Code.RequestExceedsNode: "the amount",
    Code.OfferedByClaimOnly: "the resource, which a DRA driver serves by claims alone",
    Code.GPUWithoutCUDA: "the image, or the resource of another vendor",
    Code.NodeNotKnown: "our view of the cluster",
    Code.RuntimeHandlerAbsent: "the RuntimeClass that the pod names, or admission gave it",
}
"""Codes of class filters that no field of a policy leads to, and what does."""


def test_every_need_fills_a_field_of_demand() -> None:
    names = {field.name for field in fields(Demand)}

    in_fields = {need.demand_field for need in NEEDS if need.value(Demand()) is not None} - names

    assert in_fields == set(), "further needs are in Demand.others"
    assert len({need.demand_field for need in NEEDS}) == len(NEEDS) == len({need.path for need in NEEDS})


def test_every_rule_of_the_placement_block_is_a_need_or_merged_apart() -> None:
    admission = {field.alias or name for name, field in Admission.model_fields.items()}
    placement = {rule for rule in Rule if rule.value not in admission and rule.value in _placement_fields()}

    assert {need.rule for need in NEEDS if need.rule} == placement - MERGED_APART


def test_every_refusal_for_a_policy_says_which_need_leads_to_it() -> None:
    """A code without a need would get no remedy that changes a policy."""
    codes = {code for code in Code if code.kind is ReasonKind.CLASS and code.stage is not FunnelStage.Health}

    assert codes - {code for need in NEEDS for code in need.codes} == NOT_FROM_A_POLICY.keys()


def test_empty_values_show_nothing() -> None:
    demand = Demand()

    assert [list(need.lines(demand)) for need in NEEDS] == [[]] * len(NEEDS)


def _placement_fields() -> set[str]:
    placement = Spec().placement
    return {field.alias or name for name, field in type(placement).model_fields.items()}
