# SPDX-License-Identifier: Apache-2.0
"""Free filters: what a node has left, the one message for each refusal, and when counts are checked again."""

import pytest

from app.nodes.model import FreeResources
from app.placement.engine import judge, judge_free
from app.placement.filters import COUNTED_IN_TREE, FREE_FILTERS, enough_units
from app.values.reasons import Code
from tests.builders import container, demand, gpus, node, pod

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"


@pytest.mark.parametrize(
    ("amount", "free", "fits"),
    [
        pytest.param(1, 8, True, id="more than enough"),
        pytest.param(4, 4, True, id="exactly enough"),
        pytest.param(5, 4, False, id="one too few"),
        pytest.param(1, 0, False, id="none free"),
        pytest.param(1, -2, False, id="held by more pods than the node has GPUs"),
        pytest.param(1, None, False, id="not offered at all"),
    ],
)
def test_node_needs_as_many_free_units_as_are_asked(amount: int, free: int | None, fits: bool) -> None:
    pod_demand = demand(pod(gpus(amount)))

    assert fits is (enough_units(pod_demand, FreeResources({} if free is None else {GPU: free})) is None)


def test_every_resource_asked_is_counted() -> None:
    pod_demand = demand(pod(gpus(1), gpus(2, SLICE, name="second")))

    refusals = [
        enough_units(pod_demand, FreeResources({GPU: gpus_free, SLICE: slices}))
        for gpus_free, slices in ((1, 2), (1, 1))
    ]

    assert refusals[0] is None
    assert refusals[1] is not None
    assert refusals[1].message == f"not enough free GPUs: wants 2 {SLICE}"


def test_message_names_what_is_wanted_and_not_what_is_left() -> None:
    """kube-scheduler groups equal texts (docs/reference/reasons.md)."""
    pod_demand = demand(pod(gpus(3)))

    refusals = {enough_units(pod_demand, FreeResources({GPU: left})) for left in (0, 1, 2)}

    assert {"not enough free GPUs: wants 3 nvidia.com/gpu"} == {refusal.message for refusal in refusals if refusal}
    assert len(refusals) == 1


def test_refusal_of_what_is_free_is_one_that_eviction_can_change() -> None:
    """P4, P49, EXT-05: the node goes into FailedNodes, not into FailedAndUnresolvableNodes."""
    refusal = judge_free(demand(pod()), FreeResources({GPU: 0}), recount=True)

    assert refusal is not None
    assert refusal.code is Code.InsufficientGPUs
    assert refusal.preemptible


def test_whole_gpu_and_slice_counts_are_left_to_a_live_scheduler() -> None:
    """kube-scheduler's own count is newer than ours by one pod (docs/reference/scores.md#counts)."""
    full = [
        (demand(pod(gpus(1))), node(used={GPU: 8})),
        (demand(pod(gpus(1, SLICE))), node(offers={SLICE: 7}, used={SLICE: 7})),
    ]

    verdicts = [
        (judge(pod_demand, made, True) is None, judge(pod_demand, made, False) is None) for pod_demand, made in full
    ]

    assert verdicts == [(False, True), (False, True)]
    assert set(FREE_FILTERS) >= COUNTED_IN_TREE


def test_wrong_class_is_said_before_a_full_node() -> None:
    """A node of the wrong class goes into FailedAndUnresolvableNodes even if it is full, since waiting would not
    help."""
    pod_demand = demand(pod(annotations={"products": "H100"}))

    refusal = judge(pod_demand, node(product="Tesla-T4", used={GPU: 8}), recount=True)

    assert refusal is not None
    assert refusal.code is Code.ProductNotAllowed
    assert not refusal.preemptible


def test_init_container_counts_at_the_hungriest_moment() -> None:
    """KEP-753: a pod requests the larger of what runs and what starts, not the sum."""
    pod_demand = demand(pod(gpus(2), initContainers=[container({GPU: "3"}, {GPU: "3"}, name="warm")]))

    verdicts = [judge(pod_demand, node(used={GPU: used}), recount=True) for used in (5, 6)]

    assert verdicts[0] is None
    assert verdicts[1] is not None
