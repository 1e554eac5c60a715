# SPDX-License-Identifier: Apache-2.0
"""Mutators: what each changes in a GPU pod, what it leaves alone, and its limits (F2 to F7, F10, F13, F20)."""

from typing import Any

import pytest

from app.admission.json_patch import apply
from app.nodes.conditions import PRODUCT
from app.placement.engine import judge_class
from app.values.label_requirements import label_requirement
from tests.admission.mutated import admit, fleet, rules, spec_of
from tests.builders import container, demand, gpus, node, pod

GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.10gb"
REPAIR = rules("extendedResources: {requestsOnly: CopyToLimits, mismatch: UseLimits, fractional: Deny}")


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        pytest.param(container(None, {GPU: "2"}), {GPU: "2"}, id="requests only"),
        pytest.param(container({}, {GPU: "2"}), {GPU: "2"}, id="empty limits"),
        pytest.param(container({"cpu": "1"}, {GPU: "2", "cpu": "1"}), {"cpu": "1", GPU: "2"}, id="other limits stay"),
        pytest.param(container(None, {SLICE: 1}), {SLICE: 1}, id="slice, as an integer"),
        pytest.param(container(None, {GPU: "1", SLICE: "2"}), {GPU: "1", SLICE: "2"}, id="two GPU resources"),
        pytest.param(container({GPU: "2"}), {GPU: "2"}, id="limits only: nothing to do"),
        pytest.param(container(None, {GPU: "1", "cpu": "1"}), {GPU: "1"}, id="CPU needs no limit"),
    ],
)
def test_requests_without_limits_are_copied_to_limits(before: dict[str, Any], expected: dict[str, Any]) -> None:
    document = pod(before, initContainers=[before | {"restartPolicy": "Always"}])

    after = spec_of(document, policy_set=REPAIR)

    assert [expected] * 2 == [
        after[list_name][0]["resources"]["limits"] for list_name in ("containers", "initContainers")
    ]


@pytest.mark.parametrize(
    ("limits", "requests", "expected"),
    [
        pytest.param({GPU: "2"}, {GPU: "1"}, {GPU: "2"}, id="fewer requested"),
        pytest.param({GPU: "1"}, {GPU: "2"}, {GPU: "1"}, id="more requested"),
        pytest.param({GPU: "1"}, {GPU: "0"}, {GPU: "1"}, id="zero requested"),
        pytest.param({GPU: "1"}, {GPU: "1000m"}, {GPU: "1000m"}, id="the same amount, written otherwise"),
        pytest.param({GPU: "2", "cpu": "2"}, {GPU: "1", "cpu": "1"}, {GPU: "2", "cpu": "1"}, id="CPU may differ"),
    ],
)
def test_requests_that_differ_from_limits_are_set_to_them(
    limits: dict[str, str], requests: dict[str, str], expected: dict[str, str]
) -> None:
    document = pod(container(limits, requests))

    assert expected == spec_of(document, policy_set=REPAIR)["containers"][0]["resources"]["requests"]


@pytest.mark.parametrize(
    ("document", "classes", "expected", "recorded"),
    [
        pytest.param(pod(), {"nvidia"}, "nvidia", False, id="exists"),
        pytest.param(pod(), {"nvidia-cdi"}, None, True, id="does not exist"),
        pytest.param(pod(), set(), None, True, id="there is none"),
        pytest.param(pod(), None, None, True, id="unknown whether it exists"),
        pytest.param(pod(gpus(1), runtimeClassName="mine"), {"nvidia"}, "mine", False, id="the pod has one"),
        pytest.param(pod(gpus(1, SLICE)), {"nvidia"}, "nvidia", False, id="slice"),
        pytest.param(pod(container(), initContainers=[gpus(1)]), {"nvidia"}, "nvidia", False, id="init container asks"),
        pytest.param(pod(gpus(1, "amd.com/gpu")), {"nvidia"}, None, False, id="AMD pod"),
        pytest.param(
            pod(container({"amd.com/gpu": "1", GPU: "0"})),
            {"nvidia"},
            None,
            False,
            id="AMD pod that asks for zero NVIDIA",
        ),
        pytest.param(pod(gpus(1), gpus(1, "amd.com/gpu")), {"nvidia"}, "nvidia", False, id="both vendors"),
    ],
)
def test_runtime_class_is_set_only_where_it_exists_and_suits(
    document: dict[str, Any], classes: set[str] | None, expected: str | None, recorded: bool
) -> None:
    """A missing class is recorded without a warning, since the author of a pod can do nothing about it (F6)."""
    set_class = rules("runtimeClassName: nvidia")

    verdict = admit(document, set_class, fleet(classes=classes))

    assert expected == apply(document, verdict.operations)["spec"].get("runtimeClassName")
    assert recorded is any("RuntimeClass nvidia" in action for action in verdict.record)
    assert verdict.warnings == ()


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    """Write required node affinity."""
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def terms_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """List the required terms of a spec."""
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return list(terms)


