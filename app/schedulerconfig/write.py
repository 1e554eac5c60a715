# SPDX-License-Identifier: Apache-2.0
"""Write the KubeSchedulerConfiguration that calls gpu-usher: every field with the reason why it is there.

kube-scheduler asks an extender with managedResources about pods that name one of them, and an extender without about
every pod. One that must answer about every pod of a cluster could stop the cluster while it does not answer, so that
such a configuration has two extenders (docs/decisions/0046-ask-about-other-pods-by-an-extender-that-may-fail.md).
"""

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from app.knowledge.tables import Knowledge
from app.kube.api_kinds import NAMESPACE
from app.nodes.model import Node
from app.values.errors import BadInput

Target = Literal["second", "default"]
OWN_NAME = "gpu-usher-scheduler"
SERVER_NAME = "gpu-usher.gpu-usher.svc"
"""This name is in every certificate of ours, so that verification succeeds whatever address the URL has."""
URLS: dict[Target, str] = {
    "second": "http://127.0.0.1:8444/scheduler",
    "default": f"https://{SERVER_NAME}:443/scheduler",
}
OTHER_PODS = "other-pods"
"""What the second of two extenders adds to the URL: it is asked about every pod, and decides those that name no managed
resource."""
_URL = re.compile(
    r"(?:https://(?:[\w.-]+|\[[0-9a-fA-F:]+\])|http://(?:127\.0\.0\.1|\[::1\]))(?::\d{1,5})?(?:/[\w.~-]+)*/scheduler",
    re.ASCII,
)
"""Plain HTTP is for loopback alone, which only the containers of one pod share."""
EXTENDER_WEIGHT = 10
"""One point of ours then counts 100; an ordinary GPU pod gets about 400 in-tree
(docs/reference/scores.md#scores-on-the-wire)."""
TIMEOUT_SECONDS = 2
"""Scheduling is one loop: a slow answer delays every pod. Ours takes about a millisecond at 5,000 nodes."""
OTHER_PODS_TIMEOUT_SECONDS = 1
"""Every pod of the cluster waits so long while our replicas neither answer nor refuse the connection."""
BALANCE_WEIGHT = 20
"""Weight of NodeResourcesBalancedAllocation without an extender: five points of balance count as much as all that
ImageLocality gives (docs/reference/scores.md#without-us)."""
SCORE_ALL_UP_TO_NODES = 1000
"""Scoring every node costs kube-scheduler five times as much at 5,000 nodes
(docs/reference/control-plane.md#sampling)."""


@dataclass(frozen=True, slots=True)
class ConfigurationPlan:
    """What to write.

    `ca` is the CA as PEM, or its path on the scheduler's machine; plain HTTP needs none. `nodes` is the number of
    nodes, 0 where not known. `filter_answer` is that of the service: all or shortlist. `every_pod` makes pods
    without GPU call an extender too. `claims` says that the cluster has ResourceSlices of GPUs, so that a pod may ask
    for GPUs without naming a resource. Without `extender` kube-scheduler decides alone, by what admission has written.
    """

    target: Target
    url: str
    ca: bytes | str
    resources: tuple[str, ...]
    nodes: int = 0
    filter_answer: str = "shortlist"
    every_pod: bool = False
    claims: bool = False
    extender: bool = True

    @property
    def two_extenders(self) -> bool:
        """Whether a second extender is asked about the pods that name no GPU resource, and may fail.

        A scheduler of our own schedules no pod that the cluster needs to run, so that its one extender can be asked
        about all of its pods, and fail closed for claims too.
        """
        return self.every_pod or (self.claims and self.target == "default")

    @property
    def lists_resources(self) -> bool:
        """Whether the (first) extender is asked only about pods that name a GPU resource."""
        return self.two_extenders or not self.claims


def managed_resources(nodes: Iterable[Node], knowledge: Knowledge) -> tuple[str, ...]:
    """List the resources whose pods must call the extender, sorted.

    They are those of the families, those that nodes offer, and every MIG profile of the knowledge tables:
    kube-scheduler compares whole names, and a node may get another MIG layout tomorrow.
    """
    fixed = {name for family in knowledge.families.all for name in family.resources}
    offered = {name for node in nodes for name, _ in node.node_class.offered}
    prefix = knowledge.families.mig_prefix
    mig_slices = {prefix + name for names in knowledge.mig.by_product.values() for name in names if prefix}
    return tuple(sorted(fixed | offered | mig_slices))


def packed_resources(nodes: Iterable[Node], knowledge: Knowledge) -> tuple[str, ...]:
    """List the resources by which kube-scheduler alone packs, sorted: those that nodes offer.

    Without nodes they are those of the families, and no MIG profile: for every name that a pod does not request
    kube-scheduler parses that name once per node and plugin (IsScalarResourceName in resource_allocation.go), so that
    all 90 names of `managed_resources` let it place a tenth as many pods per second (tests.bench.scheduler).
    """
    offered = {name for node in nodes for name, _ in node.node_class.offered}
    return tuple(sorted(offered or {name for family in knowledge.families.all for name in family.resources}))


