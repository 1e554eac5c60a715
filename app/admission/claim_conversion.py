# SPDX-License-Identifier: Apache-2.0
"""A pod that requests GPUs as resources, as a pod that claims them: what it becomes, or why it cannot.

`template_for` works that out, for the mutator at the end and for the export of the templates that pods would need.

A device plugin gives each container its own devices, and containers those of the init containers before them. Here the
devices of a resource are numbered: containers have theirs one after the other, init containers the first ones, and
sidecars, which keep theirs, some at the end. Each range of numbers that the same containers use is one request.

Admission creates no objects. A pod is only changed where the ResourceClaimTemplate that it needs is known to exist in
its namespace, with the content that it would have, since a pod with a missing template stays Pending.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from app.admission.claim_template import (
    MOST_CLAIM_REQUESTS,
    MOST_CLAIMED_DEVICES,
    NEWEST_VERSION,
    NVIDIA_CLASSES,
    RequestedDevices,
    claim_template,
    content_name,
    device_class_of,
    not_expressible,
    request_name,
    with_sharing,
)
from app.admission.json_patch import Operation, append, apply
from app.admission.reviewed_pod import PodChange, ReviewedPod
from app.knowledge.tables import Knowledge
from app.kube.claimed_devices import NO_SHARES, PublishedShares
from app.kube.pods import Container, Pod
from app.policy.demand import Demand

CLAIM = "gpu-usher"
"""The entry of a pod's resourceClaims that stands for what it requested as resources."""
Use = tuple[Container, str]
"""A container, and a request whose devices it uses."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a pod becomes. `template` is the ResourceClaimTemplate that it needs, in the pod's namespace.

    `uses` are the containers with the requests that they use. `resources` are the resources that are no longer
    requested. `unsaid` are sentences about needs that the claim does not express; filter goes on judging them, by the
    annotations and images of the pod.
    """

    template: Mapping[str, Any]
    uses: tuple[Use, ...]
    resources: tuple[str, ...]
    unsaid: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the template, which is a function of its content."""
        name: str = self.template["metadata"]["name"]
        return name

    @property
    def is_share(self) -> bool:
        """Whether its devices are shares."""
        return any("capacity" in one["exactly"] for one in self.template["spec"]["spec"]["devices"]["requests"])


@dataclass(frozen=True, slots=True)
class NoEquivalent:
    """Why a pod cannot claim what it requests, in sentences that say what it would lose."""

    reasons: tuple[str, ...]


def convert(
    pod: Pod,
    demand: Demand,
    knowledge: Knowledge,
    shares: PublishedShares = NO_SHARES,
    version: str = NEWEST_VERSION,
) -> Conversion | NoEquivalent:
    """Work out the claim for the GPUs that a pod requests as resources, at least one. `version` is resource.k8s.io's.

    `shares` tells how claims get shares of GPUs. The template does not depend on the names of the pod or its
    containers, so that many pods use one.
    """
    uses = tuple((container, with_sharing(one, demand, shares)) for container, one in _uses(pod, demand, knowledge))
    devices = tuple(dict.fromkeys(one for _, one in uses))
    reasons = tuple(dict.fromkeys(reason for find in OBSTACLES for reason in find(pod, demand, devices)))
    if reasons:
        return NoEquivalent(reasons)
    name = content_name(devices, demand, knowledge)
    template = claim_template(devices, demand, knowledge, name, version)
    template["metadata"] = {
        "name": name,
        "namespace": pod.namespace,
        "labels": {"app.kubernetes.io/managed-by": CLAIM},
    }
    return Conversion(
        template,
        tuple((container, one.name) for container, one in uses),
        tuple(resource for resource, _ in demand.resources),
        tuple(not_expressible(demand, devices)),
    )


def template_for(
    pod: Pod, demand: Demand, knowledge: Knowledge, shares: Callable[[], PublishedShares]
) -> Conversion | NoEquivalent | None:
    """Convert a pod that requests a resource whose devices NVIDIA's DRA driver publishes; None for any other pod."""
    served = (device_class_of(resource, demand, knowledge) for resource, _ in demand.resources)
    known = any(place is not None and place[0] in NVIDIA_CLASSES for place in served)
    return convert(pod, demand, knowledge, shares()) if known else None


