# SPDX-License-Identifier: Apache-2.0
"""Durations in Go's syntax (time.ParseDuration), without a sign: `2s`, `1m30s`, `1.5h`."""

import re

_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)"
_DURATION = re.compile(f"(?:{_PART})+", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
MOST_CHARACTERS = 40
"""Characters of a duration that is read; Go's own longest output has 23."""


def parse_seconds(text: object) -> float | None:
    """Read a duration, in seconds; None where the text is not one, or is too long."""
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS or not _DURATION.fullmatch(text):
        return None
    return sum(float(amount) * _SECONDS[unit] for amount, unit in re.findall(_PART, text))
