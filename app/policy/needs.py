# SPDX-License-Identifier: Apache-2.0
"""The needs of pods, each as one row of NEEDS, from which everything that is said about it is written.

A row says how sources state the need: by a field of a policy's placement block (policy/schema_placement.py) and by an
annotation. Where nodes are judged by one Fact about their GPUs, the row has it. From the row follow the filter
(`Need.judge`), node labels (admission/affinity_labels.py), CEL (admission/claim_template.py), the labels of a new node
(whatif/node_template.py), the edit of the annotation (explain/edits_gpu.py), what nodes have instead
(explain/pending_cause.py), and the tables of the documentation. Needs that are no comparison with one fact have
functions in these modules.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from operator import attrgetter
from typing import Any, Generic, TypeVar

from pydantic.alias_generators import to_snake

from app.knowledge.mig_profiles import parse_profile, profile_of
from app.knowledge.products import Product, ProductPattern, Products
from app.kube.device_models import NVIDIA_DRIVER
from app.nodes.conditions import CC_MODE, CC_READY, COMPUTE, FAMILY, MEMORY, MODE
from app.nodes.model import NodeClass, Sharing
from app.policy.cuda_needs import show_need
from app.policy.demand import Demand, ProductLimit
from app.policy.facts import (
    ATTRIBUTES,
    MIB_AT_LEAST,
    ONE_OF,
    SINCE,
    UNSTATED,
    VERSION_AT_LEAST,
    Fact,
    FactConstraint,
    architecture_of,
    fact_of_label,
)
from app.policy.fields import Merge, merge_rules, merged
from app.policy.schema_placement import Placement, Rule, SharingWish
from app.values.errors import BadInput
from app.values.label_requirements import Requirement, selector_requirements
from app.values.quantity import LEAST_GPU_MEMORY, parse_gpu_memory
from app.values.reasons import Code, join_with_or
from app.values.versions import Version, parse_minimum


@dataclass(frozen=True, slots=True)
class Annotation:
    """The annotation `gpu-usher.io/…` that states a need.

    `parse` reads the value from its text, and raises BadInput. The other fields are for the policy page: the grammar in
    Markdown, examples, and the meaning.
    """

    name: str
    parse: Callable[[str], Any]
    grammar: str
    examples: tuple[str, ...]
    meaning: str

    def read(self, text: str) -> Any:
        """Read the value from a text; None from one that does not parse."""
        try:
            return self.parse(text)
        except BadInput:
            return None


def choice(choices: Mapping[str, Any]) -> Callable[[str], Any]:
    """Make a parser of one of several words, in any case of letters."""
    words = {word.lower(): word for word in choices}

    def parse(text: str) -> Any:
        word = text.strip().lower()
        if word in words:
            return choices[words[word]]
        guess = word[:LONGEST_GUESSED_NAME]
        begun = [one for one in words if guess and one.startswith(guess)]
        close = get_close_matches(guess, words, n=1) or begun[:1]
        hint = f"; did you mean {words[close[0]]}?" if close else ""
        raise BadInput(f"got {text[:LONGEST_GUESSED_NAME]!r}, wants {join_with_or(list(choices))}{hint}")

    return parse


def list_of_words(name: str, words: Collection[str], example: str, meaning: str) -> Annotation:
    """Make the annotation that lists some of these words, with commas between them."""
    parse = choice({word: word for word in words})
    item = name.removesuffix("s").rpartition("-")[2].upper()
    grammar = f'`{item} {{"," {item}}}`' if len(words) > 1 else f"`{example}`"
    return Annotation(name, lambda text: frozenset(map(parse, text.split(","))), grammar, (example,), meaning)


LONGEST_GUESSED_NAME = 40
"""Characters of a word for which a similar one is searched."""
DECLARED = {path: merge for path, merge, _ in merge_rules(Placement, ("spec", "placement"))}
"""How each field of the placement block is merged (policy/fields.py)."""
Stated = TypeVar("Stated")
Needs = Mapping["Need[Any]", Any]
"""The needs that one source states, a policy or the pod's annotations. A need that it does not state has no entry."""
FIELDS = frozenset(one.name for one in fields(Demand))


