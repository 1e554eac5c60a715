# SPDX-License-Identifier: Apache-2.0
"""Reviews of policy edits: an edit that would break the set is refused with path and reason, the rest passes (F131)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.app import create_tls_app
from app.cluster.time_slices import MOST_WAITING
from app.policy.schema import VERSIONS
from app.server.service import Service
from app.telemetry.metrics import Metrics
from app.values.computations import finish
from app.values.errors import WireError
from app.values.reasons import Code
from tests.api.client import demo_service
from tests.api.policy_reviews import CONFIGMAPS, GPUPOLICIES, LABEL, ask, config_map, denial_message, gpu_policy
from tests.builders import make_service, pod, policy
from tests.builders import review as wrap

GOOD, TYPO = policy("mine", "priority: 7"), policy("mine", "placement: {gpuMemry: 40Gi}")


def test_good_policies_are_let_in(service: Service) -> None:
    answers = [
        ask(service, config_map({"a.yaml": GOOD}), CONFIGMAPS),
        ask(service, gpu_policy({"priority": 7}), GPUPOLICIES),
    ]

    assert [(answer.handled, answer.result.allowed) for answer in answers] == [(True, True)] * 2


def test_policy_that_cannot_be_meant_is_let_in_with_a_warning_unless_a_node_has_the_product(service: Service) -> None:
    """F79: of a file and of an object alike."""
    products = {"products": {"allow": ["H100", "L5"], "deny": ["H100"]}}
    text = policy("mine", "placement: {products: {allow: [H100, L5], deny: [H100]}}")

    answers = [
        ask(service, config_map({"a.yaml": text}), CONFIGMAPS),
        ask(service, gpu_policy({"placement": products}), GPUPOLICIES),
    ]

    for answer in answers:
        assert answer.result.allowed
        doubt, unknown = json.loads(answer.body)["response"]["warnings"]
        assert "spec.placement.products.allow[0]: deny excludes every H100 as well, remove one of the two" in doubt
        assert "spec.placement.products.allow[1]: no known product is called L5" in unknown


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_mistake_in_a_config_map_is_refused_with_its_place_and_what_was_meant(service: Service, operation: str) -> None:
    message = denial_message(service, config_map({"a.yaml": TYPO}), CONFIGMAPS, operation=operation)

    assert "gpu-usher/policies: a.yaml:4:20: spec.placement.gpuMemry: unknown field, did you mean gpuMemory?" in message


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_mistake_in_a_gpu_policy_is_refused_with_its_path(service: Service, operation: str, version: str) -> None:
    """F131: a rule that lists both versions brings reviews of both."""
    document = gpu_policy({"placement": {"gpuMemry": "40Gi"}}) | {"apiVersion": f"gpu-usher.io/{version}"}
    right = gpu_policy({"priority": 7}) | {"apiVersion": f"gpu-usher.io/{version}"}
    resource = {**GPUPOLICIES, "version": version}

    message = denial_message(service, document, resource, operation=operation)

    assert denial_message(service, right, resource, operation=operation) == ""
    assert "gpupolicy mine: spec.placement.gpuMemry: unknown field, did you mean gpuMemory?" in message


def test_refusal_is_an_answer_with_a_code_of_its_own(service: Service) -> None:
    answer = ask(service, gpu_policy({"priority": "high"}), GPUPOLICIES)

    response = json.loads(answer.body)["response"]
    assert [reason.code for reason in answer.result.reasons] == [Code.InvalidPolicy]
    assert (response["status"]["code"], response["status"]["reason"]) == (403, "Forbidden")
    assert response["auditAnnotations"]["decision"] == "InvalidPolicy"
    assert "patch" not in response


@pytest.mark.parametrize(
    "text", ["[", "\t", "&a [*a]", "- 1", "{a: {b: ", "kind: Pod", "a: 1\na: 2", "a: no", "\x00", "[" * 999]
)
def test_text_that_is_no_policy_is_refused(service: Service, text: str) -> None:
    assert "a.yaml" in denial_message(service, config_map({"a.yaml": text}), CONFIGMAPS)


@pytest.mark.parametrize("data", [None, {}, {"a.yaml": ""}, {"a.yaml": "# later\n---\n"}, {"a": GOOD}], ids=str)
def test_config_map_without_mistakes_passes(service: Service, data: Any) -> None:
    assert denial_message(service, config_map(data), CONFIGMAPS) == ""


@pytest.mark.parametrize(
    ("document", "request_"),
    [
        pytest.param(config_map({"a.yaml": TYPO}, labels={}), {}, id="not labelled"),
        pytest.param(
            config_map({"a.yaml": TYPO}, labels={"gpu-usher.io/policy": "false"}), {}, id="labelled otherwise"
        ),
        pytest.param(config_map({"a.yaml": TYPO}), {"namespace": "team-a"}, id="another namespace"),
        pytest.param(config_map({"a.yaml": TYPO}), {"operation": "DELETE"}, id="deleted"),
        pytest.param(config_map({"a.yaml": TYPO}, deletionTimestamp="x"), {"operation": "UPDATE"}, id="leaving"),
        pytest.param(None, {"operation": "DELETE", "oldObject": config_map({"a.yaml": TYPO})}, id="gone"),
        pytest.param(config_map({"a.yaml": TYPO}), {"verb": "mutate"}, id="asked to mutate"),
    ],
)
def test_config_map_that_is_none_of_ours_passes(service: Service, document: Any, request_: dict[str, Any]) -> None:
    assert denial_message(service, document, CONFIGMAPS, **request_) == ""


@pytest.mark.parametrize(
    ("before", "made", "allowed"),
    [
        pytest.param({"priority": -1}, {"priority": -1}, True, id="as it was"),
        pytest.param({"priority": 1}, {"priority": -1}, False, id="spoilt"),
        pytest.param({"priority": -1}, {"priority": -2}, False, id="still bad"),
        pytest.param({"priority": -1}, {"priority": 1}, True, id="mended"),
        pytest.param(None, {"priority": -1}, False, id="no spec before"),
    ],
)
def test_policy_that_is_as_it_was_passes_whatever_it_says(
    service: Service, before: Any, made: Any, allowed: bool
) -> None:
    """A finalizer must be removable from a bad policy, too."""
    old, new = gpu_policy(before, labels={"a": "b"}), gpu_policy(made)

    assert allowed is (denial_message(service, new, GPUPOLICIES, operation="UPDATE", oldObject=old) == "")


@pytest.mark.parametrize(
    ("labels", "data", "allowed"),
    [
        pytest.param(LABEL, {"a.yaml": TYPO}, True, id="as it was"),
        pytest.param({}, {"a.yaml": TYPO}, False, id="labelled only now"),
        pytest.param(LABEL, {"a.yaml": GOOD}, False, id="spoilt"),
    ],
)
def test_config_map_that_becomes_a_policy_is_judged(service: Service, labels: Any, data: Any, allowed: bool) -> None:
    made, before = config_map({"a.yaml": TYPO}), config_map(data, labels=labels)

    assert allowed is (denial_message(service, made, CONFIGMAPS, operation="UPDATE", oldObject=before) == "")


def test_name_that_another_source_has_is_refused(tmp_path: Path) -> None:
    """The policy that is loaded later is in error, whichever is edited (docs/reference/policy.md#sources)."""
    service = make_service(tmp_path)
    service.book.put_source("configmap gpu-usher/first", {"a.yaml": GOOD})

    problems = [
        denial_message(service, gpu_policy({}, "mine"), GPUPOLICIES),
        denial_message(service, config_map({"a.yaml": GOOD}, "second"), CONFIGMAPS),
        denial_message(service, config_map({"a.yaml": GOOD}, "first"), CONFIGMAPS),
        denial_message(service, gpu_policy({}, "default"), GPUPOLICIES),
    ]

    assert ["is taken by" in problem for problem in problems] == [True, True, False, True]


def test_what_was_wrong_before_is_not_held_against_an_edit(tmp_path: Path) -> None:
    service = make_service(tmp_path)
    service.book.put_source("configmap gpu-usher/bad", {"a.yaml": TYPO})

    messages = (
        denial_message(service, gpu_policy({}, "other"), GPUPOLICIES),
        denial_message(service, gpu_policy({"priority": -1}), GPUPOLICIES),
    )

    assert messages[0] == ""
    assert "priority" in messages[1]
    assert "gpuMemry" not in messages[1]


def test_policy_in_force_is_not_changed_by_a_review(service: Service) -> None:
    before = service.policies.hash

    denial_message(service, gpu_policy({"priority": 7}), GPUPOLICIES)

    assert service.policies.hash == before


def test_shadow_lets_a_mistake_in_and_logs_it(tmp_path: Path) -> None:
    """F137."""
    service = make_service(tmp_path, shadow=True)

    answer = ask(service, gpu_policy({"priority": -1}), GPUPOLICIES)

    assert json.loads(answer.body)["response"] == {"uid": "r-1", "allowed": True}
    assert not answer.result.allowed


@pytest.mark.parametrize("odd", [5, "x", [], True, [{}]], ids=str)
@pytest.mark.parametrize("field", ["metadata", "labels", "data", "value", "name", "spec", "oldObject"])
def test_object_of_another_shape_is_never_a_bug(service: Service, field: str, odd: Any) -> None:
    made = config_map({"a.yaml": odd if field == "value" else GOOD})
    made |= {field: odd} if field in made else {}
    made["metadata"] = odd if field == "metadata" else {**made["metadata"], **({field: odd} if field != "data" else {})}
    for resource, document in ((CONFIGMAPS, made), (GPUPOLICIES, gpu_policy(odd) | {"metadata": made["metadata"]})):
        try:
            ask(service, document, resource, operation="UPDATE", **({field: odd} if field == "oldObject" else {}))
        except WireError as error:
            assert error.status == 400  # noqa: PT017  # what it must be where it is one


def test_one_policy_is_checked_at_a_time_and_others_are_answered_meanwhile() -> None:
    """F103: a check of many documents rests between its steps, and beyond nine at once callers get a retry."""
    texts = {"a.yaml": "---\n".join(policy(f"p{index}", "") for index in range(60))}
    long_check = json.dumps(wrap(config_map(texts), namespace="gpu-usher", resource=CONFIGMAPS)).encode()
    short = json.dumps(wrap(pod())).encode()

    async def crowd() -> tuple[list[int], int]:
        transport = httpx.ASGITransport(app=create_tls_app(demo_service(), Metrics()))
        async with httpx.AsyncClient(transport=transport, base_url="https://127.0.0.1") as client:
            checks = [
                asyncio.create_task(client.post("/validate", content=long_check)) for _ in range(MOST_WAITING + 3)
            ]
            answered = 0
            while not all(check.done() for check in checks[:2]):
                answered += (await client.post("/mutate", content=short)).status_code == 200
                await asyncio.sleep(0)  # as a socket does; this test's transport never waits for one
            return sorted([(await check).status_code for check in checks]), answered

    statuses, answered = asyncio.run(crowd())

    assert statuses == [200] * (MOST_WAITING + 1) + [429] * 2
    assert answered > 5


BROKEN = {"match": {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "owner": "o", "reason": "r"}
EXCEPTION = {"exceptions": [BROKEN | {"expires": "2027-01-01"}]}


def test_selector_of_an_exception_is_checked_like_any_other(service: Service) -> None:
    assert "exceptions" in denial_message(service, gpu_policy(EXCEPTION), GPUPOLICIES)


def test_selector_of_an_exception_that_slipped_in_leaves_the_last_good_set_in_force(tmp_path: Path) -> None:
    book = make_service(tmp_path).book
    book.put_source("gpupolicy mine", gpu_policy(EXCEPTION))

    assert finish(book.load()).error is not None


@pytest.mark.parametrize("field", ["enforceFrom", "expires"])
def test_day_in_digits_of_another_script_is_refused(service: Service, field: str) -> None:
    day = "\u0662\u0660\u0662\u0667-01-01"
    match = {"podSelector": {"matchLabels": {"a": "b"}}}
    until = {"exceptions": [{"match": match, "owner": "o", "reason": "r", "expires": day}]}

    assert "day" in denial_message(service, gpu_policy(until if field == "expires" else {field: day}), GPUPOLICIES)


def test_service_outlives_a_policy_whose_exception_cannot_be_read(tmp_path: Path) -> None:
    """A bad edit never changes the readiness (docs/reference/listeners.md#probes)."""
    book = make_service(tmp_path).book

    async def follow() -> bool:
        heard = asyncio.Event()
        following = asyncio.create_task(book.follow(lambda _: heard.set()))
        book.put_source("gpupolicy mine", gpu_policy(EXCEPTION))
        hearing = asyncio.create_task(heard.wait())
        await asyncio.wait({following, hearing}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        survived = not following.done()
        for task in (following, hearing):
            task.cancel()
        await asyncio.gather(following, hearing, return_exceptions=True)
        return survived

    assert asyncio.run(follow())
