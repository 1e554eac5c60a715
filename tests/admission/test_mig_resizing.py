# SPDX-License-Identifier: Apache-2.0
"""The fallback for MIG slices: a larger slice that the fleet has instead of one that no node offers (F130).

See docs/reference/sharing-and-memory.md#mig-at-least.
"""

from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.reviewed_pod import PodForm
from app.nodes.model import Node
from tests.admission.mutated import admit, rules
from tests.admission.slices import GPU, LARGE, MIDDLE, SMALL, resources_after, slices, whole
from tests.builders import container, fleet, gpus, pod

MEDIA = f"{SMALL}.me"


def pod_for_slice(profile: str, resource: str = SMALL) -> dict[str, Any]:
    """Make a pod that asks for this slice or a larger one."""
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
    assert {expected} == resources_after(pod_for_slice("1g.10gb"), rules(), fleet(*nodes))


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
    resources = resources_after(pod_for_slice("1g.10gb"), rules(f"migFallback: {mode}"), fleet(*nodes))

    assert {expected} == resources


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(pod(gpus(1, SMALL)), id="no wish"),
        pytest.param(pod(gpus(1, SMALL), annotations={"mig-profile": "1g.10gb"}), id="exactly this one"),
        pytest.param(pod(gpus(1, SMALL), gpus(1, LARGE), annotations={"mig-profile": ">=1g.10gb"}), id="two slices"),
        pytest.param(pod_for_slice("1g.10gb", GPU), id="whole GPUs"),
        pytest.param(pod_for_slice("1g.10gb", f"{SMALL}.shared"), id="a share"),
    ],
)
def test_slice_is_kept_where_no_larger_one_is_meant(document: dict[str, Any]) -> None:
    verdict = admit(document, rules("migFallback: Enforce"), fleet(slices(MIDDLE)))

    assert document["spec"] == apply(document, verdict.operations)["spec"]


def test_fall_back_keeps_amounts_and_sides_in_every_container() -> None:
    document = pod(
        container({SMALL: "2", "cpu": "1"}, {SMALL: "2"}),
        container({"cpu": "1"}),
        initContainers=[container(None, {SMALL: 1})],
        annotations={"mig-profile": ">=1g.10gb"},
    )

    verdict = admit(document, rules(), fleet(slices(MIDDLE)))
    spec = apply(document, verdict.operations)["spec"]

    assert [container["resources"] for container in spec["containers"]] == [
        {"limits": {MIDDLE: "2", "cpu": "1"}, "requests": {MIDDLE: "2"}},
        {"limits": {"cpu": "1"}},
    ]
    assert spec["initContainers"][0]["resources"] == {"requests": {MIDDLE: 1}}


@pytest.mark.parametrize("mode", ["Enforce", "Warn"])
def test_fall_back_is_said(mode: str) -> None:
    verdict = admit(pod_for_slice("1g.10gb"), rules(f"migFallback: {mode}"), fleet(slices(MIDDLE)))

    assert any(f"no node has {SMALL}" in warning and MIDDLE in warning for warning in verdict.warnings)


def test_template_is_never_rewritten() -> None:
    assert not admit(pod_for_slice("1g.10gb"), rules(), fleet(slices(MIDDLE)), PodForm.Template).operations


def test_slice_with_media_engines_never_falls_back_to_one_without() -> None:
    resources = resources_after(pod_for_slice("1g.10gb.me", MEDIA), rules(), fleet(slices(SMALL), slices(MIDDLE)))

    assert {MEDIA} == resources
