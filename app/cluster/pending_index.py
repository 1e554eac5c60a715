# SPDX-License-Identifier: Apache-2.0
"""The pending GPU pods. A part of State; the web page and the writer of Events read it."""

from collections.abc import Iterator, Mapping

from app.kube.pending_pods import PendingPod

MOST_PODS = 20_000
"""Pods in the index, some 400 bytes each (a guess at what a person reads). Further pods are only counted."""


class PendingPodIndex(Mapping[str, PendingPod]):
    """Pending pods by UID. `generation` counts changes of the index; `missed` counts pods beyond MOST_PODS."""

    def __init__(self) -> None:
        self._pods: dict[str, PendingPod] = {}
        self.generation = self.missed = 0

    def put(self, uid: str, pod: PendingPod | None) -> None:
        """Add or change a pod; None removes it, because it is no longer pending."""
        if pod is None:
            if self._pods.pop(uid, None) is not None:
                self.generation += 1
        elif (before := self._pods.get(uid)) is None and len(self._pods) >= MOST_PODS:
            self.missed += 1
        else:
            self._pods[uid] = pod  # also where it is equal, since what is not compared may have changed
            self.generation += before != pod

    def by_name(self, namespace: str, name: str) -> PendingPod | None:
        """Return a pod by its namespace and name; None if it is not in the index."""
        return next((pod for pod in self._pods.values() if (pod.namespace, pod.name) == (namespace, name)), None)

    def __getitem__(self, uid: str) -> PendingPod:
        return self._pods[uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pods)

    def __len__(self) -> int:
        return len(self._pods)
