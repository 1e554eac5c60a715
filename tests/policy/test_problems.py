# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a policy or a case is said in YAML's words, whatever is wrong, and where (F79)."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from app.explain.policy_cases import run_case
from app.policy.case_document import Case, read_case
from app.policy.schema import GPUPolicy, resolve_schema
from app.values.errors import PolicyError
from tests.builders import knowledge, policies, policy
from tests.finished import load_policies

VALID = {"apiVersion": "gpu-usher.io/v1beta1", "kind": "GPUPolicy", "metadata": {"name": "a"}, "spec": {}}
POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "image": "train:1"}]}}
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    7,
    -1,
    10**7,
    2.5,
    "",
    "some text",
    "7",
    "2.5",
    "true",
    "Z" * 99,
    [],
    [7],
    [None],
    ["x"],
)
MORE_VALUES: tuple[Any, ...] = ([[]], [{}], {}, {"x": 1}, {"x": None}, {"x": "z"}, {"1": [7]}, {"matchLabels": 7})
Path = tuple[str | int, ...]
PYTHON_WORDS = re.compile(
    r"(?i:\binput should|\btuple|\bdict|\binstance of|\bNoneType|_parsing|_type\b|\bvalid (?:string|integer|list))"
    r"|\b(?:None|True|False|str|int|bool|float|ProductsWish|CUDAWish|LabelSelector|Enum)\b|\[key\]|field required"
)
"""Words of Python and pydantic that no message may have."""


def fields_of(
    schema: Mapping[str, Any], node: Mapping[str, Any], path: Path = ()
) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """List the paths and types of all fields, of the first item of each list, and of one key of each mapping."""
    node = resolve_schema(node, schema.get("$defs", {}))
    if path:
        yield path, node
    for name, field in node.get("properties", {}).items():
        yield from fields_of(schema, field, (*path, name))
    if "items" in node:
        yield from fields_of(schema, node["items"], (*path, 0))
    if isinstance(node.get("additionalProperties"), dict):
        yield from fields_of(schema, node["additionalProperties"], (*path, "sharing"))


def with_value(document: Any, path: Path, value: Any) -> Any:
    """Copy a document with a value at a path, whose lists have one item."""
    if not path:
        return value
    first, *rest = path
    if isinstance(first, int):
        return [with_value({}, tuple(rest), value)]
    inner = document.get(first, {}) if isinstance(document, dict) else {}
    return {**(document if isinstance(document, dict) else {}), first: with_value(inner, tuple(rest), value)}


def policy_problems(document: Any, as_object: bool = False) -> tuple[str, ...]:
    texts = {} if as_object else {"a.yaml": yaml.safe_dump(document)}
    objects = {"gpupolicy a": document} if as_object else {}
    try:
        load_policies(texts, knowledge(), objects=objects)
    except PolicyError as error:
        return error.problems
    return ()


def case_problems(document: Any) -> tuple[str, ...]:
    try:
        read_case("a.yaml", yaml.safe_dump(document))
    except PolicyError as error:
        return error.problems
    return ()


def faults_of(message: str) -> list[str]:
    """List what a message lacks: a place, a path, what is wanted; and Python's words in it."""
    if message.endswith("there may be more: fix these first"):
        return []
    faults = [match[0] for match in PYTHON_WORDS.finditer(message)]
    if not re.match(r"(?:a\.yaml:\d+:\d+|gpupolicy a): [A-Za-z]\w*(?:[.\[][^ ]*)?: ", message):
        faults.append("no place and path")
    if not re.search(r"wants |did you mean |unknown field: |write ", message):
        faults.append("nothing wanted")
    return faults if len(message.splitlines()) == 1 and len(message) < 600 else [*faults, "long"]


def distinct_fields(schema: Mapping[str, Any]) -> tuple[Path, ...]:
    """List the fields, of those of one name and type the first: label selectors stand at many places."""
    fields: dict[str, Path] = {}
    for path, node in fields_of(schema, schema):
        kind = {key: value for key, value in node.items() if key not in ("title", "description", "default", "examples")}
        fields.setdefault(f"{path[-1]} {json.dumps(kind, sort_keys=True)}", path)
    return tuple(fields.values())


POLICY_FIELDS = distinct_fields(GPUPolicy.model_json_schema(by_alias=True))
CASE_FIELDS = distinct_fields(Case.model_json_schema(by_alias=True))


