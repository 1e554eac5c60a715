# SPDX-License-Identifier: Apache-2.0
"""Needs that a row and one field of the schema add: what each says in every language that is written from its row."""

from typing import Any

import pytest

from app.admission.claim_template import NVIDIA_CLASSES, not_expressible, selectors_of
from app.explain.pending_pod import explain
from app.nodes.model import Node
from app.placement.engine import judge
from app.policy.needs import ARCHITECTURES
from app.values.computations import finish
from app.whatif.node_template import node_template
from app.world.world import world_of
from tests.admission.affinity import terms
from tests.builders import (
    demand,
    gpus,
    knowledge,
    node,
    node_document,
    pod,
    policies,
    policy,
    ruling,
    shipped,
    state_of,
)

FAMILY = "nvidia.com/gpu.family"


def capability(major: int, minor: int) -> dict[str, str]:
    """Write GFD's labels of a compute capability."""
    return {"nvidia.com/gpu.compute.major": str(major), "nvidia.com/gpu.compute.minor": str(minor)}


def refusal(annotation: tuple[str, str], made: Node, unknown: str = "Accept") -> str | None:
    """Give the message with which a node refuses a pod that has an annotation."""
    policy_set = policies(policy("p", f"placement: {{unknownFacts: {unknown}}}"))
    found = judge(demand(pod(annotations=dict([annotation])), policy_set), made, recount=True)
    return found.message if found else None


@pytest.mark.parametrize(
    ("asked", "made", "message"),
    [
        pytest.param("Hopper", node(product="NVIDIA-H100-PCIe"), None, id="by product"),
        pytest.param("hopper, Blackwell", node(product="NVIDIA-B200"), None, id="one of two"),
        pytest.param("Hopper", node(product="NVIDIA-L4"), "GPU architecture not allowed: wants Hopper", id="other"),
        pytest.param(
            "Ampere", node(product="NVIDIA-L40S", labels={FAMILY: "ampere"}),
            "GPU architecture not allowed: wants Ampere", id="the family of an old GFD is not believed",
        ),
        pytest.param("Ada Lovelace", node(product="NVIDIA-L40S", labels={FAMILY: "ampere"}), None, id="the product is"),
        pytest.param("Turing", node(product="NVIDIA-XYZ", labels={FAMILY: "turing"}), None, id="by the family"),
        pytest.param(
            "Hopper", node(product="NVIDIA-XYZ", labels={FAMILY: "blackwell"}),
            "GPU architecture not allowed: wants Hopper", id="another family",
        ),
        pytest.param("Hopper", node(product="NVIDIA-XYZ"), None, id="unknown"),
        pytest.param("Hopper", node(product="NVIDIA-XYZ", labels={FAMILY: "undefined"}), None, id="unknown to GFD"),
        pytest.param("Hopper", node(labels={FAMILY: ""}, product=None), None, id="an empty label"),
        pytest.param("Blackwell", node(product="NVIDIA-XYZ", labels=capability(12, 0)), None, id="10.0 and 12.0"),
        pytest.param(
            "Blackwell", node(product="NVIDIA-XYZ", labels=capability(13, 0)),
            "GPU architecture not allowed: wants Blackwell", id="Rubin is not Blackwell",
        ),
    ],
)  # fmt: skip
def test_architecture_is_that_of_the_product_or_else_of_the_family(asked: str, made: Node, message: str | None) -> None:
    """F54."""
    assert refusal(("architectures", asked), made) == message


def test_gpus_of_another_vendor_have_none_of_these_architectures() -> None:
    """F54: as they have none of the products; a compute capability is unknown."""
    asked = pod(gpus(1, "amd.com/gpu"), annotations={"architectures": "Hopper"})
    offer: dict[str, Any] = {"product": None, "driver": None, "offers": {"amd.com/gpu": 8}}

    refused = judge(demand(asked), node(**offer), recount=True)
    explained = finish(explain(asked, world_of(state_of([node_document(**offer)]), shipped())))

    assert refused
    assert refused.message == "GPU architecture not allowed: wants Hopper"
    assert [edit.text for fix in explained.fixes for edit in fix.edits] == [
        "drop the annotation gpu-usher.io/architectures: Hopper"
    ]


CC = "nvidia.com/cc.mode.state", "nvidia.com/cc.ready.state"
NOT_CONFIDENTIAL = "no confidential computing: wants cc.mode.state on or ppcie, and cc.ready.state true"


