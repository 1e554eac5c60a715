# SPDX-License-Identifier: Apache-2.0
"""The contract with the real callers: recorded request lines and headers, verdicts on the demo fleet, a full audit.

test_recorded.py sends the recorded payloads one by one; these tests cover the rest.
"""

import json
from typing import Any

import jsonpatch
import pytest

from app.api.app import create_tls_app
from app.server.service import Service
from app.telemetry.metrics import Metrics
from tests.api.client import patch_of
from tests.api.conftest import Ask
from tests.builders import CONTRACT, make_service

PARTS = ("request", "headers", "response")
NAMES = sorted({path.name.partition(".")[0] for path in CONTRACT.glob("*.json")})
BIND = "extender-bind"
FULL = "extender-filter-nodecachecapable-false"
FEW = [
    "extender-filter-nodecachecapable-true",
    "extender-filter-gpu-only-in-init-container",
    "extender-filter-reject-3-reasons",
    "extender-filter-tls",
]
PODS = [name for name in NAMES if name.startswith("admission-pod-create")]
LET_THROUGH = {
    "admission-configmap-create": "CREATE configmaps",
    "admission-configmap-create-by-controller": "CREATE configmaps",
    "admission-configmap-delete": "DELETE configmaps",
    "admission-configmap-update": "UPDATE configmaps",
    "admission-pod-ephemeralcontainers": "UPDATE pods/ephemeralcontainers",
    "admission-pod-resize": "UPDATE pods/resize",
    "admission-pod-update-image": "UPDATE pods",
    "admission-pod-update-label": "UPDATE pods",
}
DENIED = {"admission-pod-create-gpu-fraction", "admission-pod-create-gpu-negative"}
SENT = {"Host", "Content-Length"}
"""Headers that the HTTP client writes itself."""


def part(name: str, kind: str) -> Any:
    return json.loads((CONTRACT / f"{name}.{kind}.json").read_text("utf-8"))


def body_of(name: str) -> bytes:
    return (CONTRACT / f"{name}.request.json").read_bytes()


def replay(service: Service, ask: Ask, name: str, body: bytes | None = None) -> Any:
    """Send a recorded request as it was sent, with our own path prefix."""
    sent = part(name, "headers")
    path = sent["path"].replace("/ext/", "/scheduler/")
    headers = {key: value for key, value in sent["headers"] if key not in SENT}
    app = create_tls_app(service, Metrics())
    return ask(app, sent["method"], path, headers=headers, content=body or body_of(name))


def test_every_file_of_the_folder_is_part_of_a_recorded_exchange() -> None:
    expected = {f"{name}.{kind}.json" for name in NAMES for kind in PARTS}

    assert expected == {path.name for path in CONTRACT.iterdir()}
    assert {name for name in NAMES if name.startswith("admission-")} == {*PODS, *LET_THROUGH}


@pytest.mark.parametrize("name", [name for name in NAMES if name != BIND])
def test_recorded_request_is_answered_with_200_and_json(service: Service, ask: Ask, name: str) -> None:
    """F1: both callers accept status 200 only (docs/reference/control-plane.md#answers-to-the-api-server)."""
    answer = replay(service, ask, name)

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers.get("content-encoding") is None


@pytest.mark.parametrize("name", [name for name in NAMES if name != BIND])
def test_answer_has_no_member_that_the_recorder_would_not_know(service: Service, ask: Ask, name: str) -> None:
    """Member names are exactly those of the Go types (EXT-01, admission/v1)."""
    wire_members: set[str] = {
        *("apiVersion", "kind", "response"),
        *("NodeNames", "Nodes", "FailedNodes", "FailedAndUnresolvableNodes", "Error"),
        "NodeNameToMetaVictims",
    }

    answer = replay(service, ask, name).json()

    members = {key for entry in answer for key in entry} if isinstance(answer, list) else answer.keys()
    assert members <= ({"Host", "Score"} if isinstance(answer, list) else wire_members)


@pytest.mark.parametrize(("name", "what"), LET_THROUGH.items(), ids=LET_THROUGH.keys())
def test_what_is_not_ours_is_allowed_without_a_word(service: Service, ask: Ask, name: str, what: str) -> None:
    """Such a request is allowed with 200 and without a patch (docs/reference/admission.md#reviewed-objects)."""
    request = part(name, "request")["request"]
    resource = "/".join(filter(None, (request["resource"]["resource"], request.get("subResource"))))

    answer = replay(service, ask, name)

    assert what == f"{request['operation']} {resource}"
    assert {"uid": request["uid"], "allowed": True} == answer.json()["response"]


@pytest.mark.parametrize("name", sorted(DENIED))
def test_denial_carries_code_reason_and_one_line(service: Service, ask: Ask, name: str) -> None:
    """Fault 33: without a code of 400 or more the user sees a BadRequest.

    See docs/reference/control-plane.md#answers-to-the-api-server.
    """
    status = replay(service, ask, name).json()["response"]["status"]

    assert (status["code"], status["reason"]) == (403, "Forbidden")
    assert status["message"].startswith("gpu-usher: ")
    assert status["message"].isprintable()