def _reader(name: str, annotation: Annotation | None) -> Callable[[Placement, Products], Any]:
    """Make the reader of a field: a text is read as in the annotation, and a list is a set of words."""

    def read(placement: Placement, _products: Products) -> Any:
        value = getattr(placement, name)
        if isinstance(value, str) and annotation:
            return annotation.parse(value)
        return frozenset(getattr(one, "value", one) for one in value) if isinstance(value, tuple) else value

    return read


@dataclass(frozen=True, slots=True, eq=False)
class Need(Generic[Stated]):
    """One need that sources can state with a value of type `Stated`.

    `path` is its field in a policy, or the annotation that alone states it; the rule of that field decides whether it
    applies. `demand_field` is the field of Demand that has the merged value; without such a field it is in
    `Demand.others`. `read` gives the value in a policy's placement block, None if it states none; by default a text is
    read as in the annotation, and a list is a set of words.
    `shown` gives the lines of text for a value of Demand, or is the line, with `{}` for what is wanted. `codes` are the
    reasons with which filters and admission refuse a pod for this need.
    `wrong` and `wants` are the words of a refusal by the fact. `asked` gives what is wanted of it, where that is not
    the value of `demand_field` alone, and `inferable` says that an image alone can imply it.
    `doubt` says of a stated value why it cannot be meant, empty where it can. `widest` is the text
    of an annotation that all nodes meet.
    """

    path: str
    demand_field: str
    shown: str | Callable[[Any], Iterable[str]]
    codes: tuple[Code, ...] = ()
    annotation: Annotation | None = None
    fact: Fact | None = None
    wrong: str = ""
    wants: str = "{}"
    read: Callable[[Placement, Products], Stated | None] | None = None
    asked: Callable[[Demand], Any] | None = None
    inferable: bool = False
    doubt: Callable[[Any, Products], str] | None = None
    widest: str | None = None
    rule: Rule | None = field(init=False, default=None)
    value: Callable[[Demand], Any] = field(init=False, default=lambda _: None)
    wanted: Callable[[Demand], Any] = field(init=False, default=lambda _: None)

    def __post_init__(self) -> None:
        """Find the rule of the policy's field, and the value in a Demand."""
        name = self.demand_field
        of_field = attrgetter(name) if name in FIELDS else lambda demand: dict(demand.others).get(name)
        object.__setattr__(self, "value", of_field)
        object.__setattr__(self, "wanted", self.asked or of_field)
        if self.path in DECLARED:
            object.__setattr__(self, "rule", Rule(self.path.split(".")[2]))
            object.__setattr__(self, "read", self.read or _reader(to_snake(self.path.split(".")[2]), self.annotation))

    def of(self, needs: Needs) -> Stated | None:
        """Give the value that a source states; None if it states none."""
        value: Stated | None = needs.get(self)
        return value

    def eased(self, stated: str, offer: Any, node: NodeClass) -> str | None:
        """Write the nearest wish that a node meets as the annotation that states this need; None if there is none.

        `offer` is what the node offers of a need that has an order.
        """
        fact, annotation = self.fact, self.annotation
        if fact is None or annotation is None:
            return self.widest
        value = offer if fact.compared.ordered else fact.own(node)
        text = None if value is None else fact.compared.eased(annotation.read(stated), value)
        return self.widest if text is None or annotation.read(text) is None else text

    def lines(self, demand: Demand) -> Iterable[str]:
        """Write the lines of text for a demand."""
        value = self.value(demand)
        if not isinstance(self.shown, str):
            return self.shown(value)
        words = self.fact.compared.words if self.fact else str
        return () if value in UNSTATED else (self.shown.format(words(value)),)

    def tolerated(self, demand: Demand, nodes: Iterable[NodeClass]) -> Iterator[str]:
        """Say where a node that fits has less than is asked for, which the comparison tolerates."""
        fact, wanted = self.fact, self.wanted(demand)
        if fact is None or fact.compared.tested is None or wanted in UNSTATED:
            return
        values = (value for node in nodes if (value := fact.value(demand, node)))
        if least := min((value for value in values if value < wanted), default=None):
            asked = self.wants.removeprefix(">= ").format(fact.compared.words(wanted))
            yield f"asked {asked}, tested >= {fact.compared.tested(wanted)}: a node that fits has {int(least)}"


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


