# SPDX-License-Identifier: Apache-2.0
"""The GPU pods that wait for a node. A part of State; only the page reads it."""

from collections.abc import Iterator, Mapping

from app.kube.pending_pods import PendingPod

MOST = 20_000
"""Kept, some 400 bytes each; a person reads no list of more (guess). Those that come later are only counted."""


class PendingPodIndex(Mapping[str, PendingPod]):
    """By UID. `generation`: how often a pod came, went or changed; `missed`: those that found no room."""

    def __init__(self) -> None:
        self._pods: dict[str, PendingPod] = {}
        self.generation = self.missed = 0

    def take(self, uid: str, found: PendingPod | None) -> None:
        """Take a pod in; None: it waits no more."""
        if found is None:
            if self._pods.pop(uid, None) is not None:
                self.generation += 1
        elif self._pods.get(uid) != found:
            if uid not in self._pods and len(self._pods) >= MOST:
                self.missed += 1
                return
            self._pods[uid] = found
            self.generation += 1

    def named(self, namespace: str, name: str) -> PendingPod | None:
        """Find a pod by its name."""
        return next((each for each in self._pods.values() if (each.namespace, each.name) == (namespace, name)), None)

    def __getitem__(self, uid: str) -> PendingPod:
        return self._pods[uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pods)

    def __len__(self) -> int:
        return len(self._pods)
