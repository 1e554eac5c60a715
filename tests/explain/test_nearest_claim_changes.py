# SPDX-License-Identifier: Apache-2.0
"""F84, S13: random devices and a claim that one known change would help; the change is written anew into the claim.

The proof is independent: the words of a change are applied to the ResourceClaimTemplate, and the pod is explained anew.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.explain.explanation import Explanation
from tests.dra.worlds import DRIVER, device, request, slice_document
from tests.explain.test_claims import explained, template

Document = dict[str, Any]
PATH = f"device.capacity['{DRIVER}'].memory"
STRICT = (f"{PATH}.compareTo(quantity('{{}}Gi')) > 0", f"{PATH}.isGreaterThan(quantity('{{}}Gi'))")
MEMORY = f"{PATH}.compareTo(quantity('{{}}Gi')) >= 0"
UNGUARDED = (
    MEMORY,
    f"device.driver == '{DRIVER}' && {MEMORY}",
    f"quantity('{{}}Gi').compareTo({PATH}) <= 0",
    f"!({PATH}.isLessThan(quantity('{{}}Gi')))",
)


def devices(node: str, sizes: list[int], **more: Any) -> Document:
    """Write the slice of a node with devices of some sizes in Gi; 0 for one without a memory."""
    capacities = ({"memory": {"value": f"{size}Gi", **more}} if size else {} for size in sizes)
    listed = [device(f"{node}-{index}", {}, capacity=capacity) for index, capacity in enumerate(capacities)]
    written = slice_document(f"slice-{node}", listed)
    written["spec"]["nodeName"] = node
    written["spec"]["pool"] = {**written["spec"]["pool"], "name": node}
    return {**written, "kind": "ResourceSlice"}


def texts(explanation: Explanation) -> list[str]:
    return [fix.edits[0].text for fix in explanation.fixes]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 80), min_size=1, max_size=4), st.sampled_from(STRICT), st.integers(0, 40))
def test_strict_comparison_is_loosened_to_the_largest_device(sizes: list[int], selector: str, more: int) -> None:
    """F84: at the boundary too, where equality would be enough."""
    wanted, most = max(sizes) + more, max(sizes)
    slices = devices("n", sizes)

    explanation = explained(template(request(selectors=[selector.format(wanted)])), slices)

    assert texts(explanation)[0] == f"request gpu: ask for memory >= {most}Gi instead of > {wanted}Gi"
    assert explained(template(request(selectors=[MEMORY.format(most)])), slices).fits == explanation.fixes[0].opens == 1


@pytest.mark.parametrize(
    ("condition", "change"),
    [
        ("model in ['A', 'B']", "model == C instead of in [A, B]"),
        ("model == 'A'", "model == C instead of == A"),
        ("version.compareTo(semver('2.0.0')) >= 0", "version >= 1.5.0 instead of >= 2.0.0"),
        ("version.isGreaterThan(semver('1.5.0'))", "version >= 1.5.0 instead of > 1.5.0"),
        ("lanes > 8", "lanes >= 8 instead of > 8"),
        ("ready == false", "ready == true instead of == false"),
    ],
)
def test_condition_of_each_type_is_loosened_to_what_the_device_has(condition: str, change: str) -> None:
    """F84: `opens` is what the allocator says of the condition as it would be."""
    has = device("a", {"model": "C", "version": {"version": "1.5.0"}, "lanes": 8, "ready": True})
    written = {**slice_document("slice-n", [has]), "kind": "ResourceSlice"}

    explanation = explained(template(request(selectors=[f"device.attributes['{DRIVER}'].{condition}"])), written)

    assert texts(explanation)[0] == f"request gpu: ask for {change}"
    assert explanation.fixes[0].opens > 0


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 80), min_size=1, max_size=4), st.integers(1, 40))
def test_as_much_capacity_as_a_device_has_is_requested(sizes: list[int], more: int) -> None:
    """F84: the capacity of a request, not of a selector."""
    most = max(sizes)

    def asking(amount: int) -> Explanation:
        return explained(template(request(capacity={"memory": f"{amount}Gi"})), devices("n", sizes))

    explanation = asking(most + more)

    assert texts(explanation)[0].endswith(f"memory {most}Gi instead of {most + more}Gi"), texts(explanation)
    assert asking(most).fits == explanation.fixes[0].opens == 1


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(2, 3))
def test_the_same_need_of_several_requests_is_changed_in_all_of_them(size: int, more: int, count: int) -> None:
    """F84: a change of one request alone helps nobody."""
    names = ["a", "b", "c"][:count]

    def asking(wanted: int) -> Explanation:
        requests = (request(name=name, selectors=[MEMORY.format(wanted)]) for name in names)
        return explained(template(*requests), devices("n", [size] * count))

    explanation = asking(size + more)

    listed = ", ".join(names)
    assert texts(explanation)[0] == f"requests {listed}: ask for memory >= {size}Gi instead of >= {size + more}Gi"
    assert asking(size).fits == explanation.fixes[0].opens == 1


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(UNGUARDED), st.booleans(), st.integers(40, 80))
def test_selector_that_fails_on_another_node_is_told_to_test_has_first(selector: str, first: bool, size: int) -> None:
    """F84, S13: in each form, and whichever node comes first."""
    bare, full = ("n", "m") if first else ("m", "n")
    slices = (devices(bare, [0]), devices(full, [size]))

    explanation = explained(template(request(selectors=[selector.format(40)])), *slices)

    assert explanation.fits == 0
    assert explanation.primary is not None
    assert f"reads capacity {DRIVER}/memory, which some devices" in explanation.primary.message
    assert "test has() before it is read" in explanation.primary.message
    assert explained(template(request(selectors=[f"has({PATH}) && ({selector.format(40)})"])), *slices).fits == 1


@pytest.mark.parametrize("size", [1, 2])
def test_end_of_a_pod_is_proposed_where_requests_fail_only_together(size: int) -> None:
    """F84: each request could be served by itself."""
    held = devices("n", [40] * (size + 1))
    claim = {
        "kind": "ResourceClaim",
        "metadata": {"name": "x", "namespace": "default"},
        "spec": {"devices": {"requests": [request()]}},
        "status": {
            "allocation": {"devices": {"results": [
                {"request": "gpu", "driver": DRIVER, "pool": "n", "device": "n-0"}]}},
            "reservedFor": [{"resource": "pods", "name": "train-0", "uid": "1"}],
        },
    }  # fmt: skip
    asked = template(*(request(name=name, selectors=[MEMORY.format(40)]) for name in ("a", "b", "c")[: size + 1]))

    explanation = explained(asked, held, claim)

    assert explanation.fits == 0
    assert "end pod default/train-0, which has n-0" in texts(explanation)
