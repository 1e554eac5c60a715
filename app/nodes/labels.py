# SPDX-License-Identifier: Apache-2.0
"""Reading of a node's class from its labels; the fact tables of `knowledge/` fill the gaps that the labels leave.

The labels are those of GPU Feature Discovery (GFD), MIG Manager, the GPU Operator, and clouds.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from app.knowledge.cuda_compatibility import CONSUMER_BRANDS
from app.knowledge.products import Product, normal_form
from app.knowledge.tables import Knowledge
from app.kube.pod_requests import Amounts
from app.nodes.conditions import (
    ARCHITECTURE,
    COMPUTE,
    COUNT,
    DRIVER,
    FACT_LABELS,
    MEMORY,
    MIG_CONFIG,
    MIG_STRATEGY,
    OLD_DRIVER,
    OLD_RUNTIME,
    PAUSED_FOR_DRIVER,
    PLUGIN,
    PRODUCT,
    REPLICAS,
    RUNTIME,
    SHARING,
    SINGLE_KEYS,
    SLICE_LABELS,
    UPGRADE_STATE,
    VERSIONS,
)
from app.nodes.mig_state import MIG_FAILED, mig_state
from app.nodes.model import UNSHARED, WHOLE_MILLI, NodeClass, Sharing
from app.nodes.sharing import (
    NOT_REGISTERED,
    memory_budgets,
    parse_count,
    profile_in_product_label,
    remembered_names,
    replicas_by_resource,
    shared_slices,
    sharing_of,
    slice_memory,
    unhealthy_units,
    with_count_doubt,
)
from app.values.errors import VersionError
from app.values.versions import Version, parse_version

Fact = TypeVar("Fact")

NODE_CLASSES_KEPT = 4096
"""Node classes in the cache of `read_class`; clusters have dozens, and one takes about 4 kB."""
LARGEST_LABELS_KEPT = 1 << 13
"""Characters of labels and resources of a node that is cached, so that the whole cache takes at most 32 MB, even with
nodes from the scheduler's requests, which nothing has validated. A guess; real nodes have about 700."""
KEYS_KEPT = 1 << 14
"""Label keys that are kept with what was found of them, about 2 MB; clusters have hundreds."""
UPGRADE_STATE_AT_WORK = "pod-restart-required"
"""The state that a pause of the device plugin implies, because UPGRADE_STATE may not be updated yet."""


def read_node_class(
    labels: Mapping[str, str],
    offered: Amounts,
    knowledge: Knowledge,
    capacity: Amounts | None = None,
    registered: int = NOT_REGISTERED,
    for_machines: bool = False,
    handlers: frozenset[str] | None = None,
) -> NodeClass:
    """Read the class of a node from its labels, and fill the gaps from the fact tables.

    `offered` and `capacity` are the allocatable and the capacity of GPU resources as sorted pairs of resource and
    units; `capacity` is None if the node has none. `registered` is the number of GPUs that HAMi shares on the node.
    `for_machines` says that the node offers GPUs to virtual machines, so that its labels promise containers none.
    `handlers` are its runtime handlers, None where it has no list.
    Nodes with equal relevant labels and resources share one cached object.
    """
    relevant_keys = _relevant_keys(knowledge)
    keys = [key for key in labels if relevant_keys[key]]
    relevant = tuple([(key, labels[key]) for key in sorted(keys)])
    texts = [text for pair in relevant for text in pair] + [name for name, _ in (*offered, *(capacity or ()))]
    texts += handlers or ()
    small = sum(map(len, texts)) <= LARGEST_LABELS_KEPT
    return (_read_class if small else _read_class.__wrapped__)(
        relevant, offered, knowledge, capacity, registered, for_machines, handlers
    )


class _RelevantKeys(dict[str, bool]):
    """Label keys, and whether a node's class depends on the label; a key is looked at once, as nodes repeat them."""

    def __init__(self, knowledge: Knowledge) -> None:
        of_driver = (f"{key}.{part}" for key, parts in VERSIONS for part in ("full", *parts))
        evidence = knowledge.evidence
        of_tables = (*knowledge.clouds.gpu_label_keys(), *evidence.keys(), *knowledge.runtimes.label_keys())
        self.exact = frozenset((*SINGLE_KEYS, *of_driver, *of_tables))
        of_vendors = (f"{key}." for vendor in knowledge.clouds.vendors for key in vendor.all_keys())
        self.prefixes = (SLICE_LABELS, *evidence.prefixes(), *of_vendors)
        self.is_read = evidence.is_read
        super().__init__()

    def __missing__(self, key: str) -> bool:
        relevant = key in self.exact or (key.startswith(self.prefixes) and self.is_read(key))
        if len(self) < KEYS_KEPT:
            self[key] = relevant
        return relevant