def offers_claims(nodes: Iterable[Node]) -> bool:
    """Tell whether a node has GPUs in ResourceSlices, so that pods may claim them without naming a resource."""
    return any(node.devices is not None for node in nodes)


def read_extender_url(text: str) -> str:
    """Check the URL by which kube-scheduler is to call the extender.

    Raises BadInput.
    """
    url = text.rstrip("/")
    if not _URL.fullmatch(url):
        raise BadInput(
            f"--url: got {text[:80]!r}, wants https://HOST:PORT/scheduler, or http:// on loopback, "
            f"such as {URLS['second']}"
        )
    return url


def read_ca(name: str, pem: bytes) -> bytes:
    """Check the PEM that is written into the file, which everyone may read: certificates, and no private key.

    Raises BadInput.
    """
    if b"-----BEGIN CERTIFICATE-----" not in pem:
        raise BadInput(f"--ca {name}: got no certificate, wants the CA of our certificate, in PEM")
    if b"PRIVATE KEY-----" in pem:
        raise BadInput(f"--ca {name}: got a private key beside the certificate, wants the certificate alone")
    return pem


def percentage(plan: ConfigurationPlan) -> int:
    """Choose percentageOfNodesToScore; 0 leaves kube-scheduler's own sampling."""
    return 100 if plan.target == "second" and 0 < plan.nodes <= SCORE_ALL_UP_TO_NODES else 0


def write(plan: ConfigurationPlan) -> str:
    """Write the configuration as YAML."""
    if not plan.extender:
        return "\n".join([*_head(plan), *_packing_profiles(plan), ""])
    second = _other_pods(plan) if plan.two_extenders else ()
    return "\n".join([*_head(plan), *_profile(plan), *_extender(plan), *_resources(plan), *second, ""])


def _head(plan: ConfigurationPlan) -> list[str]:
    second = plan.target == "second"
    namespace, name = (NAMESPACE, OWN_NAME) if second else ("kube-system", "kube-scheduler")
    return [
        f"# Written by: gpu-usher scheduler-config --for {plan.target}"
        + (f" --filter-answer {plan.filter_answer}" if plan.filter_answer != "shortlist" else "")
        + (" --every-pod" if plan.every_pod else "")
        + ("" if plan.extender else " --no-extender")
        + ". Check an edited copy with --verify FILE.",
        "apiVersion: kubescheduler.config.k8s.io/v1",
        "kind: KubeSchedulerConfiguration",
        *([] if second else ["clientConnection:", "  kubeconfig: /etc/kubernetes/scheduler.conf # kubeadm's own"]),
        "leaderElection:",
        "  leaderElect: true # with two replicas one schedules and one is on standby",
        "  resourceLock: leases",
        *(
            ["  # Our own lease: with the default one it would take turns with the cluster's scheduler."]
            if second
            else []
        ),
        f"  resourceNamespace: {namespace}",
        f"  resourceName: {name}",
    ]


def _profile(plan: ConfigurationPlan) -> list[str]:
    percent = percentage(plan)
    if percent:
        comment = [
            f"  # Score every node: with {plan.nodes:,} nodes that is affordable, and packing sees the whole fleet.",
            "  # Above 1,000 nodes leave the default sampling (0): at 5,000 scoring all costs 22 ms a pod against 4.",
        ]
    else:
        comment = [
            "  # 0 is the scheduler's own sampling (of 1,000 nodes it looks at 420, of 5,000 at 500). What labels say",
            "  # is node affinity as well, looked at before the sample is taken. What none says (a full memory budget,",
            "  # a minor driver version) may miss the sample; the pod is tried again. Where that hurts, write 100.",
        ]
    own = plan.target == "second"
    name = f"{OWN_NAME} # pods name it; our webhook does so by policy" if own else "default-scheduler"
    return ["profiles:", f"- schedulerName: {name}", *comment, f"  percentageOfNodesToScore: {percent}"]


def _packing_profiles(plan: ConfigurationPlan) -> list[str]:
    """Write the profile for GPU pods without an extender, beside that of the cluster's own scheduler if it is that."""
    own = ["- schedulerName: default-scheduler # as it ships: other pods are spread, and keep their scores"]
    percent = 100 if 0 < plan.nodes <= SCORE_ALL_UP_TO_NODES else 0
    return [
        "# No extender: node affinity and tolerations, which our webhook writes, say where a pod may run. What only an",
        "# extender knows (gpu-usher doctor lists it) is not looked at, and of GPUs the number alone.",
        "profiles:",
        *(own if plan.target == "default" else ()),
        f"- schedulerName: {OWN_NAME} # pods name it; our webhook does so by policy (admission.schedulerName)",
        f"  percentageOfNodesToScore: {percent} # 0 is the scheduler's own sampling",
        "  plugins:",
        "    score:",
        "      enabled:",
        f"      - {{name: NodeResourcesBalancedAllocation, weight: {BALANCE_WEIGHT}}} # decides",
        "      disabled: # its default spreads; MostAllocated fills small nodes first, and with them rare products",
        "      - name: NodeResourcesFit",
        "  pluginConfig:",
        "  - name: NodeResourcesBalancedAllocation",
        "    args:",
        "      # A node whose CPU is used up before its GPUs strands these. A GPU resource that the pod does not",
        "      # request counts for nothing, but costs time on every node: list those that nodes offer.",
        "      # Where memory is used up first, write memory in place of cpu.",
        "      resources:",
        "      - {name: cpu, weight: 1}",
        *(f"      - {{name: {name}, weight: 1}}" for name in plan.resources),
        "  - name: PodTopologySpread",
        "    args:",
        "      defaultingType: List # no default constraints: they spread, and prevent batching (from 1.35)",
    ]


