# SPDX-License-Identifier: Apache-2.0
"""What the routes need of the service; app/server/service.py provides it."""

from collections.abc import Collection, Generator, Mapping
from typing import Any, Protocol

from app.admission.reviewed_pod import ReviewContext
from app.cluster.offered_nodes import OfferedNodes
from app.cluster.state import State
from app.cluster.usage_polling import UseReading
from app.cluster.verdict_cache import VerdictTable
from app.explain.survey import ClusterSnapshot
from app.kube.pods import Pod
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from app.policy.match import Ruling
from app.settings import FilterAnswer


class Backend(Protocol):
    """The service behind the routes."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes by name."""
        ...

    @property
    def policies(self) -> PolicySet:
        """The policies in force."""
        ...

    @property
    def generation(self) -> int:
        """The number of changes of nodes since the start."""
        ...

    @property
    def recount(self) -> bool:
        """Whether filter repeats kube-scheduler's own checks."""
        ...

    @property
    def shadow(self) -> bool:
        """Whether shadow mode is on: answers change nothing, and the real answer is logged."""
        ...

    @property
    def filter_answer(self) -> FilterAnswer:
        """Whether filter answers with all nodes that fit, with a shortlist, or with the best one."""
        ...

    @property
    def shortlist(self) -> int:
        """The most nodes of a shortlist."""
        ...

    @property
    def managed_resources(self) -> frozenset[str]:
        """The resources whose pods the first of two extenders is asked about, whatever nodes offer."""
        ...

    @property
    def offered_nodes(self) -> OfferedNodes:
        """The nodes that were named for pods lately."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace of gpu-usher, where ConfigMaps may hold policies."""
        ...

    def check_policy(self, kind: str, name: str, content: Mapping[str, Any]) -> Generator[None, None, str | None]:
        """Return in steps the problem that an edited object would cause in the policy set; None if there is none."""
        ...

    def review_context(self) -> ReviewContext:
        """Return the policies, fleet facts and knowledge that a review works with."""
        ...

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """Return the labels of a namespace."""
        ...

    def ruling(self, pod: Pod) -> Ruling:
        """Return what policies and annotations say about a Pod."""
        ...

    def demand(self, pod: Pod) -> Demand:
        """Return the demand of a Pod that the scheduler asks about."""
        ...

    def note_scheduler_request(self, pod: Pod, demand: Demand) -> None:
        """Note a request of the scheduler for a Pod: release earlier promises to it."""
        ...

    def remembers(self, pod: Pod, demand: Demand) -> bool:
        """Tell whether later decisions depend on the node of a Pod before it is seen bound."""
        ...

    def promise(self, pod: Pod, demand: Demand, node: str) -> None:
        """Note the node named for a Pod, if later decisions depend on it."""
        ...

    def add_known_facts(self, node: Node) -> Node:
        """Add to a node of a request body what the service knows of it: devices, health, and what pods hold."""
        ...

    def node_without_pods(self, name: str, uids: Collection[str]) -> Node | None:
        """Return a node as it would be without these pods; None for an unknown node."""
        ...

    def verdicts(self, demand: Demand) -> VerdictTable:
        """Return the filters' verdict on every node for a demand, and the totals of the scorers."""
        ...

    @property
    def state(self) -> State:
        """The state of the cluster, for the web page."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the service is about to end."""
        ...

    def use(self) -> UseReading:
        """Return what is known of how the GPUs that pods hold are used."""
        ...

    def pods_matched_by_policy(self) -> Mapping[str, Mapping[str, int]]:
        """Return the number of pods that each policy matched since the start, by policy and by result of the review."""
        ...

    def cluster_snapshot(self) -> ClusterSnapshot:
        """Return a copy of the state, for work that takes longer than one turn of the event loop."""
        ...

    async def fetch_pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        """Return a Pod as the API server has it. Raises WireError if it cannot be read."""
        ...

    def unready(self) -> str | None:
        """Return why scheduler requests cannot be answered now, as a constant text; None if they can."""
        ...

    def health(self) -> dict[str, Any]:
        """Return the body of /readyz."""
        ...

    def status(self) -> dict[str, Any]:
        """Return the body of /statusz."""
        ...

    def alive(self) -> bool:
        """Tell whether the event loop's heartbeat is recent."""
        ...
