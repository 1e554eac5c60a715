# SPDX-License-Identifier: Apache-2.0
"""Needs in the words of node labels: one function each, an expression list by dialect. The tuple is the product.

Every list is a necessary condition: a node that speaks the dialect and that the filters accept fulfils it. What no
label can say is left to the extender.

A need that somebody declared may ask for a label. One that was only inferred, from an image, never does: a node group
at zero carries no label that software writes on running nodes. It excludes the values that nodes carry now and that
the filters refuse, and NotIn lets a node without the label in.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

from app.admission.affinity.product_labels import (
    carried,
    closed,
    labels_accepted,
    labels_refused,
    values_accepted,
    values_refused,
)
from app.admission.fleet_facts import STATE_KEYS, FleetFacts, NodeGroup
from app.knowledge.clouds import Dialect
from app.knowledge.cuda_compatibility import AcceptedCompatibility, CUDANeed, judge_driver
from app.knowledge.mig_profiles import profile_of
from app.knowledge.nvidia_require import HostFacts
from app.knowledge.tables import Knowledge
from app.nodes.labels import (
    COMPUTE,
    DRIVER,
    MEMORY,
    MIG_STATE,
    OLD_DRIVER,
    PAUSED_FOR_DRIVER,
    PAUSED_FOR_MIG,
    PLUGIN,
    PRODUCT,
    SHARING,
    UPGRADE_STATE,
)
from app.nodes.model import Sharing
from app.placement.node_state_filters import MIG_STATES_AT_CHANGE, UPGRADE_STATES_REFUSED
from app.placement.unit_filters import MEMORY_TOLERANCE
from app.policy.demand import Demand
from app.policy.schema_placement import SharingWish
from app.values.label_requirements import requirement
from app.values.versions import Version

GFD, OLD_GFD = "GFD", "GFD, old names"
"""Dialects of GPU Feature Discovery; the second has the driver labels that v0.20.0 calls deprecated, and writes."""
DRIVER_MAJOR, OLD_DRIVER_MAJOR = f"{DRIVER[0]}.major", f"{OLD_DRIVER[0]}.major"
CAPABILITY_MAJOR = f"{COMPUTE[0]}.major"
NEWEST = 999
"""A minor or patch number above any that a driver branch will have."""

Expression = dict[str, Any]
EXCLUDING = ("NotIn", "DoesNotExist")
"""Operators that a node without the label fulfils, also in Karpenter (kubernetes-sigs/karpenter
pkg/scheduling/requirements.go Compatible); so such expressions of several dialects may stand in one term."""
Words = Mapping[str, tuple[Expression, ...] | None]
"""Expressions by dialect. One that has no word for the need is not there; None: none of its nodes can meet the need."""


@dataclass(frozen=True, slots=True)
class NeedContext:
    """What a need is written from: the demand, the fleet, the kinds of nodes in it that fit, the dialects of clouds.

    `cuda`, `compute_capability`: those needs of the demand that are looked at: what was declared, or what was inferred.
    """

    demand: Demand
    cuda: tuple[CUDANeed, ...]
    compute_capability: Version | None
    fleet: FleetFacts
    serving: tuple[NodeGroup, ...]
    knowledge: Knowledge
    clouds: tuple[Dialect, ...]


def product(asked: NeedContext) -> Words:
    """Say which products will do, by the table and by what suffixes tell: a closed list, or all but those refused."""
    demand, facts = asked.demand, asked.knowledge
    words: dict[str, tuple[Expression, ...] | None] = {}
    by_gfd = (
        labels_accepted(demand, asked.serving, facts)
        if closed(demand)
        else labels_refused(demand, asked.fleet.node_groups, asked.serving, facts)
    )
    words[GFD] = words[OLD_GFD] = _listed(demand, PRODUCT, by_gfd)
    for dialect in asked.clouds:
        values = (values_accepted if closed(demand) else values_refused)(demand, dialect, asked.serving, facts)
        words[dialect.name] = _listed(demand, dialect.key, values)
    return words


def _listed(demand: Demand, key: str, values: list[str]) -> tuple[Expression, ...] | None:
    """Name the values: In for a closed demand; else NotIn, and where a product is wished for, one must be known."""
    if closed(demand):
        return ({"key": key, "operator": "In", "values": values},) if values else None
    known = ({"key": key, "operator": "Exists"},) if demand.products or demand.denied_products else ()
    return (*known, *(({"key": key, "operator": "NotIn", "values": values},) if values else ()))


def memory(asked: NeedContext) -> Words:
    """Say how much memory a GPU must have; a slice asked by name says it itself.

    See docs/reference/sharing-and-memory.md#memory.
    """
    wish = asked.demand.memory_mib
    if not wish or any(profile_of(resource) for resource, _ in asked.demand.resources):
        return {}
    least = floor(MEMORY_TOLERANCE * wish)
    by_cloud = {each.name: _at_least(each.memory_key, least) for each in asked.clouds if each.memory_key}
    return {GFD: _at_least(MEMORY, least), OLD_GFD: _at_least(MEMORY, least), **by_cloud}


def compute_capability(asked: NeedContext) -> Words:
    """Say the major number at least; what the minor one decides is said by the products."""
    floors = [asked.compute_capability, *(need.capability_floor for need in asked.cuda)]
    least = max((each for each in floors if each is not None), default=None)
    if least is None:
        return {}
    wanted = _at_least(CAPABILITY_MAJOR, least[0])
    return {GFD: wanted, OLD_GFD: wanted}


def driver(asked: NeedContext) -> Words:
    """Say the driver branch at least, and which branches of the fleet an image refuses whatever their minor number."""
    accept = asked.demand.accept
    least = max((found for need in asked.cuda if (found := _lowest_branch(need, accept))), default=None)
    if least is None:
        return {}
    majors = {text for key in (DRIVER_MAJOR, OLD_DRIVER_MAJOR) for text in carried(asked.fleet.node_groups, key)}
    above = sorted(int(text) for text in majors if text.isdecimal() and least <= int(text) <= NEWEST)
    refused = [str(branch) for branch in above if any(_refuses(need, branch, asked) for need in asked.cuda)]

    def words(key: str) -> tuple[Expression, ...]:
        not_those = ({"key": key, "operator": "NotIn", "values": refused},) if refused else ()
        return (*_at_least(key, least), *not_those)

    return {GFD: words(DRIVER_MAJOR), OLD_GFD: words(OLD_DRIVER_MAJOR)}


def _lowest_branch(need: CUDANeed, accept: AcceptedCompatibility) -> int | None:
    """Give the oldest driver branch on which a need could ever start; None where that cannot be said."""
    branches = [need.floor(accept)[0]]
    if accept is AcceptedCompatibility.ForwardCompatible:
        if need.requirement:
            return None  # whoever writes the requirement vouches for the driver
        branches += [branch for branch, _ in need.forward]
    return min(branches)


def _refuses(need: CUDANeed, branch: int, asked: NeedContext) -> bool:
    """Tell whether even the last driver of a branch is refused; an environment's own requirement is not asked."""
    newest: Version = (branch, NEWEST, NEWEST)
    best = HostFacts(newest, asked.knowledge.cuda.highest_cuda(newest), None, datacenter=True)
    return not need.requirement and judge_driver(need, best) < asked.demand.accept


