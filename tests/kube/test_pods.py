# SPDX-License-Identifier: Apache-2.0
"""Pods: Kubernetes' request arithmetic for every resource, what counts as absent, and paths of wrong shapes."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kube.pod_limits import (
    LONGEST_IMAGE,
    MOST_AMOUNTS,
    MOST_ANNOTATIONS,
    MOST_CLAUSES,
    MOST_CONTAINERS,
    MOST_EXTENDED,
    MOST_LABELS,
    MOST_RESOURCES,
    MOST_VARIABLES,
    VARIABLES_CHARACTERS,
)
from app.kube.pods import Pod, gpu_amounts, read_pod
from app.values.errors import MalformedPod, OversizedPod, QuantityError
from tests.builders import container, gpus, knowledge, pod

GPU, SLICE, SHARED = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"
NAMES = st.sampled_from([GPU, SLICE, "cpu"])
AMOUNTS = st.dictionaries(NAMES, st.integers(0, 5_000).map(lambda milli: f"{milli}m"), max_size=3)
PLAIN = st.builds(container, limits=st.none() | AMOUNTS, requests=st.none() | AMOUNTS)
INITS = st.lists(
    st.builds(lambda main, kind: {**main, **kind}, PLAIN, st.sampled_from([{}, {"restartPolicy": "Always"}]))
)


def request_by_moments(document: dict[str, Any], resource: str) -> Fraction:
    """Compute a request by listing what runs at each moment of the start, and taking the largest sum (KEP-753)."""

    def asks(requester: dict[str, Any]) -> Fraction:
        resources = requester["resources"]
        milli = resources.get("requests", {}).get(resource) or resources.get("limits", {}).get(resource) or "0m"
        return Fraction(int(milli[:-1]), 1000)

    moments, sidecars = [Fraction(0)], list[Fraction]()
    for starter in document["spec"].get("initContainers", []):
        moments.append(sum(sidecars, asks(starter)))
        if starter.get("restartPolicy") == "Always":
            sidecars.append(asks(starter))
    moments.append(sum(sidecars + [asks(main) for main in document["spec"]["containers"]], Fraction(0)))
    return max(moments)


@given(st.lists(PLAIN, min_size=1, max_size=4), INITS)
def test_every_resource_is_summed_as_a_slow_twin_does(mains: list[dict[str, Any]], inits: list[dict[str, Any]]) -> None:
    """F16, F17, fault 37: containers, init containers and sidecars, fractions, and requests before limits."""
    document = pod(*mains, initContainers=inits)

    parsed = read_pod(document)

    assert [request_by_moments(document, name) for name in (GPU, SLICE, "cpu")] == [
        parsed.amount(n) for n in (GPU, SLICE, "cpu")
    ]


def started(*steps: tuple[str, int], main: int = 0) -> Pod:
    """Make a pod of init containers and sidecars in this order."""
    inits = [{**gpus(amount), **({"restartPolicy": "Always"} if kind == "sidecar" else {})} for kind, amount in steps]
    return read_pod(pod(gpus(main), initContainers=inits))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(started(main=2), 2, id="containers alone"),
        pytest.param(started(("init", 4), main=2), 4, id="a hungrier init container"),
        pytest.param(started(("init", 1), ("init", 1), main=1), 1, id="init containers run one by one"),
        pytest.param(started(("sidecar", 1), main=2), 3, id="a sidecar runs on (F17)"),
        pytest.param(started(("sidecar", 1), ("init", 4), main=2), 5, id="sidecar before init"),
        pytest.param(started(("init", 4), ("sidecar", 1), main=2), 4, id="sidecar after init"),
        pytest.param(started(("init", 4), ("sidecar", 3), main=2), 5, id="sidecar after init, larger in the end"),
        pytest.param(started(("sidecar", 1), ("sidecar", 2), main=1), 4, id="two sidecars"),
        pytest.param(started(("init", 1)), 1, id="only an init container asks"),
        pytest.param(started(("init", 0), ("sidecar", 0)), 0, id="zero everywhere (F9)"),
    ],
)
def test_order_of_init_containers_and_sidecars_counts(made: Pod, expected: int) -> None:
    """F16, F17, KEP-753, fault 37."""
    assert expected == made.amount(GPU)


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param([gpus(0)], (), id="zero is no GPU pod (F9, P33)"),
        pytest.param([gpus("0.0")], (), id="zero in another spelling"),
        pytest.param([gpus(-1)], (), id="negative"),
        pytest.param([gpus("500m")], ((GPU, 1),), id="a fraction counts as one"),
        pytest.param([gpus("1500m"), gpus("500m")], ((GPU, 2),), id="rounded after summing"),
        pytest.param([gpus(1), gpus(2, SLICE)], ((GPU, 1), (SLICE, 2)), id="sorted by name"),
        pytest.param([gpus(1, SHARED)], ((SHARED, 1),), id="renamed share"),
        pytest.param([gpus(1, "amd.com/gpu")], (("amd.com/gpu", 1),), id="another family (S12)"),
        pytest.param([container({"cpu": "1", "nvidia.com/gpumem": "9"})], (), id="no family's resource"),
    ],
)
def test_amounts_are_of_gpu_resources_and_positive(
    containers: list[dict[str, Any]], expected: tuple[tuple[str, int], ...]
) -> None:
    assert expected == gpu_amounts(read_pod(pod(*containers)), knowledge().families.of)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param([], None, id="unset"),
        pytest.param([{"name": "NVIDIA_X", "value": "a"}], "a", id="literal"),
        pytest.param([{"name": "NVIDIA_X"}], "", id="no value is the empty string"),
        pytest.param([{"name": "NVIDIA_X", "value": ""}], "", id="empty"),
        pytest.param([{"name": "NVIDIA_X", "value": "a"}, {"name": "NVIDIA_X", "value": "b"}], "b", id="last counts"),
        pytest.param([{"name": "nvidia_x", "value": "a"}], None, id="letter case counts"),
        pytest.param([{"name": "NVIDIA_X", "valueFrom": {"fieldRef": {}}}], None, id="from elsewhere is unknown"),
    ],
)
def test_variable_is_its_literal_value(env: list[dict[str, Any]], expected: str | None) -> None:
    """A value from a ConfigMap, a Secret or a field (core/v1 EnvVar) cannot be read from the Pod."""
    assert expected == read_pod(pod(gpus(1, env=env))).containers[0].variable("NVIDIA_X")


def test_null_counts_as_absent() -> None:
    """Go's encoders write null for empty values (docs/reference/control-plane.md#requests-of-the-api-server)."""
    nothing = {"metadata": {"labels": None, "annotations": None, "name": None}, "spec": {"initContainers": None}}
    part = {"spec": {"containers": [{"resources": None, "env": None}], "affinity": None, "tolerations": None}}

    pods = [read_pod(document) for document in ({}, {"metadata": None, "spec": None}, nothing, part)]

    assert [(made.name, made.namespace, made.amounts(), made.scheduler_name) for made in pods] == [
        ("", "default", {}, "default-scheduler")
    ] * 4


