# SPDX-License-Identifier: Apache-2.0
"""The cases of the shipped policies, run from one set of files through the core and over HTTP (F77)."""

import json
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from app.cluster.files import case_texts, shipped_policies
from app.explain.policy_cases import (
    admission_differences,
    patch_differences,
    placement_differences,
    rules_of,
    rules_touched,
    run_case,
)
from app.kube.pods import read_pod
from app.policy.case_document import Case, read_case
from app.server.service import Service
from app.values.errors import PolicyError
from tests.api.client import patch_of, post, reviewed
from tests.builders import knowledge, make_service, policies, policy, review, shipped

CASES = {Path(file).stem: read_case(file, text) for file, text in case_texts(shipped_policies()).items()}


@pytest.mark.parametrize("name", CASES)
def test_case_holds_in_the_core(name: str) -> None:
    assert list(run_case(CASES[name], shipped(), knowledge())) == []


def service_for(case: Case, directory: Path) -> Service:
    """Make a service with the cluster of a case: its nodes, pods that use the nodes, and runtime classes."""
    nodes = [case_node.document(name) for name, case_node in case.nodes.items()]
    holders = [
        {
            "kind": "Pod",
            "metadata": {"name": f"holder-{name}", "uid": f"holder-{name}"},
            "spec": {
                "nodeName": name,
                "containers": [{"resources": {"limits": {k: str(n) for k, n in case_node.used.items()}}}],
            },
        }
        for name, case_node in case.nodes.items()
        if case_node.used
    ]
    classes = [{"kind": "RuntimeClass", "metadata": {"name": name}} for name in case.runtime_classes or ()]
    return make_service(directory, [*nodes, *holders, *classes])


@pytest.mark.parametrize("name", CASES)
def test_case_holds_over_http(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    service = service_for(case, tmp_path)
    namespace = (case.pod.get("metadata") or {}).get("namespace", "default")

    response = reviewed(review(case.pod, namespace=namespace), service=service)

    differences = list(admission_differences(case, response["allowed"], None, response.get("warnings", [])))
    if response["allowed"]:
        admitted = jsonpatch.apply_patch(case.pod, patch_of(response))
        differences += patch_differences(case, admitted, "patch" in response)
        differences += placement_differences(case, *_placed(admitted, list(case.nodes), service))
    assert differences == []


def _placed(pod: dict[str, Any], names: list[str], service: Service) -> tuple[list[str], dict[str, str], str | None]:
    """Call filter and prioritize; return the nodes that fit, the code of each refusal, and the node that is first."""
    answer = post("/scheduler/filter", json.dumps({"Pod": pod, "NodeNames": names}).encode(), service).json()
    body = json.dumps({"Pod": pod, "NodeNames": answer["NodeNames"]}).encode()
    scores = post("/scheduler/prioritize", body, service).json()
    codes = service.verdicts.of(service.world().ruling(read_pod(pod)).demand).codes
    failed = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
    best = next((score["Host"] for score in scores if score["Score"] == 10), None)
    return answer["NodeNames"], {name: codes[message].name for name, message in failed.items()}, best


def test_every_rule_of_the_shipped_policies_rules_on_some_case() -> None:
    touched = {rule for case in CASES.values() for rule in rules_touched(case, shipped(), knowledge())}

    assert rules_of(shipped()) == touched


@pytest.mark.parametrize(
    ("expect", "difference"),
    [
        ("{fits: [t4]}", "fits: got [], wants [t4]"),
        ("{refused: {t4: DriverTooOld}}", "refused t4: got ProductNotAllowed, wants DriverTooOld"),
        ("{allowed: false, reasons: [TooManyGPUs]}", "allowed: got true, wants false"),
        ("{patched: {spec.runtimeClassName: x}}", "patched spec.runtimeClassName: got nothing there, wants x"),
        ("{warnings: [nothing of the kind]}", "warnings: got ["),
        ("{unchanged: true}", "unchanged: got false, wants true"),
        ("{best: t4}", "best: got no node that fits, wants t4"),
    ],
)
def test_case_that_expects_wrongly_fails(expect: str, difference: str) -> None:
    """A case proves something only if each of its expectations can fail."""
    text = (
        "pod: {spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: '1'}}}]}}\n"
        "nodes: {t4: {labels: {nvidia.com/gpu.product: Tesla-T4}, allocatable: {nvidia.com/gpu: 4}}}\n"
        f"expect: {expect}\n"
    )
    only_h100 = policies(policy("h100", "placement: {products: {allow: [H100]}}"))

    differences = list(run_case(read_case("case.yaml", text), only_h100, knowledge()))

    assert any(line.startswith(difference) for line in differences), differences


@pytest.mark.parametrize(
    ("pod", "problem"),
    [
        ("{metadata: text, spec: {containers: []}}", "pod.metadata: got a string, wants an object"),
        (
            "{metadata: {namespace: 7}, spec: {containers: []}}",
            "pod.metadata.namespace: got an integer, wants a string",
        ),
        ("{spec: text}", "pod.spec: got a string, wants an object"),
    ],
)
def test_case_whose_pod_has_no_shape_is_told_with_its_place(pod: str, problem: str) -> None:
    """F77, F125: the message names the place before any case is run; the fuzz tests found this bug too."""
    with pytest.raises(PolicyError) as caught:
        read_case("case.yaml", f"expect: {{}}\npod: {pod}\n")

    assert caught.value.problems == (f"case.yaml:2:1: {problem}",)
