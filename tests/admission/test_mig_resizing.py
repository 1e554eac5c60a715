# SPDX-License-Identifier: Apache-2.0
"""Sizing: the fall-back to a slice that the fleet has, and the smallest that holds the pod (F130).

See docs/reference/sharing-and-memory.md#mig-at-least.
"""

from dataclasses import replace
from typing import Any

import pytest

from app.admission.fleet_facts import FleetFacts
from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate
from app.admission.reviewed_pod import PodForm
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from tests.builders import container, fleet, gpus, node, pod, policies, policy, setting

GPU, SMALL, MIDDLE, LARGE = (
    "nvidia.com/gpu",
    *(f"nvidia.com/mig-{profile}" for profile in ("1g.10gb", "2g.20gb", "3g.40gb")),
)
MEDIA = f"{SMALL}.me"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
DEDICATED = [{"key": "dedicated", "value": "team-b", "effect": "NoSchedule"}]


def slices(*resources: str, product: str = "NVIDIA-A100-SXM4-80GB", used: int = 0, **more: Any) -> Node:
    """Make a node that offers seven of each slice."""
    held = dict.fromkeys(resources, used)
    return node(product=product, offers=dict.fromkeys(resources, 7), used=held, name="+".join(resources), **more)


def whole(product: str, **more: Any) -> Node:
    """Make a node of whole GPUs."""
    return node(name=product, product=product, offers={GPU: 8}, **more)


def rules(words: str = "", action: str = "Enforce") -> PolicySet:
    """Make a policy about sizing alone."""
    return policies(policy("p", f"action: {action}, admission: {{{words}}}"))


def admit(
    document: dict[str, Any], known: FleetFacts, policy_set: PolicySet, form: PodForm = PodForm.Pod
) -> ReviewResult:
    """Mutate an object of team-a."""
    return mutate(document, "team-a", {}, replace(setting(policy_set, known), form=form))


def asked_after(document: dict[str, Any], known: FleetFacts, policy_set: PolicySet) -> set[str]:
    """Give the GPU resources asked after admission, which a second pass leaves alone."""
    changed = apply(document, admit(document, known, policy_set).operations)
    assert not admit(changed, known, policy_set).operations
    resources = [
        container["resources"]
        for name in ("containers", "initContainers")
        for container in changed["spec"].get(name, ())
    ]
    return {key for sides in resources for side in sides.values() for key in side if key.startswith("nvidia.com/")}


def at_least(profile: str, resource: str = SMALL) -> dict[str, Any]:
    """Make a pod that asks for a slice, or a larger one."""
    return pod(gpus(1, resource), annotations={"mig-profile": f">={profile}"})


ABSENT = [
    pytest.param([slices(MIDDLE)], MIDDLE, id="the one that there is"),
    pytest.param([slices(LARGE), slices(MIDDLE)], MIDDLE, id="the smaller of two"),
    pytest.param([slices(MIDDLE, used=7), slices(LARGE)], LARGE, id="a free one before a smaller one"),
    pytest.param([slices(MIDDLE, used=7), slices(LARGE, used=7)], MIDDLE, id="none free: the smallest"),
    pytest.param([slices("nvidia.com/mig-1g.5gb")], SMALL, id="only a smaller one: nothing to do"),
    pytest.param([whole("NVIDIA-L4")], SMALL, id="no slices at all"),
    pytest.param([slices("nvidia.com/mig-2g.20gb.shared")], SMALL, id="a share of a slice is no slice"),
    pytest.param([slices(SMALL), slices(MIDDLE)], SMALL, id="the one asked is there"),
    pytest.param([slices(SMALL, used=7), slices(MIDDLE)], SMALL, id="there, though not free"),
    pytest.param([], SMALL, id="an unknown fleet"),
]


@pytest.mark.parametrize(("nodes", "expected"), ABSENT)
def test_slice_that_no_node_has_becomes_the_smallest_sufficient_one(nodes: list[Node], expected: str) -> None:
    resources = asked_after(at_least("1g.10gb"), fleet(*nodes), rules())

    assert {expected} == resources


@pytest.mark.parametrize(
    ("mode", "nodes", "expected"),
    [
        pytest.param("Enforce", [slices(SMALL, used=7), slices(MIDDLE)], MIDDLE, id="enforced: a free one"),
        pytest.param("Enforce", [slices(SMALL), slices(MIDDLE)], SMALL, id="enforced: it is the smallest"),
        pytest.param("Warn", [slices(MIDDLE)], SMALL, id="warned"),
        pytest.param("'Off'", [slices(MIDDLE)], SMALL, id="off"),
    ],
)
def test_policy_decides_how_far_the_fall_back_goes(mode: str, nodes: list[Node], expected: str) -> None:
    resources = asked_after(at_least("1g.10gb"), fleet(*nodes), rules(f"migFallback: {mode}"))

    assert {expected} == resources


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(pod(gpus(1, SMALL)), id="no wish"),
        pytest.param(pod(gpus(1, SMALL), annotations={"mig-profile": "1g.10gb"}), id="exactly this one"),
        pytest.param(pod(gpus(1, SMALL), gpus(1, LARGE), annotations={"mig-profile": ">=1g.10gb"}), id="two slices"),
        pytest.param(at_least("1g.10gb", GPU), id="whole GPUs"),
        pytest.param(at_least("1g.10gb", f"{SMALL}.shared"), id="a share"),
    ],
)
def test_slice_is_kept_where_no_larger_one_is_meant(document: dict[str, Any]) -> None:
    verdict = admit(document, fleet(slices(MIDDLE)), rules("migFallback: Enforce"))

    assert document["spec"] == apply(document, verdict.operations)["spec"]


