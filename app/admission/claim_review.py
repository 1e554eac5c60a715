# SPDX-License-Identifier: Apache-2.0
"""The review of a ResourceClaim or ResourceClaimTemplate, and of a pod for what the review of its claims cannot know.

kube-scheduler alone gives devices to claims, and most clusters' does not ask gpu-usher. So what policies demand of a
device is written into each request for GPUs as CEL selectors, which every kube-scheduler obeys, and the number of GPUs
is judged here. The spec of both kinds is immutable (kubernetes pkg/apis/resource/validation/validation.go
ValidateResourceClaimUpdate, ValidateResourceClaimTemplateUpdate): what was reviewed when it was created stays as it is.

A claim belongs to no pod yet. It is held to what holds for every pod of its namespace (policy/match.py for_every_pod):
what policies demand of some pods only, by labels, is not written into a claim that other pods may use. The review of
the pod looks after these, and after the number of several claims together, so that it must know the claims.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.admission.claim_template import (
    FLAT_VERSION,
    MOST_SELECTORS,
    NVIDIA_CLASSES,
    SHAREABLE,
    guarded_selectors,
    selectors_of,
)
from app.admission.json_patch import put
from app.admission.reviewed_pod import PodChange, ReviewContext, ReviewedPod
from app.kube.api_kinds import API_KINDS
from app.kube.claimed_devices import ClaimedDevices, claimed_devices
from app.kube.device_models import NVIDIA_DRIVER, DeviceModel
from app.kube.pods import read_pod
from app.kube.records import read_record
from app.kube.resource_claims import DeviceRequest, ResourceClaim, ResourceClaimTemplate
from app.nodes.model import NodeClass
from app.nodes.reading import class_of_device
from app.placement.class_filters import driver_new_enough
from app.placement.filters import PRODUCT_FILTERS
from app.policy.demand import Demand
from app.policy.match import Ruling, for_every_pod, ruling_for
from app.policy.needs import ALLOWED_PRODUCTS, DENIED_PRODUCTS, LEAST_CUDA, NEEDS, NODE_SELECTOR, SHARING, WITH_FACT
from app.policy.schema_placement import SharingWish
from app.values.reasons import Code, Reason, counted, reason

CLAIM, TEMPLATE = (
    (API_KINDS[name].group, API_KINDS[name].plural) for name in ("ResourceClaim", "ResourceClaimTemplate")
)
SETTINGS = ("accept", "refuse_unknown")
"""Fields of Demand that say how needs are judged."""
IN_CLAIMS = tuple(
    need
    for need in NEEDS
    if need in (ALLOWED_PRODUCTS, DENIED_PRODUCTS, LEAST_CUDA, SHARING) or (need.fact and need.fact.member)
)
"""Needs that selectors of a claim can state."""
NOT_IN_CLAIMS = (*(need for need, fact in WITH_FACT if not fact.member), NODE_SELECTOR)
"""Needs that no driver publishes attributes for: node affinity of the pod states them."""
_NOBODY = read_pod(
    {
        "metadata": {"name": "any"},
        "spec": {
            "containers": [{"name": "any"}],
            "resourceClaims": [{"name": "any", "resourceClaimName": "any"}],
        },
    }
)


def bare_ruling(
    labels: Mapping[str, str], pod_labels: Mapping[str, str] | None, context: ReviewContext, claimed: ClaimedDevices
) -> Ruling:
    """Rule by policies alone, without annotations and images; without `pod_labels` by what holds for every pod.

    `labels` are those of the namespace.
    """
    policies = context.world.policies if pod_labels is not None else for_every_pod(context.world.policies, labels)
    return ruling_for(replace(_NOBODY, labels=pod_labels or {}), labels, policies, context.world.knowledge, claimed)


def demanded_selectors(request: DeviceRequest, demand: Demand, context: ReviewContext) -> list[str]:
    """Write what a demand wants of the devices of a request as CEL; nothing for a class that gives no GPUs."""
    classes, name, knowledge = context.world.state.devices.classes, request.device_class, context.world.knowledge
    if name in NVIDIA_CLASSES:
        whole = (
            name == NVIDIA_DRIVER
            and demand.sharing is SharingWish.Exclusive
            and context.world.state.devices.shares().by_default
        )
        return [*([f"!{SHAREABLE}"] if whole else ()), *selectors_of(name, (), demand, knowledge)]
    if not classes.may_give_gpus(name):
        return []
    family = classes.family(name)
    families = [family] if family is not None else knowledge.families.all
    drivers = [one.device_classes[0] for one in families if one.device_classes]
    return [selector for driver in drivers for selector in guarded_selectors(driver, demand, knowledge)]


@dataclass(frozen=True, slots=True)
class ReviewedClaim:
    """A claim or template under review, with the ruling on it.

    `path` is that of its requests. With `allocating` it exists, and gets devices now.
    """

    document: Mapping[str, Any]
    claim: ResourceClaim
    path: tuple[str, ...]
    context: ReviewContext
    ruling: Ruling
    allocating: bool

    def requests(self) -> Iterator[tuple[tuple[str, ...], DeviceRequest]]:
        """List each request, and each alternative of one, with the path of its fields in the object."""
        whole = () if str(self.document.get("apiVersion")).endswith(f"/{FLAT_VERSION}") else ("exactly",)
        for index, choices in enumerate(self.claim.spec.requests):
            for position, choice in enumerate(choices):
                inside = whole if choice.name == choice.parent else ("firstAvailable", str(position))
                yield (*self.path, str(index), *inside), choice

    def missing(self, demand: Demand) -> Iterator[tuple[tuple[str, ...], DeviceRequest, tuple[str, ...]]]:
        """List the requests that lack selectors which a demand wants, each with its path and with these selectors."""
        for path, request in self.requests():
            wanted = demanded_selectors(request, demand, self.context)
            if lacking := tuple(one for one in wanted if one not in request.selectors):
                yield path, request, lacking

    def no_room(self) -> Iterator[Reason]:
        """Refuse requests that have so many selectors that those of the policies find no room."""
        for _, request, lacking in self.missing(self.ruling.demand):
            if len(request.selectors) + len(lacking) > MOST_SELECTORS:
                words = f"request {request.name} has {counted(len(request.selectors), 'selector')}, and policies add"
                yield reason(Code.ObjectTooLarge, f"{words} {len(lacking)}: a request has at most {MOST_SELECTORS}")

    def unrestricted(self) -> Iterator[Reason]:
        """Refuse what lacks selectors that the mutating webhook adds: it was not asked, or another one removed them."""
        for _, request, lacking in self.missing(self.ruling.demand):
            words = f"request {request.name} lacks {counted(len(lacking), 'selector')}"
            yield reason(Code.ClaimUnrestricted, f"{words} for {self.demanded(self.ruling.demand)}")

    def denied_devices(self) -> Iterator[Reason]:
        """Refuse devices that policies deny, for the claim that kube-scheduler makes for extended resources.

        It allocates them before the claim is made, so that selectors of the claim would have no effect.
        """
        if (
            refusal := first_refusal(
                self.ruling.demand, self.context.world.state.devices.allocated_models(self.claim), self.context
            )
        ) is not None:
            yield reason(refusal.code, f"{refusal.message}; a ResourceClaim would get another ({self.by})")

    def changes(self, demand: Demand) -> Iterator[PodChange]:
        """Add the selectors that a demand wants to the requests that lack them."""
        for path, request, lacking in self.missing(demand):
            selectors = [{"cel": {"expression": one}} for one in (*request.selectors, *lacking)]
            words = f"request {request.name} limited to {self.demanded(demand)}"
            yield PodChange((put(self.document, (*path, "selectors"), selectors),), words, words)

    def demanded(self, demand: Demand) -> str:
        """Name what policies demand of the devices, and the policies."""
        needs = [line for need in IN_CLAIMS for line in need.lines(demand)]
        return f"{', '.join(needs)} ({self.by})"

    @property
    def by(self) -> str:
        """Name the policies that demand something of the devices."""
        paths = {need.path for need in IN_CLAIMS}
        names = dict.fromkeys(origin for path, origin in self.ruling.origins if path in paths)
        return f"policy {', '.join(names or self.ruling.policies)}"


def is_claim(request: Mapping[str, Any]) -> bool:
    """Tell whether a request is about a ResourceClaim or a ResourceClaimTemplate. Raises MalformedPod."""
    return _kind(request) in (CLAIM, TEMPLATE)


def _kind(request: Mapping[str, Any]) -> tuple[str, str]:
    resource = request.get("resource") or {}
    return str(resource.get("group") or ""), str(resource.get("resource"))


def read_claim(request: Mapping[str, Any], labels: Mapping[str, str], context: ReviewContext) -> ReviewedClaim | None:
    """Read the claim or template that a request creates; None for other operations. `labels` are the namespace's.

    Raises MalformedPod, OversizedPod, QuantityError.
    """
    is_template, document = _kind(request) == TEMPLATE, request.get("object")
    operation = request.get("operation"), request.get("subResource") or ""
    if operation not in (("CREATE", ""), ("UPDATE", "status")) or document is None:
        return None
    claim = read_record(ResourceClaimTemplate, document).claim if is_template else read_record(ResourceClaim, document)
    claimed = claimed_devices(_NOBODY, lambda _: claim.spec, lambda _: None, context.world.state.devices.classes.family)
    path = ("spec", *(("spec",) if is_template else ()), "devices", "requests")
    ruling = bare_ruling(labels, None, context, claimed)
    return ReviewedClaim(document, claim, path, context, ruling, request.get("operation") == "UPDATE")


def first_refusal(demand: Demand, models: Iterable[DeviceModel], context: ReviewContext) -> Reason | None:
    """Give the first reason why a demand refuses one of some devices."""
    classes = (class_of_device(NodeClass(), model, context.world.knowledge) for model in models)
    refusals = (judge(demand, one) for one in classes for judge in (*PRODUCT_FILTERS, driver_new_enough))
    return next(filter(None, refusals), None)


def claims_restricted(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse a pod whose claim was not restricted and may get a device that policies deny.

    Such a claim is older than the policy or than gpu-usher, or the policy selects pods by labels. What it may get is
    judged by the devices of today, or by those that it has.
    """
    context = review.context
    ruling = bare_ruling(review.namespace_labels, review.pod.labels, context, review.ruling.claimed)
    for name, request, models in context.world.state.devices.claimed_models(review.pod):
        if all(one in request.selectors for one in demanded_selectors(request, ruling.demand, context)):
            continue
        if (refusal := first_refusal(ruling.demand, models, context)) is not None:
            words = f"{name} may get a device that policy {', '.join(ruling.policies)} refuses"
            yield reason(Code.ClaimUnrestricted, f"{words} ({refusal.message})")


def leaves_to_pods(review: ReviewedPod) -> bool:
    """Tell whether policies demand more of a pod than the review of claims that are not there yet will see to."""
    context, labels = review.context, review.namespace_labels
    mine = bare_ruling(labels, review.pod.labels, context, review.ruling.claimed)
    every = bare_ruling(labels, None, context, review.ruling.claimed)
    most = mine.enforced.max_gpus_per_pod
    several = len(review.pod.claims) > 1 or bool(review.ruling.demand.resources)
    return (
        (most is not None and (several or most != every.enforced.max_gpus_per_pod))
        or mine.enforced.per_gpu is not None
        or any(need.value(mine.demand) != need.value(every.demand) for need in IN_CLAIMS)
        or any(getattr(mine.demand, name) != getattr(every.demand, name) for name in SETTINGS)
        or any(need.value(mine.demand) for need in NOT_IN_CLAIMS)
    )
