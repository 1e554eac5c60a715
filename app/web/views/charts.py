# SPDX-License-Identifier: Apache-2.0
"""Small charts: a share over the hours as the path of an SVG, drawn where the page is made."""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 240, 40
"""Units of the viewBox; page.css scales it."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One line. `path`: for the `d` of a path; empty with fewer than two points. `words`: what it shows, said."""

    path: str
    words: str


def chart(shares: Sequence[float], what: str, span: str) -> Chart:
    """Draw shares from 0 to 1, the oldest first. `span`: the time from the first to the last, in words."""
    if len(shares) < 2:
        return Chart("", f"{what}: no history yet")
    step = WIDTH / (len(shares) - 1)
    points = (f"{index * step:.1f} {HEIGHT - HEIGHT * min(max(share, 0), 1):.1f}" for index, share in enumerate(shares))
    words = (
        f"{what} over {span}: from {shares[0]:.0%} to {shares[-1]:.0%}, least {min(shares):.0%}, most {max(shares):.0%}"
    )
    return Chart("M" + "L".join(points), words)
