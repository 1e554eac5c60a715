# SPDX-License-Identifier: Apache-2.0
"""The policies of a cluster that was read once: what a service there follows, from the same places.

The directory that is mounted (ConfigMap gpu-usher-policies), ConfigMaps with the label, GPUPolicy objects.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from app.cluster.files import policy_texts, shipped_default, shipped_policies
from app.cluster.watched_kinds import POLICY_LABEL, policy_of
from app.knowledge.tables import Knowledge
from app.policy.calendar import in_force
from app.policy.compiled import PolicySet
from app.policy.load import load_policies
from app.values.errors import PolicyError

NAMESPACE, MOUNTED = "gpu-usher", "gpu-usher-policies"
"""Where deploy/base puts us, and the ConfigMap there that it mounts as the directory of policies."""
_LABEL, _, _VALUE = POLICY_LABEL.partition("=")

Object = Mapping[str, Any]


def policies_of(
    objects: Iterable[Object], directory: Path | None, knowledge: Knowledge, today: str, namespace: str = NAMESPACE
) -> PolicySet:
    """Load what is in force on a day. `directory`: instead of the mounted ConfigMap of the namespace, or of the shipped
    policies.

    Raises PolicyError.
    """
    found = [each for each in objects if each.get("kind") in ("GPUPolicy", "ConfigMap")]
    maps = [each for each in found if each["kind"] == "ConfigMap"]
    texts = policy_texts(directory) if directory else _mounted(maps, namespace) or policy_texts(shipped_policies())
    for each in maps:
        metadata = _metadata(each)
        if (metadata.get("labels") or {}).get(_LABEL) == _VALUE:
            texts |= _texts(f"configmap {metadata.get('namespace') or 'default'}/{metadata.get('name')}: ", each)
    parsed = {
        f"gpupolicy {_metadata(each).get('name')}": policy_of(each) for each in found if each["kind"] == "GPUPolicy"
    }
    try:
        return in_force(load_policies(texts, knowledge, shipped_default(knowledge), parsed), today)
    except PolicyError as error:
        if not found:
            raise
        raise PolicyError(("policies of the cluster: " + error.problems[0], *error.problems[1:])) from error


def holds_policies(document: Object) -> bool:
    """Tell whether an object is one from which a service takes policies."""
    if document.get("kind") == "ConfigMap":
        metadata = _metadata(document)
        return metadata.get("name") == MOUNTED or (metadata.get("labels") or {}).get(_LABEL) == _VALUE
    return document.get("kind") == "GPUPolicy"


def _mounted(maps: list[Object], namespace: str) -> dict[str, str]:
    for each in maps:
        if (_metadata(each).get("namespace"), _metadata(each).get("name")) == (namespace, MOUNTED):
            return _texts("", each)
    return {}


def _texts(prefix: str, document: Object) -> dict[str, str]:
    return {f"{prefix}{key}": text for key, text in sorted((document.get("data") or {}).items())}


def _metadata(document: Object) -> Object:
    found: Object = document.get("metadata") or {}
    return found
