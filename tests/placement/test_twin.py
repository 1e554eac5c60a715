# SPDX-License-Identifier: Apache-2.0
"""The filters against their slow twin on random pods, policies and nodes: equal verdicts and true reasons."""

import pytest

from tests.placement.confusion import SEED, compare, compared, lines
from tests.placement.twin import GPU, RawNode, RawPod, Wish, causes

REASONS = (
    "ProductNotAllowed",
    "DriverTooOld",
    "DriverUnknown",
    "ImageRequirementUnmet",
    "ImageForOtherMachine",
    "ImageWithoutCodeForGPU",
    "ComputeCapabilityTooLow",
    "ComputeCapabilityUnsupported",
    "GPUMemoryTooSmall",
    "SharingNotAllowed",
    "MIGProfileAbsent",
    "MIGInvalid",
    "MIGReconfiguring",
    "MIGLayoutFailed",
    "DriverUpgrading",
    "InterconnectAbsent",
    "NodeExcluded",
    "GhostGPUs",
    "GPUFactsMissing",
    "GPUUnhealthy",
    "ResourceNotOffered",
    "RequestExceedsNode",
    "SharedReplicasAskedAsGPUs",
    "InvalidAnnotation",
    "FormFactorNotAllowed",
    "InsufficientGPUs",
    "GPUMemoryBudgetExceeded",
)
"""The codes of docs/reference/reasons.md except those that the filters never give for a device-plugin node:
NodeNotKnown comes from the extender, and LayoutDoesNotFit needs a MIG layout."""
OFTEN = 2000
"""Each reason must be the first one on at least one in this many pairs."""


@pytest.mark.parametrize("pairs", [200_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_filters_give_a_true_reason_on_every_pair(pairs: int) -> None:
    """P22, F31, F33-F38, F40, F44-F46, F54, F57, F59, F62, F63, F65, F67-F70, F72."""
    table = compared(pairs, SEED)

    assert table.different == 0, "\n".join(lines(table))
    assert table.pairs >= pairs
    assert [code for code in REASONS if table.reached(code) * OFTEN < pairs] == []
    assert table.reached("fits") > table.pairs / 50


@pytest.mark.parametrize(
    ("answer", "causes", "kind"),
    [
        pytest.param(None, set(), "agreed", id="both accept"),
        pytest.param(None, {"DriverTooOld"}, "accepted", id="a wrong placement"),
        pytest.param(("DriverTooOld", False), set(), "no cause", id="a false refusal"),
        pytest.param(("DriverTooOld", False), {"MIGInvalid"}, "other cause", id="a reason that is not true"),
        pytest.param(("DriverTooOld", False), {"MIGInvalid", "DriverTooOld"}, "agreed", id="one of two reasons"),
        pytest.param(("DriverTooOld", True), {"DriverTooOld"}, "eviction", id="eviction cannot mend it"),
        pytest.param(("InsufficientGPUs", True), {"InsufficientGPUs"}, "agreed", id="eviction can"),
        pytest.param(("InsufficientGPUs", True), {"InsufficientGPUs", "MIGInvalid"}, "eviction", id="not it alone"),
    ],
)
def test_every_way_to_be_wrong_is_seen(answer: tuple[str, bool] | None, causes: set[str], kind: str) -> None:
    """F40."""
    assert kind == compare(answer, causes)


def test_free_reasons_count_only_where_no_class_reason_refuses() -> None:
    """F40."""
    full, labels = [RawPod(((GPU, 8),))], {"nvidia.com/gpu.product": "NVIDIA-L4"}

    reasons = [causes(Wish(products=products), RawNode(labels, {GPU: 8}), full) for products in ("L4", "H100")]

    assert reasons == [{"InsufficientGPUs"}, {"ProductNotAllowed"}]