@pytest.mark.parametrize("name", [name for name in PODS if name not in DENIED])
def test_pod_as_patched_is_approved_by_validate_and_left_alone_by_mutate(service: Service, ask: Ask, name: str) -> None:
    """Reviews are idempotent, and both webhooks judge equal objects equally (docs/reference/admission.md#denials)."""
    review = part(name, "request")
    patch = patch_of(replay(service, ask, name).json()["response"])
    review["request"]["object"] = jsonpatch.apply_patch(review["request"]["object"], patch)
    app = create_tls_app(service, Metrics())

    answers = [ask(app, "POST", path, json=review).json()["response"] for path in ("/mutate", "/validate")]

    assert [response["allowed"] for response in answers] == [True, True]
    assert not any("patch" in response or "patchType" in response for response in answers)


@pytest.mark.parametrize("name", [name for name in PODS if name not in DENIED])
def test_patch_only_adds_and_changes_what_is_about_gpus(service: Service, ask: Ask, name: str) -> None:
    """F24: the patch is minimal; labels, names, images and volumes stay as they were."""
    before = part(name, "request")["request"]["object"]
    after = jsonpatch.apply_patch(before, patch_of(replay(service, ask, name).json()["response"]))
    ours = {"tolerations", "runtimeClassName", "containers", "initContainers", "affinity"}

    assert {key: value for key, value in before["spec"].items() if key not in ours} == {
        key: value for key, value in after["spec"].items() if key not in ours
    }
    assert [container["image"] for container in before["spec"]["containers"]] == [
        container["image"] for container in after["spec"]["containers"]
    ]
    assert before["metadata"].get("labels") == after["metadata"].get("labels")
    assert before["metadata"].get("annotations", {}).items() <= after["metadata"].get("annotations", {}).items()


@pytest.mark.parametrize("name", FEW)
def test_full_nodes_of_the_demo_fleet_fail_and_the_others_keep_their_order(
    service: Service, ask: Ask, name: str
) -> None:
    """F28: h100-0 and t4-0 of the demo fleet are full, where an eviction could help."""
    names = part(name, "request")["NodeNames"]

    answer = replay(service, ask, name).json()

    assert [node for node in names if node not in ("h100-0", "t4-0")] == answer["NodeNames"]
    assert answer["FailedNodes"].keys() == {"h100-0", "t4-0"}
    assert set(answer["FailedNodes"].values()) == {"not enough free GPUs: wants 1 nvidia.com/gpu"}
    assert answer["FailedAndUnresolvableNodes"] == {}
    assert answer["Error"] == ""


def test_full_node_mode_refuses_some_and_gives_the_others_back_byte_for_byte(service: Service, ask: Ask) -> None:
    """F42, fault 51: the scheduler replaces its own objects by these."""
    body = body_of(FULL)
    items = part(FULL, "request")["Nodes"]["items"]

    answer = replay(service, ask, FULL)

    kept_nodes = answer.json()["Nodes"]["items"]
    assert [item for item in items if item["metadata"]["name"] not in ("h100-0", "t4-0")] == kept_nodes
    assert all(json.dumps(item, separators=(",", ":"), ensure_ascii=False).encode() in body for item in kept_nodes)
    assert all(
        json.dumps(item, separators=(",", ":"), ensure_ascii=False).encode() in answer.content for item in kept_nodes
    )
    assert answer.json()["FailedNodes"].keys() == {"h100-0", "t4-0"}


def test_list_of_full_nodes_is_read_in_any_letter_case(service: Service, ask: Ask) -> None:
    """Otherwise every node would be lost without a reason (docs/reference/control-plane.md#calls-of-the-scheduler)."""
    expected = replay(service, ask, FULL).json()

    answer = replay(service, ask, FULL, body_of(FULL).replace(b'"items":[{"metadata"', b'"Items":[{"metadata"'))

    assert expected == answer.json()


@pytest.mark.parametrize("name", ["extender-preempt-nodecachecapable-true", "extender-preempt-nodecachecapable-false"])
def test_victims_come_back_in_the_given_order_with_their_violations(service: Service, ask: Ask, name: str) -> None:
    """The demo fleet has the five nodes; counts of PDB violations other than 0 were never recorded.

    See docs/reference/scores.md#preemption.
    """
    args = part(name, "request")
    given = args["NodeNameToMetaVictims"] or args["NodeNameToVictims"]
    for violations, victims in enumerate(given.values()):
        victims["NumPDBViolations"] = violations
    uids = {
        node: [victim.get("UID") or victim["metadata"]["uid"] for victim in victims["Pods"]]
        for node, victims in given.items()
    }

    answer = replay(service, ask, name, json.dumps(args).encode()).json()

    assert answer == {
        "NodeNameToMetaVictims": {
            node: {"Pods": [{"UID": uid} for uid in uids[node]], "NumPDBViolations": index}
            for index, node in enumerate(given)
        }
    }


def test_question_asked_again_gets_the_same_bytes_of_any_replica(
    service: Service, ask: Ask, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """F109, P18, P49, EXT-12, faults 34 and 56."""
    replicas = (service, service, make_service(tmp_path_factory.mktemp("other")))
    names = [name for name in NAMES if name != BIND]

    first, again, other = ([replay(replica, ask, name).content for name in names] for replica in replicas)

    assert first == again == other
