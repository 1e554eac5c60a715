# SPDX-License-Identifier: Apache-2.0
"""What the routes need of the rest of the service; service.py provides it."""

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol

from app.admission.review import ReviewContext
from app.explain.survey import ClusterSnapshot
from app.knowledge.tables import Knowledge
from app.kube.gpu_usage import GPUUsage
from app.kube.pending_pods import PendingPod
from app.kube.pods import Pod
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from app.policy.match import Ruling
from app.values.reasons import Code


class DemandVerdicts(Protocol):
    """The verdicts on all known nodes for one demand."""

    @property
    def feasible(self) -> set[str]:
        """Names of the nodes that fit."""
        ...

    @property
    def failed(self) -> Mapping[str, str]:
        """Messages of the nodes where evicting pods could help, by name."""
        ...

    @property
    def unresolvable(self) -> Mapping[str, str]:
        """Messages of the nodes where it could not, by name."""
        ...

    @property
    def behind(self) -> set[str]:
        """Names of those that fit only because kube-scheduler's count is believed."""
        ...

    @property
    def codes(self) -> Mapping[str, Code]:
        """The reason code by message."""
        ...

    def totals(self, names: Sequence[str]) -> list[float]:
        """Totals of nodes, in the order asked."""
        ...


class ChangedNodes(Protocol):
    """The log of changed nodes."""

    @property
    def generation(self) -> int:
        """How many changes there were since the start."""
        ...

    def since(self, generation: int) -> Iterable[str] | None:
        """Names of the nodes changed after a generation, repeats possible; None if that is too long ago."""
        ...


class PendingPods(Protocol):
    """The GPU pods that wait for a node."""

    @property
    def generation(self) -> int:
        """How often one came, went or changed."""
        ...

    @property
    def missed(self) -> int:
        """How many found no room in the list."""
        ...

    def values(self) -> Collection[PendingPod]:
        """Those that are kept."""
        ...


class FleetView(Protocol):
    """What the page shows of the cluster: the index itself, read between two turns of the event loop."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All known nodes."""
        ...

    @property
    def knowledge(self) -> Knowledge:
        """The fact tables."""
        ...

    @property
    def changes(self) -> ChangedNodes:
        """Which nodes are other than they were."""
        ...

    @property
    def waiting(self) -> PendingPods:
        """The GPU pods that wait for a node."""
        ...

    def holdings(self, node: str) -> tuple[GPUUsage, ...]:
        """What bound pods hold of a node's GPUs."""
        ...

    def booked(self, node: str) -> Mapping[str, int]:
        """What bound pods have booked of a node's resources of every kind."""
        ...


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

    def appraise(self, demand: Demand) -> DemandVerdicts:
        """Judge all nodes for a demand."""
        ...

    @property
    def state(self) -> FleetView:
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
