# SPDX-License-Identifier: Apache-2.0
"""What a row of the table of use has to be for a pod of the made week."""

import pytest

from app.usage.table import UsageRow
from tests.usage.made_week import Truth


def expect_true(row: UsageRow, truth: Truth) -> None:
    """Compare the figures of a row with what is true of its pod."""
    held, known = sum(truth.held), [share for share in truth.activity if share is not None]
    assert row.held_hours == pytest.approx(held / 60, abs=0.02), row
    assert row.known_share == pytest.approx(len(known) / held, abs=0.001), row
    mean = sum(known) / len(known) if known and not truth.shared else None
    assert row.active_share == (None if mean is None else pytest.approx(mean, abs=0.002)), row
    assert row.memory_peak_mib == (None if truth.shared or truth.memory is None else round(truth.memory)), row
