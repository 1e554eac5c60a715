# SPDX-License-Identifier: Apache-2.0
"""All fact tables as one value, which is made from the texts of the YAML files; callers read the files.

An operator's own files override the shipped ones (F81). They have the same file names and structure, and contain only
what differs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from app.knowledge.clouds import Clouds, load_clouds
from app.knowledge.container_toolkit import Runtimes, ToolkitEnv, load_runtimes, load_toolkit_env
from app.knowledge.cuda_compatibility import CUDATables, load_cuda
from app.knowledge.dcgm import DCGM, XID, UsageMetrics, load_dcgm, load_usage_metrics, load_xids
from app.knowledge.gpu_evidence import GPUEvidence, load_gpu_evidence
from app.knowledge.gpu_resources import Families, load_families
from app.knowledge.image_code import FrameworkBuilds
from app.knowledge.images import Images, load_images
from app.knowledge.mig_geometry import Geometry, load_geometry
from app.knowledge.mig_profiles import MIGProfiles, load_profiles
from app.knowledge.pod_security import Levels, PodSecurityRule
from app.knowledge.products import Products, load_products
from app.knowledge.reported_faults import (
    ConditionGuess,
    ConditionMeaning,
    PodFailure,
    SchedulerFinding,
    load_condition_guesses,
    load_node_conditions,
    load_pod_failures,
)
from app.knowledge.workload_templates import Operator, Workloads, load_operators, load_workloads
from app.values.errors import BadInput, KnowledgeError

IDENTITIES = (
    "board",
    "product",
    "toolkit",
    "month",
    "branch",
    "cuda_major",
    "package",
    "xid",
    "name",
    "key",
    "cc",
    "cuda",
    "vendor",
)
"""The fields that identify a row of a list; the first of them that a row has counts.

A row replaces the shipped row of the same identity. A family of images is identified by its images and its tags, since
its field `cuda` says how the tag is read.
"""

OF_ANY_ROW = frozenset({"remove", "source", "sources", "note"})
"""Fields that any row may have: `remove` takes the shipped row away, and the others are documentation."""


def overlay(file: str, shipped: Any, own: Any) -> Any:
    """Override the `shipped` document by the operator's `own`.

    Mappings are merged. Rows of a list replace the shipped row of the same identity, or else come first. Any other
    value replaces the shipped one. A row with `remove: true` takes the shipped row away.
    Raises KnowledgeError if the structure differs.
    """
    if isinstance(shipped, Mapping) and isinstance(own, Mapping):
        return {**shipped, **{key: overlay(f"{file}: {key}", shipped.get(key), value) for key, value in own.items()}}
    if isinstance(shipped, list) and isinstance(own, list):
        return _overlay_rows(file, shipped, own)
    if shipped is None or not isinstance(shipped, Mapping | list):
        return own
    expected = "a mapping" if isinstance(shipped, Mapping) else "a list"
    raise KnowledgeError(f"{file}: got {type(own).__name__}, wants {expected} as in the shipped table")


def _overlay_rows(file: str, shipped: list[Any], own: list[Any]) -> list[Any]:
    """Put the operator's rows before the shipped ones, so that they come first in tables whose first match counts."""
    if not all(isinstance(row, Mapping) for row in own):
        return [*own, *(row for row in shipped if row not in own)]
    if any(_identity(row) is None and row.get("remove") for row in own):
        raise KnowledgeError(f"{file}: a row to remove wants one of {', '.join(IDENTITIES)}")
    shipped_rows = [row for row in shipped if isinstance(row, Mapping)]
    _check_fields(file, {key for row in own for key in row}, {key for row in shipped_rows for key in row})
    replaced = {_identity(row) for row in own} - {None}
    unchanged = [row for row in shipped if not isinstance(row, Mapping) or _identity(row) not in replaced]
    by_identity = {_identity(row): row for row in shipped_rows}
    new_rows = [{**by_identity.get(_identity(row), {}), **row} for row in own if not row.get("remove")]
    return [*new_rows, *unchanged]


def _check_fields(file: str, own: set[str], shipped: set[str]) -> None:
    """Raise KnowledgeError for a field that no shipped row of the list has, since nothing would read it."""
    unknown = sorted(map(str, own - shipped - OF_ANY_ROW))
    if unknown and shipped:
        allowed = ", ".join(sorted(map(str, shipped | OF_ANY_ROW)))
        raise KnowledgeError(f"{file}: got the field {unknown[0][:40]}, wants one of {allowed}")


def _identity(row: Mapping[str, Any]) -> tuple[str, Any] | None:
    if "tag_regex" in row and "images" in row:
        return "images", (tuple(row["images"]), row["tag_regex"])
    return next(((key, row[key]) for key in IDENTITIES if key in row), None)


