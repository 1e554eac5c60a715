# SPDX-License-Identifier: Apache-2.0
"""The new node that a pod would need, as Karpenter and the Cluster Autoscaler describe nodes.

A product is suitable where a hypothetical node of it passes the engine's own filters. Karpenter creates what instance
types promise and its NodePool allows; the Cluster Autoscaler reads the node-template tags of a group without nodes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.knowledge.clouds import Dialect
from app.knowledge.mig_profiles import profile_of
from app.knowledge.products import Product, normal_form
from app.knowledge.tables import Knowledge
from app.nodes.conditions import COUNT, DRIVER, MIG_STRATEGY, PRODUCT
from app.nodes.labels import read_node_class
from app.placement.engine import judge_class
from app.policy.demand import Demand
from app.policy.needs import WITH_FACT
from app.values.versions import ABOVE_ANY_MINOR, show_driver

TAG = "k8s.io/cluster-autoscaler/node-template"
"""Prefix of the tags (cluster-autoscaler/cloudprovider/aws/README.md, Auto-Discovery Setup)."""
COUNTS = {
    "karpenter.k8s.aws/instance-gpu-name": "karpenter.k8s.aws/instance-gpu-count",
    "karpenter.azure.com/sku-gpu-name": "karpenter.azure.com/sku-gpu-count",
}
"""By the label of the GPU's name, the label of the GPU count (the providers' lists of well-known labels)."""
HYPOTHETICAL_GPUS = 8
"""GPUs of the hypothetical node, unless more are requested: those of a common HGX board."""


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """The new node that a pod needs.

    `products` are suitable products as GPU Feature Discovery labels them, least memory first. `driver` is the lowest
    version, empty for any. `labels` are those of the pod's nodeSelector and of the lowest driver branch, which its node
    affinity requires. `taints` are those that the pod tolerates, so that the node may have them. `node_pool` is for
    Karpenter, by provider. `tags` are for the Cluster Autoscaler, of a group of the first product. `notes` are what
    neither of them can express.
    """

    resources: Mapping[str, int]
    products: tuple[str, ...]
    driver: str
    labels: Mapping[str, str]
    taints: tuple[str, ...]
    node_pool: Mapping[str, Any]
    tags: Mapping[str, str]
    notes: tuple[str, ...]


def node_template(demand: Demand, pod: Mapping[str, Any], knowledge: Knowledge) -> NodeTemplate:
    """Describe the new node that a pod needs, as admission leaves the pod."""
    strict_demand = replace(demand, refuse_unknown=True)  # a product with an unknown fact is not recommended
    rows = knowledge.products.by_form.values()
    offered = tuple(sorted(_offered(demand).items()))
    classes = ((row, read_node_class(_labels(demand, row, knowledge), offered, knowledge)) for row in rows)
    suitable = (row for row, node_class in classes if judge_class(strict_demand, node_class) is None)
    fitting = sorted(suitable, key=lambda row: (row.memory_mib or 0, row.label))
    spec = pod.get("spec") or {}
    product_keys = {PRODUCT, *(dialect.key for dialect in knowledge.clouds.dialects)}
    labels = {key: value for key, value in (spec.get("nodeSelector") or {}).items() if key not in product_keys}
    taints = tuple(_tolerated(spec.get("tolerations") or ()))
    floors = [need.sufficient(demand.accept) for need in demand.cuda]
    driver = show_driver(max(floors)) if floors else ""
    labels |= _own_labels(demand)
    labels |= {f"{DRIVER[0]}.major": str(max(floors)[0])} if floors else {}
    return NodeTemplate(
        resources=dict(demand.resources),
        products=tuple(row.label for row in fitting),
        driver=driver,
        labels=labels,
        taints=tuple(taints),
        node_pool=_node_pool(demand, fitting, labels, taints, knowledge) if fitting else {},
        tags=dict(_tags(demand, fitting[0], labels, taints, knowledge)) if fitting else {},
        notes=tuple(_notes(demand, fitting, driver, spec)),
    )


def _labels(demand: Demand, row: Product, knowledge: Knowledge) -> dict[str, str]:
    """Write the labels that GPU Feature Discovery gives a node of a product."""
    branch = str(max(knowledge.cuda.reported))
    driver = {f"{DRIVER[0]}.full": f"{branch}.{ABOVE_ANY_MINOR}.{ABOVE_ANY_MINOR}", f"{DRIVER[0]}.major": branch}
    sliced = {MIG_STRATEGY: "mixed"} if _sliced(demand) else {}
    facts = {key: value for _, fact in WITH_FACT for key, value in fact.template(row).items()}
    return {PRODUCT: row.label, COUNT: str(_gpus(demand)), **facts, **_own_labels(demand), **driver, **sliced}


def _own_labels(demand: Demand) -> dict[str, str]:
    """Write the labels that a demand wants and that no product decides."""
    facts = [(fact, need.wanted(demand)) for need, fact in WITH_FACT if fact.label and not fact.by_product]
    wanted = (expression for fact, words in facts if words for expression in fact.compared.on_label(fact.label, words))
    return {one["key"]: one["values"][0] for one in wanted if one["operator"] == "In"}


def _offered(demand: Demand) -> dict[str, int]:
    return {name: max(amount, HYPOTHETICAL_GPUS) for name, amount in demand.resources}


def _sliced(demand: Demand) -> bool:
    return any(profile_of(name) for name, _ in demand.resources)


def _gpus(demand: Demand) -> int:
    return max([HYPOTHETICAL_GPUS, *(amount for name, amount in demand.resources if not profile_of(name))])


def _tolerated(tolerations: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Write the taints that tolerations match, as kubectl taint does; `*` stands for any value."""
    for toleration in tolerations:
        if toleration.get("key") and not str(toleration["key"]).startswith("node.kubernetes.io/"):
            value = toleration.get("value") or ("*" if toleration.get("operator") == "Exists" else "")
            yield f"{toleration['key']}{'=' + value if value else ''}:{toleration.get('effect') or 'NoSchedule'}"


