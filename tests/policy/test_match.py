# SPDX-License-Identifier: Apache-2.0
"""What all policies and annotations say together: the table of docs/reference/policy.md#merge."""

import pytest

from app.knowledge.cuda_compatibility import AcceptedCompatibility
from app.policy.demand import Demand
from app.policy.match import Ruling
from app.policy.schema_placement import ScorerName, SharingWish
from app.values.reasons import Code
from tests.builders import gpus, knowledge, pod, policies, policy, ruling


def rule(*specs: str, image: str = "train:1", annotations: dict[str, str] | None = None) -> Ruling:
    """Rule on a one-GPU pod by policies p0, p1 … of priorities 0, 1 …, unless their specs say otherwise."""
    named = [
        policy(f"p{index}", spec if "priority" in spec else f"priority: {index}, {spec}")
        for index, spec in enumerate(specs)
    ]
    return ruling(pod(gpus(1, image=image), annotations=annotations), policies(*named))


def allowed(demand: Demand) -> set[str]:
    """List the families of which some product is let through."""
    return {
        product.family
        for form, product in knowledge().products.by_form.items()
        if all(any(each.matches(form) for each in any_of) for any_of in demand.products)
        and not any(each.matches(form) for each in demand.denied_products)
    }


NOT_IN = "podSelector: {matchExpressions: [{key: a, operator: NotIn, values: [b]}]}"
BOTH = "podSelector: {matchLabels: {a: b}}, namespaceSelector: {matchLabels: {c: d}}"


@pytest.mark.parametrize(
    ("match", "labels", "namespace", "expected"),
    [
        pytest.param("", {}, {}, True, id="no selector: every GPU pod"),
        pytest.param("podSelector: {}", {}, {}, True, id="empty selector"),
        pytest.param("podSelector: {matchLabels: {a: b}}", {"a": "b"}, {}, True, id="label"),
        pytest.param("podSelector: {matchLabels: {a: b}}", {"a": "c"}, {}, False, id="another value"),
        pytest.param("podSelector: {matchLabels: {a: b}}", {}, {"a": "b"}, False, id="label of the namespace only"),
        pytest.param("namespaceSelector: {matchLabels: {a: b}}", {}, {"a": "b"}, True, id="namespace"),
        pytest.param(NOT_IN, {}, {}, True, id="not in: a missing label will do"),
        pytest.param(BOTH, {"a": "b"}, {}, False, id="all given parts must hold"),
    ],
)
def test_policy_is_for_the_pods_it_selects(
    match: str, labels: dict[str, str], namespace: dict[str, str], expected: bool
) -> None:
    document = pod()
    document["metadata"]["labels"] = labels

    found = ruling(document, policies(policy("p", f"match: {{{match}}}")), namespace)

    assert expected is ("p" in found.policies)


@pytest.mark.parametrize(("word", "expected"), [("training", True), ("notebook", False)])
def test_workload_class_of_the_pod_picks_a_policy(word: str, expected: bool) -> None:
    found = rule("match: {workloadClass: [training, inference]}", annotations={"workload-class": word})

    assert expected is ("p0" in found.policies)


def test_pod_that_no_policy_is_for_gets_the_default_policy() -> None:
    expected = ruling(pod()).enforced

    found = rule("match: {podSelector: {matchLabels: {other: pod}}}")

    assert expected == found.enforced


@pytest.mark.parametrize(
    ("specs", "field", "expected"),
    [
        (["runtimeClassName: a", "runtimeClassName: b"], "runtime_class_name", "b"),
        (["schedulerName: a", "schedulerName: b"], "scheduler_name", "b"),
        (["affinity: {mode: Required}", "affinity: {mode: Preferred}"], "affinity_mode", "Preferred"),
        (["tolerations: {keys: [b, c]}", "tolerations: {keys: [a, b]}"], "toleration_keys", ("a", "b", "c")),
        (["maxGPUsPerPod: 8", "maxGPUsPerPod: 0"], "max_gpus_per_pod", 0),
    ],
)
def test_admission_fields_are_merged_as_the_table_says(specs: list[str], field: str, expected: object) -> None:
    found = rule(*(f"admission: {{{spec}}}" for spec in specs))

    assert expected == getattr(found.enforced, field)


