# SPDX-License-Identifier: Apache-2.0
"""Copies of the State for work that takes longer than one turn of the event loop, and reads of single objects."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from app.admission.reviewed_pod import ReviewContext
from app.cluster.apiserver import ApiServer
from app.cluster.state import State
from app.explain.survey import ClusterSnapshot
from app.intree.checks import NodeSelectorTerm, read_terms
from app.intree.existing_pods import ExistingPods
from app.policy.compiled import PolicySet
from app.policy.demand import ExpectedDemand
from app.policy.match import ruling_for
from app.values.errors import ApiError, WireError


def view(
    state: State,
    policies: PolicySet,
    volumes: Mapping[str, tuple[NodeSelectorTerm, ...]] | None = None,
    neighbours: ExistingPods | None = None,
    expected: ExpectedDemand | None = None,
) -> ClusterSnapshot:
    """Copy the state. The copy is shallow, because nodes and sums are replaced, never changed."""
    context = ReviewContext(
        policies,
        state.fleet(),
        state.knowledge,
        claimed=state.claimed,
        has_template=state.has_template,
        claim_warnings=state.claim_warnings,
    )
    return ClusterSnapshot(
        nodes=dict(state.nodes),
        used=dict(state.node_requests.used),
        context=replace(context, rule=ruling_for),
        namespace_labels=state.namespaces.labels,
        gpu_usage=state.usage_on,
        volumes=volumes or {},
        existing_pods=neighbours,
        expected=expected,
        group_cliques=state.group_cliques,
        unpromised=state.unpromised,
        dra_version=state.claim_templates.served_version,
        devices=state.dra.copy(),
    )


def bound_volumes(objects: Sequence[Mapping[str, Any]]) -> dict[str, tuple[NodeSelectorTerm, ...]]:
    """Return the node affinity of the volume that is bound to each PersistentVolumeClaim, by the claim's key."""
    volumes = {
        volume["metadata"]["name"]: read_terms(((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required"))
        for volume in objects
        if volume.get("kind") == "PersistentVolume"
    }
    bound = {
        f"{claim['metadata'].get('namespace') or 'default'}/{claim['metadata']['name']}": volumes.get(
            (claim.get("spec") or {}).get("volumeName") or "", ()
        )
        for claim in objects
        if claim.get("kind") == "PersistentVolumeClaim"
    }
    return {key: terms for key, terms in bound.items() if terms}


async def get_pod(server: ApiServer, namespace: str, name: str) -> Mapping[str, Any]:
    """Read one whole Pod.

    Raises WireError: 404 if there is none, 400 for an invalid name, 502 without an answer.
    """
    if not (NAME.fullmatch(namespace) and NAME.fullmatch(name)):
        raise WireError(400, "namespace, name: want names as Kubernetes has them")
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            pod = msgspec.json.decode(await server.get(f"/api/v1/namespaces/{namespace}/pods/{name}", {}))
    except ApiError as error:
        raise WireError(404 if error.status == 404 else 502, f"pod {namespace}/{name}: {error}") from error
    except (TimeoutError, msgspec.DecodeError) as error:
        raise WireError(502, f"pod {namespace}/{name}: no answer of the API server") from error
    if not isinstance(pod, dict):
        raise WireError(502, f"pod {namespace}/{name}: no object")
    return pod


FETCH_SECONDS = 5.0
"""For a GET of one pod, which takes some 10 ms as a rule (a guess)."""
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""A DNS-1123 subdomain; nothing else may become part of a request's path."""