@pytest.mark.parametrize("path", POLICY_FIELDS, ids=lambda path: ".".join(map(str, path)))
def test_every_field_of_a_policy_with_every_type_is_refused_in_words_of_yaml(path: Path) -> None:
    """F79: each field of the schema, with 26 values of all types; a file and a GPUPolicy have the same words."""
    for value in (*VALUES, *MORE_VALUES):
        document = with_value(VALID, path, value)

        messages = policy_problems(document)

        assert [(message, faults_of(message)) for message in messages if faults_of(message)] == []
        if not isinstance(value, float | int):  # whose text in the file is quoted as written
            of_object = policy_problems(document, as_object=True)
            assert {message.partition(": ")[2] for message in of_object} == {
                message.partition(": ")[2] for message in messages
            }


@pytest.mark.parametrize("path", CASE_FIELDS, ids=lambda path: ".".join(map(str, path)))
def test_every_field_of_a_case_with_every_type_is_refused_in_words_of_yaml(path: Path) -> None:
    """F79."""
    for value in (*VALUES, *MORE_VALUES):
        messages = case_problems(with_value({"pod": POD}, path, value))

        assert [(message, faults_of(message)) for message in messages if faults_of(message)] == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**9) | st.floats(-9, 999, width=16) | st.sampled_from(["x", "7", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "allow", "key"]), inner),
    max_leaves=5,
)


@given(st.lists(st.tuples(st.sampled_from(POLICY_FIELDS), JSON), min_size=1, max_size=4))
@settings(deadline=None, max_examples=40)
def test_several_wrong_values_are_each_told_in_words_of_yaml(wrong: list[tuple[Path, Any]]) -> None:
    """F79."""
    document: Any = VALID
    for path, value in wrong:
        document = with_value(document, path, value)

    messages = policy_problems(document)

    assert [(message, faults_of(message)) for message in messages if faults_of(message)] == []


def doubts(spec: str) -> tuple[str, ...]:
    (loaded,) = policies(policy("a", spec)).policies
    return tuple(
        text.partition(": spec.")[2] for text in (*loaded.doubts, *(text for _, text in loaded.unknown_products))
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("placement: {driver: 550}", "{minimum: '12.4', accept: Native} for driver 550"),
        ("placement: {minDriver: 535.129.03}", "{minimum: '12.2', accept: Native} for driver 535.129.03"),
        ("placement: {driver_version: '570'}", "{minimum: '12.8', accept: Native} for driver 570"),
        ("admission: {migProfile: 1g.10gb}", "have pods request nvidia.com/mig-PROFILE"),
        ("placement: {nodeSelector: {pool: x}}", "write matchLabels: {pool: x}"),
        ("match: {podSelector: {app: 7}}", "write matchLabels: {app: VALUE}"),
        ("match: {namespace: team-a}", "{matchLabels: {kubernetes.io/metadata.name: team-a}}"),
        ("placement: {gpuType: H100}", "placement.products: {allow: [H100]}"),
        ("quota: 4", "placement.namespaceLimits: [{products: ['*'], gpus: 4}]"),
        ("validationFailureAction: Enforce", "write spec.action: Enforce, Warn, Audit or 'Off'"),
        ("placement: {products: {allow: H100}}", "got the text 'H100', wants a list: [H100]"),
        ("match: {workloadClass: training}", "wants a list: [training]"),
        ("admission: {maxGPUsPerPod: '4'}", "such as 8: remove the quotes"),
        ("actions: {visbleDevices: Warn}", "spec.actions.visbleDevices: got the text 'visbleDevices', did you mean"),
        ("placement: {namespaceLimits: [{gpus: 4}]}", "products: missing, wants a list, such as ['*']"),
        (
            "placement: {cuda: {minimum: '550'}}",
            "which is a driver version, wants a CUDA version: did you mean '12.4'?",
        ),
        ("placement: {cuda: {minimum: '>=535.54.03'}}", "did you mean '12.2'?"),
        ("placement: {cuda: {minimum: '124'}}", "did you mean '12.4'?"),
        ("placement: {cuda: {images: [{image: x, cuda: '580'}]}}", "images[0].cuda: got '580', which is a driver"),
        ("placement: {computeCapability: '80'}", "did you mean '8.0'?"),
        ("placement: {computeCapability: '120'}", "did you mean '12.0'?"),
        ("placement: {products: {allow: [NVIDIA-A100]}}", "unknown product 'NVIDIA-A100', did you mean A100?"),
        ("placement: {products: {deny: [NVIDIA-V100]}}", "did you mean V100?"),
        ("placement: {products: {allow: [RTX 4090]}}", "did you mean RTX-4090?"),
        ("placement: {namespaceLimits: [{products: [H10O], gpus: 1}]}", "namespaceLimits[0].products[0]: unknown"),
    ],
)
def test_mistake_is_answered_by_what_to_write(spec: str, expected: str) -> None:
    """F79: words of other projects, values of another kind, and forms that are no YAML of a policy."""
    with pytest.raises(PolicyError) as caught:
        policies(policy("a", spec))

    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("placement: {products: {allow: [T4, L5]}}", "placement.products.allow[1]: no known product is called L5"),
        ("placement: {products: {deny: [Foo]}}", "placement.products.deny[0]: no known product is called Foo"),
        ("placement: {products: {allow: [A100-40GB]}}", "did you mean A100-*-40GB?"),
        ("placement: {products: {allow: [H100], deny: [H100]}}", "deny excludes every H100 as well"),
        ("placement: {products: {allow: [L4, A100], deny: [NVIDIA-A100-*]}}", "allow[1]: deny excludes every A100"),
        ("placement: {gpuMemory: 400Gi}", "placement.gpuMemory: got 400Gi, which is more than any known GPU has"),
        ("admission: {defaults: {memoryPerGPU: '32'}}", "did you mean 32Gi?"),
        ("admission: {perGPU: {minCPU: '16', maxCPU: '4'}}", "minCPU: got 16, which is more than maxCPU 4"),
        (
            "match: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: Team-A}}}",
            "metadata.name: got the text 'Team-A', but names of namespaces have only lower-case letters",
        ),
    ],
)
def test_policy_that_cannot_be_meant_loads_with_a_doubt(spec: str, expected: str) -> None:
    """F79: what was stored stays in force; lint finds it."""
    (doubt,) = doubts(spec)

    assert expected in doubt


