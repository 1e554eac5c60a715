# SPDX-License-Identifier: Apache-2.0
"""The log of changed nodes, by which caches of verdicts catch up. A part of State."""

from collections.abc import Iterable

CHANGES_KEPT = 20_000
"""Names kept; a reader that is further behind starts over. Four times the largest fleet of the budgets (5,000
nodes)."""


class ChangeLog:
    """The names of changed nodes, in order. `generation` is their number since the start."""

    def __init__(self) -> None:
        self.generation = 0
        self._names: list[str] = []
        self._first = 0

    def note(self, name: str) -> None:
        """Note that a node was added, changed or removed."""
        self.generation += 1
        self._names.append(name)
        if len(self._names) > CHANGES_KEPT:
            kept = self._names[CHANGES_KEPT // 2 :]
            self._first += len(self._names) - len(kept)
            self._names = kept

    def reset(self) -> None:
        """Make every reader start over, also one that is up to date."""
        self.generation += 1
        self._first = self.generation
        self._names = []

    def since(self, generation: int) -> Iterable[str] | None:
        """Return the nodes changed after a generation, repeats possible; None if that is too long ago."""
        if generation < self._first:
            return None
        return self._names[generation - self._first :]
