# SPDX-License-Identifier: Apache-2.0
"""Facts about the GPUs of nodes, how each is compared with what a pod wants, and the constraints that refuse nodes.

A Fact has the value of a class of nodes, and says where the value is written: in which label, in which attribute of a
device. A FactComparison writes what is wanted of it in each language. A FactConstraint is the verdict: it makes the
filter of a demand. The rows are in policy/needs.py and placement/class_filters.py.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any

from app.knowledge.products import Product
from app.kube.device_models import NVIDIA_DRIVER
from app.nodes.model import NodeClass
from app.policy.demand import Demand
from app.values.quantity import MEMORY_TOLERANCE, enough_memory
from app.values.reasons import Code, Reason, join_with_or, reason
from app.values.versions import Version, show_version

MatchExpression = dict[str, Any]
ATTRIBUTES = f"device.attributes['{NVIDIA_DRIVER}']"
"""CEL: the attributes of a device of NVIDIA's driver."""


@dataclass(frozen=True, slots=True)
class FactComparison:
    """How a value is compared with what is wanted, in each language.

    `words` writes what is wanted, `eased` the nearest wish that a value meets, as an annotation states it, `on_label`
    the expressions about a label, and `in_cel` a condition on the member of a device. `eased` has None for a wish that
    cannot be read. `ordered` says that one wish can be nearer to a value than another. `tested` writes the least value
    that is accepted, where that is less than what is wanted.
    """

    accepts: Callable[[Any, Any], bool]
    words: Callable[[Any], str]
    eased: Callable[[Any, Any], str]
    on_label: Callable[[str, Any], tuple[MatchExpression, ...]]
    in_cel: Callable[[str, Any], str]
    ordered: bool = True
    tested: Callable[[Any], str] | None = None


def number_at_least(key: str, number: int) -> tuple[MatchExpression, ...]:
    """Require a label's number to be at least `number`; below 1 nothing is required, as Gt takes no negative."""
    return ({"key": key, "operator": "Gt", "values": [str(number - 1)]},) if number > 0 else ()


def semver_at_least(member: str, version: Version) -> str:
    """Require it of a device's version; CEL's semver has exactly three fields."""
    return f"{member}.compareTo({semver(version)}) >= 0"


def semver(version: Version) -> str:
    """Write a version with exactly three fields, as CEL's semver requires."""
    return f"semver('{'.'.join(map(str, (*version, 0, 0)[:3]))}')"


VERSION_AT_LEAST = FactComparison(
    accepts=lambda wanted, value: bool(value >= wanted),
    words=show_version,
    eased=lambda _, value: show_version(value),
    on_label=lambda key, wanted: number_at_least(key, wanted[0]),
    in_cel=semver_at_least,
)
"""A least version; of a label only the major one is compared."""
MIB_AT_LEAST = FactComparison(
    accepts=lambda wanted, value: enough_memory(value, wanted),
    words=lambda wanted: f"{wanted} MiB",
    eased=lambda _, value: f"{int(value)}Mi",
    on_label=lambda key, wanted: number_at_least(key, floor(MEMORY_TOLERANCE * wanted)),
    in_cel=lambda member, wanted: f"{member}.compareTo(quantity('{ceil(MEMORY_TOLERANCE * wanted)}Mi')) >= 0",
    tested=lambda wanted: str(int(MEMORY_TOLERANCE * wanted)),
)
"""A least amount of memory, of which a GPU reports a little less (MEMORY_TOLERANCE)."""
ONE_OF = FactComparison(
    accepts=lambda wanted, value: value in wanted,
    words=lambda wanted: join_with_or(sorted(wanted)),
    eased=lambda wanted, value: ", ".join((*sorted(wanted if isinstance(wanted, frozenset) else ()), value)),
    on_label=lambda key, wanted: ({"key": key, "operator": "In", "values": sorted(wanted)},),
    in_cel=lambda member, wanted: f"{member} in [{', '.join(map(repr, sorted(wanted)))}]",
    ordered=False,
)
"""One of several words."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about the GPUs of a node, and where it is written; a value that is None is unknown.

    `own` gives the value of a class of nodes, and `of` that for a demand, where it is another. `at_most` gives an upper
    bound of an unknown value. `label` is the label by GPU Feature Discovery (GFD), `more` are further labels that it is
    read from, and `dialect_label` is the field of a cloud's dialect that names its label. `by_unit` says that a MIG
    slice that is requested by name has its own value, which the labels do not say. `template` gives the labels of a new
    node with a product. `member` is the member of a device in NVIDIA's DRA driver; `any_vendor` says that drivers of
    other vendors have it too, and that a device may lack it. `by_product` says that the product decides the value, so
    that its labels can stand for it.
    """

    name: str
    compared: FactComparison
    own: Callable[[NodeClass], Any]
    of: Callable[[Demand, NodeClass], Any] | None = None
    at_most: Callable[[NodeClass], Any] | None = None
    label: str = ""
    more: tuple[str, ...] = ()
    dialect_label: str = ""
    by_unit: bool = False
    template: Callable[[Product], Mapping[str, str]] = lambda _: {}
    member: str = ""
    any_vendor: bool = False
    by_product: bool = True

    @property
    def keys(self) -> tuple[str, ...]:
        """The labels that it is read from."""
        return tuple(filter(None, (self.label, *self.more)))

    def value(self, demand: Demand, node: NodeClass) -> Any:
        """Give the value for a demand on nodes of a class."""
        return self.own(node) if self.of is None else self.of(demand, node)

    def have(self, node: NodeClass) -> str | None:
        """Write the value of a class of nodes; None where it is unknown."""
        value = self.own(node)
        return None if not value else self.compared.words(value if self.compared.ordered else (value,))


