# SPDX-License-Identifier: Apache-2.0
"""The victims of a preempt request: as whole pods or as UIDs, on at most so many candidate nodes."""

from collections.abc import Mapping
from typing import Any

from app.api.wire import member_folded
from app.values.errors import WireError

MOST_CANDIDATES = 5_000
"""Most nodes of a preemption request; kube-scheduler tries a tenth of the nodes, and at least 100."""
MOST_VICTIMS = 50_000
"""Most victims on all candidates together: 500 nodes with 100 pods."""


def check_candidates(candidates: Mapping[str, Mapping[str, Any]] | None) -> None:
    """Check the number of candidates and victims.

    Raises WireError 413.
    """
    if len(candidates or ()) > MOST_CANDIDATES:
        raise WireError(413, f"candidates: got {len(candidates or ())} nodes, wants at most {MOST_CANDIDATES}")
    listed = (member_folded(victims, "Pods") for victims in (candidates or {}).values())
    victims = sum(len(pods) for pods in listed if isinstance(pods, list))
    if victims > MOST_VICTIMS:
        raise WireError(413, f"candidates: got {victims} victims, wants at most {MOST_VICTIMS}")


def meta_victims(name: str, victims: Mapping[str, Any]) -> dict[str, Any]:
    """Convert whole victims to UIDs; their number and order stay."""
    pods = member_folded(victims, "Pods")
    if pods is not None and not isinstance(pods, list):
        raise WireError(400, f"NodeNameToVictims[{name[:80]}].Pods: wants a list")
    uids = [_uid(pod, f"NodeNameToVictims[{name[:80]}].Pods[{index}]") for index, pod in enumerate(pods or ())]
    violations = member_folded(victims, "NumPDBViolations") or 0
    return {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}


def victim_uids(victims: Mapping[str, Any]) -> frozenset[str]:
    """Return the UIDs of victims; one without a UID counts as a victim too."""
    pods = member_folded(victims, "Pods")
    listed = pods if isinstance(pods, list) else ()
    return frozenset(str(member_folded(pod, "UID") if isinstance(pod, dict) else "") for pod in listed)


def _uid(pod: Any, where: str) -> str:
    metadata = pod.get("metadata") if isinstance(pod, dict) else None
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    if not isinstance(uid, str):
        raise WireError(400, f"{where}.metadata.uid: got nothing, wants a string")
    return uid
