# SPDX-License-Identifier: Apache-2.0
"""Durations in Go's syntax are read as seconds."""

import pytest

from app.values.quantity import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2s", 2.0), ("1m30s", 90.0), ("1.5h", 5400.0), (".5s", 0.5), ("250ms", 0.25), ("0s", 0.0), ("10us", 1e-5)],
)
def test_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [None, 2, "", "2", "s", "-1s", "1 s", "1S", "1d", "1s" * 21])
def test_text_that_is_no_duration_gives_none(text: object) -> None:
    assert parse_seconds(text) is None
