# SPDX-License-Identifier: Apache-2.0
"""Karpenter's own provisioner with its AWS provider's instance types: which of them would it launch for our pod?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.whatif.node_template import node_template
from tests.builders import demand, knowledge
from tests.neighbours.groups import A100, H100, H200, T4, TAINT, Group, cpu_node
from tests.neighbours.programs import ask, find
from tests.neighbours.test_cluster_autoscaler import WISHES, admitted, fitting, written

NAME = "karpenter"
CPU = cpu_node({"karpenter.sh/nodepool": "cpu", "karpenter.k8s.aws/instance-family": "m5"})
A100_80, A10G, L4 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-A10G", "NVIDIA-L4"
MACHINES = (
    Group("g4dn.xlarge", T4, 1, {}),
    Group("g5.48xlarge", A10G, 8, {}),
    Group("g6.12xlarge", L4, 4, {}),
    Group("p4d.24xlarge", A100, 8, {}),
    Group("p4de.24xlarge", A100_80, 8, {}),
    Group("p5.48xlarge", H100, 8, {}),
    Group("p5en.48xlarge", H200, 8, {}),
)
EC2: Mapping[str, tuple[str, int]] = {
    T4: ("T4", 16384),
    A10G: ("A10G", 24576),
    L4: ("L4", 22888),
    A100: ("A100", 40960),
    A100_80: ("A100", 81920),
    H100: ("H100", 81920),
    H200: ("H200", 144384),
}
"""Product → name and MiB of a GPU, as EC2's API gives them (website/content/en/preview/reference/instance-types.md)."""
PREFERRED: Mapping[str, Sequence[str]] = {
    "training": (H200, H100, A100, A100_80),
    "inference": (L4, T4),
    "notebook": (T4, L4),
    "batch-inference": (T4, L4),
}
"""Workload class → the products of MACHINES that its shipped policy prefers, best first."""
CLASS = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
OF_GPUS = {"key": "karpenter.k8s.aws/instance-gpu-count", "operator": "Exists"}


@pytest.fixture(scope="module")
def program() -> Path:
    """The provisioner; the tests skip, with the remedy, where there is none."""
    folder = find(NAME)
    if isinstance(folder, str):
        pytest.skip(folder)
    return folder


def instance(machine: Group) -> dict[str, Any]:
    """Write what EC2's API tells of an instance type."""
    name, memory = EC2[machine.product]
    room = {"type": machine.name, "cpus": 96, "memory_mib": 1 << 20}
    return {**room, "gpu": name, "manufacturer": "NVIDIA", "count": machine.gpus, "gpu_memory_mib": memory}


def pool(*requirements: Mapping[str, Any], **template: Any) -> dict[str, Any]:
    """Write a NodePool of machines with GPUs, whose nodes have NVIDIA's taint."""
    spec = {"nodeClassRef": CLASS, "taints": [TAINT], "requirements": [OF_GPUS, *requirements], **template}
    return {"spec": {"template": {"spec": spec}}}


def launched(
    program: Path, pods: list[dict[str, Any]], node_pool: Mapping[str, Any], machines: Sequence[Group] = MACHINES
) -> dict[str, Any]:
    """Ask Karpenter about pods; return by their names the instance types, or its refusal."""
    offered = [*map(instance, machines), {"type": "m5.24xlarge", "cpus": 96, "memory_mib": 1 << 18}]
    question = {"instances": offered, "pools": {"gpus": node_pool}, "pods": pods}
    answers: Any = ask(program, NAME, question)
    return {name: answer["refusal"] or set(answer["types"]) for name, answer in answers.items()}


def expected(wish: str, machines: Sequence[Group] = MACHINES) -> set[str]:
    """Name the instance types that fit; of a policy that prefers products, those of the first that is offered."""
    fits = [machine for machine in machines if machine.name in fitting(wish, (machine,))]
    for product in PREFERRED.get(wish, ()):
        if preferred := {machine.name for machine in fits if machine.product == product}:
            return preferred
    return {machine.name for machine in fits}


def test_every_instance_type_that_fits_may_be_launched_and_no_other_product(program: Path) -> None:
    """S8, F10: Karpenter's labels name product and memory, so that a declared need selects the types by itself."""
    said = launched(program, [admitted(written(wish), CPU)[0] for wish in WISHES], pool())

    assert said == {wish: expected(wish) for wish in WISHES}


def test_preferred_product_that_is_not_offered_is_replaced_by_the_next(program: Path) -> None:
    """S8, F10: Karpenter takes the heaviest preference as required, and drops one after the other."""
    machines = [machine for machine in MACHINES if machine.product not in (H200, T4)]

    said = launched(program, [admitted(written(wish), CPU)[0] for wish in PREFERRED], pool(), machines)

    assert said == {wish: expected(wish, machines) for wish in PREFERRED}
    assert said["training"] == {"p5.48xlarge"}


def test_pod_is_served_beside_nodes_that_gpu_feature_discovery_has_labelled(program: Path) -> None:
    """S8, F10: an L4 node is there, so that terms in NVIDIA's labels stand before the one in Karpenter's."""
    labels = {"karpenter.sh/nodepool": "l4", "karpenter.k8s.aws/instance-gpu-name": "l4"}
    running = Group("running", L4, 4, labels).node()
    wishes = ("products", "memory", "training")

    said = launched(program, [admitted(written(wish), CPU, running)[0] for wish in wishes], pool())

    assert said == {wish: expected(wish) for wish in wishes}


def test_pod_with_more_gpus_than_any_instance_has_is_refused(program: Path) -> None:
    """S8, F10: Karpenter says why."""
    document, _ = admitted(written("nothing", units=16), CPU)

    said = launched(program, [document], pool())

    assert "nvidia.com/gpu" in said["nothing"]


@pytest.mark.parametrize("wish", WISHES)
def test_advised_node_pool_launches_what_fits(program: Path, wish: str) -> None:
    """S8, F124: `plan node-template` writes the part of a NodePool that depends on the pod."""
    document = written(wish)
    advised = node_template(demand(document), document, knowledge()).node_pool["Karpenter"]
    template = advised["spec"]["template"]
    template["spec"]["nodeClassRef"] = CLASS

    said = launched(program, [admitted(document, CPU)[0]], advised)[wish]

    assert said
    assert said <= fitting(wish, MACHINES)
