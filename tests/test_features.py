# SPDX-License-Identifier: Apache-2.0
"""The feature list is complete: a test proves each row, or the row says what is missing; and the page is current."""

from tests.feature_rows import GROUPS, MISSING
from tests.features import RESULTS, ROWS, proofs, rows, table

UNUSED = {58, 66, 71, 93, 126, 127, 128}
"""Numbers that were given up, and are not given again."""


def test_every_feature_is_proven_by_a_test_or_says_what_is_missing() -> None:
    proven = frozenset[str]().union(*proofs().values())

    assert [row for row in ROWS if row not in proven and row not in MISSING] == []
    assert sorted(proven - set(ROWS)) == []


def test_every_number_has_one_row_but_those_that_were_given_up() -> None:
    expected = {f"F{number}" for number in range(1, 151) if number not in UNUSED}
    expected |= {f"S{number}" for number in range(1, 16)}

    assert len(ROWS) == len(set(ROWS))
    assert set(ROWS) == expected
    assert MISSING.keys() <= expected


def test_every_row_is_one_short_sentence() -> None:
    texts = [text for group in GROUPS.values() for text in group.values()]

    assert [text for text in texts if not text.endswith(".") or len(text) > 130] == []


def test_published_features_are_those_in_force() -> None:
    """`python -m tests.features` writes them."""
    assert table() == RESULTS.read_text("utf-8")


def test_rows_are_read_from_a_docstring() -> None:
    assert rows("P1, F31, S2: the F50; F57-F59, F65 to F67.") == {
        "F31", "S2", "F50", "F57", "F59", "F65", "F67"
    }  # fmt: skip
    assert rows("F999 is no row") == {"F999"}
    assert rows("SF1, F0, F5a, HS256, F-1") == frozenset()