def test_review_knows_the_namespace_better_than_the_pod() -> None:
    """See docs/reference/control-plane.md#requests-of-the-api-server."""
    document = {"metadata": {"generateName": "job-", "namespace": "other"}}

    pods = read_pod(document, "mine"), read_pod(document)

    assert [(named_pod.name, named_pod.namespace) for named_pod in pods] == [("job-", "mine"), ("job-", "other")]


ONE = "spec.containers[0]."
TERM = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution."
SHAPES: list[tuple[dict[str, Any], str]] = [
    ({"metadata": []}, "metadata"),
    ({"metadata": {"name": 1}}, "metadata.name"),
    ({"metadata": {"labels": []}}, "metadata.labels"),
    ({"metadata": {"labels": {"a": 1}}}, "metadata.labels[a]"),
    ({"metadata": {"annotations": {"a": None}}}, "metadata.annotations[a]"),
    ({"spec": "x"}, "spec"),
    ({"spec": {"containers": "x"}}, "spec.containers"),
    ({"spec": {"containers": [None]}}, "spec.containers[0]"),
    ({"spec": {"containers": [{"name": []}]}}, ONE + "name"),
    ({"spec": {"containers": [{"image": 1}]}}, ONE + "image"),
    ({"spec": {"containers": [{"resources": []}]}}, ONE + "resources"),
    ({"spec": {"containers": [{"resources": {"requests": 1}}]}}, ONE + "resources.requests"),
    ({"spec": {"containers": [{"resources": {"limits": {"a": True}}}]}}, ONE + "resources.limits[a]"),
    ({"spec": {"containers": [{"resources": {"limits": {"a": None}}}]}}, ONE + "resources.limits[a]"),
    ({"spec": {"containers": [{"resources": {"limits": {"a": {}}}}]}}, ONE + "resources.limits[a]"),
    ({"spec": {"containers": [{"env": {}}]}}, ONE + "env"),
    ({"spec": {"containers": [{"env": ["x"]}]}}, ONE + "env[0]"),
    ({"spec": {"containers": [{"env": [{"name": "A", "value": 1}]}]}}, ONE + "env[0].value"),
    ({"spec": {"containers": [{"restartPolicy": 1}]}}, ONE + "restartPolicy"),
    ({"spec": {"initContainers": [{}, 1]}}, "spec.initContainers[1]"),
    ({"spec": {"tolerations": {}}}, "spec.tolerations"),
    ({"spec": {"tolerations": [1]}}, "spec.tolerations[0]"),
    ({"spec": {"schedulerName": True}}, "spec.schedulerName"),
    ({"spec": {"runtimeClassName": 1}}, "spec.runtimeClassName"),
    ({"spec": {"resourceClaims": {}}}, "spec.resourceClaims"),
    ({"spec": {"affinity": []}}, "spec.affinity"),
    ({"spec": {"affinity": {"nodeAffinity": {TERM.split(".")[3]: []}}}}, TERM.removesuffix(".")),
    (
        {"spec": {"affinity": {"nodeAffinity": {TERM.split(".")[3]: {"nodeSelectorTerms": [1]}}}}},
        TERM + "nodeSelectorTerms[0]",
    ),
]