@pytest.mark.parametrize(
    ("field", "name", "stricter", "milder"),
    [
        ("requestsOnly", "requests_only", "Deny", "CopyToLimits"),
        ("requestsOnly", "requests_only", "CopyToLimits", "Leave"),
        ("mismatch", "mismatch", "Deny", "UseLimits"),
        ("mismatch", "mismatch", "UseLimits", "Leave"),
        ("fractional", "fractional", "Deny", "Leave"),
    ],
)
def test_strictest_handling_of_amounts_counts(field: str, name: str, stricter: str, milder: str) -> None:
    specs = [f"admission: {{extendedResources: {{{field}: {word}}}}}" for word in (stricter, milder)]

    found = [rule(*specs), rule(*reversed(specs))]

    assert [stricter] * 2 == [getattr(each.enforced, name) for each in found]


@pytest.mark.parametrize(
    ("specs", "annotations", "field", "expected"),
    [
        (["gpuMemory: 40Gi", "gpuMemory: 10Gi"], {}, "memory_mib", 40_960),
        (["gpuMemory: 10Gi"], {"gpu-memory": "40Gi"}, "memory_mib", 40_960),
        (["gpuMemory: 40Gi"], {"gpu-memory": "10Gi"}, "memory_mib", 40_960),
        (["computeCapability: '8.0'", "computeCapability: '7.5'"], {}, "compute_capability", (8,)),
        (["computeCapability: '8.9'"], {"compute-capability": "10.0"}, "compute_capability", (10,)),
        (["cuda: {accept: Native}", "cuda: {accept: ForwardCompatible}"], {}, "accept", AcceptedCompatibility.Native),
        (
            ["cuda: {accept: ForwardCompatible}", "cuda: {accept: MinorVersion}"],
            {},
            "accept",
            AcceptedCompatibility.MinorVersion,
        ),
        (["cuda: {accept: ForwardCompatible}"], {}, "accept", AcceptedCompatibility.ForwardCompatible),
        (["sharing: Exclusive", "sharing: Any"], {}, "sharing", SharingWish.Exclusive),
        (["sharing: Shared", "sharing: Any"], {}, "sharing", SharingWish.Shared),
        (["sharing: Any"], {"sharing": "Exclusive"}, "sharing", SharingWish.Exclusive),
        (["unknownFacts: Refuse", "unknownFacts: Accept"], {}, "refuse_unknown", True),
        (["interconnect: NVLink", "sharing: Any"], {}, "nvlink", True),
        (["scoreSpread: Proportional", "scoreSpread: Ranked"], {}, "ranked", True),
        (["scoreSpread: Ranked", "scoreSpread: Proportional"], {}, "ranked", False),
        (["scores: [{name: Packing}]", "scores: [{name: Spreading}]"], {}, "scores", ((ScorerName.Spreading, 1),)),
    ],
)
def test_placement_fields_are_merged_as_the_table_says(
    specs: list[str], annotations: dict[str, str], field: str, expected: object
) -> None:
    found = rule(*(f"placement: {{{spec}}}" for spec in specs), annotations=annotations)

    assert expected == getattr(found.demand, field)


@pytest.mark.parametrize(
    ("specs", "annotation", "expected"),
    [
        (["allow: [H100, H200]", "allow: [H100, A100]"], None, {"H100"}),
        (["allow: [H100, H200]"], "H200, L4", {"H200"}),
        (["allow: [H100, H200]"], "!H200", {"H100"}),
        (["allow: [H100, H200, A100]", "deny: [A100]", "deny: [H200]"], None, {"H100"}),
        (["allow: [H100]", "prefer: [H200]"], None, {"H100"}),
    ],
    ids=["intersection", "annotation narrows", "annotation excludes", "denials add up", "preference narrows nothing"],
)
def test_products_are_what_all_of_them_allow(specs: list[str], annotation: str | None, expected: set[str]) -> None:
    annotations = {"products": annotation} if annotation else {}

    found = rule(*(f"placement: {{products: {{{spec}}}}}" for spec in specs), annotations=annotations)

    assert expected == allowed(found.demand)