LEAST_IN_MIB = 1024
"""The least number of GiB that is taken for one of MiB: people write 40000Gi for 40000Mi, but not 500Gi for 500Mi."""


def _implausible_memory(mib: int, products: Products) -> str:
    """Doubt an amount that no CUDA process lives on, or that no known GPU has."""
    most, meant = products.most_memory_mib, mib // 1024
    if mib > most:
        hint = f"; did you mean {meant}Mi?" if LEAST_IN_MIB <= meant <= most and mib % 1024 == 0 else ""
        return f"is more than any known GPU has, which is {most // 1024}Gi{hint}"
    return f"is less than a CUDA context needs; did you mean {mib}Gi?" if mib < LEAST_GPU_MEMORY else ""


def _least_capability(demand: Demand) -> Version | None:
    """Give the least compute capability that the pod or one of its images needs."""
    minimums = (LEAST_CAPABILITY.value(demand), *(need.capability_floor for need in demand.cuda))
    return max((minimum for minimum in minimums if minimum is not None), default=None)


def _compute_labels(row: Product) -> dict[str, str]:
    key, parts = COMPUTE
    return {f"{key}.{part}": str(number) for part, number in zip(parts, (*row.compute_capability, 0), strict=False)}


NVLINK_ONLY = frozenset({"NVLink"})
_INTERCONNECTS = {True: "NVLink", False: "none", None: None}


def _interconnect(demand: Demand, node: NodeClass) -> str | None:
    """Name what joins the GPUs all-to-all; MIG slices have no NVLink."""
    sliced = node.sharing is Sharing.MIG or node.mig_profile is not None
    return "none" if sliced or any(profile_of(name) for name, _ in demand.resources) else _INTERCONNECTS[node.nvlink]


_PRODUCT_CODES = (Code.ProductNotAllowed, Code.NoProductLeft)

