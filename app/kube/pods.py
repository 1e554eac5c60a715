# SPDX-License-Identifier: Apache-2.0
"""Pods: the fields of a Pod's JSON that decisions depend on, and Kubernetes' arithmetic of resource requests.

Admission keeps the JSON of the Pod itself as a dict and makes its patch against it, so that unknown fields survive.
JSON whose shape Kubernetes would refuse raises MalformedPod with the path.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from app.knowledge.image_configs import ImageFacts
from app.kube.pod_limits import (
    ANNOTATIONS_BYTES,
    LABELS_CHARACTERS,
    MOST_AMOUNTS,
    MOST_ANNOTATIONS,
    MOST_CLAUSES,
    MOST_CONTAINERS,
    MOST_EXTENDED,
    MOST_LABELS,
    MOST_RESOURCES,
    MOST_VARIABLES,
    VARIABLES_CHARACTERS,
)
from app.kube.pod_object import (
    DEFAULT_NAMESPACE,
    DEFAULT_SCHEDULER,
    ContainerObject,
    OwnedObject,
    PodClaim,
    PodMetadata,
    PodObject,
    Resources,
)
from app.kube.records import read_record
from app.values.errors import MalformedPod, OversizedPod, QuantityError
from app.values.json_members import json_type
from app.values.quantity import integer_quantity, parse_quantity, quantity_problem


class ObjectReference(NamedTuple):
    """An object by its API version, kind, namespace, name and UID."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @property
    def group(self) -> str:
        """The API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]


def controller_of(document: Mapping[str, Any]) -> ObjectReference | None:
    """Return the controller of an object, which is in the object's own namespace; None where it has none.

    Raises BadInput for metadata that no API server sends.
    """
    return controller_in(read_record(OwnedObject, document).metadata)


def controller_in(metadata: PodMetadata) -> ObjectReference | None:
    """Return the controller that the metadata of an object names."""
    if (owner := metadata.controller) is None:
        return None
    fields = (owner.api_version, owner.kind, metadata.namespace, owner.name, owner.uid)
    texts = [text for text in fields if text]
    return ObjectReference(*texts) if len(texts) == len(fields) else None


TOKEN_VOLUME = "kube-api-access-"
"""Prefix of the volume's name (kubernetes plugin/pkg/admission/serviceaccount/admission.go ServiceAccountVolumeName);
five random letters follow, others in each pod."""


def without_token_volumes(items: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a pod's volumes, or a container's mounts of them, without those of a service account's token."""
    return [item for item in items if not str(item.get("name", "")).startswith(TOKEN_VOLUME)]


