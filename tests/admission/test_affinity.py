# SPDX-License-Identifier: Apache-2.0
"""Affinity where labels of clouds stand in for GFD's: still a necessary condition (F10)."""

from typing import Any

from app.admission.case import Fleet, Kin
from app.admission.patch import apply
from app.admission.review import mutate
from app.nodes import PRODUCT, Node
from tests.builders import node, pod, setting

BY_CLOUD = {"cloud.google.com/gke-accelerator": "nvidia-l4"}


def fleet(*nodes: Node) -> Fleet:
    return Fleet(tuple(Kin(each.node_class, each.labels.get(PRODUCT), each.taints) for each in nodes), frozenset())


def affinity(wanted: str, *nodes: Node) -> tuple[list[str], tuple[str, ...]]:
    """Admit a pod that wants a product: (kinds of node affinity added, warnings)."""
    document = pod(annotations={"products": wanted})
    verdict = mutate(document, "team-a", {}, setting(fleet=fleet(*nodes)))
    admitted: Any = apply(document, verdict.operations)
    return list(admitted["spec"].get("affinity", {}).get("nodeAffinity", {})), verdict.warnings


def test_need_is_required_where_every_node_that_fits_has_the_label() -> None:
    kinds, warnings = affinity("L4", node(product="NVIDIA-L4"), node(product=None, labels={}, offers={}))

    assert kinds == ["requiredDuringSchedulingIgnoredDuringExecution"]
    assert not any("only preferred" in warning for warning in warnings)


def test_need_is_preferred_where_a_node_that_fits_has_only_its_clouds_label() -> None:
    """INTERFACES §10: a node without the label that filter would accept must not be excluded."""
    kinds, warnings = affinity("L4", node(product="NVIDIA-L4"), node(product=None, labels=BY_CLOUD))

    assert kinds == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert any("only preferred by affinity" in warning for warning in warnings)


def test_node_of_another_product_known_by_its_clouds_label_changes_nothing() -> None:
    kinds, _ = affinity("H100", node(), node(product=None, labels=BY_CLOUD))

    assert kinds == ["requiredDuringSchedulingIgnoredDuringExecution"]
