# SPDX-License-Identifier: Apache-2.0
"""The API server's patience: `POST /mutate?timeout=2s`; what comes later than that is thrown away (ADM-27)."""

from app.values.durations import parse_seconds

RESERVE_SECONDS = 0.2
"""Kept for the way back (docs/reference/listeners.md#failures)."""


def seconds_to_answer(timeout: str | None) -> float | None:
    """Read Go's notation (`2s`, `1m30s`), less the reserve but at least half; None where nothing readable is said."""
    total = parse_seconds(timeout)
    return None if total is None else max(total - RESERVE_SECONDS, total / 2)
