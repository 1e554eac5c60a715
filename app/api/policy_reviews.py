# SPDX-License-Identifier: Apache-2.0
"""Reviews edits of policies: refuses a ConfigMap or GPUPolicy that would make the policy set invalid.

The ConfigMap that is mounted as the directory of policies is known by its name, others by their label. An unchanged
policy passes even if it is invalid, because its finalizer must come off. While gpu-usher is down edits
pass (failurePolicy Ignore, or an invalid policy could never be corrected); the last valid set then stays in force.
"""

import base64
from collections.abc import Generator, Mapping
from typing import Any, Protocol

from app import __version__
from app.admission.review import ReviewResult
from app.cluster.files import is_policy_file
from app.kube.api_kinds import API_KINDS
from app.policy.load import MOUNTED, POLICY_LABEL, POLICY_LABEL_VALUE
from app.values.json_members import member, object_if_any, strings
from app.values.reasons import Code, Reason

GPUPOLICIES = API_KINDS["GPUPolicy"].group, API_KINDS["GPUPolicy"].plural
POLICY_HOLDERS = {(API_KINDS["ConfigMap"].group, API_KINDS["ConfigMap"].plural), GPUPOLICIES}
"""The kinds of objects that may hold policies, as pairs of API group and plural."""
VERSION = "gpu-usher.io/version"
"""The annotation by which the mounted ConfigMap of deploy/ names the version of gpu-usher that its policies are for."""
DELETED = f"{MOUNTED} is deleted: the last good policies stay in force; apply deploy/ again to bring it back"
"""Warnings have at most 120 characters."""


class PolicySource(Protocol):
    """What a review of a policy needs of the service."""

    @property
    def namespace(self) -> str:
        """The namespace of gpu-usher, where ConfigMaps may hold policies."""
        ...

    def check_policy(self, kind: str, name: str, content: Mapping[str, Any]) -> Generator[None, None, str | None]:
        """Return in steps the problem that an edited object would cause in the policy set; None if there is none."""
        ...


def is_policy(request: Mapping[str, Any]) -> bool:
    """Tell whether a request is about a kind of object that may hold policies."""
    resource = member(request, "resource", dict, "request.") or {}
    kind = (str(resource.get("group") or ""), str(resource.get("resource")))
    return kind in POLICY_HOLDERS and not request.get("subResource")


def judge_policy(request: Mapping[str, Any], backend: PolicySource) -> Generator[None, None, ReviewResult]:
    """Refuse in steps an edit that would make the set invalid; a valid policy and an object that holds none pass.

    Raises MalformedPod for shapes that no API server sends.
    """
    edited = member(request, "object", dict, "request.")
    before = member(request, "oldObject", dict, "request.")
    place = f"{request.get('namespace')}/{request.get('name')}"
    operation, mounted = request.get("operation"), f"{backend.namespace}/{MOUNTED}"
    is_config_map = (member(request, "resource", dict, "request.") or {}).get("resource") != GPUPOLICIES[1]
    if operation == "DELETE" and is_config_map and place == mounted:
        return ReviewResult(False, warnings=(DELETED,))
    if edited is None or operation not in ("CREATE", "UPDATE"):
        return ReviewResult(False)
    metadata = member(edited, "metadata", dict, "object.") or {}
    name = member(metadata, "name", str, "object.metadata.") or ""
    if metadata.get("deletionTimestamp") is not None:
        return ReviewResult(False)
    if not is_config_map:
        unchanged = before is not None and before.get("spec") == edited.get("spec")
        written = {key: value for key, value in edited.items() if key != "status"}
        problem = None if unchanged else (yield from backend.check_policy("gpupolicy", name, written))
    elif (key := f"{request.get('namespace')}/{name}") == mounted and _for_another_version(edited, before):
        version = str(metadata["annotations"][VERSION])[:20]
        warning = f"policies for gpu-usher {version} are not checked by {__version__}: see /readyz after the rollout"
        return ReviewResult(False, warnings=(warning,))
    else:
        problem = yield from _judge_config_map(edited, before, backend, key)
    if not problem:
        return ReviewResult(False)
    return ReviewResult(False, reasons=(Reason(Code.InvalidPolicy, "; ".join(problem.splitlines())),))


def _judge_config_map(
    edited: Mapping[str, Any], before: Mapping[str, Any] | None, backend: PolicySource, key: str
) -> Generator[None, None, str | None]:
    namespace, _, name = key.partition("/")
    mounted = name == MOUNTED
    if namespace != backend.namespace or not (mounted or _is_labelled(edited)):
        return None
    if before is not None and (mounted or _is_labelled(before)) and _contents(before) == _contents(edited):
        return None
    texts = dict(strings(edited, "data", "object."))
    for file, encoded in strings(edited, "binaryData", "object.").items():
        if not mounted:
            return f"configmap {key}: {file}: binaryData is not read: write the policy to data, in UTF-8"
        try:
            text = base64.b64decode(encoded).decode()
        except ValueError:
            text = None
        if is_policy_file(file):
            if text is None:
                return f"configmap {key}: {file}: not UTF-8: write it in UTF-8"
            texts[file] = text
    return (yield from backend.check_policy("configmap", key, texts))


def _for_another_version(edited: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    """Tell whether this edit is an upgrade or a rollback of gpu-usher, whose policies only that version can read.

    An edit that leaves the version as it was is checked, whichever version it names.
    """
    versions = [
        object_if_any(object_if_any(document or {}, "metadata"), "annotations").get(VERSION)
        for document in (edited, before)
    ]
    return before is not None and versions[0] not in (None, __version__, versions[1])


def _contents(config_map: Mapping[str, Any]) -> tuple[Any, Any]:
    return config_map.get("data"), config_map.get("binaryData")


def _is_labelled(config_map: Mapping[str, Any]) -> bool:
    metadata = member(config_map, "metadata", dict, "object.") or {}
    return strings(metadata, "labels", "object.metadata.").get(POLICY_LABEL) == POLICY_LABEL_VALUE
