# SPDX-License-Identifier: Apache-2.0
"""When refused pods are woken: a node fits that did not, and kube-scheduler has not seen it by itself."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from app.events.waking import APART_SECONDS, WOKEN, FittingNodes, Waker, newly_fitting
from app.server.service import Service
from tests.builders import gpus, node_document, pod

WAITS = pod(gpus(1), annotations={"gpu-usher.io/products": "A10"})


@pytest.mark.parametrize(
    ("before", "now", "shapes"),
    [
        ({"s": set()}, {"s": {"n"}}, {"s"}),
        ({"s": {"n"}}, {"s": {"n", "m"}}, {"s"}),
        ({"s": {"n"}}, {"s": {"n"}}, set()),
        ({"s": {"n"}}, {"s": set()}, set()),
        ({}, {"s": {"n"}}, set()),
    ],
    ids=["first node", "another node", "the same node", "node lost", "new shape"],
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
    """What a Waker needs of KubeClient: it keeps the patches."""

    def __init__(self) -> None:
        self.annotations: list[str] = []

    def patch(self, _path: str, change: Mapping[str, Any], _kind: str) -> None:
        self.annotations.extend(change["metadata"]["annotations"])


def looks(waker: Waker, times: int = 1) -> None:
    for _ in range(times):
        asyncio.run(waker.look())


def test_pod_that_still_waits_a_look_later_is_woken_once(service: Service) -> None:
    """F140: nothing is written while nothing changes, nor for a pod that is bound in the meantime."""
    now = [0.0]
    reasons, patches = Reasons(), Patches()
    waker = Waker(patches, "gpu-usher", service, reasons, service.metrics, lambda: now[0])  # type: ignore[arg-type]
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
    now[0] += APART_SECONDS
    looks(waker, 2)
    assert patches.annotations == [WOKEN] * 2

    service.state.put_node(node_document("newest", "NVIDIA-A10"))
    looks(waker)
    reasons.waiting = {}
    now[0] += APART_SECONDS
    looks(waker, 2)
    assert patches.annotations == [WOKEN] * 2
    assert service.metrics.registry.get_sample_value("gpu_usher_wakes_total") == 2
