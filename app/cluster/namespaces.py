# SPDX-License-Identifier: Apache-2.0
"""The labels of namespaces. A part of State."""

from collections.abc import Mapping


class Namespaces:
    """Labels by the name of the namespace. `changes` counts namespaces whose labels are others than before."""

    def __init__(self) -> None:
        self.by_name: dict[str, Mapping[str, str]] = {}
        self.changes = 0

    def put(self, name: str, labels: Mapping[str, str]) -> None:
        """Set a namespace's labels."""
        self.changes += self.labels(name) != labels
        self.by_name[name] = labels

    def drop(self, name: str) -> None:
        """Remove a namespace."""
        before = self.labels(name)
        self.by_name.pop(name, None)
        self.changes += self.labels(name) != before

    def labels(self, name: str) -> Mapping[str, str]:
        """Return a namespace's labels; an unknown one has the label that every namespace has."""
        return self.by_name.get(name) or {"kubernetes.io/metadata.name": name}
