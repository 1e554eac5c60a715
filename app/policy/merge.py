# SPDX-License-Identifier: Apache-2.0
"""Merging, field by field: what all policies that apply, and the annotations, say together.

See docs/reference/policy.md#merge.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from app.knowledge.cuda_compatibility import AcceptedCompatibility, CUDANeed
from app.knowledge.products import ProductPattern
from app.knowledge.tables import Knowledge
from app.kube.pods import Container, Pod
from app.kube.resource_claims import ClaimedDevices
from app.policy.annotations import Needs
from app.policy.applied import AppliedPolicy, first
from app.policy.cuda_needs import ImageRow, container_needs, minimum_need
from app.policy.demand import DEFAULT_ACCEPT, HEALTH, Demand, HealthRules
from app.policy.schema import Action, Rule, Spec
from app.policy.schema_placement import FormFactor, HealthAction, SharingWish
from app.values.label_requirements import from_selector
from app.values.quantity import parse_mib
from app.values.versions import parse_minimum

ANNOTATION = "annotation"
"""How the pod's own words are named among the origins."""

Stated = list[tuple[str, Needs]]
"""(who, what it needs), the pod's annotations first."""
NVIDIA = "nvidia"
"""The family whose containers need CUDA (knowledge/families.yaml)."""


@dataclass(frozen=True, slots=True)
class PodGPURequest:
    """A pod and the GPUs that it asks. `resources`: (GPU resource, units), sorted; `claimed`: those that DRA gives."""

    pod: Pod
    resources: tuple[tuple[str, int], ...]
    claimed: ClaimedDevices

    def other_vendors_only(self, knowledge: Knowledge) -> bool:
        """Tell whether it asks for GPUs, and for none of NVIDIA's."""
        families = {family.name for name, _ in self.resources if (family := knowledge.families.of(name))}
        families |= {family.name for family in self.claimed.families}
        return bool(families) and NVIDIA not in families

    def containers(self, knowledge: Knowledge) -> tuple[Container, ...]:
        """List the containers that have GPUs of NVIDIA's to run CUDA on, by a resource or by a claim."""
        of = knowledge.families.of
        resources = {name for name, _ in self.resources if (family := of(name)) and family.name == NVIDIA}
        claiming = {container for container, family in self.claimed.users if family == NVIDIA}
        return tuple(
            each
            for each in self.pod.containers
            if each.name in claiming or any(each.asks(name) > 0 for name in resources.intersection(each.resources()))
        )


def needs_of(applied: AppliedPolicy, level: Action, knowledge: Knowledge) -> Needs:
    """Read the needs that a policy states with this action or a stricter one."""
    placement = applied.spec.placement

    def stated(rule: Rule, value: Any) -> Any:
        return value if applied.at(rule, level) else None

    products = stated(Rule.Products, placement.products)
    cuda = stated(Rule.CUDA, placement.cuda and placement.cuda.minimum)
    memory = stated(Rule.GPUMemory, placement.gpu_memory)
    capability = stated(Rule.ComputeCapability, placement.compute_capability)
    form_factors = stated(Rule.FormFactor, placement.form_factor)
    selector = stated(Rule.NodeSelector, placement.node_selector)
    pattern = knowledge.products.pattern
    return Needs(
        allow=tuple(map(pattern, products.allow)) if products and products.allow is not None else None,
        deny=tuple(map(pattern, products.deny)) if products else (),
        cuda=parse_minimum(cuda) if cuda else None,
        memory_mib=parse_mib(memory) if memory else None,
        compute_capability=parse_minimum(capability) if capability else None,
        sharing=stated(Rule.Sharing, placement.sharing),
        nvlink=bool(stated(Rule.Interconnect, placement.interconnect)),
        form_factors=frozenset(form_factors) if form_factors is not None else None,
        node_selector=from_selector(selector.model_dump(by_alias=True)) if selector else (),
    )


def merge_demand(
    asked: PodGPURequest,
    applied: list[AppliedPolicy],
    stated: Stated,
    level: Action,
    knowledge: Knowledge,
) -> Demand:
    """Compile what is stated into a Demand: intersections, unions, maxima, the strictest."""
    needs = [each for _, each in stated]
    allow = tuple(each.allow for each in needs if each.allow is not None)
    deny = tuple(pattern for each in needs for pattern in each.deny)
    required, wished = _cuda(asked, applied, stated, level, knowledge)
    scores = first(applied, Rule.Scores, level, lambda spec: spec.placement.scores)
    return Demand(
        resources=asked.resources,
        products=allow,
        denied_products=deny,
        preferred_products=_preferred(applied, level, allow, deny, knowledge),
        cuda=required,
        cuda_wishes=wished,
        accept=max(_accepts(applied, level), default=DEFAULT_ACCEPT),
        most=_most(asked.pod, asked.resources),
        memory_mib=max((each.memory_mib or 0 for each in needs), default=0),
        declared_mib=next((each.memory_mib or 0 for origin, each in stated if origin == ANNOTATION), 0),
        compute_capability=max((each.compute_capability for each in needs if each.compute_capability), default=None),
        sharing=_strictest_sharing(needs),
        mig_profile=next((each.mig_profile for each in needs if each.mig_profile), None),
        nvlink=any(each.nvlink for each in needs),
        form_factors=_in_all(each.form_factors for each in needs),
        node_selector=tuple(dict.fromkeys(wish for each in needs for wish in each.node_selector)),
        health=_health(applied, level),
        refuse_unknown=any(
            each.spec.placement.unknown_facts == "Refuse" for each in applied if each.at(Rule.UnknownFacts, level)
        ),
        scores=tuple((score.name, score.weight) for score in scores or ()),
        claims=asked.claimed.classes,
        ranked=first(applied, Rule.ScoreSpread, level, lambda spec: spec.placement.score_spread) != "Proportional",
    )


