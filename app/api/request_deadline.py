# SPDX-License-Identifier: Apache-2.0
"""The API server's timeout, as in `POST /mutate?timeout=2s`; it drops answers that come later (ADM-27)."""

from app.values.quantity import parse_seconds

RESERVE_SECONDS = 0.2
"""Reserved for the way of the answer (docs/reference/listeners.md#failures)."""


def seconds_to_answer(timeout: str | None) -> float | None:
    """Read a Go duration (`2s`, `1m30s`) less the reserve, but at least half of it; None if there is none to read."""
    total = parse_seconds(timeout)
    return None if total is None else max(total - RESERVE_SECONDS, total / 2)
