# SPDX-License-Identifier: Apache-2.0
"""The workload of a pod, by owner references."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from app.events import planning
from app.events.planning import path_of
from app.kube.pods import ObjectReference, controller_of

CHAINS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "Deployment": (("apps/v1", "ReplicaSet"), ("apps/v1", "Deployment")),
    "ReplicaSet": (("apps/v1", "ReplicaSet"),),
    "StatefulSet": (("apps/v1", "StatefulSet"),),
    "Job": (("batch/v1", "Job"), ("batch/v1", "CronJob")),
    "JobSet": (("batch/v1", "Job"), ("jobset.x-k8s.io/v1alpha2", "JobSet")),
    "TrainJob": (
        ("batch/v1", "Job"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet"),
        ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    ),
    "PyTorchJob": (("kubeflow.org/v1", "PyTorchJob"),),
    "RayCluster": (("ray.io/v1", "RayCluster"), ("ray.io/v1", "RayJob")),
    "LeaderWorkerSet": (
        ("apps/v1", "StatefulSet"),
        ("v1", "Pod"),
        ("apps/v1", "StatefulSet"),
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    ),
}
"""Workload → the controllers of its pods, the nearest first."""


def workload_of(controller: ObjectReference, read: Callable[[str], Any]) -> ObjectReference | None:
    async def awaited(path: str) -> Any:
        return read(path)

    return asyncio.run(planning.workload_of(controller, awaited))


def reference(index: int, chain: tuple[tuple[str, str], ...]) -> ObjectReference:
    version, kind = chain[index]
    return ObjectReference(version, kind, "team", f"o{index}", f"uid-{index}")


def stored(chain: tuple[tuple[str, str], ...]) -> dict[str, dict[str, Any]]:
    """Write the objects of a chain by their paths, each with its controller."""
    objects = {}
    for index in range(len(chain) - 1):
        owner = reference(index + 1, chain)
        fields = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        metadata = {"namespace": "team", "uid": f"uid-{index}", "ownerReferences": [{**fields, "controller": True}]}
        try:
            objects[path_of(reference(index, chain))] = {"metadata": metadata}
        except KeyError:
            return objects  # nobody reads an object above a workload
    return objects


@pytest.mark.parametrize("kind", CHAINS)
def test_controllers_are_followed_up_to_the_workload(kind: str) -> None:
    """F139."""
    workload = workload_of(reference(0, CHAINS[kind]), stored(CHAINS[kind]).get)

    assert workload is not None
    assert workload.kind == kind


def test_without_the_right_to_read_it_the_nearest_controller_counts() -> None:
    """F139."""
    workload = workload_of(reference(0, CHAINS["TrainJob"]), lambda _path: None)

    assert workload is not None
    assert workload.kind == "Job"


def test_object_of_the_same_name_made_since_is_not_followed() -> None:
    """F139: its owner need not be the pod's."""
    objects = stored(CHAINS["Deployment"])
    (path,) = objects
    objects[path]["metadata"]["uid"] = "another"

    workload = workload_of(reference(0, CHAINS["Deployment"]), objects.get)

    assert workload is not None
    assert workload.kind == "ReplicaSet"


def test_controller_of_an_unknown_kind_is_told_nothing() -> None:
    """F139: for example a static pod's Node, which is in no namespace."""
    assert workload_of(ObjectReference("v1", "Node", "team", "n", "uid"), lambda _path: None) is None


def test_loop_of_owners_ends() -> None:
    """F139."""
    chain = (("apps/v1", "StatefulSet"),) * 12
    assert workload_of(reference(0, chain), stored(chain).get) is not None


def test_paths_are_those_of_the_api_server() -> None:
    """F139."""
    assert path_of(reference(0, (("v1", "Pod"),))) == "/api/v1/namespaces/team/pods/o0"
    assert path_of(reference(0, (("batch/v1", "Job"),))) == "/apis/batch/v1/namespaces/team/jobs/o0"


@pytest.mark.parametrize(
    "owners", [None, [], [{"controller": True}], [{"controller": False, "kind": "Job", "name": "j", "uid": "u"}]]
)
def test_object_without_a_whole_controller_has_none(owners: Any) -> None:
    """F139."""
    assert controller_of({"metadata": {"namespace": "team", "ownerReferences": owners}}) is None


def test_leader_that_cannot_be_read_is_no_workload() -> None:
    """F139: its workers' StatefulSet is the last that is known."""
    chain = CHAINS["LeaderWorkerSet"]
    objects = stored(chain)
    del objects[path_of(reference(1, chain))]

    assert workload_of(reference(0, chain), objects.get) == reference(0, chain)