@pytest.mark.parametrize(
    "spec",
    [
        "placement: {products: {allow: [H100, A100], deny: [NVIDIA-A100-PCIE-40GB]}}",
        "placement: {products: {allow: ['*', NVIDIA-A100-SXM4-*, A10-24Q, MI300X, RTX-4090], prefer: [T4]}}",
        "placement: {cuda: {minimum: '13'}, computeCapability: '12.1', gpuMemory: 80GB}",
        "admission: {perGPU: {minCPU: '4', maxCPU: '4', maxMemory: 128Gi}, defaults: {sharedMemory: 512Mi}}",
        "match: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: team-a, team: Team-A}}}",
        "placement: {cuda: {minimum: '12.4', accept: Native}}",
        "match: {namespaceSelector: {matchLabels: {team: a}}}, placement: {products: {allow: [H100]}}",
        "match: {namespaceSelector: {matchLabels: {team: b}}}, placement: {products: {deny: [H100, H200]}}",
        "match: {podSelector: {matchLabels: {team: r}}}, placement: {namespaceLimits: [{products: ['*'], gpus: 9}]}",
        "placement: {namespaceLimits: [{products: [H100, H200], gpus: 8}, {products: [L4], gpus: 32}]}",
        "match: {workloadClass: [inference]}, admission: {rightSizing: true}",
        "match: {workloadClass: [notebook]}, admission: {maxGPUsPerPod: 1}, placement: {sharing: Shared}",
        "match: {workloadClass: [training]}, placement: {interconnect: NVLink, formFactor: [SXM], sharing: Exclusive}",
        "placement: {nodeSelector: {matchLabels: {pool: gpu}}}",
        "placement: {nodeSelector: {matchExpressions: [{key: spot, operator: DoesNotExist}]}}",
        "admission: {perGPU: {minCPU: '2', maxCPU: '16', maxMemory: 128Gi}}",
        "admission: {defaults: {cpuPerGPU: '4', memoryPerGPU: 32Gi, sharedMemory: 16Gi}}",
        "placement: {gpuMemory: 40Gi, computeCapability: '8.0'}",
        "match: {namespaceSelector: {matchLabels: {team: web}}}, admission: {maxGPUsPerPod: 0}",
        "action: Warn, admission: {visibleDevices: Deny, privileged: Deny, bypass: Deny}",
        "enforceFrom: '2027-01-31', admission: {visibleDevices: Deny}",
        "admission: {tolerations: {fromNodeTaints: true, keys: [example.com/gpu]}}",
        "admission: {schedulerName: gpu-usher-scheduler, runtimeClassName: Auto, priorityClassName: gpu-batch}",
        "placement: {scores: [{name: Spreading, weight: 3}, {name: Packing}], products: {prefer: [L4, A10, T4]}}",
        "admission: {idle: {after: 8h, below: 2, gpus: 2}}, exceptions: [{match: {podSelector: {matchLabels: {a: b}}}, "
        "rules: [idle], owner: team-vision, reason: long compile, expires: '2027-03-31'}]",
        "placement: {cuda: {images: [{image: 'registry.example/ml/*', cuda: '12.8'}]}, unknownFacts: Refuse}",
    ],
)
def test_policy_that_can_be_meant_has_no_doubt(spec: str) -> None:
    """F79: the last 21 were written from policies/README.md alone."""
    assert doubts(spec) == ()


