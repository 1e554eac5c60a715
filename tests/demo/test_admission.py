# SPDX-License-Identifier: Apache-2.0
"""What admission adds to a plain GPU pod on the sample fleets (F3, S9)."""

from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import mutate
from app.admission.reviewed_pod import ReviewContext
from app.demo.notation import fleet_names
from app.world.world import world_of
from tests.builders import gpus, pod, policies, policy, shipped
from tests.demo.fleets import state

CLOUDS = ("aks", "eks", "gke")


def tolerates(tolerations: list[dict[str, Any]], taint: tuple[str, str, str]) -> bool:
    """Tell by a slow loop whether a toleration matches the taint."""
    key, value, effect = taint
    for toleration in tolerations:
        if toleration.get("effect") not in (None, "", effect) or toleration.get("key") not in (None, "", key):
            continue
        if toleration.get("operator") == "Exists" or (toleration.get("value") or "") == value:
            return True
    return False


def reachable(name: str, policy_text: str | None = None) -> set[str]:
    """Name the GPU nodes of a fleet whose taints a plain pod tolerates after admission."""
    cluster = state(name)
    document = pod(gpus(1))
    context = ReviewContext(world_of(cluster, policies(policy_text) if policy_text else shipped()))
    spec = apply(document, mutate(document, "ml", {}, context).operations)["spec"]
    tolerations = spec.get("tolerations", [])
    return {
        node.name
        for node in cluster.nodes.values()
        if node.has_gpus and all(tolerates(tolerations, taint) for taint in node.taints)
    }


@pytest.mark.parametrize("name", [fleet for fleet in fleet_names() if fleet != "sick"])
def test_plain_pod_gets_onto_gpu_nodes_of_every_fleet(name: str) -> None:
    """F3, S9: the shipped policies add the tolerations for the fleet's taints; spot nodes stay the user's choice."""
    names = reachable(name)

    assert names == {
        node.name for node in state(name).nodes.values() if node.has_gpus and "spot" not in str(node.taints)
    }
    assert len(names) > 1


def test_policy_opens_spot_pools() -> None:
    """F3, S9: taint keys that a policy names are tolerated as well."""
    keys = "kubernetes.azure.com/scalesetpriority, cloud.google.com/gke-spot, karpenter.sh/capacity-type"
    spot = policy("spot", f"priority: 1, admission: {{tolerations: {{fromNodeTaints: true, keys: [{keys}]}}}}")

    for name in CLOUDS:
        assert reachable(name, spot) == {node.name for node in state(name).nodes.values() if node.has_gpus}
