# SPDX-License-Identifier: Apache-2.0
"""Preemption: a node stays if its class could serve the pod and it has victims; victims are never changed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.placement.engine import eviction_helps, helpful_candidates, judge_class
from app.policy.demand import Demand
from tests.builders import demand, gpus, node, pod, policies, policy

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
UNKNOWN = {"product": None, "driver": None}
NEW = {"product": "NVIDIA-XYZ-9000"}
REFUSING = policies(policy("p", "placement: {unknownFacts: Refuse, cuda: {fromImage: true}}"))


def wants(amount: int = 1, resource: str = GPU, image: str = "train:1", **annotations: str) -> dict[str, Any]:
    """Make a pod with needs as annotations."""
    named = {key.replace("_", "-"): value for key, value in annotations.items()}
    return pod(gpus(amount, resource, image=image), annotations=named)


@pytest.mark.parametrize(
    ("document", "made", "refused", "accepted"),
    [
        pytest.param(wants(products="H100"), UNKNOWN, "GPUFactsMissing", "GPUFactsMissing", id="product"),
        pytest.param(wants(products="!H100"), UNKNOWN, "GPUFactsMissing", "GPUFactsMissing", id="denied product"),
        pytest.param(wants(cuda="12.4"), UNKNOWN, "DriverUnknown", None, id="driver"),
        pytest.param(wants(gpu_memory="40Gi"), NEW, "GPUFactsMissing", None, id="memory"),
        pytest.param(wants(compute_capability="8.0"), NEW, "GPUFactsMissing", None, id="compute capability"),
        pytest.param(wants(interconnect="NVLink"), NEW, "GPUFactsMissing", None, id="interconnect"),
        pytest.param(wants(), UNKNOWN, None, None, id="nothing of it asked"),
    ],
)
def test_unknown_fact_is_refused_or_accepted_as_the_policy_says(
    document: dict[str, Any], made: dict[str, Any], refused: str | None, accepted: str | None
) -> None:
    """Fault 11: a pod that names a product is refused on an unknown product whatever the policy says.

    See docs/reference/compatibility.md#unknown-facts.
    """
    facts = node(**made).node_class

    verdicts = [judge_class(demand(document, chosen), facts) for chosen in (REFUSING, None)]

    assert [refused, accepted] == [verdict and verdict.code.name for verdict in verdicts]


@pytest.mark.parametrize(
    ("state", "helps"),
    [
        ("upgrade-done", True),
        ("upgrade-required", True),
        ("a-state-of-tomorrow", True),
        *(
            (state, False)
            for state in (
                "cordon-required",
                "wait-for-jobs-required",
                "pod-deletion-required",
                "drain-required",
                "node-maintenance-required",
                "pod-restart-required",
                "validation-required",
                "uncordon-required",
                "upgrade-failed",
            )
        ),
    ],
)
def test_nobody_is_evicted_on_a_node_whose_driver_is_being_replaced(state: str, helps: bool) -> None:
    """P42, F44: nodes are refused from the state cordon-required on; unknown states are accepted.

    See docs/reference/compatibility.md#node-states.
    """
    assert helps is eviction_helps(demand(wants()), node(labels={UPGRADE: state}))


@pytest.mark.parametrize(
    ("products", "product", "helps"),
    [
        ("A10", "NVIDIA-A10", True),
        ("A10", "NVIDIA-A100-SXM4-80GB", False),
        ("A10", "NVIDIA-A10G", False),
        ("L4", "NVIDIA-L40", False),
        ("L40", "NVIDIA-L40S", False),
        ("H20", "NVIDIA-H200", False),
        ("H20", "NVIDIA-H20-3e", False),
        ("H100", "NVIDIA-H100-PCIe", True),
        ("NVIDIA-H100-PCIe", "NVIDIA-H100-80GB-HBM3", False),
        ("NVIDIA-A100-SXM4-*", "NVIDIA-A100-SXM4-40GB", True),
        ("NVIDIA-A100-SXM4-*", "NVIDIA-A100-PCIE-40GB", False),
        ("A100", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", True),
    ],
)
def test_nobody_is_evicted_for_another_product(products: str, product: str, helps: bool) -> None:
    """F31, P1: products match by whole tokens, never by substring."""
    assert helps is eviction_helps(demand(wants(products=products)), node(product=product))


@pytest.mark.parametrize("profile", ["1g.10gb", ">=1g.10gb"])
@pytest.mark.parametrize("label", ["weird", "1g", "7x.10gb", "1g.10gb.you"])
def test_slice_label_that_does_not_parse_is_an_unknown_slice_and_no_crash(profile: str, label: str) -> None:
    """One odd node must not stop the others; a slice of unknown size cannot be shown to be large enough."""
    odd = node(product=f"NVIDIA-A100-SXM4-80GB-MIG-{label}")

    assert not eviction_helps(demand(wants(mig_profile=profile)), odd)


def test_slice_resource_that_does_not_parse_has_an_unknown_memory() -> None:
    """Unknown facts are accepted unless the policy refuses them (docs/reference/compatibility.md#unknown-facts)."""
    odd = node(offers={"nvidia.com/mig-weird": 1})

    assert judge_class(demand(wants(1, "nvidia.com/mig-weird", gpu_memory="1Gi")), odd.node_class) is None


def test_media_slice_is_not_the_plain_one() -> None:
    """`1g.10gb.me` is not `1g.10gb` (docs/reference/sharing-and-memory.md#mig-at-least)."""
    media = node(product="NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.me")

    assert not eviction_helps(demand(wants(mig_profile="1g.10gb")), media)


VICTIMS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.fixed_dictionaries(
        {
            "Pods": st.lists(st.text(max_size=5).map(lambda uid: {"UID": uid}), max_size=4),
            "NumPDBViolations": st.integers(0, 9),
        }
    ),
)
ASKED: Demand = demand(wants(products="H100"))
FLEET = {
    name: node(name, product=product, used={GPU: 8})
    for name, product in (("a", "NVIDIA-H100-80GB-HBM3"), ("b", "Tesla-T4"), ("c", "NVIDIA-H100-PCIe"), ("d", None))
}


@given(VICTIMS)
def test_helpful_candidates_are_kept_with_their_victims_as_given(given_victims: dict[str, Any]) -> None:
    """Victims are never dropped, added or reordered; unknown nodes and nodes without victims are dropped.

    See docs/reference/scores.md#preemption.
    """
    uids = {name: {victim["UID"] for victim in victims["Pods"]} for name, victims in given_victims.items()}

    helpful = helpful_candidates(ASKED, given_victims, uids, lambda name, _uids: FLEET.get(name))

    assert [name for name in given_victims if name in ("a", "c") and uids[name]] == list(helpful)
    assert all(victims is given_victims[name] for name, victims in helpful.items())


@pytest.mark.parametrize(("amount", "helps"), [(8, True), (9, False)], ids=["all of it", "more than it has"])
def test_eviction_helps_up_to_what_the_node_has_in_all(amount: int, helps: bool) -> None:
    assert helps is eviction_helps(demand(wants(amount)), node(used={GPU: 8}))


@pytest.mark.parametrize(("state", "helps"), [("success", True), ("pending", False), ("failed", False)])
def test_nobody_is_evicted_for_a_slice_while_the_layout_changes(state: str, helps: bool) -> None:
    """F45."""
    sliced = node(offers={GPU: 0, SLICE: 7}, used={SLICE: 7}, labels={"nvidia.com/mig.config.state": state})

    assert helps is eviction_helps(demand(wants(1, SLICE)), sliced)