def sharing(asked: NeedContext) -> Words:
    """Say whether a GPU is shared, where one unit of the resource asked may be either."""
    wish = asked.demand.sharing
    if not any(_whole(name, asked.knowledge) for name, _ in asked.demand.resources):
        return {}
    if wish is SharingWish.Any:
        return _no_mps(asked) if _several(asked) else {}
    if wish is SharingWish.Shared:
        values = ["time-slicing"] if _several(asked) else ["mps", "time-slicing"]
        shared = ({"key": SHARING, "operator": "In", "values": values},)
        by_cloud = {each.name: _shared(each, "Exists") for each in asked.clouds}
    else:
        shared = ({"key": SHARING, "operator": "NotIn", "values": ["mps", "time-slicing"]},)
        by_cloud = {each.name: _shared(each, "DoesNotExist") for each in asked.clouds}
    return {GFD: shared, OLD_GFD: shared, **{name: words for name, words in by_cloud.items() if words}}


def _several(asked: NeedContext) -> bool:
    """Tell whether one container asks several units: the kubelet gives it one share of an MPS GPU at most."""
    return any(amount > 1 and _whole(name, asked.knowledge) for name, amount in asked.demand.most)


def _no_mps(asked: NeedContext) -> Words:
    """Keep off MPS shares, where the fleet has any."""
    if not any(group.node_class.sharing is Sharing.MPS for group in asked.fleet.node_groups):
        return {}
    other = ({"key": SHARING, "operator": "NotIn", "values": ["mps"]},)
    keys = {each.name: each.sharing_key for each in asked.clouds if each.sharing_key}
    by_cloud = {name: ({"key": key, "operator": "NotIn", "values": ["mps"]},) for name, key in keys.items()}
    return {GFD: other, OLD_GFD: other, **by_cloud}


