# SPDX-License-Identifier: Apache-2.0
"""The policies in a cluster or snapshot that is read once, from the same objects that a service follows.

They are the ConfigMap that is mounted as directory (gpu-usher-policies), ConfigMaps with the label, and GPUPolicies.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from app.cluster.files import policy_texts, shipped_default, shipped_policies
from app.cluster.watched_kinds import policy_of
from app.knowledge.tables import Knowledge
from app.kube.api_kinds import NAMESPACE
from app.policy.compiled import PolicySet, in_force
from app.policy.load import MOUNTED, POLICY_LABEL, POLICY_LABEL_VALUE, load_policies
from app.values.errors import PolicyError

Object = Mapping[str, Any]


def policies_of(
    objects: Iterable[Object], directory: Path | None, knowledge: Knowledge, today: str, namespace: str = NAMESPACE
) -> PolicySet:
    """Load the policies in force on the day `today`, which is written as YYYY-MM-DD.

    `objects` are any objects of the cluster or snapshot; those that are no source of policies are skipped. Where
    `directory` is None, the mounted ConfigMap of the namespace replaces it, or else the shipped policies. Raises
    PolicyError with all problems of all sources.
    """
    sources = [document for document in objects if document.get("kind") in ("GPUPolicy", "ConfigMap")]
    config_maps = [source for source in sources if source["kind"] == "ConfigMap"]
    texts = (
        policy_texts(directory) if directory else _mounted(config_maps, namespace) or policy_texts(shipped_policies())
    )
    for config_map in config_maps:
        metadata = _metadata(config_map)
        if _is_labelled(metadata):
            texts |= _texts(f"configmap {metadata.get('namespace') or 'default'}/{metadata.get('name')}: ", config_map)
    parsed = {
        f"gpupolicy {_metadata(source).get('name')}": policy_of(source)
        for source in sources
        if source["kind"] == "GPUPolicy"
    }
    try:
        return in_force(load_policies(texts, knowledge, shipped_default(knowledge), parsed), today)
    except PolicyError as error:
        if not sources:
            raise
        raise PolicyError(("policies of the cluster: " + error.problems[0], *error.problems[1:])) from error


def holds_policies(document: Object) -> bool:
    """Tell whether an object is a source of policies."""
    if document.get("kind") == "ConfigMap":
        metadata = _metadata(document)
        return metadata.get("name") == MOUNTED or _is_labelled(metadata)
    return document.get("kind") == "GPUPolicy"


def _mounted(config_maps: list[Object], namespace: str) -> dict[str, str]:
    for config_map in config_maps:
        if (_metadata(config_map).get("namespace"), _metadata(config_map).get("name")) == (namespace, MOUNTED):
            return _texts("", config_map)
    return {}


def _texts(prefix: str, document: Object) -> dict[str, str]:
    return {f"{prefix}{key}": text for key, text in sorted((document.get("data") or {}).items())}


def _is_labelled(metadata: Object) -> bool:
    return (metadata.get("labels") or {}).get(POLICY_LABEL) == POLICY_LABEL_VALUE and metadata.get("name") != MOUNTED


def _metadata(document: Object) -> Object:
    metadata: Object = document.get("metadata") or {}
    return metadata