@lru_cache(maxsize=4)
def _relevant_keys(knowledge: Knowledge) -> _RelevantKeys:
    return _RelevantKeys(knowledge)


@lru_cache(maxsize=NODE_CLASSES_KEPT)
def _read_class(
    relevant: tuple[tuple[str, str], ...],
    offered: Amounts,
    knowledge: Knowledge,
    capacity: Amounts | None,
    registered: int,
    for_machines: bool,
    handlers: frozenset[str] | None = None,
) -> NodeClass:
    labels = dict(relevant)
    if gone := remembered_names(offered, knowledge):
        offered = tuple(pair for pair in offered if pair[0] not in gone)
        capacity = tuple(pair for pair in capacity or () if pair[0] not in gone)
    node_class = _fill_from_tables(_read_labels(labels, offered, knowledge, registered), labels, knowledge)
    node_class = with_count_doubt(node_class, labels, capacity, knowledge)
    resources = tuple(sorted({**dict(offered), **dict(capacity or ())}.items()))
    if replicas := tuple(replicas_by_resource(node_class, labels, resources)):
        node_class = replace(node_class, shares=replicas)
    gpus = sum(node_class.gpus(name, units) for name, units in resources)
    if (refuses := knowledge.clouds.refuses_several(labels, gpus)) is not None:
        node_class = replace(node_class, refuses_several=refuses)
    unhealthy = unhealthy_units(offered, capacity or ())
    node_class = replace(
        node_class,
        promises=() if for_machines else knowledge.evidence.promises(labels),
        mig_state=(state := mig_state(node_class, labels, knowledge)),
        mig_layout_failed=labels.get(MIG_CONFIG) if state == MIG_FAILED else None,
        unhealthy_units=unhealthy,
        withdrawn=sum(node_class.gpus(name, amount) for name, amount in unhealthy),
        budgets=tuple(memory_budgets(node_class, labels.get(PRODUCT, node_class.product or ""), knowledge)),
        runtime_handlers=handlers,
        runtime_class_unneeded=knowledge.runtimes.why_unneeded(labels),
    )
    return _without_model_facts(node_class) if node_class.several_models else node_class


def _read_labels(labels: Mapping[str, str], offered: Amounts, knowledge: Knowledge, registered: int) -> NodeClass:
    """Read the facts that labels state directly."""
    label = labels.get(PRODUCT, "")
    vendor = _vendor_of(labels, offered, knowledge)
    cuda_driver = _version(labels, DRIVER) or _version(labels, OLD_DRIVER)
    profile = profile_in_product_label(label) or (None if PRODUCT in labels else knowledge.clouds.profile(labels))
    strategy = labels.get(SHARING) or knowledge.clouds.sharing_strategy(labels)
    upgrade_state = labels.get(UPGRADE_STATE)
    shared_by_hami = registered != NOT_REGISTERED
    return NodeClass(
        architecture=labels.get(ARCHITECTURE) or None,
        vendor=vendor,
        runs_cuda=knowledge.families.runs_cuda(vendor),
        driver=cuda_driver or _parsed(knowledge.clouds.driver(labels)),
        cuda=_version(labels, RUNTIME) or _version(labels, OLD_RUNTIME) or knowledge.cuda.highest_cuda(cuda_driver),
        compute_capability=_version(labels, COMPUTE),
        memory_mib=parse_count(labels.get(MEMORY)) or None,
        slice_memory=tuple(sorted(slice_memory(labels))),
        renamed_sharing=Sharing.MPS if strategy == "mps" else Sharing.TimeSlicing,
        sharing=Sharing.HAMi if shared_by_hami else sharing_of(labels, strategy, profile, offered, knowledge),
        shared_slices=frozenset(shared_slices(labels, offered)),
        replicas=max(1, parse_count(labels.get(REPLICAS)) or parse_count(knowledge.clouds.replicas(labels)) or 1),
        hami_gpus=max(0, registered),
        mig_strategy=labels.get(MIG_STRATEGY) or None,
        mig_profile=profile,
        mig_invalid=label.upper().endswith("-MIG-INVALID"),
        upgrade_state=UPGRADE_STATE_AT_WORK if labels.get(PLUGIN) == PAUSED_FOR_DRIVER else upgrade_state or None,
        facts=tuple((key, labels[key]) for key in FACT_LABELS if labels.get(key)),
        labelled_gpus=parse_count(labels.get(COUNT)) or 0,
        offered=offered,
    )


def _vendor_of(labels: Mapping[str, str], offered: Amounts, knowledge: Knowledge) -> str:
    """Name the resource family of the node's GPUs: what it offers counts before who has labelled it."""
    families = knowledge.families
    resources = sorted(offered, key=lambda pair: pair[1] == 0)
    if family := next((family for name, _ in resources if (family := families.of(name))), None):
        return family.name
    if any(labels.get(key) for key in (PRODUCT, COUNT)):
        return next((family.name for family in families.all if family.mig_prefix), "")
    vendor = knowledge.clouds.vendor(labels)
    return vendor.family if vendor else ""


