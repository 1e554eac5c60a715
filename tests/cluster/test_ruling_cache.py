# SPDX-License-Identifier: Apache-2.0
"""The cache of rulings: pods of one template share a ruling, and large pods are not kept."""

import tracemalloc
from typing import Any

import pytest

from app.cluster.core import LARGEST_KEPT, RulingCache
from app.kube.pods import read_pod
from app.policy.match import Ruling
from tests.builders import gpus, knowledge, pod, shipped


def ruled(rulings: RulingCache, document: dict[str, Any]) -> Ruling:
    return rulings.of(read_pod(document), {}, shipped(), knowledge())


def test_pods_of_one_template_share_a_ruling() -> None:
    rulings = RulingCache()

    assert ruled(rulings, pod()) is ruled(rulings, pod())


@pytest.mark.parametrize(("place", "size"), [("label", 300_000), ("annotation", 200_000), ("env", 32_000)])
def test_huge_template_is_ruled_on_and_forgotten(place: str, size: int) -> None:
    """F125, fault 50: a thousand pods of the largest accepted size once stayed in memory."""
    assert size > LARGEST_KEPT
    rulings = RulingCache()
    tracemalloc.start()
    for number in range(8):
        text = f"{number}{'x' * size}"
        container = gpus(1)
        document = pod(container, annotations={"products": text} if place == "annotation" else None)
        if place == "label":
            document["metadata"]["labels"] = {"a": text}
        elif place == "env":
            container["env"] = [{"name": "NVIDIA_REQUIRE_CUDA", "value": text}]
        ruled(rulings, document)
    del text, document, container
    size_kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert size_kept < 3 * size
