# SPDX-License-Identifier: Apache-2.0
"""What the nodes have that refuse a pod, beside what it wants."""

import pytest

from app.explain.pending_cause import values_of
from tests.builders import node


def test_value_of_most_nodes_comes_first_and_three_are_named() -> None:
    """F83, F139: so that the one who waits sees how far the fleet is from what the pod wants."""
    drivers = ["470.82.01", "470.82.01", "450.51.05", "450.51.06", "450.51.07"]
    classes = [node(f"n{index}", driver=driver).node_class for index, driver in enumerate(drivers)]

    assert values_of("DriverTooOld", classes) == ("driver 470.82.01", "driver 450.51.05", "driver 450.51.06")


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("ImageRequirementUnmet", ("driver 570.124.06",)),
        ("ComputeCapabilityTooLow", ("9.0",)),
        ("GPUMemoryTooSmall", ("81559 MiB",)),
        ("InsufficientGPUs", ()),
    ],
)
def test_value_is_of_what_the_reason_is_about(code: str, value: tuple[str, ...]) -> None:
    """F83: other reasons have no value to tell."""
    assert values_of(code, [node().node_class]) == value
