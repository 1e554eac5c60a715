# SPDX-License-Identifier: Apache-2.0
"""All fact tables as one value, which is made from the texts of the YAML files; callers read the files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from app.knowledge.clouds import Clouds, load_clouds
from app.knowledge.cuda_compatibility import CUDATables, load_cuda
from app.knowledge.dcgm import DCGM, load_dcgm
from app.knowledge.families import Families, load_families
from app.knowledge.geometry import Geometry, load_geometry
from app.knowledge.gpu_evidence import GPUEvidence, load_gpu_evidence
from app.knowledge.images import Images, load_images
from app.knowledge.mig_profiles import MIGProfiles, load_profiles
from app.knowledge.node_conditions import (
    ConditionGuess,
    ConditionMeaning,
    load_condition_guesses,
    load_node_conditions,
)
from app.knowledge.override import overlay
from app.knowledge.pod_failures import PodFailure, load_pod_failures
from app.knowledge.products import Products, load_products
from app.knowledge.runtimes import Runtimes, load_runtimes
from app.knowledge.toolkit_env import ToolkitEnv, load_toolkit_env
from app.knowledge.usage_metrics import UsageMetrics, load_usage_metrics
from app.knowledge.xids import XID, load_xids
from app.values.errors import BadInput, KnowledgeError

FILES = (
    "gpu_products.yaml",
    "mig_profiles.yaml",
    "cuda_driver.yaml",
    "image_cuda.yaml",
    "families.yaml",
    "clouds.yaml",
    "gpu_evidence.yaml",
    "node_groups.yaml",
    "xids.yaml",
    "dcgm.yaml",
    "toolkit_env.yaml",
    "pod_failures.yaml",
    "runtimes.yaml",
    "usage_metrics.yaml",
    "node_conditions.yaml",
)


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """The facts about GPUs, drivers, images and resources; compared by identity, so that cache keys can contain it.

    `group_keys` are labels of nodes that a cloud or provisioner created; most of them name the node group. `xids` are
    XID errors by code, `geometry` is the MIG geometry by product in normal form, and `node_conditions` are by type.
    """

    products: Products
    mig: MIGProfiles
    geometry: Mapping[str, Geometry]
    cuda: CUDATables
    images: Images
    families: Families
    clouds: Clouds
    evidence: GPUEvidence
    group_keys: tuple[str, ...]
    xids: Mapping[int, XID]
    dcgm: DCGM
    toolkit_env: ToolkitEnv
    pod_failures: tuple[PodFailure, ...]
    pod_starts: tuple[PodFailure, ...]
    runtimes: Runtimes
    usage_metrics: UsageMetrics
    node_conditions: Mapping[str, ConditionMeaning]
    condition_guesses: tuple[ConditionGuess, ...]


def load_knowledge(texts: Mapping[str, str], own: Mapping[str, str] | None = None) -> Knowledge:
    """Read the tables of FILES from their texts by file name; `own` are the operator's files, which override them.

    Raises KnowledgeError, whose message names the file.
    """
    documents = {name: _read(name, texts) for name in FILES}
    for name in own or {}:
        if name not in documents:
            raise KnowledgeError(f"{name}: no such table, wants one of {', '.join(FILES)}")
        documents[name] = overlay(name, documents[name], _read(name, own or {}))
    try:
        cuda = load_cuda(documents["cuda_driver.yaml"])
        clouds = load_clouds(documents["clouds.yaml"])
        families = load_families(
            documents["families.yaml"]["families"],
            documents["families.yaml"]["infrastructure_namespaces"],
            documents["families.yaml"]["device_class_prefix"],
            (row["key"] for row in documents["families.yaml"]["fault_taints"]),
        )
        return Knowledge(
            products=load_products(documents["gpu_products.yaml"]),
            mig=load_profiles(documents["mig_profiles.yaml"]),
            geometry=load_geometry(documents["mig_profiles.yaml"]["products"]),
            cuda=cuda,
            images=load_images(documents["image_cuda.yaml"], cuda),
            families=families,
            clouds=clouds,
            evidence=load_gpu_evidence(documents["gpu_evidence.yaml"], families, clouds),
            group_keys=tuple(row["key"] for row in documents["node_groups.yaml"]["group_keys"]),
            xids=load_xids(documents["xids.yaml"]["xids"]),
            dcgm=load_dcgm(documents["dcgm.yaml"]),
            toolkit_env=load_toolkit_env(documents["toolkit_env.yaml"]["variables"]),
            pod_failures=load_pod_failures(documents["pod_failures.yaml"]["pod_failures"]),
            pod_starts=load_pod_failures(documents["pod_failures.yaml"]["pod_starts"]),
            runtimes=load_runtimes(documents["runtimes.yaml"]),
            usage_metrics=load_usage_metrics(documents["usage_metrics.yaml"]),
            node_conditions=load_node_conditions(documents["node_conditions.yaml"]),
            condition_guesses=load_condition_guesses(documents["node_conditions.yaml"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, BadInput) as error:
        raise KnowledgeError(f"fact tables: {type(error).__name__}: {error}") from error


def _read(name: str, texts: Mapping[str, str]) -> Any:
    try:
        return yaml.load(texts[name], yaml.CSafeLoader)
    except (KeyError, yaml.YAMLError) as error:
        raise KnowledgeError(f"{name}: {error}") from error
