# SPDX-License-Identifier: Apache-2.0
"""Requests that are unusual though well formed, repeated, huge, or full of unknown fields; and a bug of ours."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from app.admission.json_patch import PatchError
from app.kube.pod_limits import MOST_EXTENDED
from app.kube.pods import Pod
from app.policy.demand import Demand
from app.policy.match import Ruling
from app.server.service import Service
from app.world.world import World
from tests.api.client import patch_of, post, reviewed
from tests.api.sockets import answer, connect
from tests.api.sockets import post as written
from tests.bench.fleet import node_name, nodes
from tests.builders import container, gpus, make_service, pod, review
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


def stripped(document: Object) -> Object:
    """Remove what we add, as another webhook may, except amounts and the decision annotation."""
    spec = {key: value for key, value in document["spec"].items() if key in ("containers", "initContainers")}
    return {**document, "spec": spec}


def test_what_another_webhook_takes_away_is_added_again_and_nothing_grows() -> None:
    """Fault 20: this holds however often it is removed."""
    made = pod(container({GPU: "1"}, {GPU: "1"}), annotations={"products": "H100"})
    final = []
    for _ in range(5):
        made = jsonpatch.apply_patch(made, patch_of(reviewed(review(made))))
        final.append(made)
        made = stripped(made)

    assert final[0]["spec"].keys() > {"containers"}
    assert final[1:] == final[:1] * 4


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


def bombs() -> Iterator[Any]:
    """Make pods far below the limit of a body whose review once took seconds or minutes."""
    many = range(20_000)
    slices = {f"nvidia.com/mig-1g.{index}gb": "1" for index in many}
    yield pytest.param(pod(container(slices)), id="GPU resources")
    yield pytest.param(pod(container({GPU: "1", **{f"k{index}": "1" for index in many}})), id="other resources")
    yield pytest.param(pod(*[container(None, {name: "1"}) for name in list(slices)[:500]]), id="one each")
    yield pytest.param(pod(*[container(None, {GPU: "1"}) for _ in many]), id="containers")
    yield pytest.param(pod(gpus(1), initContainers=[container(None, {GPU: "1"}) for _ in many]), id="init containers")
    yield pytest.param(pod(*[container(dict(list(slices.items())[:200])) for _ in range(30)]), id="amounts")


@pytest.mark.parametrize("verb", ["mutate", "validate"])
@pytest.mark.parametrize("bomb", list(bombs()))
def test_pod_of_more_than_any_pod_has_is_denied_with_the_limit(bomb: Object, verb: str) -> None:
    """Fault 29: anybody may create a pod, and the API server counts its parts only after our webhook.

    An HTTP error would admit the pod, past every guard, where failurePolicy is Ignore.
    """
    response = reviewed(review(bomb), verb)

    assert not response["allowed"]
    assert "wants at most" in response["status"]["message"]
    assert reviewed(review(pod()))["allowed"]


def test_pod_of_as_much_as_is_allowed_is_completed() -> None:
    """Fault 29: what we add does not exceed the limit."""
    slices = {f"nvidia.com/mig-1g.{index}gb": "1" for index in range(1, 5)}
    large = pod(*[container(None, slices) for _ in range(MOST_EXTENDED // len(slices))])

    assert len(patch_of(reviewed(review(large)))) >= MOST_EXTENDED


def edit_seconds(containers: int) -> float:
    """Return the CPU seconds of a review of a Deployment whose amounts were all edited."""

    def template(amount: str) -> Object:
        asking = [container({GPU: "1"}, {GPU: amount}, name=f"c{index}") for index in range(containers)]
        return {"metadata": {"name": "w"}, "spec": {"template": {"spec": {"containers": asking}}}}

    resource = {"group": "apps", "version": "v1", "resource": "deployments"}
    edit = review(template("2"), resource=resource, operation="UPDATE", oldObject=template("1"))
    return cpu_seconds(json.dumps(edit).encode())


def test_time_for_an_edit_grows_with_the_containers_and_not_with_their_square() -> None:
    """Fault 29: eight times the containers may take sixteen times as long; it once took more than thirty times."""
    assert edit_seconds(800) < 16 * edit_seconds(100)


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
