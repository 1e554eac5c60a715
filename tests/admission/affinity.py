# SPDX-License-Identifier: Apache-2.0
"""Pods admitted on small fleets, with their node affinity afterwards in short words."""

from collections.abc import Mapping
from typing import Any

from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from tests.builders import fleet, node, pod, setting

GFD = "nvidia.com/"
LABELS = {f"{GFD}gpu.memory": "81559", f"{GFD}gpu.compute.major": "9", f"{GFD}gpu.compute.minor": "0"}
H100 = node(labels=LABELS)
GKE = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
L4_BY_GKE = node(product=None, driver=None, labels=GKE)


def admit(
    document: dict[str, Any], *nodes: Node, policy_set: PolicySet | None = None
) -> tuple[dict[str, Any], ReviewResult]:
    """Admit a pod; return its node affinity afterwards and the verdict."""
    verdict = mutate(document, "team-a", {}, setting(policy_set, fleet(*nodes, classes=["nvidia"])))
    admitted: Any = apply(document, verdict.operations)
    return admitted["spec"].get("affinity", {}).get("nodeAffinity", {}), verdict


def terms(document: dict[str, Any], *nodes: Node, policy_set: PolicySet | None = None) -> list[list[str]]:
    """List the required terms, with each expression as `key operator values`."""
    affinity, _ = admit(document, *nodes, policy_set=policy_set)
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return [[written(expression) for expression in term["matchExpressions"]] for term in required]


def written(expression: Mapping[str, Any]) -> str:
    words = [expression["key"], expression["operator"], ",".join(expression.get("values", []))]
    return " ".join(filter(None, words))


def wishing(**annotations: str) -> dict[str, Any]:
    """Make a pod of one GPU with these annotations, with `_` in names for `-`."""
    return pod(annotations={key.replace("_", "-"): value for key, value in annotations.items()})