def _node_pool(
    demand: Demand,
    fitting: Sequence[Product],
    labels: Mapping[str, str],
    taints: Sequence[str],
    knowledge: Knowledge,
) -> dict[str, Any]:
    """Write the part of a NodePool that depends on the pod (karpenter.sh/v1), by the label that names GPUs."""
    template: dict[str, Any] = {"metadata": {"labels": dict(labels)}} if labels else {}
    taint_objects = [{"key": key, **_value(value), "effect": effect} for key, value, effect in map(_split, taints)]
    pools = {}
    for dialect in knowledge.clouds.dialects:
        requirements = list(_requirements(demand, fitting, dialect))
        if dialect.key in COUNTS and requirements:
            spec = {"requirements": requirements, **({"taints": taint_objects[:1]} if taint_objects else {})}
            pools[dialect.name] = {"spec": {"template": {**template, "spec": spec}}}
    return pools


def _value(value: str) -> dict[str, str]:
    return {"value": value} if value and value != "*" else {}


def _split(taint: str) -> tuple[str, str, str]:
    what, _, effect = taint.rpartition(":")
    key, _, value = what.partition("=")
    return key, value, effect


def _requirements(demand: Demand, fitting: Sequence[Product], dialect: Dialect) -> Iterator[dict[str, Any]]:
    """Write the requirements: the GPU's name, the number per instance, and memory where names are ambiguous."""
    forms = {normal_form(row.label): row for row in fitting}
    values = {
        value: [normal_form(label) for label in labels if normal_form(label) in forms]
        for value, labels in dialect.values.items()
    }
    names = sorted(value for value, forms_of_value in values.items() if forms_of_value)
    if not names or dialect.key not in COUNTS:
        return
    yield {"key": dialect.key, "operator": "In", "values": names}
    whole = max((amount for name, amount in demand.resources if not profile_of(name)), default=1)
    if whole > 1:
        yield {"key": COUNTS[dialect.key], "operator": "Gt", "values": [str(whole - 1)]}
    above = _refused_memory(dialect, values, forms)
    if dialect.memory_key and above:
        yield {"key": dialect.memory_key, "operator": "Gt", "values": [str(above)]}


def _refused_memory(dialect: Dialect, values: Mapping[str, list[str]], forms: Mapping[str, Product]) -> int | None:
    """Return the most memory of unsuitable variants, if every suitable one has more; None where memory does not help.

    A name such as a100 stands for GPUs of several memory sizes.
    """
    ambiguous = [by_memory for value, by_memory in dialect.by_memory.items() if values[value]]
    variants = [
        (int(memory), normal_form(label) in forms) for by_label in ambiguous for memory, label in by_label.items()
    ]
    refused = max((memory for memory, fits in variants if not fits), default=None)
    unambiguous = {
        form for value, forms_of_value in values.items() if value not in dialect.by_memory for form in forms_of_value
    }
    least = min(
        [*(memory for memory, fits in variants if fits), *(forms[form].memory_mib or 0 for form in unambiguous)],
        default=0,
    )
    return refused if refused is not None and refused < least else None


def _tags(
    demand: Demand, row: Product, labels: Mapping[str, str], taints: Sequence[str], knowledge: Knowledge
) -> Iterator[tuple[str, str]]:
    """Write the tags of a node group of one product, with the first tolerated taint, which keeps other pods off."""
    product_labels = {
        key: value for key, value in _labels(demand, row, knowledge).items() if not key.startswith(DRIVER[0])
    }
    for key, value in {**product_labels, **labels}.items():
        yield f"{TAG}/label/{key}", value
    if taints:
        key, value, effect = _split(taints[0])
        yield f"{TAG}/taint/{key}", f"{'present' if value in ('', '*') else value}:{effect}"
    for name, amount in _offered(demand).items():
        yield f"{TAG}/resources/{name}", str(amount)


def _notes(demand: Demand, fitting: Sequence[Product], driver: str, spec: Mapping[str, Any]) -> Iterator[str]:
    """List what a provisioner cannot express, and what is not considered here."""
    if not fitting:
        yield "no known GPU product fits: see gpu-usher explain"
    if driver:
        yield f"the machine image must bring driver {driver} or newer: labels and tags claim the least branch"
    if _sliced(demand):
        yield "Karpenter cannot foresee nvidia.com/mig-*: let it make nodes by nvidia.com/gpu, or tag a group"
    if ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
        yield "the pod's required node affinity is not repeated here: the provisioner reads it itself"
