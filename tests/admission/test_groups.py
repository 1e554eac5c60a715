# SPDX-License-Identifier: Apache-2.0
"""Admission and pods of a gang: group fields and labels stay, and members of one template get one affinity (F150)."""

import random
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import mutate
from tests.admission.affinity import H100, L4_BY_GKE
from tests.builders import fleet, gpus, node, pod, setting

WISHES: tuple[dict[str, str], ...] = (
    {"products": "H100"},
    {"gpu-memory": "80Gi"},
    {"cuda": "12.4", "sharing": "Exclusive"},
    {},
)
FLEET = (H100, L4_BY_GKE, node("a100", product="NVIDIA-A100-SXM4-80GB"))
MARKS: dict[str, dict[str, Any]] = {
    "PodGroup": {"schedulingGroup": {"podGroupName": "train"}},
    "workloadRef of v1.35": {"workloadRef": {"name": "train", "podGroup": "workers", "podGroupReplicaKey": "0"}},
    "Kueue": {"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]},
}


def member(index: int, wishes: dict[str, str], **spec: Any) -> dict[str, Any]:
    """Write a pod as a controller makes it of a template, with names and an index of its own."""
    made = pod(gpus(8), annotations=wishes, **spec)
    labels = {"kueue.x-k8s.io/pod-group-name": "train", "batch.kubernetes.io/job-completion-index": str(index)}
    made["metadata"] |= {"name": f"m-{index}", "uid": f"u-{index}", "labels": labels}
    return made


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("wishes", WISHES, ids=" ".join)
def test_group_fields_stay_and_equal_members_get_one_affinity(mark: str, wishes: dict[str, str]) -> None:
    """F150, F10: whatever the order in which the members are admitted."""
    members = [member(index, wishes, **MARKS[mark]) for index in range(6)]
    random.Random(0).shuffle(members)

    context = setting(fleet=fleet(*FLEET, classes=["nvidia"]))
    admitted: list[Any] = [apply(one, mutate(one, "team-a", {}, context).operations) for one in members]

    for before, after in zip(members, admitted, strict=True):
        assert {key: after["spec"][key] for key in MARKS[mark]} == MARKS[mark]
        assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert all(one["spec"] == admitted[0]["spec"] for one in admitted)
    assert ("affinity" in admitted[0]["spec"]) is bool(wishes)
