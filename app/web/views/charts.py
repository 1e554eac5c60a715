# SPDX-License-Identifier: Apache-2.0
"""Small charts: a share over some hours, as the path of an SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 240, 40
"""Units of the viewBox, which page.css scales."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. `path` is the `d` of an SVG path, empty with fewer than two points; `words` describes the chart."""

    path: str
    words: str


def chart(shares: Sequence[float], title: str, span: str) -> Chart:
    """Draw shares from 0 to 1, the oldest first. `span` is the time from the first to the last, in words."""
    if len(shares) < 2:
        return Chart("", f"{title}: no history yet")
    step = WIDTH / (len(shares) - 1)
    points = (f"{index * step:.1f} {HEIGHT - HEIGHT * min(max(share, 0), 1):.1f}" for index, share in enumerate(shares))
    first, last = shares[0], shares[-1]
    words = f"{title} over {span}: from {first:.0%} to {last:.0%}, least {min(shares):.0%}, most {max(shares):.0%}"
    return Chart("M" + "L".join(points), words)
