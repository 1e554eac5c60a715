# SPDX-License-Identifier: Apache-2.0
"""The page of reasons says what the code says."""

from tests.reference import REASONS, reasons_page


def test_published_reasons_are_those_in_force() -> None:
    """`python -m tests.reference` writes them."""
    assert reasons_page() == REASONS.read_text("utf-8")
