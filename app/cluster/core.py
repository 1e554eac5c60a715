# SPDX-License-Identifier: Apache-2.0
"""The core: state, policies, verdicts, rulings, readiness (/readyz, /livez), for routes, Events, pages and commands.

It knows nothing of HTTP and of certificates. `app/server/service.py` adds what a process that serves has besides.
"""

import re
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from operator import is_not
from typing import Any

from app import __version__
from app.cluster.apiserver import ApiServer
from app.cluster.gpu_health_polling import HealthPoller
from app.cluster.live import NOT_SYNCED, LiveCluster
from app.cluster.policy_watch import PolicyBook
from app.cluster.slipped_pods import SlippedPods
from app.cluster.usage_polling import UsagePoller
from app.intree.soft_constraints import SoftConstraints
from app.knowledge.tables import Knowledge
from app.kube.admission_objects import LIMIT_KINDS
from app.kube.api_kinds import API_KINDS
from app.kube.claimed_devices import ClaimedDevices
from app.kube.gangs import PodGroup
from app.kube.gpu_usage import GPUUsage
from app.kube.pods import GROUP_LABELS, Pod, read_pod, workload_group
from app.kube.records import read_record
from app.nodes.model import Node
from app.placement.scheduler_demand import (
    place_is_promised,
    whole_cores,
    with_cliques,
    with_reached_limits,
    with_runtime_handler,
)
from app.placement.scorers import uses_expected_demand
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from app.policy.match import compile_demand
from app.schedulerconfig.write import managed_resources
from app.settings import Settings
from app.telemetry.metrics import Metrics
from app.values.errors import ApiError, BadInput, WireError
from app.world.demand_learning import DemandLearning
from app.world.namespace_limits import LimitsExceeded, held_by_others
from app.world.scheduling_groups import SchedulingGroups
from app.world.state import State
from app.world.verdict_cache import VerdictCache
from app.world.world import RulingCache, TemplateCache, World, world_of


@dataclass(frozen=True, slots=True)
class AskedPod:
    """A pod that a scheduler asks about: what it prefers, and what it needs.

    `promised` says that later decisions depend on its node, `beside_groups` that what groups of pods hold counts for it
    beside the verdicts: where only we count what it takes.
    """

    pod: Pod
    soft: SoftConstraints
    demand: Demand
    promised: bool
    beside_groups: bool


def _compile(
    pod: Pod, labels: Mapping[str, str], policies: PolicySet, knowledge: Knowledge, claimed: ClaimedDevices
) -> tuple[Demand, int | None]:
    """Compile the demand of a pod, and give its CPU in milli-CPU; None where no scorer looks ahead."""
    demand = compile_demand(pod, labels, policies, knowledge, claimed)
    return demand, whole_cores(pod) if uses_expected_demand(demand) else None


MOST_SCHEDULERS = 16
"""Names of schedulers that are kept; a cluster has one to three."""
HEARTBEAT_LIMIT_SECONDS = 10.0
"""Seconds after which /livez fails (docs/reference/listeners.md#probes)."""

LAST_GOOD_SECONDS = 10.0
"""So long a process that starts with invalid policies is not ready until it has looked for the last good set. A guess:
the list of a few ConfigMaps takes milliseconds, and a process that cannot read it must serve all the same."""


FETCH_SECONDS = 5.0
"""For a GET of one pod, which takes some 10 ms as a rule (a guess)."""
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""A DNS-1123 subdomain; nothing else may become part of a request's path."""