ALLOWED_PRODUCTS: Need[tuple[ProductPattern, ...]] = Need(
    "spec.placement.products.allow", "products",
    lambda alternatives: ("products " + ", ".join(pattern.text for pattern in any_of) for any_of in alternatives),
    _PRODUCT_CODES, read=_allowed,
)  # fmt: skip
"""Product patterns, of which one must match."""
DENIED_PRODUCTS: Need[tuple[ProductPattern, ...]] = Need(
    "spec.placement.products.deny", "denied_products",
    lambda patterns: (f"not product {pattern.text}" for pattern in patterns),
    _PRODUCT_CODES, read=_denied,
)  # fmt: skip
"""Product patterns, of which none may match."""
LEAST_CUDA: Need[Version] = Need(
    "spec.placement.cuda.minimum", "cuda", lambda needs: map(show_need, needs), (Code.DriverTooOld,),
    Annotation("cuda", parse_minimum, '`[">="] N {"." N}`', ("12.4", ">=12"), "at least this CUDA must run there"),
    Fact("CUDA", VERSION_AT_LEAST, attrgetter("cuda")),
    read=lambda wish, _: parse_minimum(wish.cuda.minimum) if wish.cuda and wish.cuda.minimum else None,
)  # fmt: skip
"""The least CUDA version that must run on the node."""
LEAST_MEMORY: Need[int] = Need(
    "spec.placement.gpuMemory", "memory_mib", "memory per GPU >= {}", (Code.GPUMemoryTooSmall,),
    Annotation("gpu-memory", lambda text: parse_gpu_memory(text.removeprefix(">=")), '`[">="] AMOUNT`',
               ("40Gi", ">=80GB"), "at least, per GPU or slice; on shared GPUs also what the pod will use of each"),
    Fact("GPU memory", MIB_AT_LEAST, attrgetter("memory_mib"),
         lambda demand, node: node.memory_of(dict(demand.resources)), attrgetter("memory_at_most"),
         label=MEMORY, dialect_label="memory_key", by_unit=True,
         template=lambda row: {MEMORY: str(row.memory_mib)} if row.memory_mib else {},
         member=f"device.capacity['{NVIDIA_DRIVER}'].memory", any_vendor=True),
    "GPU memory too small", ">= {} per GPU", doubt=_implausible_memory,
)  # fmt: skip
"""The least memory of each GPU or MIG slice, in MiB."""
LEAST_CAPABILITY: Need[Version] = Need(
    "spec.placement.computeCapability", "compute_capability", "compute capability >= {}",
    (Code.ComputeCapabilityTooLow,),
    Annotation("compute-capability", parse_minimum, '`[">="] N {"." N}`', ("8.0", ">=9"), "at least"),
    Fact("compute capability", VERSION_AT_LEAST, attrgetter("compute_capability"), label=f"{COMPUTE[0]}.major",
         template=_compute_labels, member=f"{ATTRIBUTES}.cudaComputeCapability"),
    "compute capability too low", ">= {}", asked=_least_capability, inferable=True,
)  # fmt: skip
"""The least compute capability."""
SHARING: Need[SharingWish] = Need(
    "spec.placement.sharing", "sharing",
    lambda wish: [] if wish is SharingWish.Any else [f"sharing {wish.value}"], (Code.SharingNotAllowed,),
    Annotation("sharing", choice({wish.value.lower(): wish for wish in SharingWish}), "`Exclusive`, `Shared` or `Any`",
               ("Exclusive",), "a whole GPU or MIG slice, never a replica; a replica; either"),
    widest="Any",
)  # fmt: skip
"""Which units the pod accepts as a GPU."""
MIG_PROFILE: Need[tuple[str, bool]] = Need(
    "gpu-usher.io/mig-profile", "mig_profile",
    lambda profile: [f"MIG profile {'>= ' if profile[1] else ''}{profile[0]}"] if profile else [],
    annotation=Annotation("mig-profile", parse_profile, '`[">="] PROFILE`', ("1g.10gb", ">=1g.10gb"),
                          "exactly that slice; with `>=` any that covers it"),
)  # fmt: skip
"""A MIG profile, and whether larger profiles qualify too. Only annotations state it."""
NVLINK: Need[bool] = Need(
    "spec.placement.interconnect", "nvlink", lambda required: ["NVLink"] if required else [],
    (Code.InterconnectAbsent,),
    Annotation("interconnect", choice({"nvlink": True}), "`NVLink`", ("NVLink",), "GPUs joined all-to-all"),
    Fact("GPU interconnect", ONE_OF, lambda node: _INTERCONNECTS[node.nvlink], _interconnect),
    "GPUs are not joined all-to-all", asked=lambda demand: NVLINK_ONLY if NVLINK.value(demand) else None,
)  # fmt: skip
"""GPUs that NVLink joins all-to-all."""
FORM_FACTORS: Need[frozenset[str]] = Need(
    "spec.placement.formFactor", "form_factors", "form factor {}", (Code.FormFactorNotAllowed,),
    fact=Fact("GPU form factor", ONE_OF, attrgetter("form_factor")), wrong="GPU form factor not allowed",
)  # fmt: skip
"""Form factors of the GPU, of which one must match."""
_FAMILIES = {name: (name.lower().replace(" ", "-"),) for name in SINCE.values()}
_FORMER_FAMILIES = {"Ada Lovelace": "ampere", "Blackwell": "undefined", "Rubin": "undefined"}
"""GFD's family of GPUs that a release does not know yet (NVIDIA/k8s-device-plugin#943, #1237, #1909), and of Thor."""
ARCHITECTURES: Need[frozenset[str]] = Need(
    "spec.placement.architectures", "architectures", "GPU architecture {}", (Code.ArchitectureNotAllowed,),
    list_of_words("architectures", _FAMILIES, "Hopper, Blackwell", "one of these GPU architectures"),
    fact_of_label("GPU architecture", FAMILY, _FAMILIES, architecture_of, _FORMER_FAMILIES,
                  member=f"{ATTRIBUTES}.architecture"),
    "GPU architecture not allowed",
)  # fmt: skip
"""Architectures of the GPU, of which one must match."""
_CC_MODES = {"Required": ("on", "ppcie")}
"""Modes that protect data; devtools does not (docs.nvidia.com/datacenter/cloud-native/confidential-containers)."""
CONFIDENTIAL_COMPUTING: Need[frozenset[str]] = Need(
    "spec.placement.confidentialComputing", "confidential_computing", "confidential computing",
    (Code.ConfidentialComputingOff,),
    list_of_words("confidential-computing", _CC_MODES, "Required", "GPUs in a confidential-computing mode"),
    fact_of_label("confidential computing", CC_MODE, _CC_MODES, excluded={CC_READY: "false"}, otherwise="off",
                  by_product=False),
    "no confidential computing", "cc.mode.state on or ppcie, and cc.ready.state true",
)  # fmt: skip
"""GPUs in a mode that protects data; a node of which nothing is known is refused."""
_MODES = {"compute": ("compute",), "graphics": ("graphics", "display")}
"""By the PCI class of all GPUs of a node (NVIDIA/k8s-device-plugin internal/lm/nvml.go getModeForClasses). GFD's README
says display where its code writes graphics."""
GPU_MODES: Need[frozenset[str]] = Need(
    "spec.placement.gpuMode", "gpu_mode", "GPU mode {}", (Code.GPUModeNotAllowed,),
    list_of_words("gpu-mode", _MODES, "compute", "`compute`, `graphics` or both, as GFD labels it"),
    fact_of_label("GPU mode", MODE, _MODES, by_product=False),
    "GPU mode not allowed",
)  # fmt: skip
"""Modes of all GPUs of the node, of which one must match."""
NODE_SELECTOR: Need[tuple[Requirement, ...]] = Need(
    "spec.placement.nodeSelector", "node_selector",
    lambda requirements: (f"node label {requirement.key}" for requirement in requirements), (Code.NodeExcluded,),
    read=_node_selector,
)  # fmt: skip
"""Requirements on the node's labels, all of which must be met."""
NAMESPACE_LIMITS: Need[tuple[ProductLimit, ...]] = Need(
    "spec.placement.namespaceLimits", "namespace_limits",
    lambda limits: (f"at most {limit.most} {join_with_or([one.text for one in limit.patterns])} in the namespace"
                    for limit in limits),
    (Code.NamespaceLimitReached,), read=_namespace_limits,
)  # fmt: skip
"""Limits on what the pods of the namespace hold together."""
TOPOLOGY_MANAGER: Need[bool] = Need(
    "spec.placement.topologyManager", "topology_manager",
    lambda refuses: ["GPUs as the kubelet's topology manager gives them"] if refuses else [],
    (Code.RequestExceedsNUMANode, Code.InsufficientGPUsOnNUMANode),
    read=lambda placement, _: placement.topology_manager == "Refuse" or None,
)  # fmt: skip
"""Whether a node is refused whose kubelet would refuse the pod."""

