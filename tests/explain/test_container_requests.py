# SPDX-License-Identifier: Apache-2.0
"""Which containers request less so that a pod fits, and how many of them a line names."""

from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.explain.container_requests import MOST_CONTAINERS_NAMED, amount_text, lowered, requests_text, set_requests
from app.explain.edits import edited
from app.kube.pods import read_pod
from app.values.quantity import parse_quantity
from tests.builders import container, gpus, pod

GPU = "nvidia.com/gpu"
AMOUNTS = st.lists(st.integers(min_value=0, max_value=9), max_size=4)


def pod_of(init: list[int], sidecars: list[int], main: list[int]) -> dict[str, Any]:
    """Return a Pod whose init containers, sidecars and containers request these GPUs; sidecars start first."""
    always = {"restartPolicy": "Always"}
    initial = [{**container(None, {GPU: units}), "name": f"s{at}", **always} for at, units in enumerate(sidecars)]
    initial += [{**container(None, {GPU: units}), "name": f"i{at}"} for at, units in enumerate(init)]
    running = [{**container(None, {GPU: units}), "name": f"c{at}"} for at, units in enumerate(main)]
    return pod(*running, initContainers=initial)


@settings(max_examples=100, deadline=None)
@given(AMOUNTS, AMOUNTS, AMOUNTS.filter(bool), st.integers(min_value=1, max_value=20))
def test_lowered_pod_requests_just_what_is_left(init: list[int], side: list[int], main: list[int], left: int) -> None:
    """F84: by Kubernetes' own sum of the edited Pod; containers change only where the pod asks for more."""
    document = pod_of(init, side, main)
    before = read_pod(document)
    requests = lowered(before, GPU, left)
    changed = edited(document, ())
    set_requests(GPU, requests)(changed)

    assert read_pod(changed).amount(GPU) == min(left, before.amount(GPU))
    assert bool(requests) is (before.amount(GPU) > left)


@pytest.mark.parametrize(
    ("init", "sidecars", "main", "left", "text"),
    [
        ([], [1], [4], 2, ": 1 in container c0"),
        ([], [1], [4], 1, ": 0 in container s0, 1 in container c0"),
        ([], [], [1, 1], 1, ": 0 in container c0"),
        ([4], [1], [1], 2, ": 1 in container i0"),
    ],
    ids=["the largest gives", "the sidecar goes without", "one of equals", "an init container beside a sidecar"],
)
def test_containers_that_give_are_named(
    init: list[int], sidecars: list[int], main: list[int], left: int, text: str
) -> None:
    """F84."""
    read = read_pod(pod_of(init, sidecars, main))

    assert requests_text(read, GPU, lowered(read, GPU, left)) == text


def test_many_containers_are_counted() -> None:
    """F84: a line stays short whatever the pod has."""
    read = read_pod(pod(*({**gpus(2), "name": f"c{at}"} for at in range(MOST_CONTAINERS_NAMED + 3))))

    assert requests_text(read, GPU, lowered(read, GPU, MOST_CONTAINERS_NAMED + 3)).endswith(
        "1 in container c4 and 3 more"
    )


@given(st.integers(1, 1 << 50), st.sampled_from(["memory", "ephemeral-storage", "cpu"]))
def test_amount_that_is_written_is_never_more_than_the_amount(amount: int, resource: str) -> None:
    """F84: what a node has left, rounded up, would not fit."""
    written = parse_quantity(amount_text(resource, amount)) * (1000 if resource == "cpu" else 1)

    assert ceil(written) <= amount
    assert written > amount * 0.98