def test_fall_back_keeps_amounts_and_sides_in_every_container() -> None:
    document = pod(
        container({SMALL: "2", "cpu": "1"}, {SMALL: "2"}),
        container({"cpu": "1"}),
        initContainers=[container(None, {SMALL: 1})],
        annotations={"mig-profile": ">=1g.10gb"},
    )

    verdict = admit(document, fleet(slices(MIDDLE)), rules())
    spec = apply(document, verdict.operations)["spec"]

    assert [container["resources"] for container in spec["containers"]] == [
        {"limits": {MIDDLE: "2", "cpu": "1"}, "requests": {MIDDLE: "2"}},
        {"limits": {"cpu": "1"}},
    ]
    assert spec["initContainers"][0]["resources"] == {"requests": {MIDDLE: 1}}


@pytest.mark.parametrize("mode", ["Enforce", "Warn"])
def test_fall_back_is_said(mode: str) -> None:
    verdict = admit(at_least("1g.10gb"), fleet(slices(MIDDLE)), rules(f"migFallback: {mode}"))

    assert any(f"no node has {SMALL}" in warning and MIDDLE in warning for warning in verdict.warnings)


def test_template_is_never_rewritten() -> None:
    verdict = admit(at_least("1g.10gb"), fleet(slices(MIDDLE)), rules(), PodForm.Template)

    assert not verdict.operations


def needs(memory: str = "10Gi", resource: str = GPU, amount: int = 1, **more: Any) -> dict[str, Any]:
    """Make a pod that states the memory it needs."""
    annotations = {"gpu-memory": memory, **more.pop("annotations", {})}
    return pod(gpus(amount, resource), annotations=annotations, **more)


SIZED = rules("rightSizing: true")
MIXED = fleet(slices(SMALL, MIDDLE, LARGE), whole("NVIDIA-H100-80GB-HBM3"))


@pytest.mark.parametrize(
    ("memory", "expected"),
    [("1Gi", SMALL), ("10Gi", SMALL), ("11Gi", MIDDLE), ("20Gi", MIDDLE), ("40Gi", LARGE), ("44Gi", GPU)],
)
def test_one_gpu_becomes_the_smallest_slice_that_holds_the_memory(memory: str, expected: str) -> None:
    assert {expected} == asked_after(needs(memory), MIXED, SIZED)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(pod(), id="no memory stated"),
        pytest.param(needs(amount=2), id="two GPUs"),
        pytest.param(needs(annotations={"sharing": "Exclusive"}), id="a whole GPU of its own"),
        pytest.param(needs(annotations={"interconnect": "NVLink"}), id="NVLink: slices have none"),
        pytest.param(needs(annotations={"mig-profile": ">=1g.10gb"}), id="says the profile itself"),
        pytest.param(needs(annotations={"products": "H100"}), id="a product that is not sliced"),
        pytest.param(needs(resource="nvidia.com/gpu.shared"), id="a share"),
        pytest.param(pod(gpus(1), gpus(1), annotations={"gpu-memory": "10Gi"}), id="two containers"),
    ],
)
def test_pod_that_needs_more_than_a_slice_keeps_its_gpu(document: dict[str, Any]) -> None:
    verdict = admit(document, MIXED, SIZED)

    spec = apply(document, verdict.operations)["spec"]
    assert document["spec"]["containers"] == spec["containers"]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param(["NVIDIA-L4", "NVIDIA-H100-80GB-HBM3"], ["NVIDIA-L4"], id="the smaller"),
        pytest.param(["NVIDIA-L4"], None, id="one product: nothing to choose"),
        pytest.param(["Tesla-T4", "NVIDIA-H100-80GB-HBM3"], None, id="the smaller one is too small"),
        pytest.param([], None, id="none"),
    ],
)
def test_smallest_product_is_preferred_where_there_is_no_slice(nodes: list[str], expected: list[str] | None) -> None:
    document = needs("20Gi")

    spec = apply(document, admit(document, fleet(*map(whole, nodes)), SIZED).operations)["spec"]

    preferred = spec.get("affinity", {}).get("nodeAffinity", {}).get(PREFERRED, [])
    products = [preference["preference"]["matchExpressions"][0]["values"] for preference in preferred]
    assert ([expected] if expected else []) == products


