# SPDX-License-Identifier: Apache-2.0
"""Rulings on one-GPU pods by a few policies."""

from typing import Any

from app.policy.demand import Demand
from app.policy.match import Ruling
from app.policy.needs import NEEDS
from tests.builders import gpus, pod, policies, policy, ruling


def rule(*specs: str, image: str = "train:1", annotations: dict[str, str] | None = None) -> Ruling:
    """Compute the ruling on a one-GPU pod by policies p0, p1 and so on, of priorities 0, 1 and so on by default."""
    named = [
        policy(f"p{index}", spec if "priority" in spec else f"priority: {index}, {spec}")
        for index, spec in enumerate(specs)
    ]
    return ruling(pod(gpus(1, image=image), annotations=annotations), policies(*named))


def value_in(demand: Demand, name: str) -> Any:
    """Give the value of a field of a demand, or of the need that only its row reads."""
    return {need.demand_field: need.value(demand) for need in NEEDS}.get(name, getattr(demand, name, None))
