# SPDX-License-Identifier: Apache-2.0
"""The affinity that admission writes is a necessary condition: it excludes no node that the filter accepts (F10).

The oracle judges the node affinity, and the product's filter the node.
"""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import jsonpatch
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.admission.review import mutate
from app.admission.reviewed_pod import ReviewContext
from app.placement.engine import class_for_demand, judge_class
from app.policy.compiled import PolicySet
from app.values.reasons import Code
from app.world.state import State
from app.world.world import world_of
from tests.admission.fleets import fleet
from tests.admission.wishes import rules, wish
from tests.builders import demand, knowledge, node_document, pod, shipped
from tests.oracles.node_affinity import REQUIRED, eligible

SEED = 20261121
FLEETS = 2_000
WISHES = 2
"""Pods for each fleet."""
MOST_TERMS = 16
"""Required terms that admission may write (docs/reference/admission.md#affinity); a user's own terms may be more."""
SHARPNESS = 0.7
"""Of the nodes that the filter refuses by GFD's labels, the affinity must exclude this share. 0.80 was measured, on
fleets in which most demands meet nodes of several clouds, some without any label."""
TOLD_BY_LABELS = {
    Code.ProductNotAllowed,
    Code.GPUMemoryTooSmall,
    Code.DriverTooOld,
    Code.ComputeCapabilityTooLow,
    Code.SharingNotAllowed,
}

Pod = dict[str, Any]


def state_of(nodes: list[Pod]) -> State:
    state = State(knowledge())
    for document in nodes:
        state.put_node(document)
    return state


def admit(document: Pod, policy_set: PolicySet, state: State) -> Pod | None:
    """Return the Pod as admitted, or None if it is refused."""
    verdict = mutate(document, "team-a", {}, ReviewContext(world_of(state, policy_set)))
    if not verdict.allowed:
        return None
    patched: Pod = jsonpatch.apply_patch(document, [operation.as_json() for operation in verdict.operations])
    return patched


def violations(document: Pod, policy_set: PolicySet, state: State) -> Iterator[str]:
    """Yield every node for which the affinity is wrong, with the reason."""
    admitted = admit(document, policy_set, state)
    if admitted is None:
        return
    if again := mutate(admitted, "team-a", {}, ReviewContext(world_of(state, policy_set))).operations:
        yield f"a second pass changes {[operation.as_json() for operation in again]}"
    pod_demand = demand(admitted, policy_set)
    for name, node in state.nodes.items():
        before, after = eligible(document, node.labels, name), eligible(admitted, node.labels, name)
        if after and not before:
            yield f"{name}: the user's affinity excludes it, ours lets it in: {dict(node.labels)}"
        if before and not after and judge_class(pod_demand, class_for_demand(pod_demand, node)) is None:
            yield f"{name}: the filter accepts it, the affinity excludes it: {dict(node.labels)} {node.node_class}"
    yield from _terms_wider_than_the_users(_terms(document), _terms(admitted))


def _terms(document: Pod) -> list[Mapping[str, Any]]:
    affinity = (document["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return (affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or []


def _terms_wider_than_the_users(users: list[Mapping[str, Any]], ours: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield terms that are not a user's term with more requirements, and report too many terms."""
    for term in ours if users else ():
        if _parts(term) and not any(
            _parts(user_term) and _within(_parts(user_term), _parts(term)) for user_term in users
        ):
            yield f"term {term} is none of the user's"
    if len(ours) > max(MOST_TERMS, len(users)):
        yield f"{len(ours)} terms"


def _parts(term: Mapping[str, Any]) -> list[Any]:
    return [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]


def _within(few: list[Any], many: list[Any]) -> bool:
    return all(part in many for part in few)


def sharpness(fleets: int = 150, seed: int = SEED) -> tuple[int, int]:
    """Count the nodes that the affinity excludes, and the nodes refused by GFD's labels, over policies with
    Required."""
    draw = random.Random(seed)
    excluded, refused = 0, 0
    for _ in range(fleets):
        nodes = fleet(draw, 40)
        state = state_of(nodes)
        drawn, policy_set = wish(draw, nodes), rules(draw)
        required = any(policy.spec.admission.affinity.mode == "Required" for policy in _with_affinity(policy_set))
        admitted = admit(drawn, policy_set, state) if required else None
        if admitted is None:
            continue
        pod_demand = demand(admitted, policy_set)
        for name, node in state.nodes.items():
            refusal = judge_class(pod_demand, class_for_demand(pod_demand, node))
            labelled = "nvidia.com/gpu.product" in node.labels and eligible(drawn, node.labels, name)
            if labelled and refusal is not None and refusal.code in TOLD_BY_LABELS:
                refused += 1
                excluded += not eligible(admitted, node.labels, name)
    print(f"the affinity excludes {excluded} of {refused} nodes that the filter refuses: {excluded / refused:.0%}")
    return excluded, refused


def _with_affinity(policy_set: PolicySet) -> list[Any]:
    return [policy for policy in policy_set.policies if policy.spec.admission.affinity]


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), nodes=st.integers(1, 60), draw=st.randoms(use_true_random=False))
def test_affinity_excludes_no_node_that_the_filter_accepts(seed: int, nodes: int, draw: random.Random) -> None:
    """F10: Hypothesis shrinks the pod and the number of nodes."""
    made = fleet(random.Random(seed), nodes)
    drawn = wish(draw, made)

    problems = list(violations(drawn, rules(draw), state_of(made)))

    assert problems[:3] == [], drawn


def test_affinity_is_necessary_on_four_thousand_pods_and_fleets() -> None:
    """F10."""
    draw = random.Random(SEED)

    for _ in range(FLEETS):
        nodes = fleet(draw, draw.randint(20, 60))
        state = state_of(nodes)
        for _ in range(WISHES):
            drawn, policy_set = wish(draw, nodes), rules(draw)
            assert list(violations(drawn, policy_set, state))[:3] == [], drawn


def test_affinity_excludes_much_of_what_the_filter_refuses() -> None:
    excluded, refused = sharpness()

    assert refused > 500
    assert excluded > SHARPNESS * refused


@pytest.mark.parametrize("selector", [{}, {"nodeSelectorTerms": None}, {"nodeSelectorTerms": []}], ids=str)
def test_a_selector_that_selects_no_node_is_not_widened(selector: Pod) -> None:
    document = pod(annotations={"products": "H100"}, affinity={"nodeAffinity": {REQUIRED: selector}})

    assert list(violations(document, shipped(), state_of([node_document()]))) == []