ZERO = Fraction(0)
VARIABLES = ("NVIDIA_", "CUDA_VERSION", "VLLM_ENABLE_CUDA_COMPATIBILITY", "LD_LIBRARY_PATH")
"""The starts of the names of variables that are read: the container toolkit's, those of `compat_opt_in` in
knowledge/image_cuda.yaml, and the path by which a pod may load another library. A PyTorchJob gives each pod another
RANK, on which nothing depends."""
PREFIX = "gpu-usher.io/"
"""The prefix of the annotations and labels that gpu-usher defines."""
DECISION = PREFIX + "decision"
"""The annotation in which admission records what it changed in a pod (admission/review.py)."""
GPU_MEMORY = PREFIX + "gpu-memory"
"""The annotation in which a pod declares how much memory of each GPU it uses, such as `20Gi`."""
PRODUCTS = PREFIX + "products"
"""The annotation in which a pod names the GPU products that it accepts or refuses."""
WORKLOAD_CLASS = PREFIX + "workload-class"
"""The annotation by which a pod chooses the policies of a workload class."""
GROUP_LABELS = (
    "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/name",
    "training.kubeflow.org/job-name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
)
"""The labels by which pods belong to one workload, the widest group first (the projects' own API references)."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container, init container, sidecar (an init container with restartPolicy Always) or ephemeral container.

    `list_name` and `index` are its position in the spec. `env` holds the VARIABLES as (name, value), value
    None if it is taken from elsewhere (`valueFrom`). `requests` and `limits` hold every resource. `claims` are pairs of
    an entry of the pod's resourceClaims and a request in it, the request empty for the whole claim. `facts` is what the
    image carries, None where that is not known.
    """

    name: str
    list_name: str
    index: int
    sidecar: bool
    image: str
    env: tuple[tuple[str, str | None], ...]
    requests: Mapping[str, Fraction]
    limits: Mapping[str, Fraction]
    claims: tuple[tuple[str, str], ...] = ()
    facts: ImageFacts | None = None

    @property
    def passing(self) -> bool:
        """Tell whether it ends before the next container starts: an init container that is no sidecar."""
        return self.list_name == "initContainers" and not self.sidecar

    def requested(self, resource: str) -> Fraction:
        """Give the requested amount of a resource: the request, or the limit if there is none (API defaulting)."""
        return self.requests.get(resource, self.limits.get(resource, Fraction(0)))

    def resources(self) -> tuple[str, ...]:
        """List the resources in its requests and limits, sorted."""
        return tuple(sorted({*self.requests, *self.limits}))

    def has_nonzero(self, resource: str) -> bool:
        """Tell whether its requests or limits hold an amount other than zero of a resource."""
        return self.requests.get(resource, 0) != 0 or self.limits.get(resource, 0) != 0

    def variable(self, name: str) -> str | None:
        """Read the value of one of VARIABLES; None if it is unset or taken from elsewhere.

        Of several variables of one name the last one counts.
        """
        return next((value for key, value in reversed(self.env) if key == name), None)


NO_CONTAINERS: Mapping[int, Container] = {}
"""No containers that were read before, for `read_pod`."""


@dataclass(frozen=True, slots=True)
class Pod:
    """The facts about a Pod on which decisions depend.

    `containers` are the init containers and then the containers, in the order of the spec. `claims` are the entries of
    resourceClaims as (name, ResourceClaim, ResourceClaimTemplate); one of the last two is empty. `ephemeral` are the
    containers that users add to a running pod; they cannot request resources. `pod_group` is the name of the PodGroup
    (scheduling.k8s.io) with which kube-scheduler places it, empty without one.
    """

    name: str
    namespace: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    containers: tuple[Container, ...]
    scheduler_name: str
    runtime_class_name: str | None
    node_name: str | None
    claims: tuple[tuple[str, str, str], ...] = ()
    nominated_node_name: str | None = None
    ephemeral: tuple[Container, ...] = ()
    pod_group: str = ""

    def amounts(self) -> Mapping[str, Fraction]:
        """Sum every resource in one pass, by the rule of `amount`, with which tests compare it."""
        running: dict[str, Fraction] = {}
        peak: dict[str, Fraction] = {}
        for container in self.containers:
            passing = container.passing
            for name in {*container.requests, *container.limits}:
                total = running.get(name, ZERO) + container.requested(name)
                if passing:
                    peak[name] = max(peak.get(name, ZERO), total)
                else:
                    running[name] = total
        return {name: max(running.get(name, ZERO), peak.get(name, ZERO)) for name in (*running, *peak)}

    def amount(self, resource: str) -> Fraction:
        """Sum a resource as Kubernetes does: the larger of all running containers and the peak of the init containers.

        Sidecars keep running, so that each init container counts together with the sidecars started before it
        (k8s.io/component-helpers resource/helpers.go PodRequests; KEP-753).
        """
        running, peak = Fraction(0), Fraction(0)
        for container in self.containers:
            if container.passing:
                peak = max(peak, running + container.requested(resource))
            else:
                running += container.requested(resource)
        return max(running, peak)


def read_pod(
    pod: Mapping[str, Any], namespace: str | None = None, known: Mapping[int, Container] = NO_CONTAINERS
) -> Pod:
    """Read a Pod as the API server or the scheduler sends it.

    `namespace` is that of the AdmissionReview, which takes precedence over the Pod's own
    (docs/reference/control-plane.md#requests-of-the-api-server). `known` holds containers that were read before, by the
    id() of their objects, which the caller keeps: a patched pod shares with the former one what did not change.
    Raises MalformedPod, OversizedPod, QuantityError.
    """
    return pod_of(read_record(PodObject, pod), namespace, pod.get("spec") or {}, known)