@pytest.mark.parametrize(
    ("specs", "annotation", "expected"),
    [
        (["prefer: [A100]", "prefer: [H200, H100]"], "", ["H200", "H100"]),
        (["prefer: [H200, H100]", "allow: [H100, H200]"], "", ["H200", "H100"]),
        (["prefer: [H200, H100]", "allow: [H100, A100]"], "", ["H100"]),
        (["prefer: [H200, H100]"], "!H200", ["H100"]),
    ],
    ids=["highest priority", "kept by the next", "filtered by allow", "filtered by the annotation"],
)
def test_preference_is_the_highest_one_filtered_by_what_is_allowed(
    specs: list[str], annotation: str, expected: list[str]
) -> None:
    annotations = {"products": annotation} if annotation else {}

    found = rule(*(f"placement: {{products: {{{spec}}}}}" for spec in specs), annotations=annotations)

    assert expected == [preferred_product.text for preferred_product in found.demand.preferred_products]


@pytest.mark.parametrize(
    ("specs", "annotations", "code", "named"),
    [
        (["products: {allow: [H100]}", "products: {allow: [H200]}"], {}, Code.NoProductLeft, ["p0", "p1"]),
        (["products: {allow: [H100]}"], {"products": "L4"}, Code.NoProductLeft, ["p0", "annotation"]),
        (["products: {allow: [H100], deny: [H100]}"], {}, Code.NoProductLeft, ["p0"]),
        (["products: {allow: []}"], {}, Code.NoProductLeft, ["p0"]),
        (["sharing: Exclusive", "sharing: Shared"], {}, Code.PolicyConflict, ["p0", "p1"]),
        (["sharing: Exclusive"], {"sharing": "Shared"}, Code.PolicyConflict, ["p0", "annotation"]),
    ],
    ids=["two policies", "annotation", "one policy with itself", "nothing allowed", "sharing", "sharing, annotation"],
)
def test_contradiction_is_a_conflict_that_names_its_policies(
    specs: list[str], annotations: dict[str, str], code: Code, named: list[str]
) -> None:
    found = rule(*(f"placement: {{{spec}}}" for spec in specs), annotations=annotations)

    assert [code] == [conflict.code for conflict in found.conflicts]
    assert all(name in found.conflicts[0].message for name in named)
    assert len(found.conflicts[0].message) <= 100


@pytest.mark.parametrize(
    ("specs", "annotations"),
    [
        (["products: {allow: [H100, H200]}", "products: {allow: [H200]}"], {}),
        (["products: {allow: [QQQQ-7777]}"], {}),
        (["sharing: Exclusive", "sharing: Any"], {"sharing": "Exclusive"}),
    ],
    ids=["something is left", "a product newer than our table", "one wish"],
)
def test_needs_that_can_be_met_do_not_conflict(specs: list[str], annotations: dict[str, str]) -> None:
    found = rule(*(f"placement: {{{spec}}}" for spec in specs), annotations=annotations)

    assert not found.conflicts


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

    found = rule(BASE, f"action: {action}, {FIELDS[field]}", image=image)

    assert expected.demand == found.demand
    assert expected.enforced == found.enforced


@pytest.mark.parametrize("field", [name for name in FIELDS if name not in ("fromImage", "scores", "prefer")])
def test_policy_that_only_warns_refuses_no_node(field: str) -> None:
    hard = ("products", "denied_products", "cuda", "accept", "memory_mib", "compute_capability", "sharing", "nvlink")
    expected = rule(BASE).demand

    found = rule(BASE, f"action: Warn, {FIELDS[field]}").demand

    assert {each: getattr(expected, each) for each in hard} == {each: getattr(found, each) for each in hard}
    assert expected.refuse_unknown is found.refuse_unknown


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
    value = getattr(warned, field)
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
    found = rule(*specs)

    levels = {"enforced": found.enforced, "warned": found.warned, "audited": found.audited}
    assert expected == [level for level, rules in levels.items() if rules.max_gpus_per_pod == 1]
