# SPDX-License-Identifier: Apache-2.0
"""The answers about pods without GPUs, and those of the second of two extenders (docs/reference/control-plane.md)."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.api.extender_routes import ExtenderAnswer, filter_nodes, prioritize
from app.api.preemption import preempt
from app.api.wire import encode
from app.server.service import Service
from app.values.computations import finish
from tests.builders import gpus, make_service, node_document, pod
from tests.dra.makes import device, device_class, slice_of

ANSWERS = ("all", "shortlist")
ZERO = {"limits": {"nvidia.com/gpu": "0"}}
CPU = {"requests": {"cpu": "2"}}
BLANK: dict[str, Any] = {"product": None, "driver": None, "offers": {}}
CLAIM = {
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "namespace": "team-a"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
}


def fleet(with_gpus: int = 3, without: int = 3) -> list[dict[str, Any]]:
    gpu_nodes = [node_document(f"gpu-{index}") for index in range(with_gpus)]
    return [*gpu_nodes, *(node_document(f"cpu-{index}", **BLANK) for index in range(without))]


def claiming(**more: Any) -> dict[str, Any]:
    return pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}], containers=[{"name": "m", **more}])


def asked_with(resources: dict[str, Any]) -> dict[str, Any]:
    return pod(containers=[{"name": "main", "image": "app", "resources": resources}])


def filtered(service: Service, asked: dict[str, Any], other_pods: bool = False, names: Any = None) -> list[str]:
    body = encode({"Pod": asked, "NodeNames": names or list(service.nodes)})
    answer: dict[str, list[str]] = json.loads(finish(filter_nodes(body, service, other_pods)).body)
    return answer["NodeNames"]


def scored(service: Service, asked: dict[str, Any], other_pods: bool = False) -> dict[str, int]:
    body = encode({"Pod": asked, "NodeNames": list(service.nodes)})
    return {row["Host"]: row["Score"] for row in json.loads(finish(prioritize(body, service, other_pods)).body)}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("resources", [ZERO, CPU, {}], ids=["zero GPUs", "CPU", "nothing"])
def test_pod_that_asks_for_no_gpu_gets_back_all_nodes(tmp_path: Path, answer: str, resources: dict[str, Any]) -> None:
    """F28: nodes that we do not know yet too, and while our view is stale."""
    service = make_service(tmp_path, fleet(), filter_answer=answer)
    names = [*service.nodes, "new"]

    answers = [filtered(service, asked_with(resources), other_pods, names) for other_pods in (False, True)]
    service.synced = False

    assert answers == [names, names]
    if resources is not ZERO:
        assert filtered(service, asked_with(resources), names=names) == names


def test_whole_nodes_come_back_to_a_pod_without_gpus(tmp_path: Path) -> None:
    """F28: for a scheduler without nodeCacheCapable."""
    service = make_service(tmp_path, fleet(), filter_answer="shortlist")
    body = encode({"Pod": asked_with(CPU), "Nodes": {"items": fleet()}})

    items = json.loads(finish(filter_nodes(body, service)).body)["Nodes"]["items"]

    assert [item["metadata"]["name"] for item in items] == list(service.nodes)


@pytest.mark.parametrize("answer", ANSWERS)
def test_pods_without_gpus_prefer_nodes_without_and_equal_nodes_score_alike(tmp_path: Path, answer: str) -> None:
    """F48, F61: from the first pod on, before any GPU pod was seen."""
    service = make_service(tmp_path, fleet(), filter_answer=answer)

    scores = scored(service, asked_with(CPU), other_pods=True)

    assert {score for name, score in scores.items() if name.startswith("cpu")} == {10}
    assert {score for name, score in scores.items() if name.startswith("gpu")} == {7}


def test_equal_nodes_score_alike_for_a_gpu_pod_but_where_its_place_is_promised(tmp_path: Path) -> None:
    """F48, F55: kube-scheduler then spreads equal pods by its own scores."""
    service = make_service(tmp_path, fleet(without=0), filter_answer="all")

    plain = scored(service, pod(gpus(1)))
    declaring = scored(service, pod(gpus(1), annotations={"gpu-memory": "10Gi"}))

    assert set(plain.values()) == {10}
    assert sorted(declaring.values()).count(10) == 1


@pytest.mark.parametrize("answer", ANSWERS)
def test_second_extender_leaves_a_pod_of_the_first_as_it_was_decided_there(tmp_path: Path, answer: str) -> None:
    """F28: it gives the same nodes back, scores none, keeps all victims, and promises nothing anew."""
    service = make_service(tmp_path, fleet(), filter_answer=answer)
    asked = pod(gpus(1), annotations={"gpu-memory": "10Gi"})
    first = filtered(service, asked)

    assert filtered(service, asked, True, first) == first
    assert set(first) <= {"gpu-0", "gpu-1", "gpu-2"}
    assert set(scored(service, asked, other_pods=True).values()) == {0}
    assert victims_kept(preempt, service, asked, True) == {"cpu-0"}
    assert victims_kept(preempt, service, asked, False) == set()


def victims_kept(steps: Any, service: Service, asked: dict[str, Any], other_pods: bool) -> set[str]:
    candidates = {"cpu-0": {"Pods": [{"UID": "v"}], "NumPDBViolations": 0}}
    body = encode({"Pod": asked, "NodeNameToMetaVictims": candidates})
    return set(json.loads(finish(steps(body, service, other_pods)).body)["NodeNameToMetaVictims"])


def test_second_extender_decides_claims_and_resources_that_the_first_does_not_list(tmp_path: Path) -> None:
    """F28, F135: a MIG profile that no table has is asked for here only."""
    odd = "nvidia.com/mig-9g.999gb"
    objects = [
        node_document("old", product=None, driver=None, offers={}),
        node_document("new", product=None, driver=None, offers={}),
        node_document("odd", offers={odd: 1}),
        {"kind": "DeviceClass", **device_class("gpu.nvidia.com", "gpu")},
        {"kind": "ResourceSlice", **slice_of("old", [device(0, "gpu", "a10")])},
        {"kind": "ResourceSlice", **slice_of("new", [device(0, "gpu", "b200")])},
        CLAIM,
    ]
    service = make_service(tmp_path, objects, filter_answer="shortlist")
    needy = claiming(env=[{"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12.8"}],
                     resources={"claims": [{"name": "gpu"}]})  # fmt: skip

    assert filtered(service, needy, True) == ["new"]
    assert filtered(service, asked_with({"limits": {odd: "1"}}), True) == ["odd"]
    assert set(scored(service, needy, True).values()) == {0}


@pytest.mark.parametrize(
    ("asked", "decided"), [(pod(gpus(1)), False), (asked_with(CPU), True)], ids=["of the first", "CPU"]
)
def test_answer_that_decides_nothing_is_not_recorded(tmp_path: Path, asked: dict[str, Any], decided: bool) -> None:
    """F94: else each GPU pod would be shown twice."""
    service = make_service(tmp_path, fleet(), filter_answer="shortlist")
    body = encode({"Pod": asked, "NodeNames": list(service.nodes)})

    answers: list[ExtenderAnswer] = [
        finish(partial(steps, other_pods=True)(body, service)) for steps in (filter_nodes, prioritize)
    ]

    assert [answer.decided for answer in answers] == [decided, decided]
