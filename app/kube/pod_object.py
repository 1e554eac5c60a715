# SPDX-License-Identifier: Apache-2.0
"""The declaration of a Pod (core/v1): the members that are read, with their types and bounds.

The watch decodes pods by it, and a snapshot, an AdmissionReview and a scheduler's request are converted by it. A pod
with a member of another type is refused. Amounts are of any type, and are checked where they are parsed. Members of
the items of lists, of which there may be thousands, may be null; elsewhere `read_record` leaves null out. Source of
all: the API reference of Kubernetes.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from msgspec import Meta, field

from app.kube.node_selectors import DeclaredTerm, MatchExpression, NodeSelectorObject
from app.kube.objects import Amounts, LabelledMetadata, ObjectCondition, Texts
from app.kube.pod_limits import LONGEST_IMAGE, LONGEST_NAME, MOST_CLAIMS
from app.kube.records import Record, read_record

FINISHED = ("Succeeded", "Failed")
"""Phases of pods that no longer hold devices; a terminating pod still holds its devices."""
DEFAULT_NAMESPACE, DEFAULT_SCHEDULER = "default", "default-scheduler"
REQUIRED_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED_TERMS = "preferredDuringSchedulingIgnoredDuringExecution"

Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
Image = Annotated[str, Meta(max_length=LONGEST_IMAGE)]


class Owner(Record, frozen=True):
    """An owner of an object, which may be its controller."""

    api_version: str | None = None
    kind: str | None = None
    name: str | None = None
    uid: str | None = None
    controller: bool | None = None


class FieldManager(Record, frozen=True):
    manager: str | None = None
    fields_v1: dict[str, Any] | None = field(default=None, name="fieldsV1")


class PodMetadata(LabelledMetadata, frozen=True):
    """Metadata of a Pod. `managed_fields` say which program wrote which field."""

    name: Name = ""
    namespace: Name = ""
    uid: Name = ""
    generate_name: Name = ""
    owner_references: tuple[Owner, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    managed_fields: tuple[FieldManager, ...] = ()

    @property
    def controller(self) -> Owner | None:
        """The owner that makes the object again, if it has one."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class OwnedObject(Record, frozen=True):
    """An object of any kind that may have a controller."""

    metadata: PodMetadata = PodMetadata()


class ObjectSelector(Record, frozen=True):
    match_labels: Texts | None = None
    match_expressions: tuple[MatchExpression, ...] | None = None


class PodAffinityTerm(Record, frozen=True):
    """A term of pod affinity or anti-affinity; the keys are of labels of the pod itself."""

    topology_key: str | None = None
    label_selector: ObjectSelector | None = None
    namespaces: tuple[str, ...] | None = None
    namespace_selector: ObjectSelector | None = None
    match_label_keys: tuple[str, ...] | None = None
    mismatch_label_keys: tuple[str, ...] | None = None


class PreferredTerm(Record, frozen=True):
    """A preferred term: a `preference` for nodes, or a term about other pods."""

    weight: int | None = None
    preference: DeclaredTerm | None = None
    pod_affinity_term: PodAffinityTerm | None = None


class NodeAffinity(Record, frozen=True):
    required: NodeSelectorObject | None = field(default=None, name=REQUIRED_TERMS)
    preferred: tuple[PreferredTerm, ...] = field(default=(), name=PREFERRED_TERMS)


class PodAffinity(Record, frozen=True):
    required: tuple[PodAffinityTerm, ...] = field(default=(), name=REQUIRED_TERMS)
    preferred: tuple[PreferredTerm, ...] = field(default=(), name=PREFERRED_TERMS)


class PodAffinities(Record, frozen=True):
    node_affinity: NodeAffinity = NodeAffinity()
    pod_affinity: PodAffinity = PodAffinity()
    pod_anti_affinity: PodAffinity = PodAffinity()


class TopologySpread(Record, frozen=True):
    """A constraint on how the pods that it selects are spread (core/v1 TopologySpreadConstraint)."""

    max_skew: int | None = None
    min_domains: int | None = None
    topology_key: str | None = None
    when_unsatisfiable: str | None = None
    label_selector: ObjectSelector | None = None
    match_label_keys: tuple[str, ...] | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


class Toleration(TypedDict, total=False):
    """A toleration, which stays an object, since admission writes such objects too."""

    key: str | None
    operator: str | None
    value: str | None
    effect: str | None


class HostPort(Record, frozen=True):
    host_port: int | None = None
    host_ip: str | None = field(default=None, name="hostIP")
    protocol: str | None = None


