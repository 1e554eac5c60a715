# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/reference that are made from code say what the code says."""

from tests.reference import FAULTS_PAGE, REASONS, faults_page, reasons_page


def test_published_reasons_are_those_in_force() -> None:
    """`python -m tests.reference` writes them."""
    assert reasons_page() == REASONS.read_text("utf-8")


def test_published_faults_are_those_of_the_table() -> None:
    """`python -m tests.reference` writes them."""
    assert faults_page() == FAULTS_PAGE.read_text("utf-8")