@pytest.mark.parametrize(("document", "path"), SHAPES, ids=[f"{index} {row[1]}" for index, row in enumerate(SHAPES)])
def test_wrong_shape_is_malformed_and_named_by_its_path(document: dict[str, Any], path: str) -> None:
    """The message has what was found, what was wanted, and where (CONTRIBUTING.md#style)."""
    with pytest.raises(MalformedPod) as raised:
        read_pod(document)

    assert path == str(raised.value).partition(": got ")[0]


def pod_with_resources(*counts: int, prefix: str = "") -> dict[str, Any]:
    """Make a pod of containers with this many resources each; each container repeats and extends the one before."""
    return pod(*[container({f"{prefix}{index}": "1" for index in range(count)}, {}) for count in counts])


def pod_with_variables(count: int, characters: int = 1) -> dict[str, Any]:
    """Make a pod with this many requirements in its environment."""
    return pod(gpus(1, env=[{"name": "NVIDIA_REQUIRE_X", "value": "x" * characters} for _ in range(count)]))


def pod_with_labels(count: int) -> dict[str, Any]:
    """Make a pod with this many labels."""
    return {"metadata": {"labels": {str(index): "" for index in range(count)}}}


FULL = [MOST_RESOURCES] * (MOST_AMOUNTS // MOST_RESOURCES)


@pytest.mark.parametrize(
    ("fits", "one_more"),
    [
        pytest.param(
            pod_with_resources(MOST_RESOURCES), pod_with_resources(MOST_RESOURCES + 1), id="resources of a container"
        ),
        pytest.param(
            pod_with_resources(MOST_RESOURCES),
            pod(gpus(1), *pod_with_resources(MOST_RESOURCES)["spec"]["containers"]),
            id="of all",
        ),
        pytest.param(pod_with_resources(*FULL), pod_with_resources(*FULL, 1), id="amounts"),
        pytest.param(
            pod_with_resources(*[1] * MOST_CONTAINERS),
            pod_with_resources(*[1] * (MOST_CONTAINERS + 1)),
            id="containers",
        ),
        pytest.param(
            pod_with_resources(*[MOST_EXTENDED // 4] * 4, prefix="a.b/"),
            pod_with_resources(*[MOST_EXTENDED // 4] * 4, 1, prefix="a.b/"),
            id="extended resources",
        ),
        pytest.param(pod_with_variables(MOST_VARIABLES), pod_with_variables(MOST_VARIABLES + 1), id="variables"),
        pytest.param(
            pod_with_variables(1, VARIABLES_CHARACTERS - 99),
            pod_with_variables(1, VARIABLES_CHARACTERS),
            id="characters",
        ),
        pytest.param(pod_with_variables(MOST_CLAUSES // 2), pod_with_variables(MOST_CLAUSES + 1), id="requirements"),
        pytest.param(pod_with_labels(MOST_LABELS), pod_with_labels(MOST_LABELS + 1), id="labels"),
        pytest.param(
            pod(annotations={str(index): "" for index in range(MOST_ANNOTATIONS)}),
            pod(annotations={str(index): "" for index in range(MOST_ANNOTATIONS + 1)}),
            id="annotations of ours",
        ),
        pytest.param(pod(gpus(1, name="x" * 253)), pod(gpus(1, name="x" * 254)), id="name"),
        pytest.param(pod(gpus(1, image="x" * LONGEST_IMAGE)), pod(gpus(1, image="x" * 1025)), id="image"),
    ],
)
def test_pod_of_more_than_any_pod_has_is_malformed(fits: dict[str, Any], one_more: dict[str, Any]) -> None:
    """Fault 29: anybody may create such a pod, and the time of a review grows with its size."""
    read_pod(fits)
    with pytest.raises(OversizedPod, match="wants at most"):
        read_pod(one_more)


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        ("many", "got 'many', wants a number with a suffix such as 2, 500m or 40Gi"),
        *(
            (text, f"got {text!r}, a variable that nothing has been put in for, wants a number such as 2")
            for text in ("${ACCELERATOR_QUANTITY}", "$GPUS", "$(GPUS)", "{{ .Values.gpus }}", "<gpus>")
        ),
    ],
)
def test_amount_that_is_no_quantity_is_named_with_its_place(amount: str, words: str) -> None:
    """An amount that a template left unfilled is one of these; the API server would refuse to decode it too."""
    with pytest.raises(QuantityError) as raised:
        read_pod(pod(gpus(amount)))

    assert str(raised.value) == f"spec.containers[0].resources.requests[nvidia.com/gpu]: {words}"


@pytest.mark.parametrize("amount", [10**5000, 2**63], ids=["5,001 digits", "one too large"])
def test_integer_of_any_size_is_an_amount(amount: int) -> None:
    """Kubernetes caps such amounts (quantity.go), and Python's own limit of digits must not raise."""
    assert read_pod(pod({"name": "a", "resources": {"limits": {GPU: amount}}})).amount(GPU) == 2**63 - 1


def test_pod_level_resources_hold_no_extended_ones() -> None:
    """F17: spec.resources may have cpu, memory and hugepages only (kubernetes
    pkg/apis/core/validation/validation.go)."""
    document = pod(gpus(1), resources={"limits": {"cpu": "8", "nvidia.com/gpu": "5"}})

    assert read_pod(document).amount("nvidia.com/gpu") == 1
