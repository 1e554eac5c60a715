# SPDX-License-Identifier: Apache-2.0
"""When refused pods are woken: a node fits that did not, and kube-scheduler has not seen it by itself."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.events.waking import APART_SECONDS, WOKEN, FittingNodes, Waker, newly_fitting
from app.server.service import Service
from tests.builders import gpus, make_service, node_document, pod, policies, policy

WAITS = pod(gpus(1), annotations={"gpu-usher.io/products": "A10"})


@pytest.mark.parametrize(
    ("before", "now", "shapes"),
    [
        ({"s": set()}, {"s": {"n"}}, {"s"}),
        ({"s": {"n"}}, {"s": {"n", "m"}}, {"s"}),
        ({"s": {"n"}}, {"s": {"n"}}, set()),
        ({"s": {"n"}}, {"s": set()}, set()),
        ({}, {"s": {"n"}}, {"s"}),
        ({}, {"s": set()}, set()),
    ],
    ids=["first node", "another node", "the same node", "node lost", "new shape", "new shape that fits nowhere"],
)
def test_shape_is_woken_for_a_node_that_did_not_fit_before(
    before: Mapping[str, set[str]], now: Mapping[str, set[str]], shapes: set[str]
) -> None:
    """F140."""

    def frozen(nodes: Mapping[str, set[str]]) -> FittingNodes:
        return {shape: frozenset(names) for shape, names in nodes.items()}

    assert newly_fitting(frozen(before), frozen(now)) == shapes


class Reasons:
    """What a Waker reads of PendingReasons: the shapes that wait."""

    def __init__(self) -> None:
        self.waiting: dict[str, Mapping[str, Any]] = {"shape": WAITS}
        self.kept_current = True

    def documents(self) -> Mapping[str, Mapping[str, Any]]:
        return self.waiting


class Patches:
    """What a Waker needs of ApiServer: it keeps the patches."""

    def __init__(self) -> None:
        self.annotations: list[str] = []

    async def patch(self, _path: str, change: Mapping[str, Any], _kind: str) -> None:
        self.annotations.extend(change["metadata"]["annotations"])


def looks(waker: Waker, times: int = 1) -> None:
    for _ in range(times):
        asyncio.run(waker.look())


class Now:
    """The clock of a test, in seconds."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def made_waker(service: Service) -> tuple[Waker, Reasons, Patches, Now]:
    """Make a Waker for a pod that fits nothing, with what it reads, what it writes, and its clock."""
    reasons, patches, now = Reasons(), Patches(), Now()
    waker = Waker(patches, "gpu-usher", service, reasons, service.metrics, now)  # type: ignore[arg-type]
    return waker, reasons, patches, now


def empty_service(folder: Path, *texts: str) -> Service:
    return make_service(folder, [], policies(*texts) if texts else None)


def test_pod_that_still_waits_a_look_later_is_woken_once(tmp_path: Path) -> None:
    """F140: nothing is written while nothing changes, nor for a pod that is bound in the meantime."""
    service = empty_service(tmp_path)
    waker, reasons, patches, now = made_waker(service)
    looks(waker, 3)
    assert patches.annotations == []

    service.state.put_node(node_document("new", "NVIDIA-A10"))
    looks(waker)
    assert patches.annotations == []
    looks(waker, 3)
    assert patches.annotations == [WOKEN]

    service.state.put_node(node_document("newer", "NVIDIA-A10"))
    looks(waker, 3)
    assert patches.annotations == [WOKEN]
    now.seconds += APART_SECONDS
    looks(waker, 2)
    assert patches.annotations == [WOKEN] * 2

    service.state.put_node(node_document("newest", "NVIDIA-A10"))
    looks(waker)
    reasons.waiting = {}
    now.seconds += APART_SECONDS
    looks(waker, 2)
    assert patches.annotations == [WOKEN] * 2
    assert service.metrics.registry.get_sample_value("gpu_usher_wakes_total") == 2


def test_pod_that_fitted_before_the_first_look_is_woken_once(tmp_path: Path) -> None:
    """F140: as where the replica that was to look has ended, and the cause of the refusal after it."""
    service = empty_service(tmp_path)
    waker, _, patches, now = made_waker(service)
    service.state.put_node(node_document("new", "NVIDIA-A10"))

    for _ in range(4):
        looks(waker)
        now.seconds += APART_SECONDS

    assert patches.annotations == [WOKEN]


def test_pod_is_woken_by_an_edit_of_a_policy_and_of_the_labels_of_its_namespace(tmp_path: Path) -> None:
    """F140: no event of a node tells of either."""
    denied = "placement: {products: {deny: [A10]}}"
    gold = policy("p", f"match: {{namespaceSelector: {{matchLabels: {{tier: gold}}}}}}, {denied}")
    service = empty_service(tmp_path, policy("p", denied))
    service.state.put_node(node_document("a10", "NVIDIA-A10"))
    waker, _, patches, now = made_waker(service)
    looks(waker, 3)
    assert patches.annotations == []

    service.book.current = policies(gold)
    looks(waker, 2)
    assert patches.annotations == [WOKEN]

    service.state.namespaces.put(WAITS["metadata"]["namespace"], {"tier": "gold"})
    looks(waker, 2)
    service.state.namespaces.put(WAITS["metadata"]["namespace"], {})
    now.seconds += APART_SECONDS
    looks(waker, 2)
    assert patches.annotations == [WOKEN] * 2
