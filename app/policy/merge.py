# SPDX-License-Identifier: Apache-2.0
"""Merging, field by field (INTERFACES §4): what all policies that apply, and the annotations, say together."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from operator import attrgetter
from typing import Any

from app.knowledge.cuda import Accept, CUDANeed
from app.knowledge.products import ProductPattern
from app.knowledge.tables import Knowledge
from app.pods import Pod, gpu_containers
from app.policy.annotations import Needs
from app.policy.cuda import ImageRow, container_needs, minimum_need
from app.policy.demand import Demand
from app.policy.schema import STRICTNESS, Action, Rule, SharingWish, Spec
from app.policy.schema_admission import Admission, Defaults
from app.quantity import parse_mib
from app.versions import parse_minimum

_LENIENCE = ("Deny", "UseLimits", "CopyToLimits", "Leave")
_GUARDING = ("Deny", "Void", "Strip", "Leave")
"""Strictest first (INTERFACES §4)."""

ANNOTATION = "annotation"
"""How the pod's own words are named among the origins."""

Stated = list[tuple[str, Needs]]
"""(who, what it needs), the pod's annotations first."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A policy that is for the pod, and the action with which each of its rules applies."""

    name: str
    spec: Spec
    actions: Mapping[Rule, Action]

    def at(self, rule: Rule, level: Action) -> bool:
        """Tell whether a rule of the policy applies with this action or a stricter one."""
        return STRICTNESS[self.actions[rule]] >= STRICTNESS[level]