TABLE_FILES = (
    "gpu_products.yaml",
    "mig_profiles.yaml",
    "cuda_driver.yaml",
    "image_cuda.yaml",
    "image_code.yaml",
    "families.yaml",
    "node_taints.yaml",
    "clouds.yaml",
    "gpu_evidence.yaml",
    "node_groups.yaml",
    "xids.yaml",
    "dcgm.yaml",
    "operators.yaml",
    "toolkit_env.yaml",
    "pod_failures.yaml",
    "runtimes.yaml",
    "usage_metrics.yaml",
    "node_conditions.yaml",
    "workload_templates.yaml",
    "pod_security.yaml",
    "policy_fields.yaml",
    "scheduler_findings.yaml",
)


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """The facts about GPUs, drivers, images and resources; compared by identity, so that cache keys can contain it.

    `group_keys` are labels of nodes that a cloud or provisioner created; most of them name the node group.
    `known_labels` is a pattern of the labels that nodes to come may have without their node group. `xids` are
    XID errors by code, `geometry` is the MIG geometry by product in normal form, and `node_conditions` are by type.
    `field_ideas` says what to write instead of an unknown field, `meant_words` which words mean a choice.
    """

    products: Products
    mig: MIGProfiles
    geometry: Mapping[str, Geometry]
    cuda: CUDATables
    images: Images
    image_code: FrameworkBuilds
    families: Families
    clouds: Clouds
    evidence: GPUEvidence
    group_keys: tuple[str, ...]
    known_labels: str
    xids: Mapping[int, XID]
    dcgm: DCGM
    toolkit_env: ToolkitEnv
    pod_failures: tuple[PodFailure, ...]
    pod_starts: tuple[PodFailure, ...]
    pod_evictions: tuple[PodFailure, ...]
    webhook_calls: tuple[PodFailure, ...]
    runtimes: Runtimes
    usage_metrics: UsageMetrics
    node_conditions: Mapping[str, ConditionMeaning]
    condition_guesses: tuple[ConditionGuess, ...]
    workloads: Workloads
    operators: tuple[Operator, ...]
    pod_security: Levels
    field_ideas: Mapping[str, str]
    meant_words: Mapping[str, list[str]]
    scheduler_findings: tuple[SchedulerFinding, ...]


def load_knowledge(texts: Mapping[str, str], own: Mapping[str, str] | None = None) -> Knowledge:
    """Read the tables of FILES from their texts by file name; `own` are the operator's files, which override them.

    Raises KnowledgeError, whose message names the file.
    """
    documents = {name: _read(name, texts) for name in TABLE_FILES}
    for name in own or {}:
        if name not in documents:
            raise KnowledgeError(f"{name}: no such table, wants one of {', '.join(TABLE_FILES)}")
        documents[name] = overlay(name, documents[name], _read(name, own or {}))
    try:
        cuda = load_cuda(documents["cuda_driver.yaml"])
        clouds = load_clouds(documents["clouds.yaml"])
        families = load_families(
            documents["families.yaml"]["families"],
            documents["families.yaml"]["infrastructure_namespaces"],
            documents["families.yaml"]["device_class_prefix"],
            documents["families.yaml"]["classes_without_gpus"]["names"],
            documents["node_taints.yaml"]["taints"],
            documents["families.yaml"]["other_gpus"],
            documents["families.yaml"]["counted_by_others"],
        )
        return Knowledge(
            products=load_products(documents["gpu_products.yaml"]),
            mig=load_profiles(documents["mig_profiles.yaml"]),
            geometry=load_geometry(documents["mig_profiles.yaml"]["products"]),
            cuda=cuda,
            images=load_images(documents["image_cuda.yaml"], cuda),
            image_code=msgspec.convert(documents["image_code.yaml"], FrameworkBuilds),
            families=families,
            clouds=clouds,
            evidence=load_gpu_evidence(documents["gpu_evidence.yaml"], families, clouds),
            group_keys=tuple(row["key"] for row in documents["node_groups.yaml"]["group_keys"]),
            known_labels="|".join(row["keys"] for row in documents["node_groups.yaml"]["known_labels"]),
            xids=load_xids(documents["xids.yaml"]["xids"]),
            dcgm=load_dcgm(documents["dcgm.yaml"]),
            toolkit_env=load_toolkit_env(documents["toolkit_env.yaml"]["variables"]),
            pod_failures=load_pod_failures(documents["pod_failures.yaml"]["pod_failures"]),
            pod_starts=load_pod_failures(documents["pod_failures.yaml"]["pod_starts"]),
            pod_evictions=load_pod_failures(documents["pod_failures.yaml"]["pod_evictions"]),
            webhook_calls=load_pod_failures(documents["pod_failures.yaml"]["webhook_calls"]),
            runtimes=load_runtimes(documents["runtimes.yaml"]),
            usage_metrics=load_usage_metrics(documents["usage_metrics.yaml"]),
            node_conditions=load_node_conditions(documents["node_conditions.yaml"]),
            condition_guesses=load_condition_guesses(documents["node_conditions.yaml"]),
            workloads=load_workloads(documents["workload_templates.yaml"]["workloads"]),
            operators=load_operators(documents["operators.yaml"]["operators"]),
            pod_security=msgspec.convert(
                documents["pod_security.yaml"]["levels"], dict[str, tuple[PodSecurityRule, ...]]
            ),
            field_ideas=_field_ideas(documents["policy_fields.yaml"]),
            meant_words=documents["policy_fields.yaml"]["meant_words"],
            scheduler_findings=msgspec.convert(
                documents["scheduler_findings.yaml"]["findings"], tuple[SchedulerFinding, ...]
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError, BadInput) as error:
        raise KnowledgeError(f"fact tables: {type(error).__name__}: {error}") from error


def _field_ideas(document: Mapping[str, Any]) -> dict[str, str]:
    """Give the texts of policy_fields.yaml by each word that has the same meaning."""
    texts: Mapping[str, str] = document["field_ideas"]
    same = {word: texts[key] for key, words in document["same_as"].items() for word in words}
    return {key: str(text) for key, text in {**same, **texts}.items()}


def _read(name: str, texts: Mapping[str, str]) -> Any:
    try:
        return yaml.load(texts[name], yaml.CSafeLoader)
    except (KeyError, yaml.YAMLError) as error:
        raise KnowledgeError(f"{name}: {error}") from error