@pytest.mark.parametrize(
    ("mode", "ready", "refused"),
    [
        ("on", "true", False),
        ("ppcie", "true", False),
        ("on", "false", True),
        ("devtools", "true", True),
        ("failed", "false", True),
        ("off", "false", True),
        ("", "", True),
    ],
)
def test_confidential_computing_is_what_the_cc_manager_says(mode: str, ready: str, refused: bool) -> None:
    """A node of which nothing is known does not protect data, whatever the policy says of unknown facts."""
    labels = {key: value for key, value in zip(CC, (mode, ready), strict=True) if value}

    found = refusal(("confidential-computing", "Required"), node(labels=labels))

    assert found == (NOT_CONFIDENTIAL if refused else None)


MODE = "nvidia.com/gpu.mode"


@pytest.mark.parametrize(
    ("asked", "mode", "unknown", "message"),
    [
        pytest.param("compute", "compute", "Accept", None, id="a data-centre GPU"),
        pytest.param("compute", "graphics", "Accept", "GPU mode not allowed: wants compute", id="a workstation"),
        pytest.param("compute, Graphics", "graphics", "Accept", None, id="one of two"),
        pytest.param("graphics", "display", "Accept", None, id="by the word of GFD's README"),
        pytest.param("compute", "unknown", "Accept", None, id="GPUs of two classes"),
        pytest.param("compute", "unknown", "Refuse", "GPU mode unknown: wants compute", id="which a policy refuses"),
        pytest.param("compute", None, "Refuse", "GPU mode unknown: wants compute", id="no label"),
    ],
)
def test_mode_is_that_of_the_label(asked: str, mode: str | None, unknown: str, message: str | None) -> None:
    made = node(product="NVIDIA-RTX-A6000", labels={MODE: mode} if mode else {})

    assert refusal(("gpu-mode", asked), made, unknown) == message


def test_architectures_are_those_of_the_product_table() -> None:
    """gpu_products.yaml calls Ada Lovelace ada, and the GPU of Jetson Thor by its own name."""
    assert ARCHITECTURES.fact
    for row in knowledge().products.by_form.values():
        made = node(product=row.label)
        assert ARCHITECTURES.fact.own(made.node_class), row.label
    assert ARCHITECTURES.fact.own(node(product="NVIDIA-L4").node_class) == "Ada Lovelace"


ALL_ARCHITECTURES = "Maxwell, Pascal, Volta, Turing, Ampere, Ada Lovelace, Hopper, Blackwell or Rubin"


@pytest.mark.parametrize(
    ("key", "asked", "problem"),
    [
        ("architectures", "Hoper", f"got 'Hoper', wants {ALL_ARCHITECTURES}; did you mean Hopper?"),
        ("architectures", "Hopper, ada", f"got ' ada', wants {ALL_ARCHITECTURES}; did you mean Ada Lovelace?"),
        ("architectures", "ada-lovelace", f"got 'ada-lovelace', wants {ALL_ARCHITECTURES}; did you mean Ada Lovelace?"),
        ("architectures", "H100", f"got 'H100', wants {ALL_ARCHITECTURES}"),
        ("architectures", "", f"got '', wants {ALL_ARCHITECTURES}"),
        ("confidential-computing", "on", "got 'on', wants Required"),
        ("confidential-computing", "require", "got 'require', wants Required; did you mean Required?"),
        ("gpu-mode", "graphic", "got 'graphic', wants compute or graphics; did you mean graphics?"),
        ("gpu-mode", "display", "got 'display', wants compute or graphics"),
    ],
)
def test_annotation_of_no_such_word_is_refused(key: str, asked: str, problem: str) -> None:
    (invalid,) = ruling(pod(annotations={key: asked})).invalid

    assert invalid.message == f"gpu-usher.io/{key} does not parse: {problem}"


@pytest.mark.parametrize(
    ("annotation", "made", "expression"),
    [
        (("architectures", "Hopper"), node(labels={FAMILY: "hopper"}), f"{FAMILY} In hopper"),
        (("architectures", "Ada Lovelace"), node(product="NVIDIA-L4", labels={FAMILY: "ampere"}),
         f"{FAMILY} In ada-lovelace,ampere"),
        (("architectures", "Blackwell"), node(labels={FAMILY: "undefined"} | capability(12, 0), product="NVIDIA-XYZ"),
         f"{FAMILY} In blackwell,undefined"),
        (("confidential-computing", "Required"), node(labels=dict(zip(CC, ("on", "true"), strict=True))),
         f"{CC[0]} In on,ppcie"),
        (("confidential-computing", "Required"), node(labels=dict(zip(CC, ("on", "true"), strict=True))),
         f"{CC[1]} NotIn false"),
        (("gpu-mode", "graphics, compute"), node(labels={MODE: "compute"}), f"{MODE} In compute,display,graphics"),
    ],
)  # fmt: skip
def test_node_affinity_names_the_label(annotation: tuple[str, str], made: Node, expression: str) -> None:
    """F26."""
    assert any(expression in term for term in terms(pod(annotations=dict([annotation])), made))


