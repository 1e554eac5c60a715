# SPDX-License-Identifier: Apache-2.0
"""The table of complaints is complete: a test proves each, or it says what is missing; and the file is current."""

from tests.pains import PAINS, RESULTS, numbers, proofs, table


def test_every_complaint_is_proven_by_a_test_or_says_what_is_missing() -> None:
    proven = frozenset[int]().union(*proofs().values())

    assert [pain.number for pain in PAINS if pain.number not in proven and not pain.open] == []
    assert proven <= {pain.number for pain in PAINS}


def test_complaints_are_numbered_without_a_gap_and_answered() -> None:
    assert [pain.number for pain in PAINS] == list(range(1, 51))
    assert all(pain.what and pain.seen and (pain.answer or pain.open) for pain in PAINS)


def test_published_table_is_the_one_in_force() -> None:
    """`python -m tests.pains` writes it."""
    assert table() == RESULTS.read_text("utf-8")


def test_numbers_of_complaints_are_read_from_a_docstring() -> None:
    assert numbers("P1, F31, S2 and P2: the P50") == {1, 2, 50}
    assert numbers("p99, PP3, P100, P0, XP4, P5a") == frozenset()
