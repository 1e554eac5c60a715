# SPDX-License-Identifier: Apache-2.0
"""Preemption: the extender route preempt, which keeps the nodes on which evicting the given victims lets the pod run.

kube-scheduler never asks filter about preemption: it proposes candidate nodes, each with victims, and this route drops
those that would not help (docs/reference/control-plane.md#preemption-of-the-scheduler). placement/engine.py judges a
candidate (`helpful_candidates`); here are the limits of a request, the forms of its victims, and the answer.
"""

from collections.abc import Generator, Mapping
from typing import Any

from app.api.extender_routes import (
    NODES_AT_ONCE,
    ExtenderAnswer,
    by_first_extender,
    requests_no_devices,
)
from app.api.wire import check_bulk, decode_preemption_args, encode, member_folded, read_asked
from app.cluster.core import Core
from app.placement.engine import helpful_candidates
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
    uids = [_victim_uid(pod, f"NodeNameToVictims[{name[:80]}].Pods[{index}]") for index, pod in enumerate(pods or ())]
    violations = member_folded(victims, "NumPDBViolations") or 0
    return {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}


def _victim_uid(pod: Any, where: str) -> str:
    metadata = pod.get("metadata") if isinstance(pod, dict) else None
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    if not isinstance(uid, str):
        raise WireError(400, f"{where}.metadata.uid: got nothing, wants a string")
    return uid


def preempt(body: bytes, core: Core, other_pods: bool = False) -> Generator[None, None, ExtenderAnswer]:
    """Answer preempt: the candidates on which evicting the given victims lets the pod run.

    The answer always has NodeNameToMetaVictims (docs/reference/control-plane.md#preemption-of-the-scheduler). Raises
    WireError 400, and 503 while the state is not synced, so that nothing is evicted then.
    """
    check_bulk(body, len(core.nodes))
    args = decode_preemption_args(body)
    pod, soft = read_asked(args.Pod)
    elsewhere = other_pods and by_first_extender(pod, core)
    free_choice = elsewhere or requests_no_devices(pod)
    if not free_choice and (problem := core.cache_problem()) is not None:
        raise WireError(503, problem)
    demand = core.ask(pod, soft).demand
    candidates = args.NodeNameToMetaVictims
    check_candidates(args.NodeNameToVictims if candidates is None else candidates)
    if candidates is None:
        candidates = {name: meta_victims(name, victims) for name, victims in (args.NodeNameToVictims or {}).items()}
    uids = {}
    for index, (name, victims) in enumerate(candidates.items(), 1):
        pods = member_folded(victims, "Pods")
        listed = pods if isinstance(pods, list) else ()
        # One without a UID counts as a victim too.
        uids[name] = frozenset(str(member_folded(pod, "UID") if isinstance(pod, dict) else "") for pod in listed)
        if index % NODES_AT_ONCE == 0:
            yield
    if free_choice or not demand.requests_gpus:
        kept: Mapping[str, Any] = candidates
    else:
        kept = helpful_candidates(demand, candidates, uids, core.state.node_without_pods)
    body = encode({"NodeNameToMetaVictims": candidates if core.settings.shadow else kept})
    return ExtenderAnswer(body, pod, len(candidates), len(kept), decided=not elsewhere)