def _whole(resource: str, knowledge: Knowledge) -> bool:
    family = knowledge.families.of(resource)
    return family is not None and resource == family.whole


def _shared(dialect: Dialect, operator: str) -> tuple[Expression, ...]:
    """Ask for the label of shared GPUs, or for neither that nor that of slices."""
    keys: Iterable[str | None] = (dialect.sharing_key,)
    if operator == "DoesNotExist":
        keys = (dialect.sharing_key, dialect.slice_key)
    return tuple({"key": key, "operator": operator} for key in keys if key)


def _at_least(key: str, number: int) -> tuple[Expression, ...]:
    """Say a least number; one below 1 says nothing, and `-1` is no label's value."""
    return ({"key": key, "operator": "Gt", "values": [str(number - 1)]},) if number > 0 else ()


NEEDS: tuple[Callable[[NeedContext], Words], ...] = (product, memory, compute_capability, driver, sharing)
"""In this order a person reads them."""
INFERRED: tuple[Callable[[NeedContext], Words], ...] = (compute_capability, driver)
"""Those that an image alone can bring about, besides products that it refuses, which `product` excludes anyway."""


def excluding(words: Words) -> bool:
    """Tell whether nodes without any of the labels fulfil the words of every dialect."""
    return all(said is not None and all(each["operator"] in EXCLUDING for each in said) for said in words.values())


def exclusions(asked: NeedContext, words: Words) -> Iterator[Expression]:
    """Say a need by what it excludes: the values that GPU nodes carry now and that its words refuse.

    Nothing that a node which fits carries is excluded. GFD's deprecated names count where a node has no others.
    """
    for dialect, said in words.items():
        nodes = [group for group in asked.fleet.node_groups if dialect != OLD_GFD or not group.label(DRIVER_MAJOR)]
        for key in dict.fromkeys(each["key"] for each in said or ()):
            of_key = [each for each in said or () if each["key"] == key]
            yield from (each for each in of_key if each["operator"] == "DoesNotExist")
            values = _refused(of_key, carried(nodes, key)) - carried(asked.serving, key)
            if values:
                yield {"key": key, "operator": "NotIn", "values": sorted(values)}


def _refused(expressions: Sequence[Expression], values: set[str]) -> set[str]:
    """List the values of a label that expressions refuse: those that they name, and of `values` any other."""
    named = {value for each in expressions if each["operator"] == "NotIn" for value in each["values"]}
    asking = [each for each in expressions if each["operator"] != "DoesNotExist"]
    meant = [requirement(each["key"], each["operator"], each.get("values", ())) for each in asking]
    return named | {value for value in values if not all(each.allows(value) for each in meant)}


def unsettled(fleet: FleetFacts) -> tuple[Expression, ...]:
    """Exclude nodes of which the MIG layout or the driver is being changed, where an operator writes such states.

    The filters refuse them too; but a label's edit wakes for certain only pods that node affinity kept off the node.
    """
    if not any(group.label(key) for group in fleet.node_groups for key in STATE_KEYS):
        return ()
    refused = {
        MIG_STATE: MIG_STATES_AT_CHANGE,
        UPGRADE_STATE: sorted(UPGRADE_STATES_REFUSED),
        PLUGIN: (PAUSED_FOR_DRIVER, PAUSED_FOR_MIG),
    }
    return tuple({"key": key, "operator": "NotIn", "values": list(values)} for key, values in refused.items())