def _most(pod: Pod, resources: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Say how much of each resource one container asks at most: kubelets hand devices out container by container."""
    found = dict.fromkeys((name for name, _ in resources), 0)
    for container in pod.containers:
        for name in container.resources():
            if name in found:
                found[name] = max(found[name], -int(-container.asks(name) // 1))
    return tuple(found.items())


def _in_all(choices: Iterable[frozenset[FormFactor] | None]) -> frozenset[FormFactor] | None:
    found = [each for each in choices if each is not None]
    return frozenset.intersection(*found) if found else None


def _health(applied: list[AppliedPolicy], level: Action) -> HealthRules:
    """Take the strictest of what is said of each state of health, and the default where nothing is."""
    order = list(HealthAction)
    wishes = [each.spec.placement.health for each in applied if each.at(Rule.Health, level)]

    def strictest(field: str, default: HealthAction) -> HealthAction:
        said = [found for wish in wishes if wish and (found := getattr(wish, field)) is not None]
        return max(said, key=order.index, default=default)

    return HealthRules(
        ill=strictest("ill", HEALTH.ill),
        ailing=strictest("ailing", HEALTH.ailing),
        withdrawn=strictest("unhealthy_devices", HEALTH.withdrawn),
    )


def _cuda(
    asked: PodGPURequest,
    applied: list[AppliedPolicy],
    stated: Stated,
    level: Action,
    knowledge: Knowledge,
) -> tuple[tuple[CUDANeed, ...], tuple[CUDANeed, ...]]:
    """Collect (required, wished) needs: stated minimums, and each container's own unless an annotation speaks first.

    CUDA is of NVIDIA's GPUs: what else a pod or a container asks has no such need.
    """
    if asked.other_vendors_only(knowledge):
        return (), ()
    minimums = [(origin, needs.cuda) for origin, needs in stated if needs.cuda]
    required = [minimum_need(cuda, _who(origin), knowledge) for origin, cuda in minimums]
    wished: list[CUDANeed] = []
    if not any(origin == ANNOTATION for origin, _ in minimums):
        from_image = first(
            applied, Rule.CUDA, level, lambda spec: spec.placement.cuda and spec.placement.cuda.from_image
        )
        rows = tuple(_image_rows(applied, level))
        for need, hard in container_needs(asked.containers(knowledge), rows, bool(from_image), knowledge):
            (required if hard else wished).append(need)
    return tuple(dict.fromkeys(required)), tuple(dict.fromkeys(wished))


def _image_rows(applied: list[AppliedPolicy], level: Action) -> Iterator[ImageRow]:
    for each in applied:
        cuda = each.spec.placement.cuda
        if cuda and each.at(Rule.CUDA, level):
            for row in cuda.images:
                yield ImageRow(re.compile(translate(row.image)), parse_minimum(row.cuda), each.name, row.compat)


def _who(origin: str) -> str:
    return "annotation gpu-usher.io/cuda" if origin == ANNOTATION else f"policy {origin}"


def _accepts(applied: list[AppliedPolicy], level: Action) -> Iterator[AcceptedCompatibility]:
    for each in applied:
        cuda = each.spec.placement.cuda
        if each.at(Rule.CUDA, level) and cuda and cuda.accepted is not None:
            yield cuda.accepted


def _strictest_sharing(needs: Iterable[Needs]) -> SharingWish:
    order = list(SharingWish)
    return max((each.sharing or SharingWish.Any for each in needs), key=order.index, default=SharingWish.Any)


def _preferred(
    applied: list[AppliedPolicy],
    level: Action,
    allow: tuple[tuple[ProductPattern, ...], ...],
    deny: tuple[ProductPattern, ...],
    knowledge: Knowledge,
) -> tuple[ProductPattern, ...]:
    """Take the highest priority's order, without products that are not allowed anyway."""

    def order(spec: Spec) -> Any:
        return spec.placement.products and spec.placement.products.prefer

    patterns = map(knowledge.products.pattern, first(applied, Rule.Products, level, order) or ())
    return tuple(pattern for pattern in patterns if _some_left(pattern, allow, deny, knowledge))


def _some_left(
    pattern: ProductPattern,
    allow: tuple[tuple[ProductPattern, ...], ...],
    deny: tuple[ProductPattern, ...],
    knowledge: Knowledge,
) -> bool:
    """Tell whether some known product that the pattern means is allowed and not denied; an unknown one stays."""
    meant = [form for form in knowledge.products.by_form if pattern.matches(form)]
    return not meant or any(
        all(any(each.matches(form) for each in any_of) for any_of in allow)
        and not any(each.matches(form) for each in deny)
        for form in meant
    )
