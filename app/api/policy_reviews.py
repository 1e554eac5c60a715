# SPDX-License-Identifier: Apache-2.0
"""Reviews edits of policies: refuses a ConfigMap or GPUPolicy that would make the policy set invalid (F131).

An unchanged policy passes even if it is invalid, because its finalizer must come off. While gpu-usher is down edits
pass (failurePolicy Ignore, or an invalid policy could never be corrected); the last valid set then stays in force.
"""

from collections.abc import Generator, Mapping
from typing import Any, Protocol

from app.kube.api_kinds import API_KINDS
from app.policy.load import POLICY_LABEL, POLICY_LABEL_VALUE
from app.values.json_members import member, strings
from app.values.reasons import Code, Reason

GPUPOLICIES = API_KINDS["GPUPolicy"].group, API_KINDS["GPUPolicy"].plural
POLICY_HOLDERS = {(API_KINDS["ConfigMap"].group, API_KINDS["ConfigMap"].plural), GPUPOLICIES}
"""The kinds of objects that may hold policies, as pairs of API group and plural."""


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


def judge_policy(request: Mapping[str, Any], backend: PolicySource) -> Generator[None, None, tuple[Reason, ...]]:
    """Return in steps why an edit is refused; nothing for a valid policy or an object that holds none.

    Raises MalformedPod for shapes that no API server sends.
    """
    edited = member(request, "object", dict, "request.")
    if edited is None or request.get("operation") not in ("CREATE", "UPDATE"):
        return ()
    before = member(request, "oldObject", dict, "request.")
    metadata = member(edited, "metadata", dict, "object.") or {}
    name = member(metadata, "name", str, "object.metadata.") or ""
    if metadata.get("deletionTimestamp") is not None:
        return ()
    if (member(request, "resource", dict, "request.") or {}).get("resource") == GPUPOLICIES[1]:
        unchanged = before is not None and before.get("spec") == edited.get("spec")
        problem = None if unchanged else (yield from backend.check_policy("gpupolicy", name, edited))
    else:
        problem = yield from _judge_config_map(edited, before, backend, f"{request.get('namespace')}/{name}")
    return (Reason(Code.InvalidPolicy, "; ".join(problem.splitlines())),) if problem else ()


def _judge_config_map(
    edited: Mapping[str, Any], before: Mapping[str, Any] | None, backend: PolicySource, key: str
) -> Generator[None, None, str | None]:
    if not _holds_policies(edited) or key.partition("/")[0] != backend.namespace:
        return None
    if before is not None and _holds_policies(before) and before.get("data") == edited.get("data"):
        return None
    return (yield from backend.check_policy("configmap", key, strings(edited, "data", "object.")))


def _holds_policies(config_map: Mapping[str, Any]) -> bool:
    metadata = member(config_map, "metadata", dict, "object.") or {}
    return strings(metadata, "labels", "object.metadata.").get(POLICY_LABEL) == POLICY_LABEL_VALUE
