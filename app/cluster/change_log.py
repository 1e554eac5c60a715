# SPDX-License-Identifier: Apache-2.0
"""The log of changed nodes: readers that keep answers catch up by it. A part of State."""

from collections.abc import Iterable

CHANGES_KEPT = 20_000
"""Changed names remembered for readers that catch up; one that is further behind starts over. Four times the
largest fleet of the budgets (5,000 nodes)."""


class ChangeLog:
    """Names of changed nodes, in order. `generation` counts them since the start."""

    def __init__(self) -> None:
        self.generation = 0
        self._names: list[str] = []
        self._first = 0

    def note(self, name: str) -> None:
        """Note that a node changed, came or went."""
        self.generation += 1
        self._names.append(name)
        if len(self._names) > CHANGES_KEPT:
            kept = self._names[CHANGES_KEPT // 2 :]
            self._first += len(self._names) - len(kept)
            self._names = kept

    def forget(self) -> None:
        """Let every reader start over, one that is up to date too."""
        self.generation += 1
        self._first = self.generation
        self._names = []

    def since(self, generation: int) -> Iterable[str] | None:
        """Name the nodes changed after a generation (repeats possible); None if that is too long ago."""
        if generation < self._first:
            return None
        return self._names[generation - self._first :]
