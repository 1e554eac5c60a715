# SPDX-License-Identifier: Apache-2.0
"""MIG geometry against the fact file's own list of combinations, and against every named layout."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.knowledge.mig_geometry import Geometry
from app.knowledge.products import normal_form
from tests.builders import knowledge

SEVEN = {
    "NVIDIA-A100-SXM4-80GB": ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"],
    "NVIDIA-A100-SXM4-40GB": ["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"],
    "NVIDIA-H100-80GB-HBM3": ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"],
    "NVIDIA-H200": ["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"],
}
SHORT = ["1g", "1g_double_memory", "2g", "3g", "4g", "7g"]
OTHERS = {
    ("NVIDIA-A30", "a30"): ["1g.6gb", "2g.12gb", "4g.24gb"],
    ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "rtx_pro_6000"): ["1g.24gb", "2g.48gb", "4g.96gb"],
}


@cache
def facts() -> Any:
    file = Path(__file__).parents[2] / "app" / "knowledge" / "mig_profiles.yaml"
    return yaml.safe_load(file.read_text("utf-8"))


def geometry(product: str) -> Geometry:
    return knowledge().geometry[normal_form(product)]


def mixes(
    table: Geometry, profiles: list[str], so_far: tuple[str, ...] = (), first: int = 0
) -> Iterator[tuple[str, ...]]:
    """Yield every combination of profiles that fits."""
    if table.find_starts(so_far) is not None:
        yield so_far
        for index in range(first, len(profiles)):
            yield from mixes(table, profiles, (*so_far, profiles[index]), index)


def maximal(table: Geometry, profiles: list[str]) -> set[frozenset[tuple[str, int]]]:
    """Return the combinations to which no profile can be added."""
    fitting = set(mixes(table, profiles))
    full = [
        mix
        for mix in fitting
        if not any(tuple(sorted((*mix, profile), key=profiles.index)) in fitting for profile in profiles)
    ]
    return {frozenset(Counter(mix).items()) for mix in full}


@pytest.mark.parametrize("product", SEVEN)
def test_maximal_mixes_of_seven_slice_gpus_are_those_of_the_facts(product: str) -> None:
    """P13: the combinations computed from placements equal those that the fact file lists."""
    names = dict(zip(SHORT, SEVEN[product], strict=True))
    expected = {
        frozenset((names[short], count) for short, count in mix.items())
        for mix in facts()["maximal_mixes"]["seven_slice_gpus"]
    }

    assert expected == maximal(geometry(product), SEVEN[product])


@pytest.mark.parametrize(("product", "key"), OTHERS)
def test_maximal_mixes_of_smaller_gpus_are_those_of_the_facts(product: str, key: str) -> None:
    expected = {frozenset(mix.items()) for mix in facts()["maximal_mixes"][key]}

    assert expected == maximal(geometry(product), OTHERS[product, key])


@pytest.mark.parametrize(
    ("profiles", "fits"),
    [
        (["3g.40gb", "3g.40gb"], True),
        (["3g.40gb", "3g.40gb", "1g.10gb"], False),
        (["2g.20gb", "2g.20gb", "2g.20gb", "1g.10gb"], True),
        (["2g.20gb", "2g.20gb", "2g.20gb", "1g.10gb", "1g.10gb"], False),
        (["4g.40gb", "3g.40gb"], True),
        (["4g.40gb", "4g.40gb"], False),
        (["1g.10gb.me", "1g.10gb.me"], False),
        ([], True),
    ],
)
def test_slots_decide_not_counts(profiles: list[str], fits: bool) -> None:
    """P13: two 3g instances fill a GPU although compute slices are left."""
    table = geometry("NVIDIA-H100-80GB-HBM3")

    assert all((table.find_starts(order) is not None) is fits for order in permutations(profiles))


def test_places_do_not_overlap_and_are_legal() -> None:
    table = geometry("NVIDIA-A100-SXM4-80GB")
    profiles = ["1g.10gb", "2g.20gb", "4g.40gb"]

    starts = table.find_starts(profiles)

    assert starts is not None
    taken = [
        slice_
        for profile, start in zip(profiles, starts, strict=True)
        for slice_ in range(start, start + table.slots[profile].length)
    ]
    assert len(taken) == len(set(taken))
    assert all(start in table.slots[profile].starts for profile, start in zip(profiles, starts, strict=True))


def test_geometry_taken_over_from_a_sister_product_says_so() -> None:
    assert geometry("NVIDIA-B200").inferred
    assert not geometry("NVIDIA-A100-SXM4-80GB").inferred