def pod_of(
    found: PodObject,
    namespace: str | None = None,
    written: Mapping[str, Any] | None = None,
    known: Mapping[int, Container] = NO_CONTAINERS,
) -> Pod:
    """Read a Pod that is declared; `written` is its spec before that, by whose objects `known` has its keys.

    Raises MalformedPod, OversizedPod, QuantityError.
    """
    metadata, spec = found.metadata, found.spec
    return Pod(
        name=metadata.name or metadata.generate_name,
        namespace=namespace or metadata.namespace or DEFAULT_NAMESPACE,
        uid=metadata.uid,
        labels=_check_labels(metadata.labels or {}),
        annotations=_check_annotations(metadata.annotations or {}),
        containers=tuple(
            _containers(written or {}, known, initContainers=spec.init_containers, containers=spec.containers)
        ),
        scheduler_name=spec.scheduler_name or DEFAULT_SCHEDULER,
        runtime_class_name=spec.runtime_class_name,
        node_name=spec.node_name or None,
        claims=tuple(map(named_claim, spec.resource_claims)),
        nominated_node_name=found.status.nominated_node_name or None,
        ephemeral=tuple(_containers(written or {}, known, ephemeralContainers=spec.ephemeral_containers)),
        pod_group=spec.scheduling_group.pod_group_name,
    )


def named_claim(entry: PodClaim) -> tuple[str, str, str]:
    """Give an entry of resourceClaims as (name, claim, template)."""
    named = entry.resource_claim_name or entry.resource_claim_template_name
    of = entry if named or not entry.source else entry.source
    return entry.name or "", of.resource_claim_name or "", of.resource_claim_template_name or ""


def _check_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Check the number and the size of a pod's labels, and return them unchanged.

    Raises OversizedPod.
    """
    size = sum(len(key) + len(value) for key, value in labels.items())
    if size > LABELS_CHARACTERS:
        raise OversizedPod(f"metadata.labels: got {size} characters, wants at most {LABELS_CHARACTERS}")
    if len(labels) > MOST_LABELS:
        raise OversizedPod(f"metadata.labels: got {len(labels)}, wants at most {MOST_LABELS}")
    return labels


def _check_annotations(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Check the size of a pod's annotations, and return them unchanged.

    Raises MalformedPod for more bytes than the API server accepts, and OversizedPod for too many of our own.
    """
    size = sum(len(key) + len(value) for key, value in annotations.items())
    if size > ANNOTATIONS_BYTES:
        raise MalformedPod(f"metadata.annotations: got {size} bytes, wants at most {ANNOTATIONS_BYTES}")
    ours = sum(key.startswith(PREFIX) for key in annotations)
    if ours > MOST_ANNOTATIONS:
        raise OversizedPod(f"metadata.annotations: got {ours} of {PREFIX}, wants at most {MOST_ANNOTATIONS}")
    return annotations


def check_variables(variables: Sequence[tuple[str, str | None]]) -> None:
    """Check the number and the size of the NVIDIA_* variables of a pod or an image, given as (name, value).

    Raises OversizedPod.
    """
    characters = sum(len(name) + len(value or "") for name, value in variables)
    if len(variables) > MOST_VARIABLES or characters > VARIABLES_CHARACTERS:
        most = f"{MOST_VARIABLES} of {VARIABLES_CHARACTERS} characters in all"
        raise OversizedPod(f"NVIDIA_* variables: got {len(variables)} of {characters}, wants at most {most}")
    required = [value or "" for name, value in variables if name.startswith("NVIDIA_REQUIRE_")]
    clauses = sum(value.count(",") + len(value.split()) for value in required)
    if clauses > MOST_CLAUSES:
        raise OversizedPod(f"NVIDIA_REQUIRE_*: got {clauses} comparisons, wants at most {MOST_CLAUSES}")


