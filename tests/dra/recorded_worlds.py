# SPDX-License-Identifier: Apache-2.0
"""The recorded worlds of real DRA drivers, and what kube-scheduler did with claims there (recorded/README.md)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from app.cluster.snapshot import fill
from app.world.state import State
from tests.builders import knowledge

FOLDER = Path(__file__).parent / "recorded"
WORLDS = tuple(sorted(path.stem for path in FOLDER.glob("*.json") if not path.stem.endswith(".verdicts")))
ADMIN_NAMESPACE = {
    "kind": "Namespace",
    "metadata": {"name": "admins", "labels": {"resource.kubernetes.io/admin-access": "true"}},
}


class Case(NamedTuple):
    """What kube-scheduler did with a pod of one claim that was pinned to one node."""

    world: str
    claim: str
    namespace: str
    spec: dict[str, Any]
    node: str
    bound: bool


def objects_of(world: str) -> list[dict[str, Any]]:
    """Read the objects of a world."""
    return json.loads((FOLDER / f"{world}.json").read_text("utf-8"))["items"]  # type: ignore[no-any-return]


def state_of(world: str, *more: dict[str, Any]) -> State:
    """Fill a State with a world, the namespace whose claims may ask for adminAccess, and further objects."""
    state = State(knowledge())
    fill(state, [*objects_of(world), ADMIN_NAMESPACE, *more])
    return state


def cases() -> Iterator[Case]:
    """List each case and node of all worlds."""
    for path in sorted(FOLDER.glob("*.verdicts.json")):
        recorded = json.loads(path.read_text("utf-8"))
        for verdict in recorded["verdicts"]:
            claim = recorded["claims"][verdict["case"]]
            yield Case(
                path.name.removesuffix(".verdicts.json"),
                verdict["case"],
                claim["namespace"],
                claim["spec"],
                verdict["node"],
                verdict["kube_scheduler"] == "bound",
            )


def claim_and_pod(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the claim of a case, and the pod that was pinned to its node."""
    metadata = {"namespace": case.namespace, "name": case.claim}
    field = {"key": "metadata.name", "operator": "In", "values": [case.node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "containers": [{"name": "main", "image": "app:1", "resources": {"claims": [{"name": "c"}]}}],
            "resourceClaims": [{"name": "c", "resourceClaimName": case.claim}],
        },
    }
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": case.spec}
    return claim, pod
