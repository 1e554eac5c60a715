# SPDX-License-Identifier: Apache-2.0
"""Reasons: a closed set of codes, each with its own remedy and how a refusal ends, and messages that can be grouped."""

from pathlib import Path

import pytest

from app.values.reasons import MESSAGE_LIMIT, Code, ReasonKind, join_with_or, reason
from tests.e2e.refusals import NOT_STAGED, POLICIES, REFUSALS

FREE = {
    "InsufficientGPUs", "GPUMemoryBudgetExceeded", "LayoutDoesNotFit", "GPUHeldByClaim", "GPUHeldByDevicePlugin",
    "InsufficientGPUsOnNUMANode",
}  # fmt: skip
ADMISSION = {
    "RequestsOnly", "RequestLimitMismatch", "QuantityFractional", "QuantityNegative", "TooManyGPUs",
    "SharedReplicasAskedAsGPUs", "VisibleDevicesForbidden", "PrivilegedGPUPod", "NodeDevicesReached",
    "ReservedAnnotation",
    "InvalidAnnotation", "NoProductLeft", "PolicyConflict", "RuntimeClassMissing", "BypassesScheduling",
    "MemoryRequestNotLimit", "AmountPerGPUOutOfBounds",
    "InvalidPolicy", "ObjectTooLarge", "IdleGPUsHeld", "ResourceNameInvalid", "ClaimNotKnown", "ClaimUnrestricted",
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


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "woken.md"
AT_ADMISSION_TOO = {"InvalidAnnotation"}
"""Refuses nodes as well, for a pod that was created while the webhook was away (docs/reference/reasons.md)."""


def test_every_code_that_refuses_nodes_is_staged_or_named_with_how_it_ends() -> None:
    """F140."""
    refuse_nodes = {code.name for code in Code if code.kind is not ReasonKind.ADMISSION} | AT_ADMISSION_TOO
    staged = [row.code for row in REFUSALS]

    assert sorted([*staged, *NOT_STAGED]) == sorted(refuse_nodes)
    assert POLICIES.keys() <= set(staged)


def test_page_names_every_refusal() -> None:
    """F140: the codes that are staged stand in the table, the rest in the list below it."""
    table, _, rest = PAGE.read_text("utf-8").partition("## By code")[2].partition("The codes without a row:")

    assert [row.code for row in REFUSALS if row.code not in table] == []
    assert [code for code in NOT_STAGED if code not in rest] == []
