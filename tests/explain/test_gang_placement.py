# SPDX-License-Identifier: Apache-2.0
"""Whether a whole gang fits, and the smallest change with which it does (F151)."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from app.explain.explanation import Explanation, GangVerdict
from app.explain.pending_cause import cause_of
from app.explain.pending_pod import explain
from app.values.computations import finish
from app.world.world import world_of
from tests.builders import gpus, node_document, pod, shipped, state_of

GPU = "nvidia.com/gpu"
ZONE = "topology.kubernetes.io/zone"
ROOM = {"cpu": 64, "pods": 110}


def gang_pod(
    name: str, amount: int = 8, *, labels: Mapping[str, str] = {}, group: str = "", **spec: Any
) -> dict[str, Any]:
    """Write a pod of a gang that waits, known by labels or by its PodGroup."""
    made = pod(gpus(amount), **({"schedulingGroup": {"podGroupName": group}} if group else {}), **spec)
    made["metadata"] |= {"name": name, "uid": name, "labels": dict(labels)}
    made["status"] = {"phase": "Pending"}
    return made


def pod_group(name: str, least: int, topology: str = "", version: str = "v1beta1") -> dict[str, Any]:
    spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": least}}}
    if topology:
        spec["schedulingConstraints"] = {"topology": [{"key": topology}]}
    metadata = {"name": name, "namespace": "team-a"}
    return {"apiVersion": f"scheduling.k8s.io/{version}", "kind": "PodGroup", "metadata": metadata, "spec": spec}


def fleet(number: int, zones: str = "a") -> list[dict[str, Any]]:
    """Write nodes of eight H100 in turn over zones."""
    offers = {GPU: 8, **ROOM}
    return [node_document(f"n-{i}", offers=offers, labels={ZONE: zones[i % len(zones)]}) for i in range(number)]


def explained(asked: dict[str, Any], objects: Sequence[dict[str, Any]]) -> Explanation:
    return finish(explain(asked, world_of(state_of(list(objects)), shipped()), live=True))


MARKS: dict[str, dict[str, Any]] = {
    "PodGroup": {"group": "train"},
    "coscheduling": {"labels": {"scheduling.x-k8s.io/pod-group": "train"}},
    "Kueue": {"labels": {"kueue.x-k8s.io/pod-group-name": "train"}},
    "LeaderWorkerSet": {"labels": {"leaderworkerset.sigs.k8s.io/group-key": "train"}},
    "JobSet": {"labels": {"jobset.sigs.k8s.io/jobset-name": "train"}},
    "Volcano Job": {"labels": {"volcano.sh/job-name": "train"}},
}


@pytest.mark.parametrize("mark", MARKS)
def test_pod_that_fits_alone_is_explained_with_its_gang(mark: str) -> None:
    """F151: six of eight fit, and two more nodes let all start, which is proven by placing all of them."""
    members = [gang_pod(f"m-{index}", **MARKS[mark]) for index in range(8)]

    explanation = explained(members[3], [*fleet(6), *members])
    after = explained(members[3], [*fleet(8), *members])

    assert explanation.gang is not None
    assert (explanation.gang.fits, explanation.gang.pods, explanation.gang.enough) == (6, 8, False)
    assert explanation.gang.change.startswith("2 more nodes like n-")
    assert explanation.notes[0].startswith("6 of 8 waiting pods of ")
    assert "; the others lack: not enough free GPUs" in explanation.notes[0]
    assert "train fit together" in cause_of(explanation).note
    assert after.gang is not None
    assert (after.gang.fits, after.gang.enough) == (8, True)


@pytest.mark.parametrize("annotation", ["scheduling.k8s.io/group-name", "pod-group-name"])
def test_gangs_of_volcano_and_kai_are_known_by_annotation(annotation: str) -> None:
    """F151."""
    members = [gang_pod(f"m-{index}") for index in range(3)]
    for member in members:
        member["metadata"]["annotations"] = {annotation: "train"}

    verdict = explained(members[0], [*fleet(2), *members]).gang

    assert verdict is not None
    assert (verdict.fits, verdict.pods) == (2, 3)


@pytest.mark.parametrize("version", ["v1beta1", "v1alpha3", "v1alpha2"])
def test_gang_starts_with_fewer_pods_where_its_pod_group_says_so(version: str) -> None:
    """F151: minCount counts pods that run as well."""
    members = [gang_pod(f"m-{index}", group="train") for index in range(8)]
    running = gang_pod("running", group="train", nodeName="n-0")

    enough = explained(members[0], [*fleet(6), *members, pod_group("train", 6, version=version)]).gang
    fewer = explained(members[0], [*fleet(6), *members, running, pod_group("train", 7, version=version)]).gang

    assert enough is not None
    assert fewer is not None
    assert (enough.fits, enough.enough, enough.change) == (6, True, "")
    assert (fewer.fits, fewer.bound, fewer.enough) == (5, 1, False)


def test_gang_of_one_zone_is_placed_in_the_zone_where_most_fit() -> None:
    """F151: four nodes are there, and no zone has more than two."""
    members = [gang_pod(f"m-{index}", group="train") for index in range(3)]

    verdict = explained(members[0], [*fleet(4, "ab"), *members, pod_group("train", 3, ZONE)]).gang

    assert verdict is not None
    assert (verdict.fits, verdict.enough) == (2, False)
    assert verdict.change.startswith("1 more node like n-")


def test_pods_of_different_templates_are_placed_each_by_its_own() -> None:
    """F151: a leader of one GPU and workers of eight."""
    leader = gang_pod("leader", 1, group="train")
    workers = [gang_pod(f"w-{index}", group="train") for index in range(2)]

    verdict = explained(leader, [*fleet(2), leader, *workers]).gang

    assert verdict is not None
    assert (verdict.fits, verdict.pods) == (2, 3)


@pytest.mark.parametrize("seed", range(12))
def test_further_nodes_are_as_many_as_are_needed_and_no_more(seed: int) -> None:
    """F151: of random gangs whose members request different numbers of GPUs; a fleet with those nodes is the proof."""
    draw = random.Random(seed)
    members = [
        gang_pod(f"m-{i}", draw.choice([1, 2, 4, 8]), labels={"i": str(i)}, group="train")
        for i in range(draw.randint(6, 24))
    ]
    draw.shuffle(members)

    def verdict(nodes: int) -> GangVerdict:
        found = explained(members[0], [*fleet(nodes), *members]).gang
        assert found is not None
        return found

    said = verdict(1)

    assert not said.enough
    number = int(said.change.split()[0])
    assert (verdict(1 + number).enough, verdict(number).enough) == (True, False)


def test_pod_without_a_gang_and_a_running_pod_have_no_gang() -> None:
    """F151."""
    single, running = gang_pod("single"), gang_pod("running", group="train", nodeName="n-0")

    assert explained(single, [*fleet(1), single]).gang is None
    assert explained(running, [*fleet(1), running]).gang is None


def test_gang_of_higher_priority_starts_by_preemption_where_enough_fit_without_the_others() -> None:
    """F151: one of two nodes is held by a pod of lower priority; not with one of equal priority, nor with Never."""

    def verdict(*, version: str = "v1beta1", topology: str = "", held: int = 0, **spec: Any) -> GangVerdict:
        members = [gang_pod(f"m-{index}", group="train", **spec) for index in range(2)]
        holder = gang_pod("holder", nodeName="n-0", priority=held)
        group = pod_group("train", 2, topology, version)
        found = explained(members[0], [*fleet(2), holder, *members, group]).gang
        assert found is not None
        return found

    assert (verdict(priority=5).preempts, verdict(priority=5).enough, verdict(priority=5).change) == (True, False, "")
    assert verdict(priority=5).sentence.endswith("kube-scheduler can make room by preempting pods of lower priority")
    assert not verdict(priority=5, held=5).preempts
    assert not verdict(priority=5, preemptionPolicy="Never").preempts
    assert verdict(priority=5, topology=ZONE).preempts
    assert not verdict(priority=5, topology=ZONE, version="v1alpha2").preempts
    assert verdict(priority=0).change.startswith("1 more node")
