# SPDX-License-Identifier: Apache-2.0
"""Names of pods in the text of answers, which has room for some of them."""

MOST_SHOWN = 10
"""Most groups, nodes and names that are printed; -o json has all."""


def names_of(pods: tuple[str, ...]) -> str:
    """Return the first names of pods, and the number of others."""
    more = len(pods) - MOST_SHOWN
    return ", ".join(pods[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
