# SPDX-License-Identifier: Apache-2.0
"""Several units of a shared GPU in one container: who shares decides, then policies, then a pod that was refused."""

from typing import Any

import pytest

from app.nodes.model import Node
from app.placement.engine import judge
from app.policy.compiled import PolicySet
from app.world.state import State
from tests.builders import demand, gpus, knowledge, node_document, pod, policies, policy

GPU = "nvidia.com/gpu"
NONE = policies(policy("p", "placement: {unknownFacts: Accept}"))
LEAVE = policies(policy("p", "admission: {sharedReplicas: Leave}, actions: {sharedReplicas: 'Off'}"))
DENY = policies(policy("p", "admission: {sharedReplicas: Deny}"))
WARN = policies(policy("p", "admission: {sharedReplicas: Deny}, actions: {sharedReplicas: Warn}"))
REFUSED = "Allocate failed due to rpc error: code = Unknown desc = invalid request: maximum request size for shared "
SLICED = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}
MPS = {**SLICED, "nvidia.com/gpu.sharing-strategy": "mps"}
GKE = {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-max-shared-clients-per-gpu": "4"}
STRATEGY, NO_PLUGIN = "cloud.google.com/gke-gpu-sharing-strategy", "gke-no-default-nvidia-gpu-device-plugin"


def shared(labels: dict[str, str], units: int = 4) -> Node:
    """Read a node that offers shares."""
    state = State(knowledge())
    state.put_node(node_document("n", None, offers={GPU: units}, labels=labels))
    return state.nodes["n"]


def code_of(made: Node, policy_set: PolicySet = NONE, amount: int = 2) -> str | None:
    """Return the reason code against a container that asks for several units."""
    refusal = judge(demand(pod(gpus(amount)), policy_set), made, recount=True)
    return refusal.code.name if refusal else None


@pytest.mark.parametrize(
    ("labels", "units", "policy_set", "refused"),
    [
        pytest.param(SLICED, 4, NONE, False, id="time-slices of NVIDIA's plugin"),
        pytest.param(SLICED, 4, DENY, True, id="which the policy denies"),
        pytest.param(SLICED, 4, WARN, False, id="of which the policy only warns"),
        pytest.param(MPS, 4, NONE, True, id="MPS shares of NVIDIA's plugin"),
        pytest.param(MPS, 4, LEAVE, False, id="which the policy says are given"),
        pytest.param({**GKE, STRATEGY: "time-sharing"}, 4, NONE, True, id="GKE's time-sharing"),
        pytest.param({**GKE, STRATEGY: "time-sharing"}, 4, LEAVE, True, id="whatever the policy says"),
        pytest.param({**GKE, STRATEGY: "mps"}, 4, NONE, False, id="GKE's MPS, one GPU"),
        pytest.param({**GKE, STRATEGY: "mps"}, 8, NONE, True, id="GKE's MPS, two GPUs"),
        pytest.param({**GKE, STRATEGY: "time-sharing", NO_PLUGIN: "true"}, 4, NONE, False, id="not GKE's plugin"),
        pytest.param({**GKE}, 4, NONE, False, id="GKE's whole GPUs"),
    ],
)
def test_who_shares_decides(labels: dict[str, str], units: int, policy_set: PolicySet, refused: bool) -> None:
    """F68."""
    made = shared(labels, units)

    assert code_of(made, policy_set) == ("SharedReplicasAskedAsGPUs" if refused else None)
    assert code_of(made, policy_set, amount=1) is None


def failed(message: str, reason: str = "UnexpectedAdmissionError") -> dict[str, Any]:
    """Make a Failed pod with a kubelet's message."""
    made = pod(gpus(2), nodeName="n")
    made["metadata"]["uid"] = "failed"
    return {**made, "status": {"phase": "Failed", "reason": reason, "message": message}}


@pytest.mark.parametrize(
    ("document", "refused"),
    [
        (failed(REFUSED + "resources is 1; found 2, which is unexpected"), True),
        (failed("... invalid request for sharing GPU (time-sharing), at most 1 nvidia.com/gpu"), True),
        (failed("... rpc error: code = Unknown desc = device number not matched"), False),
        (failed("maximum request size for shared resources is 1", reason="Error"), False),
    ],
)
def test_refused_pod_shows_the_setting_of_its_node_while_it_is_there(document: dict[str, Any], refused: bool) -> None:
    """F68: without this its replacement would come to the same node and fail as well."""
    state = State(knowledge())
    state.put_node(node_document("n", "NVIDIA-L4-SHARED", offers={GPU: 4}, labels=SLICED))
    state.put_pod(document)
    while_there = code_of(state.nodes["n"])
    one_unit = code_of(state.nodes["n"], amount=1)
    state.drop_pod("failed")

    assert while_there == ("SharedReplicasAskedAsGPUs" if refused else None)
    assert (one_unit, code_of(state.nodes["n"])) == (None, None)