def fact_of_label(
    name: str,
    label: str,
    words: Mapping[str, tuple[str, ...]],
    own: Callable[[NodeClass], str | None] = lambda _: None,
    former: Mapping[str, str] = {},
    excluded: Mapping[str, str] = {},
    otherwise: str | None = None,
    by_product: bool = True,
    member: str = "",
) -> Fact:
    """Make the fact of a label whose texts stand for words, all others for `otherwise`; what `own` says counts first.

    `former` is the text that releases without a word of it write, which is true of other words as well. `excluded` are
    further labels with the text by which the value is `otherwise`, whatever the label says. The label of a node with
    several products counts only for a fact that no product decides.
    """

    def value(node: NodeClass) -> str | None:
        if any(node.fact(key) == text for key, text in excluded.items()):
            return otherwise
        text = None if by_product and node.several_models else node.fact(label)
        return own(node) or next((word for word, texts in words.items() if text in texts), otherwise)

    def on_label(key: str, wanted: Iterable[str]) -> tuple[MatchExpression, ...]:
        texts = {text for word in wanted for text in (*words[word], former.get(word)) if text}
        never = ({"key": other, "operator": "NotIn", "values": [text]} for other, text in excluded.items())
        return ({"key": key, "operator": "In", "values": sorted(texts)}, *never)

    compared = replace(ONE_OF, on_label=on_label)
    return Fact(name, compared, value, label=label, more=tuple(excluded), by_product=by_product, member=member)


SINCE = {(5,): "Maxwell", (6,): "Pascal", (7,): "Volta", (7, 5): "Turing", (8,): "Ampere", (8, 9): "Ada Lovelace"}
SINCE |= {(9,): "Hopper", (10,): "Blackwell", (13,): "Rubin"}
"""Architectures by their first compute capability (gpu_products.yaml), in its order, as NVML names them."""


def architecture_of(node: NodeClass) -> str | None:
    """Name the architecture by the compute capability; GPUs without CUDA have none of these, but their vendor's."""
    capability = node.compute_capability
    if capability is None:
        return None if node.runs_cuda else node.vendor
    return next((name for since, name in reversed(SINCE.items()) if capability >= since), None)


UNSTATED = (None, 0, "", ())
"""Values by which a Demand says that it wants nothing of a fact."""
ClassFilter = Callable[[Demand, NodeClass], Reason | None]


@dataclass(frozen=True, slots=True, eq=False)
class FactConstraint:
    """What a demand wants of one value of a class of nodes, and the words of a refusal.

    `own` gives the value, or `of` where it depends on the demand too; `asked` gives what is wanted, one of UNSTATED
    where nothing is. `wants` is the end of the refusal, with `{}` for what is wanted. Of a node whose value is unknown
    (None) the upper bound `at_most` is judged; without one, a demand that refuses unknown facts refuses the node, with
    `name` for the fact. Without a name no demand does.
    """

    own: Callable[[NodeClass], Any]
    accepts: Callable[[Any, Any], bool]
    asked: Callable[[Demand], Any]
    code: Code
    wrong: str
    wants: str = "{}"
    words: Callable[[Any], str] = str
    of: Callable[[Demand, NodeClass], Any] | None = None
    at_most: Callable[[NodeClass], Any] | None = None
    name: str = ""

    def judge(self, demand: Demand, node: NodeClass) -> Reason | None:
        """Refuse a class of nodes whose value is not what is wanted, or, if the demand says so, is unknown."""
        accepts = self.filter_for(demand)
        return accepts(demand, node) if accepts else None

    def filter_for(self, demand: Demand) -> ClassFilter | None:
        """Make the filter of a demand, with its reasons; None for a demand that wants nothing of the value."""
        wanted = self.asked(demand)
        if wanted in UNSTATED:
            return None
        accepts, own, of, at_most = self.accepts, self.own, self.of, self.at_most
        wants = self.wants.format(self.words(wanted))
        other = reason(self.code, self.wrong, wants)
        refuses_unknown = demand.refuse_unknown and self.name
        missing = reason(Code.GPUFactsMissing, f"{self.name} unknown", wants) if refuses_unknown else None

        def judge(same_demand: Demand, node: NodeClass) -> Reason | None:
            value = own(node) if of is None else of(same_demand, node)
            if value is not None:
                return None if accepts(wanted, value) else other
            most = None if at_most is None else at_most(node)
            return missing if most is None or accepts(wanted, most) else other

        return judge
