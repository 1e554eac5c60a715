# SPDX-License-Identifier: Apache-2.0
"""The needs that policies, annotations and images can state: how each is read, merged, and shown.

To add a need: a field of the placement block and its rule (policy/schema_placement.py, policy/schema.py), a descriptor
and its line in NEEDS, a field of Demand, and the filter that judges it. An annotation for it is a row of
policy/annotations.py.

The CUDA need of a container has evidence, of which the first counts:

| evidence | with | counts |
|---|---|---|
| the pod's annotation gpu-usher.io/cuda | a minimum, for all containers | always |
| the container's environment | NVIDIA_REQUIRE_*, with those of the image's config that it does not replace | always |
| the image table of a policy | a minimum | always |
| the image's config (app/images) | NVIDIA_REQUIRE_* and CUDA_VERSION | if cuda.fromImage |
| the image's name and tag | the CUDA version of a row of image_cuda.yaml, or in the tag | if cuda.fromImage |

Otherwise the need is unknown. NVIDIA_DISABLE_REQUIRE, of the container or else of the image's config, turns what the
images say into a preference.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from app.knowledge.cuda_compatibility import CUDANeed, RequireExpression, Toolkit, lowest_cuda, named_branches
from app.knowledge.image_configs import (
    COMPAT_PACKAGE,
    CUDA_VERSION,
    DISABLE,
    TRUE,
    cuda_version,
    is_requirement,
    requirement_of,
)
from app.knowledge.images import Branches, ImageCUDA, ImagePlatform
from app.knowledge.products import ProductPattern, Products
from app.knowledge.tables import Knowledge
from app.kube.pods import Container
from app.policy.demand import ProductLimit
from app.policy.schema import Rule
from app.policy.schema_placement import FormFactor, Placement, SharingWish
from app.values.label_requirements import Requirement, selector_requirements
from app.values.quantity import parse_mib
from app.values.reasons import Code, join_with_or
from app.values.versions import Version, major_minor, parse_minimum, show_version


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One row of the image table of `policy`: images whose reference matches were built with this CUDA version.

    `compat` says that they contain the cuda-compat package of that version.
    """

    pattern: re.Pattern[str]
    cuda: Version
    policy: str
    compat: bool = False


def minimum_need(cuda: Version, evidence: str, knowledge: Knowledge, compat: bool = False) -> CUDANeed:
    """Compile the need for at least this CUDA version, as an annotation, an environment or a policy states it.

    Forward compatibility depends on a package in the image, so that it is assumed only if `compat` is set.
    """
    toolkit = knowledge.cuda.toolkit(cuda)
    forward = _beyond_minor_version(toolkit, _branches_from_first_driver(toolkit.forward_branches)) if compat else ()
    return CUDANeed(
        cuda=cuda,
        minimum=True,
        native=toolkit.native,
        minor_version=toolkit.minor_version,
        requires=None,
        forward=forward,
        capability_floor=None,
        unsupported=knowledge.cuda.unsupported(cuda),
        targets=None,
        requirement=(),
        evidence=evidence + _forward_evidence(cuda, forward),
    )


def _branches_from_first_driver(branches: frozenset[int]) -> tuple[tuple[int, Version], ...]:
    return tuple((branch, (branch,)) for branch in sorted(branches))


def _beyond_minor_version(toolkit: Toolkit, forward: Branches) -> Branches:
    """Leave out the branches on which minor-version compatibility holds anyway, and duplicates."""
    floor = toolkit.minor_version or toolkit.native
    return tuple((branch, lowest) for branch, lowest in dict.fromkeys(forward) if lowest < floor)


def container_needs(
    containers: tuple[Container, ...], rows: tuple[ImageRow, ...], from_image: bool, knowledge: Knowledge
) -> Iterator[tuple[CUDANeed, bool]]:
    """List the need of each container for which there is evidence, and whether it is required or only preferred."""
    for container in containers:
        environment = dict(container.facts.variables if container.facts else ()) | dict(container.env)
        if container.facts is None:
            environment.pop(CUDA_VERSION, None)  # without the image it is not known whether a requirement replaces it
        lifted = environment.get(DISABLE) in TRUE
        expression = () if lifted else requirement_of(environment)
        row = next((row for row in rows if row.pattern.fullmatch(container.image)), None)
        inferred = knowledge.images.infer(container.image) if from_image else None
        if expression and any(value and is_requirement(name) for name, value in container.env):
            yield _environment_need(container, expression, knowledge, "environment"), True
        elif row is not None:
            evidence = f"container {container.name}: image table of policy {row.policy}"
            yield minimum_need(row.cuda, evidence, knowledge, row.compat), True
        elif from_image and container.facts and (cuda := cuda_version(environment)):
            carried = _carried(cuda, inferred, expression if COMPAT_PACKAGE in environment else None)
            need = _image_need(carried, container, knowledge, lifted, "image's config,")
            yield replace(need, requirement=expression), not lifted
        elif from_image and expression:
            yield _environment_need(container, expression, knowledge, "image's config,"), True
        elif inferred is not None:
            yield _image_need(inferred, container, knowledge, lifted), inferred.required and not lifted


