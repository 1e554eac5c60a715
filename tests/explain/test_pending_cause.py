# SPDX-License-Identifier: Apache-2.0
"""The one cause of a pending pod, what its Event may say, and what the nodes have that refuse it."""

import pytest

from app.explain.counterfactual import EvictedPod, Fix, FixStep
from app.explain.explanation import AdmissionOutcome, Explanation, Refused
from app.explain.pending_cause import PendingCause, cause_of, values_of
from tests.builders import node

PRIMARY = Refused("InsufficientGPUs", "not enough free GPUs: wants 1 nvidia.com/gpu", 3, "wait for GPUs to be freed")
TEXT = "free 1 nvidia.com/gpu on a100-2, held by {}/holder (priority 0)"


def explanation(primary: Refused | None = PRIMARY, fits: int = 0, nodes: int = 23, *fixes: Fix) -> Explanation:
    return Explanation(
        pod="team/p", policies=(), asks={}, needs=(), origins=(), conflicts=(), nodes=nodes, fits=fits,
        primary=primary, refused=(), in_tree=(), funnel=(), fixes=fixes, best=(), claims={}, dra=None, unsourced=(),
        unjudged=(), admission=AdmissionOutcome(True, "", (), ()),
    )  # fmt: skip


def freed(namespace: str) -> Fix:
    step = FixStep("free-gpus", "fleet", TEXT.format(namespace), (EvictedPod(f"{namespace}/holder", 0, {}),))
    return Fix((step,), "a100-2", 1)


@pytest.mark.parametrize(
    ("namespace", "holders"), [("team", "team/holder (priority 0)"), ("others", "pods of other namespaces")]
)
def test_pods_of_other_namespaces_are_not_named(namespace: str, holders: str) -> None:
    """F139: whoever reads the Events of a namespace may not be allowed to list the pods of another."""
    cause = cause_of(explanation(PRIMARY, 0, 23, freed(namespace)))

    assert cause.note == (
        "Fits on none of 23 nodes: not enough free GPUs: wants 1 nvidia.com/gpu (InsufficientGPUs, 3 nodes). "
        f"Smallest change that helps: free 1 nvidia.com/gpu on a100-2, held by {holders} → 1 node, a100-2."
    )
    assert cause.fix == TEXT.format(namespace)


def test_cause_of_a_pod_that_fits_has_no_reason() -> None:
    """F132, F139."""
    assert cause_of(explanation(None, fits=2)) == PendingCause("", "fits on 2 nodes now", 0, 2, "")
    assert cause_of(explanation(None, nodes=0)).note == "there are no nodes."


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