@pytest.mark.parametrize(("action", "spoken"), [("Warn", True), ("Audit", False), ("'Off'", False)])
def test_sizing_that_is_not_enforced_changes_nothing(action: str, spoken: bool) -> None:
    verdict = admit(needs(), MIXED, rules("rightSizing: true", action))

    assert needs()["spec"] == apply(needs(), verdict.operations)["spec"]
    assert spoken is any(SMALL in warning for warning in verdict.warnings)


def test_pod_is_judged_and_completed_by_the_resource_that_it_was_given() -> None:
    """A slice resource is tolerated as such, and no whole GPU's label is asked of its node."""
    full = rules("rightSizing: true, tolerations: {fromNodeTaints: true}, affinity: {mode: Required}")

    spec = apply(needs(), admit(needs(), MIXED, full).operations)["spec"]

    assert [toleration["key"] for toleration in spec["tolerations"]] == [GPU, SMALL]
    assert "affinity" not in spec


CHOSEN = {"nvidia.com/gpu.product": "NVIDIA-L4"}
REQUIRED = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4"]}]}
            ]
        }
    }
}


@pytest.mark.parametrize("placed", [{"nodeSelector": CHOSEN}, {"affinity": REQUIRED}], ids=["selector", "affinity"])
def test_slice_on_nodes_that_the_pod_excludes_is_not_given(placed: dict[str, Any]) -> None:
    known = fleet(slices(SMALL), whole("NVIDIA-L4"))

    assert {GPU} == asked_after(needs(**placed), known, SIZED)


def test_slice_behind_the_taint_of_another_team_is_not_given() -> None:
    known = fleet(slices(SMALL, taints=DEDICATED), whole("NVIDIA-L4"))

    assert {GPU} == asked_after(needs(), known, SIZED)


def test_slice_with_media_engines_never_falls_back_to_one_without() -> None:
    resources = asked_after(at_least("1g.10gb.me", MEDIA), fleet(slices(SMALL), slices(MIDDLE)), rules())

    assert {MEDIA} == resources


def test_slice_that_is_free_only_where_the_pod_may_not_run_is_not_taken_for_free() -> None:
    full = slices(SMALL, used=7, product="NVIDIA-H100-80GB-HBM3")
    elsewhere = replace(slices(SMALL), name="elsewhere")
    large = slices(MIDDLE, product="NVIDIA-H100-80GB-HBM3")
    document = needs(annotations={"products": "H100"})

    assert {MIDDLE} == asked_after(document, fleet(full, elsewhere, large), SIZED)


def test_products_of_the_same_least_memory_are_all_preferred() -> None:
    known = fleet(
        whole("NVIDIA-L4", labels={"nvidia.com/gpu.memory": "23034"}),
        whole("NVIDIA-A10", labels={"nvidia.com/gpu.memory": "23034"}),
        whole("NVIDIA-H100-80GB-HBM3"),
    )

    spec = apply(needs("20Gi"), admit(needs("20Gi"), known, SIZED).operations)["spec"]

    values = spec["affinity"]["nodeAffinity"][PREFERRED][0]["preference"]["matchExpressions"][0]["values"]
    assert sorted(values) == ["NVIDIA-A10", "NVIDIA-L4"]


@pytest.mark.parametrize("resource", ["amd.com/gpu", "gpu.intel.com/xe"])
@pytest.mark.parametrize("nodes", [[], [whole("NVIDIA-L4")]], ids=["unknown fleet", "none of that vendor yet"])
def test_memory_is_not_required_in_the_labels_of_another_vendor(resource: str, nodes: list[Node]) -> None:
    """F10, S12: scale from zero; the filter accepts such a node, since its memory is not known."""
    document = needs("40Gi", resource)

    spec = apply(document, admit(document, fleet(*nodes), rules("affinity: {mode: Required}")).operations)["spec"]

    assert "nvidia.com/" not in str(spec.get("affinity"))


@pytest.mark.parametrize(
    "expression",
    [
        {"operator": "in", "values": ["NVIDIA-A100-SXM4-40GB"]},
        {"values": ["NVIDIA-A100-SXM4-40GB"]},
        {"operator": "In", "values": [["NVIDIA-A100-SXM4-40GB"]]},
        {"operator": "Exists", "values": None},
        {"operator": {}},
    ],
    ids=str,
)
def test_affinity_that_the_api_server_is_yet_to_refuse_is_no_error_of_ours(expression: dict[str, Any]) -> None:
    """F125: webhooks see a pod before it is validated; the fuzzer's finding was a 500 for a misspelt operator."""
    terms = [{"matchExpressions": [{"key": "nvidia.com/gpu.product", **expression}]}]
    chosen = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    nodes = fleet(node("a", product="NVIDIA-A100-SXM4-40GB"), node("b"))
    document = pod(gpus(1), annotations={"gpu-memory": "10Gi"}, affinity=chosen)

    assert mutate(document, "team-a", {}, setting(fleet=nodes)).allowed
