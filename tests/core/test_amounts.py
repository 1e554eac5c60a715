# SPDX-License-Identifier: Apache-2.0
"""Quantities as Kubernetes reads them, and what a pod asks by Kubernetes' own arithmetic."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import MalformedPod, QuantityError
from app.pods import read_pod
from app.quantity import LARGEST, parse_mib, parse_quantity
from tests.builders import gpus, pod

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("0", 0),
        ("-1", -1),
        ("+3", 3),
        ("1.0", 1),
        ("1000m", 1),
        ("500m", Fraction(1, 2)),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("1k", 1000),
        ("1Ki", 1024),
        ("2Mi", 2 * 2**20),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("12e-1", Fraction(6, 5)),
        ("1n", Fraction(1, 10**9)),
        ("9223372036854775808", LARGEST),
        ("1e99", LARGEST),
        ("-1e99", -LARGEST),
    ],
)
def test_quantity_is_read_exactly_and_capped(text: str, value: Fraction | int) -> None:
    """apimachinery pkg/api/resource/quantity.go."""
    assert value == parse_quantity(text)


@pytest.mark.parametrize(
    "text", ["", " ", "many", "1 Gi", "1KiB", "1e", "e3", "0x10", "1,5", "1_000", "--1", "1Kim", "NaN", "²"]
)
def test_what_kubernetes_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="wants a number with a suffix"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "mib"), [("80Gi", 81920), ("80GB", 81920), ("80G", 81920), ("512Mi", 512), ("1", 1), ("1Ti", 2**20)]
)
def test_memory_wish_is_one_whatever_the_unit_is_called(text: str, mib: int) -> None:
    """INTERFACES §10: 80Gi and 80GB are one wish."""
    assert mib == parse_mib(text)


AMOUNTS = st.integers(0, 4)
CONTAINERS = st.lists(st.tuples(st.sampled_from(["init", "sidecar"]), AMOUNTS), max_size=5)


def held_at_each_moment(inits: list[tuple[str, int]], mains: list[int]) -> list[int]:
    """Play a pod's start by hand: each init container runs beside the sidecars before it, then everything runs."""
    sidecars, moments = 0, []
    for kind, amount in inits:
        if kind == "sidecar":
            sidecars += amount
            moments.append(sidecars)
        else:
            moments.append(sidecars + amount)
    return [*moments, sidecars + sum(mains)]


@given(CONTAINERS, st.lists(AMOUNTS, min_size=1, max_size=3))
def test_pod_asks_what_its_hungriest_moment_holds(inits: list[tuple[str, int]], mains: list[int]) -> None:
    """F16, F17: init containers by the highest, sidecars beside all that start after them (KEP-753)."""
    made = [
        {**gpus(amount), "name": f"i{index}", **({"restartPolicy": "Always"} if kind == "sidecar" else {})}
        for index, (kind, amount) in enumerate(inits)
    ]
    document = pod(*[gpus(amount) for amount in mains], initContainers=made)

    assert max(held_at_each_moment(inits, mains)) == read_pod(document).amount(GPU)


def test_limit_alone_is_the_request_and_a_request_counts_before_the_limit() -> None:
    alone = {"name": "a", "resources": {"limits": {GPU: "2"}}}
    both = {"name": "b", "resources": {"limits": {GPU: "2"}, "requests": {GPU: "1"}}}

    assert [read_pod(pod(each)).amount(GPU) for each in (alone, both)] == [2, 1]


def test_pod_level_resources_hold_no_extended_ones() -> None:
    """F17: spec.resources takes cpu, memory and hugepages alone (facts: k8s rules, pod-level)."""
    document = pod(gpus(1), resources={"limits": {"cpu": "8", GPU: "5"}})

    assert read_pod(document).amount(GPU) == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"containers": {}}, "spec.containers: got an object, wants a list"),
        ({"containers": [3]}, "spec.containers[0]: got an integer, wants an object"),
        (
            {"containers": [{"resources": {"limits": {GPU: 1.5}}}]},
            f"spec.containers[0].resources.limits[{GPU}]: got a number, wants a quantity",
        ),
        (
            {"initContainers": [{"env": [{"name": 1}]}]},
            "spec.initContainers[0].env[0].name: got an integer, wants a string",
        ),
        ({"nodeName": []}, "spec.nodeName: got a list, wants a string"),
        ({"affinity": {"nodeAffinity": 1}}, "spec.affinity.nodeAffinity: got an integer, wants an object"),
    ],
)
def test_wrong_shape_is_named_by_its_path(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedPod) as raised:
        read_pod({"spec": spec})

    assert message == str(raised.value)


def test_integer_amounts_are_quantities_too() -> None:
    assert read_pod(pod({"name": "a", "resources": {"limits": {GPU: 2}}})).amount(GPU) == 2
