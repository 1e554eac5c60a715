# SPDX-License-Identifier: Apache-2.0
"""The search for a node or a pod by a part of its name."""

from collections.abc import Iterable
from dataclasses import dataclass

MOST_FOUND = 50
"""Nodes, and pods, that are listed; a longer name finds the others."""


@dataclass(frozen=True, slots=True)
class Found:
    """The nodes and pods whose names contain the text, those that are equal to it first.

    Pods are pairs of namespace/name and node, which is empty while the pod is pending. `more` is the number of those
    left out. `only` has the only match, or the only one that has exactly this name, as the path of its page before it
    is quoted; empty if there is none.
    """

    nodes: tuple[str, ...]
    pods: tuple[tuple[str, str], ...]
    more: int
    only: str


def find(text: str, nodes: Iterable[str], pods: Iterable[tuple[str, str]]) -> Found:
    """Find a text in the names of nodes, and of pods, which are pairs of namespace/name and node. Case is ignored."""
    text = text.lower()
    found_nodes = sorted((name for name in nodes if text in name), key=lambda name: (name != text, name))
    found_pods = sorted(
        {pod for pod in pods if text in pod[0]}, key=lambda pod: (not _is_named(pod[0], text), pod)
    )  # fmt: skip
    exact = [f"/nodes/{name}" for name in found_nodes if name == text]
    exact += [f"/pending/{key}" for key, _ in found_pods if _is_named(key, text)]
    pages = exact or [*(f"/nodes/{name}" for name in found_nodes), *(f"/pending/{key}" for key, _ in found_pods)]
    more = max(len(found_nodes) - MOST_FOUND, 0) + max(len(found_pods) - MOST_FOUND, 0)
    only = pages[0] if len(pages) == 1 else ""
    return Found(tuple(found_nodes[:MOST_FOUND]), tuple(found_pods[:MOST_FOUND]), more, only)


def _is_named(key: str, text: str) -> bool:
    return text in (key, key.partition("/")[2])