def _carried(cuda: Version, inferred: ImageCUDA | None, compat_for: RequireExpression | None) -> ImageCUDA:
    """Describe an image by its config, with what the tables know besides of an image of the same CUDA X.Y.

    `compat_for` is its requirement if it carries a cuda-compat package, for the branches that this names.
    """
    same = inferred is not None and major_minor(inferred.cuda) == major_minor(cuda)
    known = inferred if inferred is not None and same else ImageCUDA(cuda, True, "")
    known = replace(known, cuda=cuda, evidence=f"CUDA {show_version(cuda)}", requires=None)
    if compat_for is None:
        return known
    return replace(known, carries_compat=True, forward=known.forward or named_branches(compat_for))


def image_platforms(containers: tuple[Container, ...], knowledge: Knowledge) -> Iterator[ImagePlatform]:
    """List the platforms that the images of containers are built for, each once, the certain ones before the others."""
    shown = [
        replace(platform, evidence=f"container {container.name}: {platform.evidence}")
        for container in {container.image: container for container in reversed(containers)}.values()
        for platform in _platforms_of(container, knowledge)
    ]
    yield from dict.fromkeys(sorted(shown, key=lambda platform: not platform.required))


def _platforms_of(container: Container, knowledge: Knowledge) -> Iterator[ImagePlatform]:
    """Give the platform of an image: as its index says, and otherwise, or for one kind of board, as its name does."""
    named, facts = knowledge.images.platform(container.image), container.facts
    if facts is not None and len(facts.architectures) == 1:
        yield ImagePlatform(facts.architectures[0], None, True, "image's config")
    if named is not None and (facts is None or (named.products is not None and named.required)):
        yield named


def _environment_need(
    container: Container, expression: RequireExpression, knowledge: Knowledge, source: str
) -> CUDANeed:
    """Compile the requirement in the environment; without a `cuda` clause any driver is native for it."""
    cuda = lowest_cuda(expression)
    evidence = f"container {container.name}: {source} NVIDIA_REQUIRE_*"
    if cuda is not None:
        return replace(minimum_need(cuda, evidence, knowledge), requirement=expression)
    return CUDANeed((0,), True, (0,), None, None, (), None, frozenset(), None, expression, evidence)


def _image_need(
    inferred: ImageCUDA, container: Container, knowledge: Knowledge, lifted: bool, source: str = "image"
) -> CUDANeed:
    toolkit = knowledge.cuda.toolkit(inferred.cuda)
    package = _branches_from_first_driver(toolkit.forward_branches) if inferred.carries_compat else ()
    forward = _beyond_minor_version(toolkit, (*package, *inferred.forward))
    variable = inferred.compat_variable
    loads = not variable or (container.variable(variable) or "").strip().lower() in ("1", "true")
    depends = variable if forward and not loads else ""
    forced = inferred.loads_compat and loads and container.variable("LD_LIBRARY_PATH") is None
    evidence = (
        f"container {container.name}: {source} {inferred.evidence}{_forward_evidence(inferred.cuda, forward, depends)}"
        + "; on GeForce, the compat library that it always loads fails with an older driver (CUDA error 804)" * forced
    )
    return CUDANeed(
        cuda=inferred.cuda,
        minimum=False,
        native=inferred.native or toolkit.native,
        minor_version=toolkit.minor_version,
        requires=None if lifted else inferred.requires,
        forward=forward,
        forward_depends=bool(depends),
        forced_compat=forced,
        capability_floor=inferred.capability_floor,
        unsupported=knowledge.cuda.unsupported(inferred.cuda),
        targets=knowledge.cuda.targets(inferred.cuda),
        requirement=(),
        evidence=f"{evidence}, disabled by NVIDIA_DISABLE_REQUIRE" if lifted else evidence,
    )


