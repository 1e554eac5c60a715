# SPDX-License-Identifier: Apache-2.0
"""The oracle of the API server's validation against the answers of a real API server, and against its source."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.oracles.extended_resources import change_problems, problems
from tests.oracles.node_affinity import REQUIRED
from tests.oracles.quantities import milli, quantity

GPU = "nvidia.com/gpu"
RECORDED = Path(__file__).parents[1] / "contract"


def pod(spec: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"containers": [container], **(spec or {})}}


def amounts(requests: Any = None, limits: Any = None, name: str = GPU) -> dict[str, Any]:
    sides = {"requests": requests, "limits": limits}
    return pod(resources={side: {name: value} for side, value in sides.items() if value is not None})


def requiring(*terms: Any) -> dict[str, Any]:
    return pod({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}})


def preferring(weight: Any) -> dict[str, Any]:
    terms = [{"weight": weight, "preference": {}}]
    return pod({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}})


def expression(operator: str, *values: str, key: str = "a") -> dict[str, Any]:
    return requiring({"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]})


def tolerating(**toleration: Any) -> dict[str, Any]:
    return pod({"tolerations": [toleration]})


@pytest.mark.parametrize(
    ("expected", "written"),
    [
        (Fraction(1), "1"),
        (Fraction(1), 1),
        (Fraction(1), "1000m"),
        (Fraction(1), "1.0"),
        (Fraction(1), "1."),
        (Fraction(1, 2), ".5"),
        (Fraction(1000), "1e3"),
        (Fraction(1000), "1E3"),
        (Fraction(10**18), "1E"),
        (Fraction(1000), "1k"),
        (Fraction(1024), "1Ki"),
        (Fraction(-1, 2), "-500m"),
        (Fraction(1, 10**9), "1e-30"),
        (Fraction(2**63 - 1), "1e30"),
        (None, ""),
        (None, "."),
        (None, "1.2.3"),
        (None, "abc"),
        (None, "1 "),
        (None, "1K"),
        (None, "1e"),
        (Fraction(1, 2), 0.5),
        (None, float("nan")),
        (None, True),
        (None, None),
    ],
    ids=repr,
)
def test_quantities_are_read_as_go_reads_them(expected: Fraction | None, written: Any) -> None:
    assert expected == quantity(written)


def test_thousandths_are_rounded_up() -> None:
    rounded = [milli(quantity(written) or Fraction(0)) for written in ("1n", "1", "1.0001")]

    assert rounded == [1, 1000, 1001]


GOOD = {
    "limits only": amounts(limits="1"),
    "equal": amounts("1", "1"),
    "equal in value": amounts("1000m", "1"),
    "zero": amounts("0", "0"),
    "cpu may be overcommitted": amounts("100m", "2", name="cpu"),
    "cpu may be requested alone": amounts("100m", name="cpu"),
    "a native name with a slash": amounts("500m", name="x.kubernetes.io/y"),
    "exists without value": tolerating(key="a", operator="Exists"),
    "all taints": tolerating(operator="Exists"),
    "no operator is Equal": tolerating(key="a", value="b", effect="NoSchedule"),
    "one hundred is the highest weight": preferring(100),
    "an empty term": requiring({}),
    "fields": requiring({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}),
    "Gt": expression("Gt", "5"),
    "a full label value": expression("In", "x" * 63),
    "a mount of a volume": pod({"volumes": [{"name": "v"}]}, volumeMounts=[{"name": "v", "mountPath": "/v"}]),
    "a size limit": pod({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]}),
    "an upper-case annotation": {"metadata": {"annotations": {"Example.com/Key": "ü"}}, "spec": {}},
    "nothing": {},
}
BAD = {
    "must be set": amounts("1"),
    "zero needs a limit too": amounts("0"),
    "must be equal": amounts("1", "2"),
    "fraction": amounts(limits="500m"),
    "ten-thousandth": amounts(limits="1.0001"),
    "negative": amounts(limits="-1"),
    "no quantity": amounts(limits="one"),
    "resource name": amounts(limits="1", name="nvidia.com/mig-1g.10gb+me"),
    "init container": {"spec": {"initContainers": amounts("1")["spec"]["containers"]}},
    "ephemeral container": {"spec": {"ephemeralContainers": amounts(limits="1")["spec"]["containers"]}},
    "pod level": pod({"resources": {"limits": {GPU: "1"}}}),
    "exists with value": tolerating(key="a", operator="Exists", value="b"),
    "no key": tolerating(value="b"),
    "unknown operator": tolerating(key="a", operator="Is"),
    "unknown effect": tolerating(key="a", effect="NoRun"),
    "long value": tolerating(key="a", value="x" * 64),
    "bad key": tolerating(key="a/b/c", operator="Exists"),
    "seconds": tolerating(key="a", operator="Exists", effect="NoSchedule", tolerationSeconds=1),
    "no terms": requiring(),
    "In without values": expression("In"),
    "Exists with values": expression("Exists", "a"),
    "Gt with two": expression("Gt", "1", "2"),
    "Gt with a word": expression("Gt", "a"),
    "operator": expression("Is", "a"),
    "key": expression("In", "a", key="a b"),
    "long label value": expression("In", "x" * 64),
    "odd label value": expression("In", "1g.10gb+me"),
    "field": requiring({"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["n"]}]}),
    "weight 0": preferring(0),
    "weight 101": preferring(101),
    "env": pod(env=[{"name": "", "value": "x"}]),
    "env twice": pod(env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {}}}]),
    "mount": pod(volumeMounts=[{"name": "v", "mountPath": "/v"}]),
    "path": pod({"volumes": [{"name": "v"}]}, volumeMounts=[{"name": "v", "mountPath": "/v"}] * 2),
    "volume": pod({"volumes": [{"name": "v"}] * 2}),
    "volume's name": pod({"volumes": [{"name": "V"}]}),
    "size limit": pod({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "big"}}]}),
    "runtime class": pod({"runtimeClassName": "Nvidia"}),
    "priority class": pod({"priorityClassName": "a_b"}),
    "annotation's key": {"metadata": {"annotations": {"a/b/c": ""}}},
    "annotations' size": {"metadata": {"annotations": {"a": "x" * 256 * 1024}}},
    "label": {"metadata": {"labels": {"a": "ü"}}},
}


@pytest.mark.parametrize("document", GOOD.values(), ids=GOOD.keys())
def test_what_the_api_server_takes_has_no_problem(document: dict[str, Any]) -> None:
    assert problems(document) == []


@pytest.mark.parametrize("document", BAD.values(), ids=BAD.keys())
def test_what_the_api_server_refuses_has_one_problem(document: dict[str, Any]) -> None:
    messages = problems(document)

    assert len(set(messages)) == 1, messages


REFUSED = {"gpu-fraction", "gpu-negative", "gpu-request-ne-limit", "gpu-requests-only", "gpu-requests-only-patched"}
"""Recorded pods that a real API server refused, or would have refused without the patch."""


@pytest.mark.parametrize(
    "path", sorted(RECORDED.glob("admission-pod-create-*.request.json")), ids=lambda path: path.name
)
def test_recorded_pods_are_judged_as_the_api_server_did(path: Path) -> None:
    document = json.loads(path.read_text())["request"]["object"]

    refused = any(path.name == f"admission-pod-create-{name}.request.json" for name in REFUSED)

    assert refused == bool(problems(document)), problems(document)


def test_a_priority_class_that_was_added_allows_no_priority() -> None:
    before = {"spec": {"priority": 0}}

    assert change_problems(before, {"spec": {"priorityClassName": "high"}}) == []
    assert len(change_problems(before, {"spec": {"priorityClassName": "high", "priority": 0}})) == 1


def test_the_users_own_parts_stay() -> None:
    before = {"metadata": {"labels": {"a": "b"}}, "spec": {"tolerations": [{"key": "a"}], "nodeName": "n"}}

    assert change_problems(before, {"metadata": {}, "spec": {"tolerations": [{"key": "b"}, {"key": "a"}]}}) == [
        "spec.tolerations: the user's are gone or moved",
        "spec.nodeName: changed",
        "metadata.labels: changed",
    ]