@pytest.mark.parametrize(
    ("expect", "expected"),
    [
        (
            "{reasons: [ProductNotAlowed]}",
            "expect.reasons[0]: no such reason code 'ProductNotAlowed', did you mean Pro",
        ),
        ("{refused: {h100: DriverToOld}}", "expect.refused.h100: no such reason code 'DriverToOld', did you mean Dri"),
        ("{reasons: [Zzz]}", "wants one of docs/reference/reasons.md"),
        ("{fits: [h101]}", "expect.fits: got the node 'h101', wants one of nodes: h100"),
        ("{fits: h100}", "expect.fits: got the text 'h100', wants a list: [h100]"),
    ],
)
def test_wrong_case_is_answered_by_what_to_write(expect: str, expected: str) -> None:
    """F79."""
    (problem,) = case_problems({"pod": POD, "nodes": {"h100": {}}, "expect": yaml.safe_load(expect)})

    assert expected in problem


def test_namespace_of_a_case_is_one_that_a_cluster_can_have_and_brings_its_label() -> None:
    """F79: the API server sets kubernetes.io/metadata.name; no namespace is called Team-A."""
    in_team = {**POD, "metadata": {"name": "p", "namespace": "team-a"}}
    wrong = {**POD, "metadata": {"name": "p", "namespace": "Team-A"}}

    assert read_case("a.yaml", yaml.safe_dump({"pod": in_team})).labels_of_namespace == {
        "kubernetes.io/metadata.name": "team-a"
    }
    assert "pod.metadata.namespace: got the text 'Team-A'" in case_problems({"pod": wrong})[0]


def test_failed_case_ends_with_the_policies_that_apply() -> None:
    text = yaml.safe_dump({"pod": POD, "expect": {"allowed": False}})

    *_, last = run_case(
        read_case("a.yaml", text), policies(policy("other", "match: {podSelector: {matchLabels: {a: b}}}")), knowledge()
    )

    assert last == "policies that apply: default; namespace default"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("action: deny", "did you mean Enforce?"),
        ("action: dry-run", "did you mean Audit?"),
        ("action: none", "did you mean 'Off'?"),
        ("action: false", "got false, did you mean 'Off'?"),
        ("actions: {products: block}", "did you mean Enforce?"),
        ("placement: {sharing: time-slicing}", "did you mean Shared?"),
        ("placement: {interconnect: true}", "did you mean NVLink?"),
        ("placement: {computeCapability: '8.0+'}", "did you mean '8.0'? It is a minimum already"),
        ("placement: {computeCapability: sm_90}", "did you mean '9.0'?"),
        ("placement: {cuda: {minimum: '12.4 or newer'}}", "did you mean '12.4'? It is a minimum already"),
        ("", "such as {placement: {products: {allow: [H100]}}}, or no such field at all"),
    ],
)
def test_words_of_other_projects_are_answered_by_the_choice_that_they_mean(spec: str, expected: str) -> None:
    text = yaml.safe_dump({**VALID, "spec": yaml.safe_load(spec)})

    with pytest.raises(PolicyError) as caught:
        load_policies({"a.yaml": text}, knowledge())

    assert expected in str(caught.value)