def _forward_evidence(cuda: Version, forward: Branches, depends: str = "") -> str:
    """Describe the driver branches that forward compatibility adds, and the policy field that decides about it.

    `depends` is the variable without which the container itself does not load the package.
    """
    if not forward:
        return ""
    package = f"cuda-compat-{show_version(major_minor(cuda)).replace('.', '-')}"
    branches = ", ".join(f"R{branch}" for branch in sorted({branch for branch, _ in forward}))
    condition = f" if {depends}=1 is set or the container toolkit of the node enables it" if depends else ""
    return f"; its {package} also allows driver {branches} on data-centre GPUs{condition} (policy field cuda.accept)"


def show_need(need: CUDANeed) -> str:
    """Write a need and its evidence in words."""
    return f"CUDA {'>= ' if need.minimum else ''}{show_version(need.cuda)} ({need.evidence})"


Stated = TypeVar("Stated")
Needs = Mapping["Need[Any]", Any]
"""The needs that one source states, a policy or the pod's annotations. A need that it does not state has no entry."""


@dataclass(frozen=True, slots=True, eq=False)
class Need(Generic[Stated]):
    """One need that sources can state with a value of type `Stated`.

    `path` is its field in a policy, or the annotation that alone states it. `demand_field` is the field of Demand that
    has the merged value.
    `rule` is the rule of a policy whose action applies to it, and `read` gives the value in a policy's placement block,
    None if it states none; both are None for a need that only annotations state.
    `merge` makes the value of Demand from the stated ones, of which there is at least one; None for CUDA, whose needs
    depend on the containers too (policy/merge.py).
    `show` gives the lines of text for a value of Demand. `codes` are the reasons with which filters and admission
    refuse a pod for this need.
    """

    path: str
    demand_field: str
    rule: Rule | None
    read: Callable[[Placement, Products], Stated | None] | None
    merge: Callable[[list[Stated]], Any] | None
    show: Callable[[Any], Iterable[str]]
    codes: tuple[Code, ...] = ()

    def of(self, needs: Needs) -> Stated | None:
        """Give the value that a source states; None if it states none."""
        value: Stated | None = needs.get(self)
        return value

    def stated(self, sources: Iterable[Needs]) -> list[Stated]:
        """List the values that the sources state, in their order."""
        return [needs[self] for needs in sources if self in needs]


def _allowed(placement: Placement, products: Products) -> tuple[ProductPattern, ...] | None:
    wish = placement.products
    return tuple(map(products.pattern, wish.allow)) if wish and wish.allow is not None else None


def _denied(placement: Placement, products: Products) -> tuple[ProductPattern, ...] | None:
    wish = placement.products
    return tuple(map(products.pattern, wish.deny)) if wish and wish.deny else None


def _node_selector(placement: Placement, _products: Products) -> tuple[Requirement, ...] | None:
    selector = placement.node_selector
    return selector_requirements(selector.model_dump(by_alias=True)) if selector else None


def _namespace_limits(placement: Placement, products: Products) -> tuple[ProductLimit, ...] | None:
    rows = placement.namespace_limits
    return tuple(ProductLimit(tuple(map(products.pattern, row.products)), row.gpus) for row in rows) or None