class ClaimSource(Record, frozen=True):
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodClaim(ClaimSource, frozen=True):
    """An entry of resourceClaims; `source` is of Kubernetes 1.26 to 1.30."""

    name: str | None = None
    source: ClaimSource | None = None


class NamedRequest(Record, frozen=True):
    name: str | None = None
    request: str | None = None


class Resources(Record, frozen=True):
    limits: Amounts | None = None
    requests: Amounts | None = None
    claims: Annotated[tuple[NamedRequest, ...], Meta(max_length=MOST_CLAIMS)] | None = None


class Variable(Record, frozen=True):
    name: str | None = None
    value: str | None = None
    value_from: Any = None


class SecurityContext(Record, frozen=True):
    privileged: bool | None = None


class ContainerObject(Record, frozen=True):
    """A container of any list."""

    name: Name | None = None
    image: Image | None = None
    ports: tuple[HostPort, ...] | None = None
    restart_policy: str | None = None
    resources: Resources | None = None
    env: tuple[Variable, ...] | None = None
    volume_mounts: tuple[dict[str, Any], ...] | None = None
    security_context: SecurityContext | None = None

    @property
    def sidecar(self) -> bool:
        """Whether it keeps running, if it is an init container."""
        return self.restart_policy == "Always"


class ClaimVolume(Record, frozen=True):
    claim_name: str | None = None


class ProjectedVolume(Record, frozen=True):
    sources: tuple[dict[str, Any], ...] | None = None


class Volume(Record, frozen=True):
    name: str | None = None
    persistent_volume_claim: ClaimVolume | None = None
    host_path: Texts | None = None
    projected: ProjectedVolume | None = None


class Gate(Record, frozen=True):
    name: str | None = None


class SchedulingGroup(Record, frozen=True):
    pod_group_name: Name = ""


class PodSpec(Record, frozen=True):
    """What a Pod is meant to be."""

    affinity: PodAffinities = PodAffinities()
    topology_spread_constraints: tuple[TopologySpread, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    node_selector: Texts | None = None
    containers: tuple[ContainerObject, ...] = ()
    init_containers: tuple[ContainerObject, ...] = ()
    ephemeral_containers: tuple[ContainerObject, ...] = ()
    volumes: tuple[Volume, ...] = ()
    resources: Resources | None = None
    overhead: Amounts | None = None
    scheduling_gates: tuple[Gate, ...] = ()
    resource_claims: Annotated[tuple[PodClaim, ...], Meta(max_length=MOST_CLAIMS)] = ()
    priority: int | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    node_name: str = ""
    scheduler_name: Name = ""
    runtime_class_name: str | None = None
    scheduling_group: SchedulingGroup = SchedulingGroup()


class ContainerMoment(Record, frozen=True):
    reason: str | None = None
    message: str | None = None
    exit_code: int | None = None


class ContainerState(Record, frozen=True):
    waiting: ContainerMoment | None = None
    terminated: ContainerMoment | None = None


class DeviceHealth(Record, frozen=True):
    resource_id: str | None = field(default=None, name="resourceID")
    health: str | None = None


class ResourceStatus(Record, frozen=True):
    """The devices of one resource of a container (allocatedResourcesStatus)."""

    name: str | None = None
    resources: tuple[DeviceHealth, ...] | None = None


class ContainerStatus(Record, frozen=True):
    name: str | None = None
    state: ContainerState | None = None
    last_state: ContainerState | None = None
    restart_count: int | None = None
    allocated_resources_status: tuple[ResourceStatus, ...] | None = None


class ExtendedClaims(Record, frozen=True):
    """The claim that kube-scheduler made for extended resources."""

    resource_claim_name: str | None = None
    request_mappings: tuple[dict[str, Any], ...] | None = None


class PodStatus(Record, frozen=True):
    """What became of a Pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[ObjectCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    nominated_node_name: Name = ""
    resource_claim_statuses: tuple[dict[str, Any], ...] = ()
    extended_resource_claim_status: ExtendedClaims | None = None
    qos_class: str | None = None


class PodObject(OwnedObject, frozen=True):
    """A Pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def namespace(self) -> str:
        return self.metadata.namespace or DEFAULT_NAMESPACE

    @property
    def key(self) -> str:
        """The key of the pod, namespace/name."""
        return f"{self.namespace}/{self.metadata.name}"

    @property
    def finished(self) -> bool:
        return self.status.phase in FINISHED

    @property
    def scheduler(self) -> str:
        """The scheduler that is to place it."""
        return self.spec.scheduler_name or DEFAULT_SCHEDULER


def pod_object(document: Mapping[str, Any]) -> PodObject:
    """Convert a Pod that was decoded before. Raises MalformedPod, OversizedPod."""
    return read_record(PodObject, document)