@pytest.mark.parametrize(
    ("annotation", "selector"),
    [
        (("architectures", "Hopper, Ada Lovelace"),
         "device.attributes['gpu.nvidia.com'].architecture in ['Ada Lovelace', 'Hopper']"),
    ],
)  # fmt: skip
def test_claim_selects_by_the_attribute(annotation: tuple[str, str], selector: str) -> None:
    """F132: the driver publishes NVML's names (NVIDIA/go-nvlib pkg/nvlib/device/device.go)."""
    wanted = demand(pod(annotations=dict([annotation])))

    assert list(selectors_of(NVIDIA_CLASSES[0], (), wanted, knowledge())) == [selector]
    assert list(not_expressible(wanted, ())) == []


def changes(annotation: tuple[str, str], *nodes: dict[str, Any]) -> list[str]:
    """Explain a pod that has an annotation, and list the changes that would help."""
    state = state_of(list(nodes))
    explained = finish(explain(pod(annotations=dict([annotation])), world_of(state, shipped())))
    return [edit.text for fix in explained.fixes for edit in fix.edits]


@pytest.mark.parametrize(
    ("annotation", "made", "change"),
    [
        (("architectures", "Hopper"), node_document(product="NVIDIA-L4"),
         "set gpu-usher.io/architectures: Hopper, Ada Lovelace instead of Hopper"),
        (("gpu-mode", "compute"), node_document(labels={MODE: "graphics"}),
         "set gpu-usher.io/gpu-mode: compute, graphics instead of compute"),
        (("confidential-computing", "Required"), node_document(),
         "drop the annotation gpu-usher.io/confidential-computing: Required"),
        (("architectures", "Hopper"), node_document(product="NVIDIA-XYZ", labels=capability(14, 0)),
         "set gpu-usher.io/architectures: Hopper, Rubin instead of Hopper"),
    ],
)  # fmt: skip
def test_smallest_change_allows_what_the_node_has(
    annotation: tuple[str, str], made: dict[str, Any], change: str
) -> None:
    """F84: with the value of the node, which is tried."""
    assert change in changes(annotation, made)


@pytest.mark.parametrize(
    ("annotation", "placement"),
    [
        (("gpu-memory", "lots"), "gpuMemory: 200Gi"),
        (("compute-capability", "new"), 'computeCapability: "10.0"'),
        (("architectures", "H200"), "architectures: [Blackwell]"),
        (("gpu-mode", ""), "gpuMode: [graphics]"),
    ],
)
def test_annotation_that_does_not_parse_is_dropped_beside_a_policy(annotation: tuple[str, str], placement: str) -> None:
    """F84: the need that the policy states is refused by the node too."""
    world = world_of(
        state_of([node_document(labels={MODE: "compute"})]), policies(policy("p", f"placement: {{{placement}}}"))
    )

    explained = finish(explain(pod(annotations=dict([annotation])), world))

    assert f"drop the annotation gpu-usher.io/{annotation[0]}: {annotation[1]}" in [
        edit.text for fix in explained.fixes for edit in fix.edits
    ]


def test_template_of_a_new_node_has_the_label_that_no_product_decides() -> None:
    """F124."""
    asked = demand(pod(gpus(1), annotations={"confidential-computing": "Required", "products": "H200"}))

    template = node_template(asked, pod(), knowledge())

    assert template.products[0] == "NVIDIA-H200"
    assert template.labels[CC[0]] == "on"
    assert CC[1] not in template.labels


def test_claim_says_what_no_attribute_says() -> None:
    """F132."""
    asked = demand(pod(annotations={"confidential-computing": "Required"}))

    assert list(not_expressible(asked, ())) == ["confidential computing: the driver publishes no attribute for it"]


def test_template_of_a_new_node_has_products_of_the_architecture() -> None:
    """F124."""
    template = node_template(demand(pod(gpus(1), annotations={"architectures": "Turing"})), pod(), knowledge())

    assert template.products == ("NVIDIA-T4G", "Tesla-T4")