def _uses(pod: Pod, demand: Demand, knowledge: Knowledge) -> Iterator[tuple[Container, RequestedDevices]]:
    """List each request with the containers that use it, resource by resource; one without a DeviceClass has none."""
    for resource, _ in demand.resources:
        served = device_class_of(resource, demand, knowledge)
        parts = list(_parts(pod, resource)) if served else []
        name = request_name(resource, several=len(demand.resources) > 1)
        for number, (count, users) in enumerate(parts):
            numbered = f"{name}-{number}" if len(parts) > 1 else name
            one = RequestedDevices(numbered, resource, count, *(served or ("",)))
            yield from ((container, one) for container in users)


def _parts(pod: Pod, resource: str) -> Iterator[tuple[int, tuple[Container, ...]]]:
    """Cut the line of a resource's devices into parts that the same containers use: (number of devices, users)."""
    spans = list(_spans(pod, resource))
    cuts = sorted({cut for start, end, _ in spans for cut in (start, end)})
    for low, high in pairwise(cuts):
        yield high - low, tuple(container for start, end, container in spans if start <= low and high <= end)


def _spans(pod: Pod, resource: str) -> Iterator[tuple[int, int, Container]]:
    """Say where on the line each container's devices lie: (first, end, container)."""
    amounts = [(container, -int(-container.requested(resource) // 1)) for container in pod.containers]
    asking = [(container, amount) for container, amount in amounts if amount > 0]
    at = peak = 0
    for container, amount in asking:
        if container.list_name == "containers":
            yield at, at + amount, container
            at += amount
        elif not container.sidecar:
            yield 0, amount, container
            peak = max(peak, amount)
    at = max(at, peak)
    for container, amount in asking:
        if container.sidecar:
            yield at, at + amount, container
            at += amount


Obstacle = Callable[[Pod, Demand, Sequence[RequestedDevices]], Iterable[str]]


def _other_makes(_pod: Pod, demand: Demand, devices: Sequence[RequestedDevices]) -> Iterator[str]:
    known = {one.resource for one in devices if one.is_known}
    for resource, _ in demand.resources:
        if resource not in known:
            yield f"{resource}: only the devices of NVIDIA's DRA driver are known"


def _other_resources(pod: Pod, demand: Demand, _devices: Sequence[RequestedDevices]) -> Iterator[str]:
    """Refuse what else is requested of the vendor, such as the nvidia.com/gpumem of HAMi.

    Source: Project-HAMi/HAMi pkg/device/nvidia/device.go.
    """
    converted = {resource for resource, _ in demand.resources}
    vendors = {resource.partition("/")[0] for resource in converted}
    for container in pod.containers:
        for name in container.resources():
            if name not in converted and name.partition("/")[0] in vendors and container.has_nonzero(name):
                yield f"{name}: a claim cannot request it"


def _larger_slices(_pod: Pod, demand: Demand, devices: Sequence[RequestedDevices]) -> Iterator[str]:
    if demand.mig_profile is not None and demand.mig_profile[1] and any(one.profiles for one in devices):
        yield "mig-profile with >=: a claim would lose the whole GPUs that count as larger slices"


def _fractions(pod: Pod, demand: Demand, _devices: Sequence[RequestedDevices]) -> Iterator[str]:
    for container in pod.containers:
        for resource, _ in demand.resources:
            if container.requested(resource).denominator != 1:
                yield f"{container.name}: a fraction of {resource} is not a number of devices"


def _too_many(_pod: Pod, _demand: Demand, devices: Sequence[RequestedDevices]) -> Iterator[str]:
    if (count := sum(one.count for one in devices)) > MOST_CLAIMED_DEVICES:
        yield f"{count} devices: a claim gets at most {MOST_CLAIMED_DEVICES}"
    if len(devices) > MOST_CLAIM_REQUESTS:
        yield f"{len(devices)} requests: a claim has at most {MOST_CLAIM_REQUESTS}"


def _sidecars_after_init_containers(_pod: Pod, demand: Demand, devices: Sequence[RequestedDevices]) -> Iterator[str]:
    """Refuse what would claim more devices than Kubernetes counts: a sidecar that reuses an init container's."""
    for resource, amount in demand.resources:
        claimed = sum(one.count for one in devices if one.resource == resource)
        if claimed > amount:
            yield f"{resource}: a sidecar takes over devices of an init container"


def _name_taken(pod: Pod, _demand: Demand, _devices: Sequence[RequestedDevices]) -> Iterator[str]:
    if any(name == CLAIM for name, _, _ in pod.claims):
        yield f"resourceClaims already has an entry {CLAIM}"


OBSTACLES: tuple[Obstacle, ...] = (
    lambda _pod, demand, _devices: [] if demand.invalid is None else [demand.invalid.message],
    _other_makes,
    lambda _pod, _demand, devices: [one.no_share for one in devices if one.no_share],
    _other_resources,
    _larger_slices,
    _fractions,
    _too_many,
    _sidecars_after_init_containers,
    lambda pod, _demand, _devices: ["nodeName is set: only kube-scheduler allocates claims"] if pod.node_name else [],
    _name_taken,
)
"""Each finds in what a pod would lose by claims; a pod with any is left as it is."""


NOT_CONVERTED = "not converted to a claim: "
"""What begins the record of a pod that has no equivalent."""
MISSING_TEMPLATE_REMEDY = "create it with gpu-usher plan claim-templates"


def convert_to_claims(review: ReviewedPod) -> Iterator[PodChange]:
    """Replace requests for NVIDIA's resources by claims, where that loses nothing and the template exists."""
    if not review.rules.convert_to_claims:
        return
    outcome = template_for(
        review.pod, review.ruling.demand, review.context.world.knowledge, review.context.world.state.devices.shares
    )
    if outcome is None:
        return
    if isinstance(outcome, NoEquivalent):
        problem = f"{NOT_CONVERTED}{outcome.reasons[0]}"
        yield PodChange((), problem, problem)
    elif review.context.without_templates or not review.context.world.state.devices.has_template(outcome.template):
        problem = f"not converted to a claim: namespace has no ResourceClaimTemplate {outcome.name}"
        yield PodChange((), problem, f"{problem}: {MISSING_TEMPLATE_REMEDY}")
    else:
        names = " and ".join(outcome.resources)
        yield PodChange(tuple(_operations(review, outcome)), f"{names} converted to a claim of template {outcome.name}")


def _operations(review: ReviewedPod, conversion: Conversion) -> Iterator[Operation]:
    """Write the patch: the entry of resourceClaims, the claims of the containers, the resources that go."""
    document: Any = review.document
    entry = {"name": CLAIM, "resourceClaimTemplateName": conversion.name}
    operations = [append(document, ("spec", "resourceClaims"), entry)]
    document = apply(document, operations)
    several = len({request for _, request in conversion.uses}) > 1
    for container, request in conversion.uses:
        used = {"name": CLAIM, "request": request} if several else {"name": CLAIM}
        operation = append(document, (*_resources(container), "claims"), used)
        document = apply(document, [operation])
        operations.append(operation)
    for container in review.pod.containers:
        operations += _removals(container, conversion)
    yield from operations


def _removals(container: Container, conversion: Conversion) -> Iterator[Operation]:
    for side, amounts in (("limits", container.limits), ("requests", container.requests)):
        for resource in conversion.resources:
            if resource in amounts:
                yield Operation("remove", (*_resources(container), side, resource))


def _resources(container: Container) -> tuple[str, ...]:
    return ("spec", container.list_name, str(container.index), "resources")
