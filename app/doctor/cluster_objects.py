# SPDX-License-Identifier: Apache-2.0
"""A live cluster as the doctor reads it: objects as the API server returned them, and what was measured beside them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.admission.match_conditions import AMOUNTS
from app.knowledge.gpu_resources import Families
from app.knowledge.tables import Knowledge
from app.kube.finished_pods import FinishedPod
from app.nodes.gpu_health import Health
from app.nodes.model import Node
from app.values.json_members import JSONObject
from app.world.world import World

APPLY = "kubectl apply --server-side --force-conflicts -f gpu-usher.yaml (README.md, Install), or helm upgrade"
"""How an installation is repaired. A single file of deploy/base would take away what the overlay's components add."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A serving certificate.

    `where` names the object or address that shows it. `spent` is the share of its life that is over, 0 to 1. `ends`
    is its end as text. `wrong` are the reasons why callers do not accept it.
    """

    where: str
    spent: float
    ends: str
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlippedReport:
    """A running GPU pod that bypassed admission (unadmitted), or is on a node that we would refuse (misplaced).

    `kind` says which of the two; `why` is the code of the refusal, empty for an unadmitted pod.
    """

    pod: str
    kind: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class GPUPodTried:
    """What became of a GPU pod that was created by dry run in a namespace.

    `failure` is the API server's message where it could not decide about the pod, empty where it did. `reviewed` is
    false where it admitted the pod without our review.
    """

    namespace: str
    failure: str = ""
    reviewed: bool = True


@dataclass(frozen=True, slots=True)
class ExaminedCluster:
    """The cluster that is examined: its World, and what the doctor reads or measures beside it.

    `objects` are listed by kind; a kind that the cluster does not serve is absent.
    `refused` are the kinds (and other requests) that could not be read, with the API server's message.
    `version` is the API server's gitVersion.
    `ahead_seconds` is how far its clock is ahead of ours; None where it did not send the time.
    `rules` are the resourceRules of gpu-usher's service account; None where they could not be read.
    `namespace` is where gpu-usher runs.
    `extender_hosts` are the hosts of the URLs at which the scheduler's configuration calls the extender.
    `tried` is what became of a GPU pod by dry run; None where the user may not create one.
    `cpu_guard` is true where the component cpu-guard is installed.
    `health` is what DCGM says of the GPUs of each node.
    `finished` are the GPU pods that have ended. `schedulers` are the schedulers that placed GPU pods on each node.
    `now` is a Unix time. `since` has by node name and label when the label was set at the latest, where known.
    """

    world: World
    objects: Mapping[str, tuple[JSONObject, ...]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    ahead_seconds: float | None = None
    certificates: tuple[Certificate, ...] = ()
    rules: tuple[JSONObject, ...] | None = None
    slipped: tuple[SlippedReport, ...] = ()
    namespace: str = "gpu-usher"
    extender_hosts: tuple[str, ...] = ()
    tried: GPUPodTried | None = None
    cpu_guard: bool = False
    health: Mapping[str, Health] = field(default_factory=dict)
    finished: tuple[FinishedPod, ...] = ()
    schedulers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    now: float = 0.0
    since: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @property
    def knowledge(self) -> Knowledge:
        return self.world.knowledge

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self.world.nodes.values())

    def objects_of(self, kind: str) -> tuple[JSONObject, ...]:
        """Return the objects of a kind; none where it is not served, or could not be read."""
        return self.objects.get(kind, ())

    def could_read(self, kind: str) -> bool:
        return kind in self.objects

    def gpu_nodes(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.has_gpus)

    def machines(self) -> Iterator[Node]:
        """List the nodes that are machines, with or without GPUs: a virtual node's kubelet runs no pods itself."""
        return (node for node in self.nodes if not self.knowledge.evidence.is_other(node.labels, virtual=True))

    def runtime_class_names(self) -> frozenset[str]:
        """Name the values of runtimeClassName of the policies, which may be Auto."""
        return frozenset(
            name for policy in self.world.policies.policies if (name := policy.spec.admission.runtime_class_name)
        )


def object_name(kind: str, item: JSONObject) -> str:
    """Write an object's kind and name: "Kind name" or "Kind namespace/name"."""
    metadata = item.get("metadata") or {}
    namespace = metadata.get("namespace")
    return f"{kind} {namespace}/{metadata.get('name')}" if namespace else f"{kind} {metadata.get('name')}"


def containers(template: Any) -> Iterator[JSONObject]:
    """Yield the containers of every list `containers` or `initContainers` in a document of any structure."""
    if isinstance(template, Mapping):
        for key, value in template.items():
            if key in ("containers", "initContainers") and isinstance(value, list):
                yield from (container for container in value if isinstance(container, Mapping))
            else:
                yield from containers(value)
    elif isinstance(template, list):
        for value in template:
            yield from containers(value)


def asks_for_gpus(pod: JSONObject, families: Families) -> bool:
    """Tell whether a pod names a GPU resource, or claims devices through DRA, also by an extended resource."""
    spec = pod.get("spec") or {}
    resource_maps = (
        (container.get("resources") or {}).get(amounts) or () for container in containers(spec) for amounts in AMOUNTS
    )
    return bool(spec.get("resourceClaims")) or any(
        families.of(name) or families.passthrough_family(name) or families.implicit_class(name)
        for resources in resource_maps
        for name in resources
    )
