# SPDX-License-Identifier: Apache-2.0
"""The API server's patience: `POST /mutate?timeout=2s`; what comes later than that is thrown away (ADM-27)."""

import re

RESERVE_SECONDS = 0.2
"""Kept for the way back (docs/reference/listeners.md#failures)."""
_DURATION = re.compile(r"(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_to_answer(timeout: str | None) -> float | None:
    """Read Go's notation (`2s`, `1m30s`), less the reserve but at least half; None where nothing readable is said."""
    if not timeout or len(timeout) > 40 or not _DURATION.fullmatch(timeout):
        return None
    total = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(timeout))
    return max(total - RESERVE_SECONDS, total / 2)
