# SPDX-License-Identifier: Apache-2.0
"""The one cause of a pending pod, and what its Event may say."""

import pytest

from app.explain.counterfactual import EvictedPod, Fix, FixStep
from app.explain.explanation import AdmissionOutcome, Explanation, Refused
from app.explain.pending_cause import PendingCause, cause_of

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
        "0 of 23 nodes fit. 3 nodes: not enough free GPUs: wants 1 nvidia.com/gpu. Smallest change that helps: "
        f"free 1 nvidia.com/gpu on a100-2, held by {holders} → 1 node, such as a100-2."
    )
    assert cause.fix == TEXT.format(namespace)


def test_cause_of_a_pod_that_fits_has_no_reason() -> None:
    """F132, F139."""
    assert cause_of(explanation(None, fits=2)) == PendingCause("", "fits on 2 nodes now", 0, 2, "")
    assert cause_of(explanation(None, nodes=0)).note == "there are no nodes."
