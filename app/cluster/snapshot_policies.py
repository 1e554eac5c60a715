# SPDX-License-Identifier: Apache-2.0
"""The policies in a cluster or snapshot that is read once, from the same objects that a service follows.

They are the ConfigMap that is mounted as directory (gpu-usher-policies), ConfigMaps with the label, and GPUPolicies.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from app.cluster.files import policy_texts, shipped_default, shipped_policies
from app.cluster.policy_watch import AS_WRITTEN, CONFIGMAP, GPUPOLICY, read_around, read_sources
from app.cluster.watched_kinds import policy_of
from app.knowledge.tables import Knowledge
from app.kube.api_kinds import NAMESPACE
from app.policy.compiled import PolicySet, in_force
from app.policy.load import LAST_GOOD, MOUNTED, POLICY_LABEL, POLICY_LABEL_VALUE
from app.values.computations import finish
from app.values.errors import PolicyError
from app.values.json_members import JSONObject, object_if_any


@dataclass(frozen=True, slots=True)
class StoredPolicies:
    """The policies that a cluster or a snapshot stores, as `policies_of` and `policies_or_last_good` read them.

    `texts` are those of the directory or of the ConfigMap that is mounted there, `sources` the labelled ConfigMaps and
    the GPUPolicies, and `last_good` the texts of the ConfigMap that keeps the last good set.
    """

    texts: Mapping[str, str]
    sources: Mapping[str, Mapping[str, Any]]
    last_good: Mapping[str, str]


def _stored(objects: Iterable[JSONObject], directory: Path | None, namespace: str) -> StoredPolicies:
    documents = [document for document in objects if document.get("kind") in ("GPUPolicy", "ConfigMap")]
    config_maps = [document for document in documents if document["kind"] == "ConfigMap"]
    sources: dict[str, Mapping[str, Any]] = {}
    for config_map in config_maps:
        metadata = object_if_any(config_map, "metadata")
        if _is_labelled(metadata):
            source = f"{CONFIGMAP} {metadata.get('namespace') or 'default'}/{metadata.get('name')}"
            sources[source] = config_map.get("data") or {}
    for document in documents:
        if document["kind"] == "GPUPolicy":
            name = str(object_if_any(document, "metadata").get("name"))
            sources[f"{GPUPOLICY} {name}"] = policy_of(name, document.get("spec"))
    mounted = _data_of(config_maps, namespace, MOUNTED)
    texts = policy_texts(directory) if directory else mounted or policy_texts(shipped_policies())
    # What keeps the last good set also keeps the policies of the mounted ConfigMap, which a directory replaces.
    return StoredPolicies(texts, sources, {} if directory else _data_of(config_maps, namespace, LAST_GOOD))


def policies_of(objects: Iterable[JSONObject], directory: Path | None, knowledge: Knowledge, today: str) -> PolicySet:
    """Load the policies in force on the day `today`, which is written as YYYY-MM-DD.

    `objects` are any objects of the cluster or snapshot; those that are no source of policies are skipped. Where
    `directory` is None, the mounted ConfigMap of namespace gpu-usher replaces it, or else the shipped policies. Raises
    PolicyError with all problems of all sources.
    """
    stored = _stored(objects, directory, NAMESPACE)
    read = partial(read_sources, knowledge, shipped_default(knowledge))
    return in_force(finish(read(stored.texts, stored.sources, {})), today)


def policies_or_last_good(
    objects: Iterable[JSONObject], directory: Path | None, knowledge: Knowledge, today: str, namespace: str = NAMESPACE
) -> tuple[PolicySet, str, tuple[str, ...]]:
    """Load the policies as `policies_of`, or, of an invalid set, what a replica that starts with it would serve.

    The second value says in words what was loaded, and the third lists the problems of an invalid set. Raises
    PolicyError where the directory itself is invalid, because its user can correct it.
    """
    stored = _stored(objects, directory, namespace)
    read = partial(read_sources, knowledge, shipped_default(knowledge))
    try:
        return in_force(finish(read(stored.texts, stored.sources, {})), today), AS_WRITTEN, ()
    except PolicyError as error:
        if directory:
            finish(read(stored.texts, {}, {}))
        loaded, serving = finish(read_around(read, stored.texts, stored.sources, stored.last_good, {}))
        return in_force(loaded, today), serving, error.problems


def holds_policies(document: JSONObject) -> bool:
    """Tell whether an object is a source of policies."""
    if document.get("kind") == "ConfigMap":
        metadata = object_if_any(document, "metadata")
        return metadata.get("name") == MOUNTED or _is_labelled(metadata)
    return document.get("kind") == "GPUPolicy"


def _data_of(config_maps: list[JSONObject], namespace: str, name: str) -> dict[str, str]:
    for config_map in config_maps:
        if (
            object_if_any(config_map, "metadata").get("namespace"),
            object_if_any(config_map, "metadata").get("name"),
        ) == (namespace, name):
            return dict(sorted((config_map.get("data") or {}).items()))
    return {}


def _is_labelled(metadata: JSONObject) -> bool:
    return (metadata.get("labels") or {}).get(POLICY_LABEL) == POLICY_LABEL_VALUE and metadata.get("name") != MOUNTED
