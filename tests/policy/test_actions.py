# SPDX-License-Identifier: Apache-2.0
"""What the actions Off, Audit, Warn and Enforce of policies change in a ruling (F20)."""

import pytest

from app.policy.schema_placement import SharingWish
from tests.policy.rulings import rule, value_in

FIELDS = {
    "runtimeClassName": "admission: {runtimeClassName: a}",
    "schedulerName": "admission: {schedulerName: a}",
    "tolerations": "admission: {tolerations: {fromNodeTaints: true, keys: [a]}}",
    "extendedResources": "admission: {extendedResources: {requestsOnly: Deny, mismatch: Deny, fractional: Deny}}",
    "affinity": "admission: {affinity: {mode: Required}}",
    "maxGPUsPerPod": "admission: {maxGPUsPerPod: 0}",
    "products": "placement: {products: {allow: [L4], deny: [L40]}}",
    "prefer": "placement: {products: {prefer: [L4]}}",
    "cuda": "placement: {cuda: {minimum: '12.4'}}",
    "accept": "placement: {cuda: {accept: Native}}",
    "fromImage": "placement: {cuda: {fromImage: true}}",
    "gpuMemory": "placement: {gpuMemory: 40Gi}",
    "computeCapability": "placement: {computeCapability: '9.0'}",
    "sharing": "placement: {sharing: Exclusive}",
    "interconnect": "placement: {interconnect: NVLink}",
    "unknownFacts": "placement: {unknownFacts: Refuse}",
    "scores": "placement: {scores: [{name: Spreading}]}",
}
ONE = "admission: {maxGPUsPerPod: 1}"
BASE = "admission: {maxGPUsPerPod: 8, runtimeClassName: b}, placement: {scores: [{name: Packing}]}"


@pytest.mark.parametrize("action", ["'Off'", "Audit"])
@pytest.mark.parametrize("field", FIELDS)
def test_policy_that_is_off_or_only_audits_changes_neither_demand_nor_pod(field: str, action: str) -> None:
    image = "nvidia/cuda:12.4.0-base-ubuntu22.04"
    expected = rule(BASE, image=image)

    merged = rule(BASE, f"action: {action}, {FIELDS[field]}", image=image)

    assert expected.demand == merged.demand
    assert expected.enforced == merged.enforced


@pytest.mark.parametrize("field", [name for name in FIELDS if name not in ("fromImage", "scores", "prefer")])
def test_policy_that_only_warns_refuses_no_node(field: str) -> None:
    hard = ("products", "denied_products", "cuda", "accept", "memory_mib", "compute_capability", "sharing", "nvlink")
    expected = rule(BASE).demand

    demand = rule(BASE, f"action: Warn, {FIELDS[field]}").demand

    assert {name: value_in(expected, name) for name in hard} == {name: value_in(demand, name) for name in hard}
    assert expected.refuse_unknown is demand.refuse_unknown


@pytest.mark.parametrize(
    ("spec", "field", "expected"),
    [
        ("products: {allow: [L4]}", "products", True),
        ("products: {deny: [L4]}", "denied_products", True),
        ("cuda: {minimum: '12.4'}", "cuda", True),
        ("gpuMemory: 40Gi", "memory_mib", 40_960),
        ("computeCapability: '9.0'", "compute_capability", (9,)),
        ("sharing: Exclusive", "sharing", SharingWish.Exclusive),
        ("interconnect: NVLink", "nvlink", True),
    ],
)
def test_need_of_a_policy_that_only_warns_becomes_warned(spec: str, field: str, expected: object) -> None:
    warned = rule(f"action: Warn, placement: {{{spec}}}").demand.warned

    assert warned is not None
    value = value_in(warned, field)
    assert expected == (bool(value) if expected is True else value)


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([ONE], ["enforced", "warned", "audited"]),
        ([f"action: Warn, {ONE}"], ["warned", "audited"]),
        ([f"action: Audit, {ONE}"], ["audited"]),
        ([f"action: 'Off', {ONE}"], []),
        ([f"action: Enforce, actions: {{maxGPUsPerPod: Audit}}, {ONE}"], ["audited"]),
        ([f"action: Warn, {ONE}", f"action: Audit, {ONE}"], ["warned", "audited"]),
        ([f"action: 'Off', {ONE}", ONE], ["enforced", "warned", "audited"]),
        ([f"action: Warn, {ONE}", "admission: {runtimeClassName: a}"], ["warned", "audited"]),
    ],
    ids=["by default", "warn", "audit", "off", "of the rule", "strictest", "off and on", "others do not count"],
)
def test_need_takes_the_strictest_action_of_the_policies_that_have_it(specs: list[str], expected: list[str]) -> None:
    merged = rule(*specs)

    levels = {"enforced": merged.enforced, "warned": merged.warned, "audited": merged.audited}
    assert expected == [level for level, rules in levels.items() if rules.max_gpus_per_pod == 1]
