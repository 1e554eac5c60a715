# SPDX-License-Identifier: Apache-2.0
"""Reasons: a closed set of codes, each with its own remedy, and messages that kube-scheduler can group."""

import pytest

from app.values.reasons import MESSAGE_LIMIT, Code, ReasonKind, join_with_or, reason

FREE = {
    "InsufficientGPUs", "GPUMemoryBudgetExceeded", "LayoutDoesNotFit", "GPUHeldByClaim", "GPUHeldByDevicePlugin",
}  # fmt: skip
ADMISSION = {
    "RequestsOnly", "RequestLimitMismatch", "QuantityFractional", "QuantityNegative", "TooManyGPUs",
    "SharedReplicasAskedAsGPUs", "VisibleDevicesForbidden", "PrivilegedGPUPod", "NodeDevicesReached",
    "ReservedAnnotation",
    "InvalidAnnotation", "NoProductLeft", "PolicyConflict", "RuntimeClassMissing", "BypassesScheduling",
    "InvalidPolicy", "ObjectTooLarge", "IdleGPUsHeld", "ResourceNameInvalid",
}  # fmt: skip


def test_codes_are_those_of_the_interface_and_none_hides_another() -> None:
    """The codes are those of docs/reference/reasons.md; two enum members of one value would be aliases."""
    kinds = {kind: {code.name for code in Code if code.kind is kind} for kind in ReasonKind}

    assert len(Code.__members__) == len(list(Code))
    assert (kinds[ReasonKind.FREE], kinds[ReasonKind.ADMISSION]) == (FREE, ADMISSION)


@pytest.mark.parametrize("code", list(Code), ids=lambda code: code.name)
def test_every_code_has_a_remedy_and_says_whether_eviction_helps(code: Code) -> None:
    made = reason(code, "something is wrong", "something else")

    assert len(made.remedy) > 15
    assert made.preemptible is (code.name in FREE)
    assert made.message == "something is wrong: wants something else"


def test_long_message_is_cut_with_a_mark() -> None:
    made = reason(Code.ProductNotAllowed, "x" * 300)

    assert len(made.message) == MESSAGE_LIMIT
    assert made.message.endswith("…")


@pytest.mark.parametrize(
    ("choices", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")]
)
def test_lists_are_joined_by_or(choices: list[str], text: str) -> None:
    assert text == join_with_or(choices)
