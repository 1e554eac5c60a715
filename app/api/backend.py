# SPDX-License-Identifier: Apache-2.0
"""What the routes need of the rest of the service; service.py provides it."""

from collections.abc import Collection, Generator, Mapping
from typing import Any, Protocol

from app.admission.review import ReviewContext
from app.cluster.state import State
from app.cluster.verdict_cache import VerdictTable
from app.explain.survey import ClusterSnapshot
from app.kube.pods import Pod
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from app.policy.match import Ruling


class Backend(Protocol):
    """The service behind the routes."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All known nodes."""
        ...

    @property
    def policies(self) -> PolicySet:
        """The policies in force."""
        ...

    @property
    def generation(self) -> int:
        """How many changes of nodes the view of the cluster has taken in."""
        ...

    @property
    def recount(self) -> bool:
        """Repeat kube-scheduler's own counts in filter."""
        ...

    @property
    def shadow(self) -> bool:
        """Answer as if nothing were wrong, and log the real verdict."""
        ...

    @property
    def best_only(self) -> bool:
        """Answer filter with the best node alone."""
        ...

    @property
    def namespace(self) -> str:
        """Our own namespace, where ConfigMaps may hold policies."""
        ...

    def check_policy(self, kind: str, name: str, content: Mapping[str, Any]) -> Generator[None, None, str | None]:
        """What the policy set would suffer from an edit; None for nothing. In steps."""
        ...

    def setting(self) -> ReviewContext:
        """Policies, fleet and facts for a review."""
        ...

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """Labels of a namespace."""
        ...

    def ruling(self, pod: Pod) -> Ruling:
        """What policies and annotations say about a Pod."""
        ...

    def demand(self, pod: Pod) -> Demand:
        """What a Pod that the scheduler asks about needs of a node."""
        ...

    def note_question(self, pod: Pod, demand: Demand) -> None:
        """Take in that the scheduler asks about a Pod: forget what was promised to it before, and learn from it."""
        ...

    def promise(self, pod: Pod, demand: Demand, node: str) -> None:
        """Note the node that was named for a Pod, where the next decision rests on it."""
        ...

    def complete(self, node: Node) -> Node:
        """A node as read, with what else is known of it."""
        ...

    def without(self, name: str, uids: Collection[str]) -> Node | None:
        """A node as it would be with these pods gone; None for one that is not known."""
        ...

    def appraise(self, demand: Demand) -> VerdictTable:
        """Judge all nodes for a demand."""
        ...

    @property
    def state(self) -> State:
        """What is known of the cluster, for the page."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the service is about to end."""
        ...

    def matched(self) -> Mapping[str, Mapping[str, int]]:
        """How many pods each policy matched since the start, by what became of them."""
        ...

    def world(self) -> ClusterSnapshot:
        """A copy of what is known now, for what takes longer than one turn of the event loop."""
        ...

    async def fetch_pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        """A pod as the API server has it; WireError where it cannot be had."""
        ...

    def unready(self) -> str | None:
        """Why scheduling questions cannot be answered now, as a constant text; None if they can."""
        ...

    def health(self) -> dict[str, Any]:
        """The body of /readyz."""
        ...

    def status(self) -> dict[str, Any]:
        """The body of /statusz."""
        ...

    def alive(self) -> bool:
        """Whether the event loop's heartbeat is recent."""
        ...