_SCORING = (
    "  prioritizeVerb: prioritize",
    f"  weight: {EXTENDER_WEIGHT} # 0..10 of ours become 0..1000: enough to outweigh the 400 that in-tree plugins give",
)


_BATCHING: dict[Target, tuple[str, ...]] = {
    "second": ("# An extender switches opportunistic batching (from 1.35) off, here for this scheduler's pods alone.",),
    "default": (
        "# An extender switches opportunistic batching (Kubernetes 1.35) off for every pod of this scheduler. With the",
        "# default spreading constraints, as here, none is batched anyway; with defaultingType: List it costs it.",
    ),
}


def _extender(plan: ConfigurationPlan) -> list[str]:
    place = "the sidecar beside this scheduler" if plan.target == "second" else "the Service"
    alone = ["  # No prioritizeVerb: filter names the best nodes alone, which saves the scheduler a call a pod."]
    return [
        *_BATCHING[plan.target],
        "extenders:",
        f"- urlPrefix: {plan.url} # {place}",
        *(
            ["  # A scheduler with hostNetwork often cannot resolve *.svc: write the ClusterIP, serverName still fits."]
            if plan.target == "default"
            else []
        ),
        "  filterVerb: filter # names go out, those that fit come back, each of the others with a reason",
        *(_SCORING if plan.filter_answer == "all" else alone),
        "  # Without it pods are evicted for nothing: preemption never asks filter whether the pod would fit then.",
        "  preemptVerb: preempt",
        *_transport(plan),
        f"  httpTimeout: {TIMEOUT_SECONDS}s # scheduling is one loop: while it waits for gpu-usher, every pod waits",
        "  nodeCacheCapable: true # names, not whole nodes: with false 140 ms a pod, and in-tree scores go wrong",
        "  ignorable: false # fail closed: a GPU pod waits for gpu-usher rather than be placed by count alone",
    ]


def _transport(plan: ConfigurationPlan) -> list[str]:
    if plan.url.startswith("http://"):
        return ["  enableHTTPS: false # only this pod reaches its loopback, and TLS would cost as much as filter"]
    if isinstance(plan.ca, str):
        ca = f"caFile: {plan.ca}"
    else:
        ca = f"caData: {base64.b64encode(plan.ca).decode()}"
    return [
        "  enableHTTPS: true # whole pods are sent over this connection",
        "  tlsConfig:",
        "    # Without a CA the scheduler verifies nothing. It reads it once: after a new CA, restart the scheduler.",
        f"    {ca}",
        f"    serverName: {SERVER_NAME} # what the certificate must say, whatever address the URL has",
    ]


def _resources(plan: ConfigurationPlan) -> list[str]:
    if not plan.lists_resources:
        return [
            "  # No managedResources: a pod that claims GPUs by ResourceClaims alone names no resource, so that we",
            "  # would not be asked. We are asked about pods without GPU too, and give all of their nodes back.",
        ]
    return [
        "  # Only pods that ask for one of these reach us. Names are compared whole: every MIG profile is listed.",
        "  # ignoredByScheduler false: the scheduler goes on counting them itself.",
        "  managedResources:",
        *(f"  - {{name: {name}, ignoredByScheduler: false}}" for name in plan.resources),
    ]


def _other_pods(plan: ConfigurationPlan) -> list[str]:
    scored = plan.every_pod or plan.filter_answer == "all"
    keep_off = [
        "  # Pods without GPU: 10 for a node without GPUs, at most 7 for one with, as a taint PreferNoSchedule weighs.",
        *_SCORING,
    ]
    return [
        "# Asked about every pod; those of the entry above get the nodes back that it has left.",
        f"- urlPrefix: {plan.url}/{OTHER_PODS}",
        "  filterVerb: filter # all nodes come back, but of a pod that claims GPUs those that fit",
        *(keep_off if scored else []),
        "  preemptVerb: preempt # for claims",
        *_transport(plan),
        f"  httpTimeout: {OTHER_PODS_TIMEOUT_SECONDS}s # every pod of the cluster waits so long if gpu-usher hangs",
        "  nodeCacheCapable: true # as above",
        "  # While no replica answers, pods are scheduled as without us: kube-system's, our own, and those that claim",
        "  # GPUs by ResourceClaims alone too. With false nothing would be scheduled then, our own pods neither.",
        "  ignorable: true",
    ]