def _in_order(lists: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Join the lists without repetitions."""
    return tuple(dict.fromkeys(item for items in lists for item in items))


_PRODUCT_CODES = (Code.ProductNotAllowed, Code.NoProductLeft)

ALLOWED_PRODUCTS: Need[tuple[ProductPattern, ...]] = Need(
    "spec.placement.products.allow",
    "products",
    Rule.Products,
    _allowed,
    tuple,
    lambda alternatives: ("products " + ", ".join(pattern.text for pattern in any_of) for any_of in alternatives),
    _PRODUCT_CODES,
)
"""Product patterns, of which one must match."""
DENIED_PRODUCTS: Need[tuple[ProductPattern, ...]] = Need(
    "spec.placement.products.deny",
    "denied_products",
    Rule.Products,
    _denied,
    lambda lists: sum(lists, ()),
    lambda patterns: (f"not product {pattern.text}" for pattern in patterns),
    _PRODUCT_CODES,
)
"""Product patterns, of which none may match."""
LEAST_CUDA: Need[Version] = Need(
    "spec.placement.cuda.minimum",
    "cuda",
    Rule.CUDA,
    lambda wish, _: parse_minimum(wish.cuda.minimum) if wish.cuda and wish.cuda.minimum else None,
    None,
    lambda needs: map(show_need, needs),
    (Code.DriverTooOld,),
)
"""The least CUDA version that must run on the node."""
LEAST_MEMORY: Need[int] = Need(
    "spec.placement.gpuMemory",
    "memory_mib",
    Rule.GPUMemory,
    lambda placement, _: parse_mib(placement.gpu_memory) if placement.gpu_memory else None,
    max,
    lambda mib: [f"memory per GPU >= {mib} MiB"] if mib else [],
    (Code.GPUMemoryTooSmall,),
)
"""The least memory of each GPU or MIG slice, in MiB."""
LEAST_CAPABILITY: Need[Version] = Need(
    "spec.placement.computeCapability",
    "compute_capability",
    Rule.ComputeCapability,
    lambda placement, _: parse_minimum(placement.compute_capability) if placement.compute_capability else None,
    max,
    lambda version: [f"compute capability >= {show_version(version)}"] if version else [],
    (Code.ComputeCapabilityTooLow,),
)
"""The least compute capability."""
SHARING: Need[SharingWish] = Need(
    "spec.placement.sharing",
    "sharing",
    Rule.Sharing,
    lambda placement, _: placement.sharing,
    lambda wishes: max(wishes, key=list(SharingWish).index),
    lambda wish: [] if wish is SharingWish.Any else [f"sharing {wish.value}"],
    (Code.SharingNotAllowed,),
)
"""Which units the pod accepts as a GPU."""
MIG_PROFILE: Need[tuple[str, bool]] = Need(
    "gpu-usher.io/mig-profile",
    "mig_profile",
    None,
    None,
    lambda profiles: profiles[0],
    lambda profile: [f"MIG profile {'>= ' if profile[1] else ''}{profile[0]}"] if profile else [],
)
"""A MIG profile, and whether larger profiles qualify too. Only annotations state it."""
NVLINK: Need[bool] = Need(
    "spec.placement.interconnect",
    "nvlink",
    Rule.Interconnect,
    lambda placement, _: placement.interconnect == "NVLink" or None,
    any,
    lambda required: ["NVLink"] if required else [],
    (Code.InterconnectAbsent,),
)
"""GPUs that NVLink joins all-to-all."""
FORM_FACTORS: Need[frozenset[FormFactor]] = Need(
    "spec.placement.formFactor",
    "form_factors",
    Rule.FormFactor,
    lambda placement, _: None if placement.form_factor is None else frozenset(placement.form_factor),
    lambda choices: frozenset.intersection(*choices),
    lambda forms: [] if forms is None else ["form factor " + join_with_or(sorted(form.value for form in forms))],
    (Code.FormFactorNotAllowed,),
)
"""Form factors of the GPU, of which one must match."""
NODE_SELECTOR: Need[tuple[Requirement, ...]] = Need(
    "spec.placement.nodeSelector",
    "node_selector",
    Rule.NodeSelector,
    _node_selector,
    _in_order,
    lambda requirements: (f"node label {requirement.key}" for requirement in requirements),
    (Code.NodeExcluded,),
)
"""Requirements on the node's labels, all of which must be met."""
NAMESPACE_LIMITS: Need[tuple[ProductLimit, ...]] = Need(
    "spec.placement.namespaceLimits",
    "namespace_limits",
    Rule.NamespaceLimits,
    _namespace_limits,
    _in_order,
    lambda limits: (
        f"at most {limit.most} {join_with_or([one.text for one in limit.patterns])} in the namespace"
        for limit in limits
    ),
    (Code.NamespaceLimitReached,),
)
"""Limits on what the pods of the namespace hold together."""
TOPOLOGY_MANAGER: Need[bool] = Need(
    "spec.placement.topologyManager",
    "topology_manager",
    Rule.TopologyManager,
    lambda placement, _: placement.topology_manager == "Refuse" or None,
    any,
    lambda refuses: ["GPUs as the kubelet's topology manager gives them"] if refuses else [],
    (Code.RequestExceedsNUMANode, Code.InsufficientGPUsOnNUMANode),
)
"""Whether a node is refused whose kubelet would refuse the pod."""

NEEDS: tuple[Need[Any], ...] = (
    ALLOWED_PRODUCTS,
    DENIED_PRODUCTS,
    LEAST_CUDA,
    LEAST_MEMORY,
    LEAST_CAPABILITY,
    SHARING,
    MIG_PROFILE,
    NVLINK,
    FORM_FACTORS,
    NODE_SELECTOR,
    NAMESPACE_LIMITS,
    TOPOLOGY_MANAGER,
)
"""All needs, in the order in which explain lists them."""


def merge_needs(sources: Iterable[Needs]) -> dict[str, Any]:
    """Merge what the sources state into values of Demand by its fields, except CUDA's; unstated needs have no entry."""
    all_sources = list(sources)
    stated = ((need, need.stated(all_sources)) for need in NEEDS)
    return {need.demand_field: need.merge(values) for need, values in stated if values and need.merge}