def _fill_from_tables(node_class: NodeClass, labels: Mapping[str, str], knowledge: Knowledge) -> NodeClass:
    """Fill the gaps of labels from the product tables; of several possible products only common facts are used."""
    label = labels.get(PRODUCT)
    names = (label,) if label else knowledge.clouds.possible_products(labels)
    rows = [knowledge.products.find(name) for name in names]
    capability = _common_fact(rows, lambda row: row.compute_capability)
    nvlink = _common_fact(rows, lambda row: row.nvlink)
    memory, most = _memory(node_class, rows, labels, knowledge)
    unknown_slices = node_class.sharing is Sharing.MIG and not node_class.mig_profile
    is_part = any(row and row.milli < WHOLE_MILLI for row in rows) or knowledge.clouds.has_partitions(labels)
    return replace(
        node_class,
        sharing=Sharing.Part if is_part and node_class.sharing in UNSHARED else node_class.sharing,
        product=normal_form(names[0]) if len(names) == 1 else None,
        possible_products=frozenset(map(normal_form, names)) if len(names) > 1 else frozenset(),
        compute_capability=node_class.compute_capability or capability,
        memory_mib=None if unknown_slices else memory,
        memory_at_most=memory or most if unknown_slices else most,
        nvlink=False if unknown_slices else nvlink,
        form_factor=_common_fact(rows, lambda row: row.form_factor),
        datacenter=_datacenter(label or "", rows),
    )


def _common_fact(rows: list[Product | None], fact_of: Callable[[Product], Fact]) -> Fact | None:
    """Give the fact that all rows have in common; None if they differ, or if one product is unknown."""
    values = {fact_of(row) if row else None for row in rows}
    return values.pop() if len(values) == 1 else None


def _datacenter(label: str, rows: list[Product | None]) -> bool | None:
    """Tell whether the GPU is a data-centre product: not if it has a consumer brand, else by all possible products."""
    if any(brand in label.lower() for brand in CONSUMER_BRANDS):
        return False
    return _common_fact(rows, lambda row: row.datacenter)


def _memory(
    node_class: NodeClass, rows: list[Product | None], labels: Mapping[str, str], knowledge: Knowledge
) -> tuple[int | None, int | None]:
    """Give the memory of one unit in MiB, and the upper bound of it if it is unknown.

    GFD's label comes first, then the size of a MIG slice. Otherwise it is the least figure of the product tables, a
    cloud's label and the machine type: the tables have what a whole GPU reports, while clouds give its nominal size, or
    that of a fraction of it.
    """
    if node_class.memory_mib is not None:
        return node_class.memory_mib, None
    if node_class.mig_profile:
        size = knowledge.mig.size(rows[0].label if len(rows) == 1 and rows[0] else None, node_class.mig_profile)
        return (size.memory_mib if size else None), None
    gpus = sum(units for _, units in node_class.offered)
    labelled = knowledge.clouds.memory_mib(labels, gpus)
    sizes = [row.memory_mib if row else None for row in rows]
    table_sizes = [size for size in sizes if size is not None]
    if table_sizes and len(table_sizes) == len(sizes) and len(set(table_sizes)) == 1:
        return min(table_sizes[0], labelled or table_sizes[0]), None
    most = max(table_sizes) if table_sizes and len(table_sizes) == len(sizes) else None
    if labelled is not None and (most is None or labelled <= most):
        return labelled, None
    return None, most


def _without_model_facts(node_class: NodeClass) -> NodeClass:
    """Remove the facts that hold for only one of the node's GPU models, since a pod may get a GPU of another model.

    A consumer brand (GeForce, TITAN) in the label remains in force: the pod may get that GPU, and nodes with one
    consumer GPU rarely have GPUs of other brands.
    """
    return replace(
        node_class, product=None, possible_products=frozenset(), compute_capability=None,
        memory_mib=None, memory_at_most=None, nvlink=None, form_factor=None, budgets=(),
        datacenter=False if node_class.datacenter is False else None,
    )  # fmt: skip


def _version(labels: Mapping[str, str], key: tuple[str, tuple[str, ...]]) -> Version | None:
    """Read a version from `<key>.full`, or from its parts, of which GFD leaves the revision of `570.86` empty."""
    prefix, parts = key
    return _parsed(
        labels.get(prefix + ".full") or ".".join(filter(None, (labels.get(f"{prefix}.{part}") for part in parts)))
    )


def _parsed(text: str | None) -> Version | None:
    """Read a version; None for a text that is none, since one odd label must not hide the node."""
    try:
        return parse_version(text) if text else None
    except VersionError:
        return None
