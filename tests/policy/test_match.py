# SPDX-License-Identifier: Apache-2.0
"""What all policies and annotations require together, by the table of docs/reference/policy.md#merge."""

import pytest

from app.knowledge.cuda_compatibility import AcceptedCompatibility
from app.policy.demand import Demand
from app.policy.schema_placement import ScorerName, SharingWish
from app.values.reasons import Code
from tests.builders import knowledge, pod, policies, policy, ruling
from tests.policy.rulings import rule, value_in


def allowed(demand: Demand) -> set[str]:
    """List the families of which some product is allowed."""
    return {
        product.family
        for form, product in knowledge().products.by_form.items()
        if all(any(pattern.matches(form) for pattern in any_of) for any_of in demand.products)
        and not any(pattern.matches(form) for pattern in demand.denied_products)
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

    merged = ruling(document, policies(policy("p", f"match: {{{match}}}")), namespace)

    assert expected is ("p" in merged.policies)


@pytest.mark.parametrize(("word", "expected"), [("training", True), ("notebook", False)])
def test_workload_class_of_the_pod_picks_a_policy(word: str, expected: bool) -> None:
    merged = rule("match: {workloadClass: [training, inference]}", annotations={"workload-class": word})

    assert expected is ("p0" in merged.policies)


def test_pod_that_no_policy_is_for_gets_the_default_policy() -> None:
    assert ruling(pod()).enforced == rule("match: {podSelector: {matchLabels: {other: pod}}}").enforced


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
    assert expected == getattr(rule(*(f"admission: {{{spec}}}" for spec in specs)).enforced, field)


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

    rulings = [rule(*specs), rule(*reversed(specs))]

    assert [stricter] * 2 == [getattr(merged.enforced, name) for merged in rulings]


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
    merged = rule(*(f"placement: {{{spec}}}" for spec in specs), annotations=annotations)

    assert expected == value_in(merged.demand, field)


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

    merged = rule(*(f"placement: {{products: {{{spec}}}}}" for spec in specs), annotations=annotations)

    assert expected == allowed(merged.demand)


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

    merged = rule(*(f"placement: {{products: {{{spec}}}}}" for spec in specs), annotations=annotations)

    assert expected == [preferred_product.text for preferred_product in merged.demand.preferred_products]


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
    merged = rule(*(f"placement: {{{spec}}}" for spec in specs), annotations=annotations)

    assert [code] == [conflict.code for conflict in merged.conflicts]
    assert all(name in merged.conflicts[0].message for name in named)
    assert len(merged.conflicts[0].message) <= 100


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
    assert not rule(*(f"placement: {{{spec}}}" for spec in specs), annotations=annotations).conflicts
