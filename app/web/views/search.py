# SPDX-License-Identifier: Apache-2.0
"""The search for a node or a pod by a part of its name."""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

MOST_FOUND = 50
"""Nodes, and pods, that are listed; a longer name finds the others."""


@dataclass(frozen=True, slots=True)
class FoundPod:
    """A pod that was found. `node` is the node that it has, empty while it is pending."""

    key: str
    node: str

    @property
    def address(self) -> str:
        """The address of its page."""
        return "/pending/" + quote(self.key)


@dataclass(frozen=True, slots=True)
class Found:
    """The nodes and pods whose names contain the text, those that are equal to it first.

    `more` is the number of those left out. `address` is the page of the only one, or of the only one that has exactly
    this name; empty if there is none.
    """

    nodes: tuple[str, ...]
    pods: tuple[FoundPod, ...]
    more: int
    address: str


def find(text: str, nodes: Iterable[str], pods: Iterable[tuple[str, str]]) -> Found:
    """Find a text in the names of nodes, and of pods, which are pairs of namespace/name and node. Case is ignored."""
    text = text.lower()
    found_nodes = sorted((name for name in nodes if text in name), key=lambda name: (name != text, name))
    found_pods = [FoundPod(*pod) for pod in sorted(set(pods)) if text in pod[0]]
    found_pods.sort(key=lambda pod: not _is_named(pod, text))
    exact = [_node_address(name) for name in found_nodes if name == text]
    exact += [pod.address for pod in found_pods if _is_named(pod, text)]
    everything = exact or [*map(_node_address, found_nodes), *(pod.address for pod in found_pods)]
    more = max(len(found_nodes) - MOST_FOUND, 0) + max(len(found_pods) - MOST_FOUND, 0)
    address = everything[0] if len(everything) == 1 else ""
    return Found(tuple(found_nodes[:MOST_FOUND]), tuple(found_pods[:MOST_FOUND]), more, address)


def _is_named(pod: FoundPod, text: str) -> bool:
    return text in (pod.key, pod.key.partition("/")[2])


def _node_address(name: str) -> str:
    return "/nodes/" + quote(name, safe="")
