# SPDX-License-Identifier: Apache-2.0
"""Requests of ordinary resources: Kubernetes' arithmetic against the slow twin that counts GPUs (F83)."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.kube.pod_object import PodSpec, pod_object
from app.kube.pod_requests import check_requests, checked_pod_requests, quantity_units, read_amounts, sum_pod_requests
from app.kube.pods import read_pod
from app.values.errors import QuantityError
from tests.builders import pod


def drawn(random: Random, kind: str) -> dict[str, Any]:
    amounts = {"cpu": random.choice(["250m", "1", "1500m"]), "memory": random.choice(["1Gi", "100M"])}
    asked = dict(random.sample(list(amounts.items()), random.randrange(3)))
    resources = {random.choice(["requests", "limits"]): asked} if asked else {}
    always = {"restartPolicy": "Always"} if kind == "init" and random.random() < 0.4 else {}
    return {"name": f"{kind}-{random.random()}", "resources": resources, **always}


def test_requests_equal_the_twin_for_any_mix_of_containers() -> None:
    """F83: a pod requests max(init, sum + sidecars), as k8s.io/component-helpers PodRequests."""
    random = Random(83)
    for _ in range(2000):
        document = pod(*(drawn(random, "main") for _ in range(random.randrange(1, 4))),
                       initContainers=[drawn(random, "init") for _ in range(random.randrange(4))])  # fmt: skip
        plain = read_pod(document)
        expected = {"cpu": int(plain.amount("cpu") * 1000), "memory": int(plain.amount("memory"))}

        assert dict(sum_pod_requests(pod_object(document).spec)) == {
            key: amount for key, amount in expected.items() if amount
        }


def test_overhead_is_added_and_requests_of_the_whole_pod_go_first() -> None:
    """F83: overhead is KEP-688, and requests of the whole pod are KEP-2837."""
    spec = {"containers": [{"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}], "overhead": {"cpu": "250m"}}

    assert dict(sum_pod_requests(pod_object({"spec": spec}).spec)) == {"cpu": 1250, "memory": 1 << 30}
    of_the_pod = {**spec, "resources": {"requests": {"cpu": "3"}}}
    assert dict(sum_pod_requests(pod_object({"spec": of_the_pod}).spec))["cpu"] == 3250


@pytest.mark.parametrize(
    ("resource", "text", "count"),
    [("cpu", "1.5", 1500), ("cpu", "0.1m", 1), ("memory", "1.5Gi", 3 << 29), ("pods", "110", 110), ("cpu", "lots", 0)],
)
def test_quantity_is_counted_in_the_units_of_its_resource_rounded_up(resource: str, text: str, count: int) -> None:
    assert quantity_units(resource, text) == count


@pytest.mark.parametrize("none", [None, {}])
def test_no_quantities_are_no_amounts(none: dict[str, Any] | None) -> None:
    assert read_amounts(none) == {}
    assert sum_pod_requests(pod_object({"spec": {"containers": None, "overhead": none}}).spec) == ()


AMOUNTS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["cpu", "memory", "pods", "nvidia.com/gpu"]),
    st.sampled_from(["1", "250m", "0", "1Gi", "-1", "lots", "9" * 2000, 1, 2.5, True, None, []]),
    max_size=3,
)
ODD: st.SearchStrategy[Any] = st.sampled_from([None, {}])
CONTAINERS = st.lists(
    st.fixed_dictionaries({}, optional={"resources": ODD | st.dictionaries(
        st.sampled_from(["requests", "limits"]), AMOUNTS | AMOUNTS | AMOUNTS | ODD)}),
    max_size=3,
)  # fmt: skip
PLAIN = st.fixed_dictionaries(
    {"containers": st.lists(st.fixed_dictionaries({"resources": st.fixed_dictionaries(
        {"requests": AMOUNTS}, optional={"limits": AMOUNTS})}), min_size=1, max_size=2)}
)  # fmt: skip
SPECS = PLAIN | st.fixed_dictionaries(
    {"containers": CONTAINERS | st.none()},
    optional={"initContainers": CONTAINERS, "overhead": AMOUNTS, "resources": ODD},
)


def outcome(sum_of: Callable[[PodSpec], object], spec: dict[str, Any]) -> object:
    """Return the sum, or the text of the error."""
    try:
        return sum_of(pod_object({"spec": spec}).spec)
    except QuantityError as error:
        return str(error)


def checked_and_summed(spec: PodSpec) -> object:
    """Check and sum a pod without what is known of its containers."""
    check_requests(spec)
    return sum_pod_requests(spec)


@settings(max_examples=300, deadline=None)
@given(SPECS)
def test_sum_of_known_containers_equals_the_sum_of_all_amounts(spec: dict[str, Any]) -> None:
    """F83: 1, True and "1" are different amounts, and an amount that no pod can request is an error each time."""
    assert outcome(checked_and_summed, spec) == outcome(checked_pod_requests, spec)
