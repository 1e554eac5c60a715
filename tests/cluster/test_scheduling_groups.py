# SPDX-License-Identifier: Apache-2.0
"""Answers for pods of a PodGroup follow from the cluster, the pod and the names alone (decision 56)."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.wire import encode
from app.kube.pods import read_pod
from app.server.service import Service
from app.world.scheduling_groups import HOLD_SECONDS
from tests.builders import gpus, make_service, node_document, pod
from tests.finished import filter_nodes, prioritize

GPU = "nvidia.com/gpu"
SHARED = {"nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.replicas": "4"}
CLIQUE = "nvidia.com/gpu.clique"
MIB = 15360


def shared(name: str, number: int = 1, **labels: str) -> dict[str, Any]:
    """Write a node of T4s in four time-sliced shares each, with 15,360 MiB for each GPU."""
    return node_document(name, "Tesla-T4-SHARED", offers={GPU: 4 * number}, labels={**SHARED, **labels})


def member(name: str, group: str = "gang", memory: str | None = "4Gi", amount: int = 1, **more: Any) -> dict[str, Any]:
    """Write a pod of a PodGroup that waits."""
    spec = {"schedulingGroup": {"podGroupName": group}} if group else {}
    made = pod(gpus(amount), annotations={"gpu-memory": memory} if memory else None, **spec, **more)
    made["metadata"] |= {"name": name, "uid": name}
    return made


def bound(document: dict[str, Any], node: str) -> dict[str, Any]:
    return {**document, "spec": {**document["spec"], "nodeName": node}, "status": {"phase": "Running"}}


def ask(
    service: Service, document: dict[str, Any], names: Sequence[str] | None = None, verb: Any = filter_nodes
) -> Any:
    return verb(encode({"Pod": document, "NodeNames": list(service.nodes if names is None else names)}), service).body


def named(service: Service, document: dict[str, Any], names: Sequence[str] | None = None) -> list[str]:
    answer: dict[str, list[str]] = json.loads(ask(service, document, names))
    return answer["NodeNames"]


def serving(folder: Path, objects: list[dict[str, Any]], answer: str = "shortlist", recount: str = "false") -> Service:
    return make_service(folder, objects, filter_answer=answer, recount=recount)


@pytest.mark.parametrize("answer", ["shortlist", "all"])
@pytest.mark.parametrize("memory", ["4Gi", None], ids=["declares memory", "whole units"])
def test_same_question_gives_the_same_bytes(tmp_path: Path, answer: str, memory: str | None) -> None:
    """F150: fifty times, with questions about the other members in between."""
    members = [member(f"m-{index}", memory=memory) for index in range(4)]
    fleet = [shared("n-0", 2), shared("n-1"), shared("n-2"), node_document("h-0"), node_document("h-1")]
    service = serving(tmp_path, [*fleet, *members], answer)
    verbs = (filter_nodes, prioritize)

    first = {(one["metadata"]["uid"], verb): ask(service, one, None, verb) for one in members for verb in verbs}
    draw = random.Random(1)

    for _ in range(50):
        one, verb = draw.choice(members), draw.choice(verbs)
        assert ask(service, one, None, verb) == first[one["metadata"]["uid"], verb]
    assert all(json.loads(body) for body in first.values())


def test_members_of_one_template_get_one_answer_and_single_pods_take_turns(tmp_path: Path) -> None:
    """F150: kube-scheduler leaves out the nodes that assumed members have filled."""
    service = serving(tmp_path, [node_document(f"n-{index}") for index in range(9)])
    members = [member(f"m-{index}", memory=None) for index in range(20)]
    singles = [member(f"s-{index}", "", None) for index in range(20)]

    assert len({tuple(named(service, one)) for one in members}) == 1
    assert len({tuple(named(service, one)) for one in singles}) > 1


def test_labels_of_other_gangs_change_nothing(tmp_path: Path) -> None:
    """F150: a pod that only a label puts into a gang is placed by itself, and its memory is promised."""
    labels = {"scheduling.x-k8s.io/pod-group": "gang", "kueue.x-k8s.io/pod-group-name": "gang"}
    service = serving(tmp_path, [shared("n")], "all")
    pods = [member(f"p-{index}", "") for index in range(5)]
    for one in pods:
        one["metadata"]["labels"] = labels

    assert [bool(named(service, one)) for one in pods] == [True, True, True, False, False]


@pytest.mark.parametrize("answer", ["shortlist", "all"])
def test_no_promise_is_left_a_second_after_a_group_failed(tmp_path: Path, answer: str) -> None:
    """F150: what was named for a group counts for other pods for a second, and never for the group itself."""
    members = [member(f"m-{index}", memory="15Gi") for index in range(2)]
    service = serving(tmp_path, [shared("n"), *members[:1]], answer)
    single, groups = member("single", "", "1Gi"), service.groups

    assert named(service, members[0]) == named(service, members[0]) == ["n"]
    assert named(service, single) == []
    now = next(iter(groups.holds.values())).until

    assert groups.closed(read_pod(single), service.demand(read_pod(single)), now - HOLD_SECONDS / 2)
    assert not groups.closed(read_pod(single), service.demand(read_pod(single)), now)
    assert not groups.holds
    assert service.nodes["n"].free.memory == {GPU: MIB}
    assert named(service, single) == ["n"]


def test_nomination_of_a_member_does_not_count_against_its_own_group(tmp_path: Path) -> None:
    """F150, F65: preemption nominates all members; a nominated node that is full for others fits its members."""
    members = [{**member(f"m-{index}", memory="7Gi"), "status": {"nominatedNodeName": "n"}} for index in range(2)]
    service = serving(tmp_path, [shared("n"), *members], "all")

    assert service.nodes["n"].free.memory == {GPU: 1024}
    assert [named(service, one) for one in members] == [["n"], ["n"]]
    assert named(service, member("single", "", "4Gi")) == []


def test_group_prefers_one_nvlink_domain_with_room_for_all(tmp_path: Path) -> None:
    """F150: before a member has a place, each prefers the smallest domain with room for all."""
    racks = {"a": 1, "b": 2, "c": 4}
    fleet = [
        node_document(f"{rack}-{index}", labels={CLIQUE: f"{rack}.0"})
        for rack, number in racks.items()
        for index in range(number)
    ]
    members = [member(f"m-{index}", memory=None, amount=8) for index in range(3)]
    service = serving(tmp_path, [*fleet, *members], "all")
    cliques = [service.demand(read_pod(one)).group_cliques for one in members]

    assert cliques == [frozenset({"c.0"})] * 3
    service.state.put_pod(bound(members[0], "a-0"))
    assert service.demand(read_pod(members[1])).group_cliques == {"a.0"}


def place(service: Service, members: list[dict[str, Any]], draw: random.Random) -> dict[str, str] | None:
    """Place all members as kube-scheduler does: in some order, with units assumed, and the best node taken.

    None if a member finds no node; the group is then reverted.
    """
    units = {name: node.free.units.get(GPU, 0) for name, node in service.nodes.items()}
    placed: dict[str, str] = {}
    for one in draw.sample(members, len(members)):
        amount = int(one["spec"]["containers"][0]["resources"]["limits"][GPU])
        open_now = [name for name, free in units.items() if free >= amount]
        offered = named(service, one, draw.sample(open_now, len(open_now)))
        if not offered:
            return None
        node = draw.choice(offered) if len(offered) == 1 else _winner(service, one, offered)
        units[node] -= amount
        placed[one["metadata"]["uid"]] = node
    return placed


def _winner(service: Service, document: dict[str, Any], names: list[str]) -> str:
    """Ask prioritize, and return the node that it puts first."""
    scores = json.loads(ask(service, document, names, prioritize))
    return str(max(scores, key=lambda one: one["Score"])["Host"])


def overrun(service: Service) -> list[str]:
    return [name for name, node in service.nodes.items() if any(left < 0 for left in node.free.memory.values())]


@settings(max_examples=24, deadline=None)
@given(st.integers(0, 10**9))
def test_groups_that_bind_never_share_more_memory_than_there_is(tmp_path_factory: Any, seed: int) -> None:
    """F150, F65: random groups and single pods, whose bindings are seen late: never looser than promises were.

    kube-scheduler takes the node that it is given, asks again about any member, and reverts groups.
    """
    draw = random.Random(seed)
    fleet = [
        shared(f"n-{index}", draw.randint(1, 3), **{"zone": draw.choice("ab")}) for index in range(draw.randint(1, 5))
    ]
    service = serving(tmp_path_factory.mktemp("s"), fleet, draw.choice(["shortlist", "all"]))
    late: list[tuple[dict[str, Any], str]] = []
    for number in range(draw.randint(2, 6)):
        memories = draw.sample(["1Gi", "3Gi", "5Gi", "7Gi", "15Gi"], draw.randint(1, 2))
        size = draw.randint(1, 6)
        made = [
            member(f"g{number}-{index}", f"g{number}", draw.choice(memories), draw.randint(1, 2))
            for index in range(size)
        ]
        for one in made:
            service.state.put_pod(one)
        for _ in range(draw.randint(0, 3)):
            place(service, made, draw)
        if (placed := place(service, made, draw)) is not None:
            seen_now = draw.random() < 0.5
            for one in made:
                late.append((one, placed[one["metadata"]["uid"]]))
            if seen_now:
                late = _see(service, late)
        single = member(f"s{number}", "", draw.choice(["2Gi", "6Gi"]))
        if offered := named(service, single):
            node = offered[0]
            service.state.put_pod(bound(single, node))

    _see(service, late)

    assert overrun(service) == []


def _see(service: Service, late: list[tuple[dict[str, Any], str]]) -> list[tuple[dict[str, Any], str]]:
    """Let the watch show bindings, and return those that are still to be seen: none."""
    for document, node in late:
        service.state.put_pod(bound(document, node))
    return []


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_group_that_fits_exactly_is_placed(tmp_path: Path, size: int) -> None:
    """F150, F65: each node has memory for one member, and there is a node for each: every member gets its own."""
    members = [member(f"m-{index}", memory="8Gi") for index in range(size)]
    service = serving(tmp_path, [*(shared(f"n-{index}") for index in range(size)), *members])

    placed = place(service, members, random.Random(size))

    assert placed is not None
    assert Counter(placed.values()) == Counter(dict.fromkeys(service.nodes, 1))