def selects(spec: dict[str, Any], labels: dict[str, str]) -> bool:
    """Tell whether the required node affinity selects a node, by the rules of core/v1 NodeSelector."""
    filled = [expressions for term in terms_of(spec) if (expressions := term.get("matchExpressions"))]
    return any(
        all(label_requirement(**expression).allows(labels.get(expression["key"])) for expression in every)
        for every in filled
    )


ZONES = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
A100 = "NVIDIA-A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("products", "label"),
    [
        pytest.param("A100", A100, id="a product of the family"),
        pytest.param("A100", A100.removeprefix("NVIDIA-"), id="as old drivers wrote it"),
        pytest.param("A100", f"{A100}-SHARED", id="shared"),
        pytest.param("A100", f"{A100}-MIG-1g.10gb", id="sliced"),
        pytest.param("H100, QQQQ-7777", "NVIDIA-QQQQ-7777", id="a product newer than our table"),
        pytest.param("A100-*", "NVIDIA-A100-SXM5-96GB", id="a glob that a newer product matches"),
    ],
)
def test_affinity_excludes_no_node_that_the_filter_accepts(products: str, label: str) -> None:
    document = pod(annotations={"products": products})
    new = node(product=label)

    after = spec_of(document)

    assert judge_class(demand(document), new.node_class) is None
    assert "affinity" not in after or selects(after, dict(new.labels))


@pytest.mark.parametrize(
    ("terms", "selected"),
    [
        pytest.param(ZONES, {"a": True, "b": True, "c": False}, id="into every term of the user"),
        pytest.param([*ZONES[:1], {}], {"a": True, "b": False, "c": False}, id="an empty term selects nothing, still"),
        pytest.param(
            [*ZONES[:1], {"matchExpressions": []}], {"a": True, "b": False, "c": False}, id="nor an empty list"
        ),
    ],
)
def test_affinity_is_anded_with_that_of_the_user(terms: list[dict[str, Any]], selected: dict[str, bool]) -> None:
    after = spec_of(pod(gpus(1), annotations={"products": "A100"}, affinity=required(*terms)))

    assert selected == {zone: selects(after, {PRODUCT: A100, "zone": zone}) for zone in selected}
    assert not any(selects(after, {PRODUCT: "NVIDIA-A10", "zone": zone}) for zone in selected)


def test_term_that_names_fields_keeps_them_beside_the_need() -> None:
    fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}

    after = spec_of(pod(gpus(1), annotations={"products": "A100"}, affinity=required(fields)))

    assert [{**fields, "matchExpressions": terms_of(after)[0]["matchExpressions"]}] == terms_of(after)


@pytest.mark.parametrize(("mode", "expected"), [("Preferred", ["preferred"]), ("'Off'", [])])
def test_affinity_is_only_as_hard_as_the_mode_says(mode: str, expected: list[str]) -> None:
    soft = rules(f"affinity: {{mode: {mode}}}")

    after = spec_of(pod(annotations={"products": "A100"}), policy_set=soft)

    assert expected == [kind.partition("During")[0] for kind in after.get("affinity", {}).get("nodeAffinity", {})]