class Core:
    """State, policies, verdicts and rulings, and the tasks that keep them current.

    `cluster` follows a live cluster, `server` reads single objects of it, `slipped` finds pods that passed admission
    unseen; all are None without a live cluster. `gpu_health` is None unless asked for. `draining` is set
    before the process ends, `synced` once a fleet that is read once is complete, `absent` names kinds that it lacks.
    `managed_resources` are the resources whose pods the first of two extenders is asked about, whatever nodes offer.
    """

    def __init__(self, settings: Settings, state: State, book: PolicyBook) -> None:
        self.settings = settings
        self.state = state
        self.nodes: Mapping[str, Node] = state.nodes
        self.book = book
        self.metrics = Metrics(settings.role)
        self.draining = self.synced = False
        self.cluster: LiveCluster | None = None
        self.server: ApiServer | None = None
        self.slipped: SlippedPods | None = None
        self.gpu_health: HealthPoller | None = None
        self.usage = UsagePoller(None, lambda: self.policies, state)
        self.absent: tuple[str, ...] = ()
        self.beat = self.filled = time.monotonic()
        self.offered: dict[str, frozenset[str]] = {}
        """The names of the nodes that the last pods were offered, by the pods' UIDs."""
        self.groups = SchedulingGroups(state)
        self.managed_resources = frozenset(managed_resources((), state.knowledge))
        self.verdicts = VerdictCache(state, settings.recounting)
        self._rulings, self._demands = RulingCache(), TemplateCache(_compile)
        self._learning = DemandLearning(state)
        self._asking: set[str] = set()
        self._world: World | None = None
        self._exceeded = LimitsExceeded(state, self.metrics.limits_exceeded.inc)

    @property
    def policies(self) -> PolicySet:
        """The policies in force today."""
        return self.book.current

    def check_policy(
        self, kind: str, name: str, content: Mapping[str, Any]
    ) -> Generator[None, None, tuple[str | None, tuple[str, ...]]]:
        """Return the problem that an edited object would cause in the policy set, and what cannot be meant in it.

        `kind` is configmap or gpupolicy. A product that a node carries is not unknown.
        """
        problem, policies = yield from self.book.check(f"{kind} {name}", content)
        carried = {group.node_class.product or "" for group in self.state.fleet().node_groups}
        unknown = (pair for policy in policies for pair in policy.unknown_products)
        warnings = (text for pattern, text in unknown if not any(map(pattern.matches, carried)))
        return problem, (*(text for policy in policies for text in policy.doubts), *warnings)

    @property
    def policy_error(self) -> str | None:
        """Why the policies in force are not those that are written, one line each; None if they are."""
        unreadable = self.cluster.unreadable_policies() if self.cluster is not None else []
        return "\n".join([*([self.book.error] if self.book.error else []), *unreadable]) or None

    def world(self) -> World:
        """View the cluster as it stands, under the policies in force; the same object until a part of it is another."""
        state, made = self.state, self._world
        parts = self.policies, state.fleet(), state.devices.dra.current, self.usage.idle_seconds
        if made is None or any(map(is_not, parts, (made.policies, made.fleet, made.devices, made.idle_seconds))):
            made = self._world = world_of(state, self.policies, idle_seconds=parts[3], rulings=self._rulings)
        return made

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        return self.state.namespaces.by_name[name]

    def demand(self, pod: Pod) -> Demand:
        """Return the demand of a Pod that the scheduler asks about."""
        state, labels, policies = self.state, self.namespace_labels(pod.namespace), self.policies
        demand, cpu_milli = self._demands.of(pod, labels, policies, state)
        demand = with_runtime_handler(demand, pod, state.runtime_classes)
        if pod.pod_group:
            demand = with_cliques(demand, self.groups.cliques(pod, demand))
        elif not pod.labels.keys().isdisjoint(GROUP_LABELS):
            demand = with_cliques(demand, state.group_cliques(pod))
        if demand.namespace_limits:
            self._exceeded.know(pod.namespace, demand.namespace_limits, (policies.hash, frozenset(labels.items())))
            demand = with_reached_limits(demand, held_by_others(state, pod, self.groups.holds))
        return demand if cpu_milli is None else self._learning.expecting(demand, cpu_milli, policies)

    def ask(self, pod: Pod, soft: SoftConstraints) -> AskedPod:
        """Compile what a Pod needs that a scheduler asks about, and release earlier promises to it."""
        demand = self.demand(pod)
        promised, twice = place_is_promised(pod, demand), bool(self.state.served_twice)
        if len(self._asking) < MOST_SCHEDULERS:
            self._asking.add(pod.scheduler_name)
        if not pod.pod_group and (promised or twice):
            self.state.release(pod.uid, time.monotonic())
        beside = bool((demand.declared_mib or twice) and (pod.pod_group or self.groups.holds))
        return AskedPod(pod, soft, demand, promised, beside)

    def promise(self, asked: AskedPod, node: str) -> None:
        """Note the node named for a pod, if later decisions depend on it."""
        pod, demand = asked.pod, asked.demand
        if pod.pod_group:
            self.groups.hold(pod, demand, node, time.monotonic())
        elif asked.promised or (demand.requests_gpus and node in self.state.served_twice):
            name, group = f"{pod.namespace}/{pod.name}", workload_group(pod.namespace, pod.labels)
            claims = tuple(device_class for device_class, _ in demand.claims)
            claimed = demand.claimed - self.state.devices.allocated_to(pod) if claims else 0
            holding = GPUUsage(
                pod.uid, node, name, demand.resources, demand.declared_mib, group, claims=claims, claimed=claimed
            )
            self.state.promise(holding, time.monotonic())

    def expire_promises(self) -> None:
        """Release promises to pods that were not bound in time."""
        self.state.release("", time.monotonic())
        self.groups.expire(time.monotonic())

    def world_copied(self) -> World:
        """Copy the cluster as it stands, for work that takes longer than one turn of the event loop."""
        unread = set(LIMIT_KINDS) - self.state.admission_objects.listed if self.cluster is not None else ()
        return replace(
            self.world().copied(),
            expected=self._learning.expected_demand(self.policies),
            asking=frozenset(self._asking),
            unread_limits=tuple(sorted(unread)),
        )

    async def fetch_pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        """Read a whole Pod from the API server, or from the pending pods of a snapshot.

        Raises WireError: 404 if there is none, 400 for an invalid name, 502 without an answer.
        """
        if self.server is None:
            if (known := self.state.pending_pods.by_name(namespace, name)) is None or known.document is None:
                raise WireError(
                    404, "this service follows no live cluster and knows no such pending pod: post the Pod itself"
                )
            return known.document
        if not (NAME.fullmatch(namespace) and NAME.fullmatch(name)):
            raise WireError(400, "namespace, name: want names as Kubernetes has them")
        try:
            pod = await self.server.read(f"/api/v1/namespaces/{namespace}/pods/{name}", seconds=FETCH_SECONDS)
        except ApiError as error:
            raise WireError(502, f"pod {namespace}/{name}: {error}") from error
        if pod is None:
            raise WireError(404, f"pod {namespace}/{name} not found")
        return pod

    async def fetch_pod_group(self, document: Mapping[str, Any]) -> PodGroup | None:
        """Read the PodGroup of a pod from the API server; None without one, and where it may not be read.

        Raises MalformedPod.
        """
        pod = read_pod(document)
        if self.server is None or not NAME.fullmatch(pod.pod_group) or not NAME.fullmatch(pod.namespace):
            return None
        kind = API_KINDS["PodGroup"]
        for version in kind.versions:
            path = f"{kind.group_path}/{version}/namespaces/{pod.namespace}/{kind.plural}/{pod.pod_group}"
            try:
                if found := await self.server.read(path, seconds=FETCH_SECONDS):
                    return read_record(PodGroup, found)
            except (ApiError, BadInput):
                continue
        return None

    def cache_problem(self) -> str | None:
        """Return why the cache does not show the cluster now, so that no scheduler request is answered by it.

        It is a constant text; None if there is no problem. This is not readiness (`health`): a stale replica stays
        ready, and answers with this error until its watches are back.
        """
        if self.cluster is not None:
            return self.cluster.cache_problem()
        return None if self.synced else NOT_SYNCED

    def alive(self) -> bool:
        """Tell whether the event loop has run within HEARTBEAT_LIMIT_SECONDS."""
        return time.monotonic() - self.beat < HEARTBEAT_LIMIT_SECONDS

    def health(self) -> dict[str, Any]:
        """Return the body of /readyz, whose `ready` is the readiness (docs/reference/listeners.md#probes)."""
        synced = self.cluster.synced if self.cluster is not None else self.synced
        waiting = self.book.awaiting_last_good and time.monotonic() - self.filled < LAST_GOOD_SECONDS
        return {
            "ready": not self.draining and (synced or self.settings.role == "admission") and not waiting,
            "policies": {
                "loaded": len(self.policies.policies),
                "hash": self.policies.hash[:12],
                "serving": self.book.serving,
                "error": self.policy_error,
            },
            "caches": self.cluster.health() if self.cluster is not None else {"nodes": self._filled()},
            "draining": self.draining,
        }

    def _filled(self) -> dict[str, Any]:
        """Return the age of a demo fleet or a snapshot, in the form of a cache's health."""
        age = time.monotonic() - self.filled
        return {"synced": self.synced, "objects": len(self.state.nodes), "age_seconds": int(age)}

    def status(self) -> dict[str, Any]:
        """Return the body of /statusz."""
        loaded = [
            {
                "name": policy.name,
                "priority": policy.spec.priority,
                "from": policy.origin,
                "description": policy.spec.description,
            }
            for policy in self.policies.policies
        ]
        return {
            "version": __version__,
            "role": self.settings.role,
            "recount": self.settings.recounting,
            "filter_answer": self.settings.filter_answer,
            **self.health(),
            "shadow": self.settings.shadow,
            "gpu_health": self.gpu_health.status() if self.gpu_health else None,
            "use": self.usage.status(),
            "policies": {
                "hash": self.policies.hash,
                "loaded": loaded,
                "serving": self.book.serving,
                "error": self.policy_error,
                "expired_exceptions": [list(exception) for exception in self.book.expired_exceptions()],
            },
        }
