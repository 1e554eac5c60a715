# SPDX-License-Identifier: Apache-2.0
"""Policy edits at the door: a ConfigMap or GPUPolicy that would spoil the set is refused, with path and reason (F131).

What is as it was passes whatever it says: a finalizer must come off a bad policy too. While we are down edits pass
(failurePolicy Ignore, or a bad policy could never be mended); the last good set stays in force then.
"""

from collections.abc import Generator, Mapping
from typing import Any, Protocol

from app.kube.pods import PREFIX
from app.values.json_members import member, strings
from app.values.reasons import Code, Reason

POLICY_LABEL = PREFIX + "policy"
POLICY_GROUP = "gpu-usher.io"


class PolicySource(Protocol):
    """What is asked of the service."""

    @property
    def namespace(self) -> str:
        """Our own namespace, where ConfigMaps may hold policies."""
        ...

    def check_policy(self, kind: str, name: str, content: Mapping[str, Any]) -> Generator[None, None, str | None]:
        """What the set would suffer from an edit; None for nothing. In steps."""
        ...


def is_policy(request: Mapping[str, Any]) -> bool:
    """Tell whether a request is about a kind of object that may hold policies."""
    resource = member(request, "resource", dict, "request.") or {}
    found = (str(resource.get("group") or ""), str(resource.get("resource")))
    return found in {("", "configmaps"), (POLICY_GROUP, "gpupolicies")} and not request.get("subResource")


def judge_policy(request: Mapping[str, Any], backend: PolicySource) -> Generator[None, None, tuple[Reason, ...]]:
    """Say in steps why an edit of a policy is refused; nothing for one that is fine, or none of ours.

    Raises MalformedPod for shapes that no API server sends.
    """
    made = member(request, "object", dict, "request.")
    if made is None or request.get("operation") not in ("CREATE", "UPDATE"):
        return ()
    before = member(request, "oldObject", dict, "request.")
    metadata = member(made, "metadata", dict, "object.") or {}
    name = member(metadata, "name", str, "object.metadata.") or ""
    if metadata.get("deletionTimestamp") is not None:
        return ()
    if (member(request, "resource", dict, "request.") or {}).get("resource") == "gpupolicies":
        unchanged = before is not None and before.get("spec") == made.get("spec")
        problem = None if unchanged else (yield from backend.check_policy("gpupolicy", name, made))
    else:
        problem = yield from _judge_config_map(made, before, backend, f"{request.get('namespace')}/{name}")
    return (Reason(Code.InvalidPolicy, "; ".join(problem.splitlines())),) if problem else ()


def _judge_config_map(
    made: Mapping[str, Any], before: Mapping[str, Any] | None, backend: PolicySource, key: str
) -> Generator[None, None, str | None]:
    if not _holds_policies(made) or key.partition("/")[0] != backend.namespace:
        return None
    if before is not None and _holds_policies(before) and before.get("data") == made.get("data"):
        return None
    return (yield from backend.check_policy("configmap", key, strings(made, "data", "object.")))


def _holds_policies(config_map: Mapping[str, Any]) -> bool:
    metadata = member(config_map, "metadata", dict, "object.") or {}
    return strings(metadata, "labels", "object.metadata.").get(POLICY_LABEL) == "true"
