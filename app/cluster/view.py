# SPDX-License-Identifier: Apache-2.0
"""A view of the State at one moment, for what takes longer than one turn of the event loop."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from app.admission.review import ReviewContext
from app.cluster.apiserver import ApiServer
from app.cluster.state import State
from app.explain.survey import ClusterSnapshot
from app.intree.checks import NodeSelectorTerm, read_terms
from app.intree.existing_pods import ExistingPods
from app.policy.compiled import PolicySet
from app.policy.expected_demand import ExpectedDemand
from app.policy.match import ruling_for
from app.values.errors import ApiError, WireError


def view(
    state: State,
    policies: PolicySet,
    volumes: Mapping[str, tuple[NodeSelectorTerm, ...]] | None = None,
    neighbours: ExistingPods | None = None,
    expected: ExpectedDemand | None = None,
) -> ClusterSnapshot:
    """Copy what is known; the copy is shallow, for nodes and sums are never changed, only replaced."""
    setting = ReviewContext(policies, state.fleet(), state.knowledge, claimed=state.claimed)
    return ClusterSnapshot(
        nodes=dict(state.nodes),
        used=dict(state.bookings.used),
        context=replace(setting, rule=ruling_for),
        namespace_labels=state.namespace_labels,
        gpu_usage=state.holdings,
        volumes=volumes or {},
        existing_pods=neighbours,
        expected=expected,
        group_cliques=state.group_cliques,
        unpromised=state.unpromised,
    )


def bound_volumes(objects: Sequence[Mapping[str, Any]]) -> dict[str, tuple[NodeSelectorTerm, ...]]:
    """Find the node affinity of the volume behind each PersistentVolumeClaim among whole objects, by its key."""
    volumes = {
        each["metadata"]["name"]: read_terms(((each.get("spec") or {}).get("nodeAffinity") or {}).get("required"))
        for each in objects
        if each.get("kind") == "PersistentVolume"
    }
    bound = {
        f"{each['metadata'].get('namespace') or 'default'}/{each['metadata']['name']}": volumes.get(
            (each.get("spec") or {}).get("volumeName") or "", ()
        )
        for each in objects
        if each.get("kind") == "PersistentVolumeClaim"
    }
    return {key: terms for key, terms in bound.items() if terms}


async def get_pod(server: ApiServer, namespace: str, name: str) -> Mapping[str, Any]:
    """Get one pod, whole.

    Raises WireError: 404 where there is none, 400 for a name that no pod can have, 502 without an answer.
    """
    if not all(NAME.fullmatch(each) for each in (namespace, name)):
        raise WireError(400, "namespace, name: want names as Kubernetes has them")
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            found = msgspec.json.decode(await server.get(f"/api/v1/namespaces/{namespace}/pods/{name}", {}))
    except ApiError as error:
        raise WireError(404 if error.status == 404 else 502, f"pod {namespace}/{name}: {error}") from error
    except (TimeoutError, msgspec.DecodeError) as error:
        raise WireError(502, f"pod {namespace}/{name}: no answer of the API server") from error
    if not isinstance(found, dict):
        raise WireError(502, f"pod {namespace}/{name}: no object")
    return found


FETCH_SECONDS = 5.0
"""For the answer to a GET of one pod; it takes some 10 ms where all is well (a guess)."""
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""A DNS-1123 subdomain: nothing else may go into the path of a request."""