def _containers(
    written: Mapping[str, Any], known: Mapping[int, Container], **lists: tuple[ContainerObject, ...]
) -> Iterator[Container]:
    """Read the containers of these lists one by one, and stop at the first that exceeds a limit of the pod.

    Raises MalformedPod, OversizedPod.
    """
    all_resources: set[str] = set()
    amounts = extended = containers = 0
    variables: list[tuple[str, str | None]] = []
    for list_name, declared_list in lists.items():
        objects = written.get(list_name) or ()
        for index, declared in enumerate(declared_list):
            if (containers := containers + 1) > MOST_CONTAINERS:
                raise OversizedPod(f"spec.{list_name}: got more, wants at most {MOST_CONTAINERS} containers")
            container = known.get(id(objects[index])) if known else None
            if container is None or (container.list_name, container.index) != (list_name, index):
                container = _container(declared, list_name, index)
            resources = {*container.requests, *container.limits}  # an amount in both counts once
            all_resources |= resources
            amounts += len(resources)
            extended += sum("/" in name for name in resources)
            if len(all_resources) > MOST_RESOURCES or amounts > MOST_AMOUNTS or extended > MOST_EXTENDED:
                most = f"{MOST_RESOURCES} resources, {MOST_AMOUNTS} amounts, {MOST_EXTENDED} of extended resources"
                raise OversizedPod(f"spec.{list_name}: got more, wants at most {most}")
            variables += container.env
            yield container
    check_variables(variables)


def _container(item: ContainerObject, list_name: str, index: int) -> Container:
    where, resources = f"spec.{list_name}[{index}].", item.resources or Resources()
    return Container(
        name=item.name or "",
        list_name=list_name,
        index=index,
        sidecar=list_name == "initContainers" and item.restart_policy == "Always",
        image=item.image or "",
        env=tuple(
            (one.name, None if one.value_from else one.value or "")
            for one in item.env or ()
            if one.name and one.name.startswith(VARIABLES)
        ),
        requests=_quantities(resources.requests or {}, f"{where}resources.requests"),
        limits=_quantities(resources.limits or {}, f"{where}resources.limits"),
        claims=tuple((one.name or "", one.request or "") for one in resources.claims or ()),
    )


def _quantities(quantities: Mapping[str, Any], where: str) -> Mapping[str, Fraction]:
    """Read requests or limits; Kubernetes accepts JSON numbers as quantities too (resource.Quantity UnmarshalJSON)."""
    if len(quantities) > MOST_RESOURCES:
        raise OversizedPod(f"{where}: got {len(quantities)}, wants at most {MOST_RESOURCES} resources")
    amounts = {}
    for name, value in quantities.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise MalformedPod(f"{where}[{name[:80]}]: got {json_type(value)}, wants a quantity")
        try:
            amounts[name] = parse_quantity(integer_quantity(value) if isinstance(value, int) else str(value))
        except QuantityError as error:
            raise QuantityError(f"{where}[{name[:80]}]: {quantity_problem(str(value))}") from error
    return amounts


def workload_group(namespace: str, labels: Mapping[str, str]) -> str:
    """Give the key of the workload whose pods work together with this one; empty if no label names a workload."""
    return next((f"{namespace}/{key}={labels[key]}" for key in GROUP_LABELS if key in labels), "")


def gpu_amounts(pod: Pod, is_gpu: Callable[[str], object]) -> tuple[tuple[str, int], ...]:
    """List the GPU resources that a Pod requests as (resource, amount rounded up), sorted; only positive amounts."""
    amounts = sorted(pod.amounts().items())
    return tuple((name, -int(-amount // 1)) for name, amount in amounts if amount > 0 and is_gpu(name))


def toleration_covers(toleration: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether a toleration tolerates a taint, or all that another toleration does (core/v1 ToleratesTaint)."""
    if toleration.get("effect") and toleration.get("effect") != other.get("effect"):
        return False
    if toleration.get("key") and toleration.get("key") != other.get("key"):
        return False
    if (toleration.get("operator") or "Equal") == "Exists":
        return True
    same_value = (toleration.get("value") or "") == (other.get("value") or "")
    return bool(toleration.get("key")) and (other.get("operator") or "Equal") == "Equal" and same_value
