# SPDX-License-Identifier: Apache-2.0
"""Every payload that a real kube-apiserver and kube-scheduler sent gets the answer that they need."""

import json
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from app.server.service import Service
from tests.api.client import patch_of, post, reviewed
from tests.builders import CONTRACT, make_service, node_document

REQUESTS = {path.name.removesuffix(".request.json"): path for path in sorted(CONTRACT.glob("*.request.json"))}
ADMISSION = [name for name in REQUESTS if name.startswith("admission-")]
EXTENDER = [name for name in REQUESTS if name.startswith("extender-") and name != "extender-bind"]
DENIED = {
    "admission-pod-create-gpu-fraction": "a fraction of nvidia.com/gpu",
    "admission-pod-create-gpu-negative": "a negative amount of nvidia.com/gpu",
}


def names_gpus(name: str) -> bool:
    """Tell whether a created pod's containers name a GPU resource, by a simple look at the payload."""
    request = json.loads(REQUESTS[name].read_text("utf-8"))["request"]
    created = request["operation"] == "CREATE" and request["resource"]["resource"] == "pods"
    return created and "nvidia.com/" in json.dumps(
        [
            container.get("resources")
            for key in ("containers", "initContainers")
            for container in request["object"]["spec"].get(key, [])
        ]
    )


PATCHED = {name for name in ADMISSION if names_gpus(name) and name not in DENIED}


def recorded(name: str) -> Any:
    return json.loads(REQUESTS[name].read_text("utf-8"))


def verb_of(name: str) -> str:
    path = json.loads((CONTRACT / f"{name}.headers.json").read_text("utf-8"))["path"]
    return f"/scheduler/{path.rpartition('/')[2]}"


def service_knowing(nodes: list[str], directory: Path) -> Service:
    """Make a service that knows these nodes, each with eight free H100."""
    return make_service(directory, [node_document(name) for name in nodes])


def test_every_recorded_request_is_covered() -> None:
    assert {*ADMISSION, *EXTENDER, "extender-bind"} == set(REQUESTS)
    assert len(PATCHED) >= 10


@pytest.mark.parametrize("verb", ["mutate", "validate"])
@pytest.mark.parametrize("name", ADMISSION)
def test_review_is_answered_in_its_own_words(name: str, verb: str) -> None:
    review = recorded(name)

    answer = post(f"/{verb}", REQUESTS[name].read_bytes())

    assert answer.status_code == 200
    assert (review["apiVersion"], review["kind"]) == (answer.json()["apiVersion"], answer.json()["kind"])
    assert review["request"]["uid"] == answer.json()["response"]["uid"]


@pytest.mark.parametrize("name", ADMISSION)
def test_only_gpu_pods_are_patched_and_only_wrong_amounts_denied(name: str) -> None:
    response = reviewed(recorded(name))

    assert (name not in DENIED) is response["allowed"]
    assert (name in PATCHED) is ("patch" in response)
    assert DENIED.get(name, "") in response.get("status", {}).get("message", "")


@pytest.mark.parametrize("name", ADMISSION)
def test_validate_never_patches(name: str) -> None:
    response = reviewed(recorded(name), "validate")

    assert "patch" not in response
    assert "patchType" not in response


def test_requests_only_pod_gets_limits_toleration_runtime_class_and_a_record() -> None:
    """F2, F5, F7, F19, F25, P36."""
    review = recorded("admission-pod-create-gpu-requests-only")
    response = reviewed(review)

    pod = jsonpatch.apply_patch(review["request"]["object"], patch_of(response))

    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert pod["spec"]["tolerations"][-1]["key"] == "nvidia.com/gpu"
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert json.loads(pod["metadata"]["annotations"]["gpu-usher.io/decision"])["v"] == 1
    assert ["limits set to 2" in warning for warning in response["warnings"]] == [True]
    assert all(len(warning) <= 120 for warning in response["warnings"])


@pytest.mark.parametrize("name", [name for name in EXTENDER if "filter" in name])
def test_filter_gives_back_what_it_was_given_in_the_same_form(name: str, tmp_path: Path) -> None:
    args = recorded(name)
    full = args["NodeNames"] is None
    names = args["NodeNames"] or [item["metadata"]["name"] for item in args["Nodes"]["items"]]

    answer = post("/scheduler/filter", REQUESTS[name].read_bytes(), service_knowing(names, tmp_path))

    assert answer.status_code == 200
    kept_nodes = answer.json()["Nodes"]["items"] if full else answer.json()["NodeNames"]
    assert (args["Nodes"]["items"] if full else names) == kept_nodes
    assert answer.json()["Error"] == ""
    assert ("NodeNames" in answer.json()) is not full


@pytest.mark.parametrize("name", [name for name in EXTENDER if "prioritize" in name])
def test_prioritize_scores_each_given_node_once_with_integers_and_a_winner(name: str) -> None:
    """F48, F55."""
    args = recorded(name)
    names = args["NodeNames"] or [item["metadata"]["name"] for item in args["Nodes"]["items"]]

    answer = post("/scheduler/prioritize", REQUESTS[name].read_bytes())

    scores = answer.json()
    assert names == [score["Host"] for score in scores]
    assert all(isinstance(score["Score"], int) and 0 <= score["Score"] <= 10 for score in scores)
    assert max(score["Score"] for score in scores) == 10


@pytest.mark.parametrize("name", [name for name in EXTENDER if "preempt" in name and "filter" not in name])
def test_preempt_drops_nodes_of_another_product(name: str) -> None:
    """F43, P7: of the demo fleet only h100-0 and h100-1 have the product."""
    args = recorded(name)
    args["Pod"]["metadata"]["annotations"] = {"gpu-usher.io/products": "H100"}

    answer = post("/scheduler/preempt", json.dumps(args).encode())

    assert sorted(answer.json()["NodeNameToMetaVictims"]) == ["h100-0", "h100-1"]


@pytest.mark.parametrize("name", EXTENDER)
@pytest.mark.parametrize("spell", [str.lower, str.upper, str.swapcase], ids=["lower", "upper", "swapped"])
def test_keys_are_read_in_any_letter_case(name: str, spell: Any) -> None:
    expected = post(verb_of(name), REQUESTS[name].read_bytes())

    answer = post(verb_of(name), json.dumps({spell(key): value for key, value in recorded(name).items()}).encode())

    assert answer.status_code == 200
    assert expected.json() == answer.json()


def test_bind_is_not_a_route_of_ours() -> None:
    """P8, P29: without a bind verb, no pod can hang in it."""
    answer = post("/scheduler/bind", REQUESTS["extender-bind"].read_bytes())

    assert answer.status_code == 404
    assert answer.json()["kind"] == "Status"


def test_unknown_nodes_are_refused_with_a_reason_not_silently() -> None:
    """Fault 10."""
    answer = post("/scheduler/filter", REQUESTS["extender-filter-1000-nodes"].read_bytes())

    failed = answer.json()["FailedAndUnresolvableNodes"]
    assert answer.json()["NodeNames"] == []
    assert set(failed.values()) == {"node not known to gpu-usher yet: wants a node seen in the watch"}
    assert len(failed) == 420
