# SPDX-License-Identifier: Apache-2.0
"""Which nodes filter names with --filter-answer shortlist (docs/reference/scores.md#shortlist)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.api.wire import encode
from app.server.service import Service
from tests.builders import gpus, make_service, node_document, pod, policies, policy
from tests.finished import filter_nodes

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SOFT_TAINT = {"key": "maintenance", "value": "soon", "effect": "PreferNoSchedule"}
SPREAD = {
    "maxSkew": 1,
    "whenUnsatisfiable": "ScheduleAnyway",
    "topologyKey": ZONE,
    "labelSelector": {"matchLabels": {"app": "a"}},
}
PREFERS_SSD = {
    "nodeAffinity": {
        PREFERRED: [
            {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}}
        ]
    }
}


def node(index: int, zone: str = "a", **labels: str) -> dict[str, Any]:
    return node_document(f"n-{index:02}", labels={ZONE: zone, HOST: f"n-{index:02}", **labels})


def holding(index: int, name: str) -> dict[str, Any]:
    """Write a bound pod that makes its node the best place for a small pod."""
    bound = pod(gpus(4), nodeName=name)
    bound["metadata"] = {"name": f"bound-{index}", "namespace": "team-a", "uid": f"bound-{index}"}
    return bound


def serving(folder: Path, objects: list[dict[str, Any]], **settings: Any) -> Service:
    return make_service(folder, objects, **{"filter_answer": "shortlist", **settings})


def named(service: Service, asked: dict[str, Any], uid: str = "u-1", names: Sequence[str] | None = None) -> list[str]:
    """Ask filter, and return the names in its answer."""
    asked = {**asked, "metadata": {**asked["metadata"], "uid": uid}}
    body = encode({"Pod": asked, "NodeNames": list(names or service.nodes)})
    answer: dict[str, list[str]] = json.loads(filter_nodes(body, service).body)
    return answer["NodeNames"]


def test_equal_nodes_take_turns_by_pod_and_alike_in_each_replica(tmp_path: Path) -> None:
    fleet = [node(index) for index in range(10)]
    one, other = serving(tmp_path / "one", fleet), serving(tmp_path / "other", fleet)

    lists = [named(one, pod(), uid=f"u-{index}") for index in range(100)]

    assert {len(names) for names in lists} == {1}
    assert {name for names in lists for name in names} == one.nodes.keys()
    assert lists == [named(other, pod(), uid=f"u-{index}") for index in range(100)]


@pytest.mark.parametrize("most", [5, 1])
def test_list_is_as_long_as_the_setting_allows(tmp_path: Path, most: int) -> None:
    service = serving(tmp_path, [node(index) for index in range(9)], shortlist=most)

    assert len(named(service, pod(topologySpreadConstraints=[{**SPREAD, "topologyKey": HOST}]))) == most


def test_pod_that_could_not_be_bound_gets_other_nodes_until_all_had_their_turn(tmp_path: Path) -> None:
    service = serving(tmp_path, [node(index) for index in range(5)])

    rounds = [named(service, pod()) for _ in range(10)]

    assert {len(names) for names in rounds} == {1}
    assert sorted(rounds[:5]) == sorted(rounds[5:]) == [[name] for name in sorted(service.nodes)]


def test_retried_pod_gets_the_next_best_node_where_the_best_one_failed(tmp_path: Path) -> None:
    """Reserve, Permit and PreBind run after filter, and can refuse a node that fits."""
    service = serving(tmp_path, [node(0), node(1), holding(0, "n-01")])

    assert [named(service, pod()) for _ in range(3)] == [["n-01"], ["n-00"], ["n-01"]]


@pytest.mark.parametrize(
    "soft",
    [{"topologySpreadConstraints": [SPREAD]}, {"topologySpreadConstraints": [SPREAD, {**SPREAD, "topologyKey": HOST}]}],
    ids=["zones", "zones and hosts"],
)
def test_each_zone_is_named_though_one_has_the_best_nodes(tmp_path: Path, soft: dict[str, Any]) -> None:
    fleet = [node(index, "abc"[index % 3]) for index in range(60)]
    fleet += [holding(index, f"n-{index:02}") for index in range(0, 60, 3)]
    service = serving(tmp_path, fleet)

    plain, spread = named(service, pod()), named(service, pod(**soft))

    assert {service.nodes[name].labels[ZONE] for name in plain} == {"a"}
    assert {service.nodes[name].labels[ZONE] for name in spread} == {"a", "b", "c"}


def test_preferred_nodes_are_named_beside_the_best(tmp_path: Path) -> None:
    fleet = [*(node(index) for index in range(20)), *(holding(index, f"n-{index:02}") for index in range(20))]
    service = serving(tmp_path, [*fleet, node(30, disk="ssd")])

    assert "n-30" not in named(service, pod())
    assert {"n-30"} < set(named(service, pod(affinity=PREFERS_SSD), uid="u-2"))


def test_node_without_a_soft_taint_is_named_beside_the_best(tmp_path: Path) -> None:
    best = node_document("best", labels={ZONE: "a"}, taints=[SOFT_TAINT])

    assert named(serving(tmp_path, [best, node(1), holding(0, "best")]), pod()) == ["best", "n-01"]


def test_nominated_node_is_always_named(tmp_path: Path) -> None:
    service = serving(tmp_path, [node(0), node(1), holding(0, "n-01")])
    nominated = {**pod(), "status": {"nominatedNodeName": "n-00"}}

    assert named(service, nominated) == ["n-00", "n-01"]


def test_pod_with_declared_memory_gets_one_node_so_that_its_promise_is_exact(tmp_path: Path) -> None:
    service = serving(tmp_path, [node(index) for index in range(9)])

    assert len(named(service, pod(annotations={"gpu-memory": "10Gi"}))) == 1


def test_proportional_policy_leaves_the_scheduler_nodes_of_several_totals(tmp_path: Path) -> None:
    loose = policies(policy("loose", "placement: {scoreSpread: Proportional}"))
    service = serving(tmp_path, [node(0), node(1), holding(0, "n-01")], policy_set=loose)

    assert named(service, pod()) == ["n-01", "n-00"]