NO_DEFAULTS = Defaults()


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What admission does to a pod; None is "nothing". `override`: the fields that also replace what the pod says."""

    runtime_class_name: str | None = None
    scheduler_name: str | None = None
    tolerate: bool = False
    from_node_taints: bool = False
    toleration_keys: tuple[str, ...] = ()
    requests_only: str = "Leave"
    mismatch: str = "Leave"
    fractional: str = "Leave"
    affinity_mode: str = "Off"
    affinity_keys: tuple[str, ...] | None = None
    max_gpus_per_pod: int | None = None
    priority_class_name: str | None = None
    defaults: Defaults = NO_DEFAULTS
    right_sizing: bool = False
    mig_fallback: str | None = None
    visible_devices: str = "Leave"
    privileged: str = "Leave"
    bypass: str = "Leave"
    override: frozenset[str] = frozenset()


def needs_of(applied: Applied, level: Action, knowledge: Knowledge) -> Needs:
    """Read the needs that a policy states with this action or a stricter one."""
    placement = applied.spec.placement

    def stated(rule: Rule, value: Any) -> Any:
        return value if applied.at(rule, level) else None

    products = stated(Rule.Products, placement.products)
    cuda = stated(Rule.CUDA, placement.cuda and placement.cuda.minimum)
    memory = stated(Rule.GPUMemory, placement.gpu_memory)
    capability = stated(Rule.ComputeCapability, placement.compute_capability)
    pattern = knowledge.products.pattern
    return Needs(
        allow=tuple(map(pattern, products.allow)) if products and products.allow is not None else None,
        deny=tuple(map(pattern, products.deny)) if products else (),
        cuda=parse_minimum(cuda) if cuda else None,
        memory_mib=parse_mib(memory) if memory else None,
        compute_capability=parse_minimum(capability) if capability else None,
        sharing=stated(Rule.Sharing, placement.sharing),
        nvlink=bool(stated(Rule.Interconnect, placement.interconnect)),
    )


def merge_demand(
    pod: Pod,
    resources: tuple[tuple[str, int], ...],
    applied: list[Applied],
    stated: Stated,
    level: Action,
    knowledge: Knowledge,
) -> Demand:
    """Compile what is stated into a Demand: intersections, unions, maxima, the strictest."""
    needs = [each for _, each in stated]
    allow = tuple(each.allow for each in needs if each.allow is not None)
    deny = tuple(pattern for each in needs for pattern in each.deny)
    required, wished = _cuda(pod, resources, applied, stated, level, knowledge)
    scores = first(applied, Rule.Scores, level, lambda spec: spec.placement.scores)
    return Demand(
        resources=resources,
        products=allow,
        denied_products=deny,
        preferred_products=_preferred(applied, level, allow, deny, knowledge),
        cuda=required,
        cuda_wishes=wished,
        accept=max(_accepts(applied, level), default=Accept.MinorVersion),
        memory_mib=max((each.memory_mib or 0 for each in needs), default=0),
        compute_capability=max((each.compute_capability for each in needs if each.compute_capability), default=None),
        sharing=_strictest_sharing(needs),
        mig_profile=next((each.mig_profile for each in needs if each.mig_profile), None),
        nvlink=any(each.nvlink for each in needs),
        refuse_unknown=any(
            each.spec.placement.unknown_facts == "Refuse" for each in applied if each.at(Rule.UnknownFacts, level)
        ),
        scores=tuple((score.name, score.weight) for score in scores or ()),
        ranked=first(applied, Rule.ScoreSpread, level, lambda spec: spec.placement.score_spread) != "Proportional",
    )


def merge_admission(applied: list[Applied], level: Action) -> AdmissionRules:
    """Merge what admission does with this action or a stricter one."""

    def parts(rule: Rule, name: str) -> list[Any]:
        found = (getattr(each.spec.admission, name) for each in applied if each.at(rule, level))
        return [each for each in found if each is not None]

    def single(rule: Rule, name: str) -> Any:
        return first(applied, rule, level, lambda spec: getattr(spec.admission, name))

    resources = parts(Rule.ExtendedResources, "extended_resources")
    tolerations = parts(Rule.Tolerations, "tolerations")
    from_taints = [each.from_node_taints for each in tolerations if each.from_node_taints is not None]
    affinities = parts(Rule.Affinity, "affinity")
    modes = [each.mode for each in affinities if each.mode is not None]
    keys = [each.keys for each in affinities if each.keys is not None]

    def strictest(field: str) -> str:
        return min((getattr(each, field) or "Leave" for each in resources), key=_LENIENCE.index, default="Leave")

    def guard(rule: Rule, name: str) -> str:
        return min(parts(rule, name), key=_GUARDING.index, default="Leave")

    return AdmissionRules(
        runtime_class_name=single(Rule.RuntimeClassName, "runtime_class_name"),
        scheduler_name=single(Rule.SchedulerName, "scheduler_name"),
        tolerate=bool(tolerations),
        from_node_taints=next(iter(from_taints), False),
        toleration_keys=tuple(sorted({key for each in tolerations for key in each.keys})),
        requests_only=strictest("requests_only"),
        mismatch=strictest("mismatch"),
        fractional=strictest("fractional"),
        affinity_mode=next(iter(modes), "Off"),
        affinity_keys=next(iter(keys), None),
        max_gpus_per_pod=min(parts(Rule.MaxGPUsPerPod, "max_gpus_per_pod"), default=None),
        priority_class_name=single(Rule.PriorityClassName, "priority_class_name"),
        defaults=_defaults(parts(Rule.Defaults, "defaults")),
        right_sizing=bool(single(Rule.RightSizing, "right_sizing")),
        mig_fallback=single(Rule.MIGFallback, "mig_fallback"),
        visible_devices=guard(Rule.VisibleDevices, "visible_devices"),
        privileged=guard(Rule.Privileged, "privileged"),
        bypass=guard(Rule.Bypass, "bypass"),
        override=frozenset(_overriding(applied, level)),
    )


def _defaults(found: list[Defaults]) -> Defaults:
    """Take each default from the highest priority that sets it."""
    stated = [each.model_dump(exclude_none=True, by_alias=False) for each in reversed(found)]
    return Defaults.model_validate({name: value for each in stated for name, value in each.items()}, by_name=True)


_OVERRIDABLE = (
    (Rule.RuntimeClassName, "runtime_class_name"),
    (Rule.SchedulerName, "scheduler_name"),
    (Rule.PriorityClassName, "priority_class_name"),
    (Rule.Defaults, "defaults.cpu_per_gpu"),
    (Rule.Defaults, "defaults.memory_per_gpu"),
    (Rule.Defaults, "defaults.driver_capabilities"),
)


def _overriding(applied: list[Applied], level: Action) -> Iterator[str]:
    """List the fields whose value comes from a policy that says `override`."""
    for rule, name in _OVERRIDABLE:
        read = attrgetter(name)
        setters = (each for each in applied if each.at(rule, level) and _sets(each.spec.admission, read))
        winner = next(setters, None)
        if winner is not None and winner.spec.admission.override:
            yield name


def first(applied: Iterable[Applied], rule: Rule, level: Action, read: Callable[[Spec], Any]) -> Any:
    """Take a single value from the highest priority that sets it with this action or a stricter one."""
    found = (read(each.spec) for each in applied if each.at(rule, level))
    return next((value for value in found if value is not None), None)


def _sets(admission: Admission, read: Callable[[Admission], Any]) -> bool:
    try:
        return read(admission) is not None
    except AttributeError:  # a block that is not there at all
        return False


def _cuda(
    pod: Pod,
    resources: tuple[tuple[str, int], ...],
    applied: list[Applied],
    stated: Stated,
    level: Action,
    knowledge: Knowledge,
) -> tuple[tuple[CUDANeed, ...], tuple[CUDANeed, ...]]:
    """Collect (required, wished) needs: stated minimums, and each container's own unless an annotation speaks first."""
    minimums = [(origin, needs.cuda) for origin, needs in stated if needs.cuda]
    required = [minimum_need(cuda, _who(origin), knowledge) for origin, cuda in minimums]
    wished: list[CUDANeed] = []
    if not any(origin == ANNOTATION for origin, _ in minimums):
        from_image = first(
            applied, Rule.CUDA, level, lambda spec: spec.placement.cuda and spec.placement.cuda.from_image
        )
        rows = tuple(_image_rows(applied, level))
        asking = gpu_containers(pod, (name for name, _ in resources))
        for need, hard in container_needs(asking, rows, bool(from_image), knowledge):
            (required if hard else wished).append(need)
    return tuple(dict.fromkeys(required)), tuple(dict.fromkeys(wished))


def _image_rows(applied: list[Applied], level: Action) -> Iterator[ImageRow]:
    for each in applied:
        cuda = each.spec.placement.cuda
        if cuda and each.at(Rule.CUDA, level):
            for row in cuda.images:
                yield ImageRow(re.compile(translate(row.image)), parse_minimum(row.cuda), each.name)


def _who(origin: str) -> str:
    return "annotation gpu-usher.io/cuda" if origin == ANNOTATION else f"policy {origin}"


def _accepts(applied: list[Applied], level: Action) -> Iterator[Accept]:
    for each in applied:
        cuda = each.spec.placement.cuda
        if each.at(Rule.CUDA, level) and cuda and cuda.accepted is not None:
            yield cuda.accepted


def _strictest_sharing(needs: Iterable[Needs]) -> SharingWish:
    order = list(SharingWish)
    return max((each.sharing or SharingWish.Any for each in needs), key=order.index, default=SharingWish.Any)


def _preferred(
    applied: list[Applied],
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
