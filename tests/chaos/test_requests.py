# SPDX-License-Identifier: Apache-2.0
"""Requests that are unusual though well formed, repeated, huge, or full of unknown fields; and a bug of ours."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from app.admission.json_patch import PatchError
from app.kube.pods import Pod
from app.policy.demand import Demand
from app.policy.match import Ruling
from app.server.service import Service
from app.world.world import World
from tests.api.client import patch_of, post, reviewed
from tests.api.sockets import answer, connect
from tests.api.sockets import post as written
from tests.bench.fleet import node_name, nodes
from tests.builders import container, make_service, pod, review
from tests.running import Running, running

GPU = "nvidia.com/gpu"
NODES = 5_000
REASONS = 12
"""Most texts that a person reads in one event; nodes of one make share a text."""
Object = dict[str, Any]


class Failing(Service):
    """The service with a bug that is raised wherever policies are read for a decision."""

    bug: Exception

    def world(self) -> World:
        """Raise the bug."""
        raise self.bug

    def ruling(self, _pod: Pod) -> Ruling:
        """Raise the bug."""
        raise self.bug

    def demand(self, _pod: Pod) -> Demand:
        """Raise the bug."""
        raise self.bug


def failing(folder: Path, bug: Exception) -> Failing:
    base = make_service(folder)
    made = Failing(base.settings, base.certificates, base.state, base.book)
    made.synced, made.bug = True, bug
    return made


@pytest.mark.parametrize("bug", [KeyError("x"), ZeroDivisionError(), RecursionError(), PatchError("no such path")])
def test_bug_of_ours_is_a_500_status_counted_and_ends_nothing(tmp_path: Path, bug: Exception) -> None:
    """Faults 15 and 18: the answer never admits or refuses by chance, and /readyz stays as it is.

    See docs/reference/listeners.md#failures.
    """
    with running(failing(tmp_path, bug)) as clients:
        answers = {
            "mutate": clients.tls.post("/mutate", json=review(pod())),
            "validate": clients.tls.post("/validate", json=review(pod())),
            "filter": clients.tls.post("/scheduler/filter", json={"Pod": pod(), "NodeNames": ["h100-1"]}),
        }
        metrics = clients.ops.get("/metrics").text
        ready = clients.ops.get("/readyz").status_code

    bodies = [response.json() for response in answers.values()]
    assert [response.status_code for response in answers.values()] == [500] * len(answers)
    assert [(body["kind"], body["code"]) for body in bodies] == [("Status", 500)] * len(answers)
    assert all(f'gpu_usher_internal_errors_total{{where="{verb}"}} 1.0' in metrics for verb in answers)
    assert ready == 200


def test_patch_of_a_huge_pod_is_that_of_a_small_one() -> None:
    """Fault 21: the object is about as large as etcd accepts."""
    small = pod(container(None, {GPU: "1"}), annotations={"products": "H100"})
    huge = deepcopy(small)
    huge["spec"]["containers"][0]["env"] = [{"name": f"V{index}", "value": "x" * 1000} for index in range(1_400)]
    huge["metadata"]["labels"] = {f"l{index}": "x" * 60 for index in range(1_000)}

    answers = [patch_of(reviewed(review(document))) for document in (small, huge)]

    assert len(json.dumps(huge)) > 1_400_000
    assert answers[0]
    assert answers[0] == answers[1]


def cpu_seconds(body: bytes) -> float:
    """Return the CPU seconds of a review, the least of three."""
    took = []
    for _ in range(3):
        began = time.process_time()
        status = post("/mutate", body).status_code
        took.append(time.process_time() - began)
        assert status == 200
    return min(took)


def many_labels(keys: Object) -> Object:
    return {**pod(), "metadata": {"name": "p", "labels": keys}}


def many_annotations(keys: Object) -> Object:
    return {**pod(), "metadata": {"name": "p", "annotations": keys}}


def many_unknown(keys: Object) -> Object:
    return {**pod(), "unknown": keys}


@pytest.mark.parametrize("document_with", [many_labels, many_annotations, many_unknown])
def test_time_for_many_keys_grows_with_their_number(document_with: Callable[[Object], Object]) -> None:
    """Fault 29: each process seeds the hash of strings anew, so that nobody can make keys collide."""
    few, many = (json.dumps(review(document_with({f"k{i}": "x" for i in range(n)}))).encode() for n in (3_000, 30_000))

    assert cpu_seconds(many) < 30 * cpu_seconds(few)


UNKNOWN = {"ofTomorrow": {"a": [1, None, {"b": "c"}]}, "null": None}


def test_unknown_fields_change_no_answer_and_are_left_alone() -> None:
    """Fault 32: they are in the envelope, the request, the pod, its spec and its containers."""
    plain = pod(container(None, {GPU: "1"}), annotations={"products": "H100"})
    odd = deepcopy(plain)
    for place in (odd, odd["metadata"], odd["spec"], odd["spec"]["containers"][0]):
        place |= UNKNOWN
    odd_review = {**review(odd, **UNKNOWN), **UNKNOWN}

    expected, response = reviewed(review(plain)), reviewed(odd_review)
    after = jsonpatch.apply_patch(odd, patch_of(response))

    assert response == expected
    assert all(UNKNOWN.items() <= place.items() for place in (after, after["metadata"], after["spec"]))


@pytest.mark.parametrize("text", ["a\nb", "\u202eevil", "zero\u200bwidth", "\U0001f600" * 40, "\x1b[31m", "\x00"])
def test_refusal_with_odd_characters_is_one_printable_line(text: str) -> None:
    """Fault 33: whatever a tenant writes, a terminal shows one line of it."""
    refused = pod(container({GPU: "500m"}, name=text), annotations={"products": f"A10*{text}", "cuda": text})

    response = reviewed(review({**refused, "metadata": {**refused["metadata"], "name": text}}, namespace=text))

    texts = [response["status"]["message"], *response.get("warnings", ())]
    assert [text for text in texts if not text.isprintable()] == []
    assert response["allowed"] is False


def test_request_sent_twice_at_once_is_answered_alike_and_counted_twice(tmp_path: Path) -> None:
    """Fault 34: the API server retries; the uid is the same."""
    with running(make_service(tmp_path)) as clients:
        answers: list[bytes] = []
        threads = [threading.Thread(target=ask, args=(clients, tmp_path / "ca.crt", answers)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        metrics = clients.ops.get("/metrics").text

    assert len(answers) == 8
    assert len(set(answers)) == 1
    assert 'gpu_usher_requests_total{outcome="patched",verb="mutate"} 8.0' in metrics, metrics


def ask(clients: Running, ca: Path, answers: list[bytes]) -> None:
    with connect(clients.tls.base_url.port, ca) as sock:
        sock.sendall(written())
        answers.append(answer(sock)[2])


def test_five_thousand_refused_nodes_are_a_short_answer_of_few_reasons(tmp_path: Path) -> None:
    """Fault 52 (docs/reference/reasons.md)."""
    service = make_service(tmp_path, list(nodes(NODES)))
    document = pod(annotations={"products": "GB300"})
    names = [node_name(index) for index in range(NODES)]

    response = post("/scheduler/filter", json.dumps({"Pod": document, "NodeNames": names}).encode(), service)

    refused = {**response.json()["FailedNodes"], **response.json()["FailedAndUnresolvableNodes"]}
    assert refused.keys() == set(names)
    assert len(response.content) < 1 << 20
    assert 1 <= len(Counter(refused.values())) <= REASONS
    assert max(map(len, refused.values())) <= 100