NEEDS: tuple[Need[Any], ...] = (
    ALLOWED_PRODUCTS, DENIED_PRODUCTS, LEAST_CUDA, LEAST_MEMORY, LEAST_CAPABILITY, SHARING, MIG_PROFILE, NVLINK,
    FORM_FACTORS, ARCHITECTURES, CONFIDENTIAL_COMPUTING, GPU_MODES, NODE_SELECTOR, NAMESPACE_LIMITS, TOPOLOGY_MANAGER,
)  # fmt: skip
"""All needs, in the order in which explain lists them."""
WITH_FACT = tuple((need, need.fact) for need in NEEDS if need.fact and need.wrong)
"""The needs that are judged by one fact; for CUDA the fact is only what a node offers."""
CONSTRAINTS: Mapping[Need[Any], FactConstraint] = {
    need: FactConstraint(fact.own, fact.compared.accepts, need.wanted, need.codes[0], need.wrong, need.wants,
                     fact.compared.words, fact.of, fact.at_most, fact.name)
    for need, fact in WITH_FACT
}  # fmt: skip
"""What these needs refuse."""


def merge_needs(sources: Iterable[Needs]) -> dict[str, Any]:
    """Merge what the sources state into values of Demand, except CUDA, which depends on the containers (merge.py)."""
    all_sources, in_fields, others = list(sources), dict[str, Any](), dict[str, Any]()
    for need in NEEDS:
        values = [needs[need] for needs in all_sources if need in needs]
        if values and need is not LEAST_CUDA:
            of_field = in_fields if need.demand_field in FIELDS else others
            of_field[need.demand_field] = merged(DECLARED.get(need.path, Merge.Single), values)
    return {**in_fields, "others": tuple(others.items())} if others else in_fields
