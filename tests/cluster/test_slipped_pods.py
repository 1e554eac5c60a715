# SPDX-License-Identifier: Apache-2.0
"""Slipped pods: which pods count as slipped, and that the search reads one node at a time and never stops."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import mutate
from app.cluster.reflector import Clock
from app.cluster.slipped_pods import NODE_SECONDS, SLICE_PODS, SlippedPod, SlippedPods, slip_of
from app.kube.pods import read_pod
from app.telemetry.metrics import Metrics
from app.world.state import State
from app.world.world import world_of
from tests.builders import gpus, node_document, pod, policies, policy, setting, shipped, state_of
from tests.cluster.fake_apiserver import FakeApi, served, status

H100_ONLY = policies(policy("pinned", "placement: {products: {allow: [H100]}}"))
NAMESPACES = [{"kind": "Namespace", "metadata": {"name": "ours", "labels": {"gpu-usher.io/ignore": "true"}}}]
FLEET = [node_document("h100"), node_document("t4", "Tesla-T4"), *NAMESPACES]


def cluster_of(*pods: dict[str, Any]) -> State:
    return state_of([*FLEET, *({"apiVersion": "v1", **document} for document in pods)])


def running_pod(name: str, node: str, admitted: bool = True, **spec: Any) -> dict[str, Any]:
    """Write a running pod; `admitted` is whether it has the annotation of our webhook."""
    made = pod(gpus(1), annotations=spec.pop("annotations", None), **spec)
    made["metadata"] |= {"name": name, "uid": f"uid-{name}", "namespace": spec.get("namespace", "team-a")}
    if admitted:
        made = apply(made, mutate(made, "team-a", {}, setting()).operations)
    made["spec"] = {**made["spec"], "nodeName": node}
    return {**made, "status": {"phase": "Running"}}


def slip_found(document: dict[str, Any], node: str, policy_set: Any = None, shadow: bool = False) -> SlippedPod | None:
    state = cluster_of()
    return slip_of(read_pod(document), state.nodes[node], world_of(state, policy_set or shipped()), shadow)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(running_pod("p", "h100"), id="admitted by us, where it may be"),
        pytest.param(running_pod("p", "h100", admitted=False, schedulerName="volcano"), id="of another scheduler"),
    ],
)
def test_pod_in_order_has_not_slipped(document: dict[str, Any]) -> None:
    """S14."""
    assert slip_found(document, "h100") is None


def test_pod_without_our_decision_was_not_admitted_by_us() -> None:
    """P11, F98: it was created before the webhook was installed, or while it was down."""
    assert slip_found(running_pod("p", "h100", admitted=False), "h100") == SlippedPod("unadmitted")


def test_pod_on_a_node_that_is_refused_to_it_is_misplaced() -> None:
    """F98: an annotation or a policy refuses the node; the report names the reason."""
    pinned = running_pod("p", "t4", annotations={"products": "H100"})

    assert slip_found(pinned, "t4") == SlippedPod("misplaced", "ProductNotAllowed")
    assert slip_found(running_pod("p", "t4"), "t4", H100_ONLY) == SlippedPod("misplaced", "ProductNotAllowed")


@pytest.mark.parametrize("namespace", ["kube-system", "gpu-operator", "ours"])
def test_infrastructure_never_slips(namespace: str) -> None:
    """F21: the webhook does not review pods of these namespaces."""
    document = running_pod("p", "t4", admitted=False, annotations={"products": "H100"})
    document["metadata"]["namespace"] = namespace

    assert slip_found(document, "t4") is None


def test_in_shadow_mode_nobody_has_our_decision() -> None:
    """F137: so only misplaced pods count."""
    assert slip_found(running_pod("p", "h100", admitted=False), "h100", shadow=True) is None
    assert slip_found(running_pod("p", "t4", admitted=False), "t4", H100_ONLY, shadow=True) is not None


@pytest.mark.parametrize(
    "label",
    [{"nvidia.com/mig.config.state": "pending"}, {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}],
    ids=["mig", "driver"],
)
def test_what_happens_to_a_node_later_misplaces_nobody(label: dict[str, str]) -> None:
    """Such a node is refused to new pods; those on it were placed correctly."""
    state = state_of([node_document("h100", labels=label)])

    assert slip_of(read_pod(running_pod("p", "h100")), state.nodes["h100"], world_of(state, shipped())) is None


class Scene:
    """A fake API server with pods, a state that knows their GPU requests, and the detector between them."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.api = FakeApi()
        self.metrics = Metrics()
        self.state = cluster_of(*pods)
        self.slept: list[float] = []
        for document in pods:
            self.api.put(document)

    def counts(self) -> tuple[float | None, float | None]:
        values = (
            self.metrics.registry.get_sample_value("gpu_usher_slipped_pods", {"kind": kind})
            for kind in ("unadmitted", "misplaced")
        )
        return next(values), next(values)

    def look(self, *between: Callable[[], None]) -> None:
        """Look for slipped pods once, and again after each of these functions."""

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        async def play() -> None:
            async with served({"/api/v1/pods": self.api}) as server:
                slipped = SlippedPods(
                    server, self.state, lambda: world_of(self.state, shipped()), self.metrics, clock=Clock(sleep=sleep)
                )
                await slipped.check_all_nodes()
                for happen in between:
                    happen()
                    await slipped.check_all_nodes()

        asyncio.run(play())


def slipped_pods() -> list[dict[str, Any]]:
    return [
        running_pod("good", "h100"),
        running_pod("old", "h100", admitted=False),
        running_pod("pinned", "t4", annotations={"products": "H100"}),
    ]


def test_pods_that_slipped_are_counted_by_kind() -> None:
    """F98, AUD-04: running pods are audited repeatedly, against the policies in force at that time."""
    scene = Scene(*slipped_pods())

    scene.look()

    assert scene.counts() == (1, 1)


def test_only_nodes_with_gpu_pods_are_asked_for_one_by_one_from_the_cache() -> None:
    """F98: a list of one node's pods is an index look-up of the API server; there is a pause between two nodes."""
    scene = Scene(running_pod("old", "h100", admitted=False))

    scene.look()

    assert scene.api.queries == [{"fieldSelector": "spec.nodeName=h100", "resourceVersion": "0"}]
    assert scene.slept == [NODE_SECONDS]


def test_pod_that_goes_is_counted_no_more() -> None:
    scene = Scene(*slipped_pods())

    def go() -> None:
        scene.state.drop_pod("uid-old")
        scene.state.drop_pod("uid-pinned")

    scene.look(go)

    assert scene.counts() == (0, 0)


def test_pod_that_is_in_order_when_it_is_looked_at_again_is_counted_no_more() -> None:
    """F98: the node of a pod that we have not admitted has only good pods in the next round."""
    scene = Scene(*slipped_pods())

    scene.look(lambda: scene.api.put(running_pod("old", "h100")))

    assert scene.counts() == (0, 1)


def test_each_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gpu-usher")
    scene = Scene(*slipped_pods())

    scene.look(lambda: None, lambda: None)

    logged = [
        record.__dict__["fields"]
        for record in caplog.records
        if record.getMessage() == "GPU pod unadmitted or misplaced"
    ]
    assert logged == [
        {"slipped": "team-a/old", "kind": "unadmitted", "reason": ""},
        {"slipped": "team-a/pinned", "kind": "misplaced", "reason": "ProductNotAllowed"},
    ]


@pytest.mark.parametrize("fault", [status(500), status(403)], ids=["500", "403"])
def test_api_server_that_does_not_answer_ends_the_round_and_keeps_the_counts(fault: Any) -> None:
    scene = Scene(*slipped_pods())

    scene.look(lambda: scene.api.faults.append(fault))

    assert scene.counts() == (1, 1)


def test_odd_answers_are_survived() -> None:
    """Bytes that are no list and a pod that cannot be read do not stop the search."""
    scene = Scene(*slipped_pods())
    odd = running_pod("odd", "h100")
    scene.state.put_pod(odd)
    odd["spec"]["tolerations"] = "all"
    scene.api.put(odd)

    scene.look()

    assert scene.counts() == (1, 1)


def test_a_slice_of_pods_is_judged_in_little_time() -> None:
    """F98: at most about 2 ms of CPU between two turns of the loop; 20 ms here, for a busy machine."""
    state = cluster_of()
    documents = [running_pod(f"p{number}", "h100", annotations={"products": "H100"}) for number in range(SLICE_PODS)]
    world = world_of(state, shipped())
    slip_of(read_pod(documents[0]), state.nodes["h100"], world)

    def once() -> int:
        started = time.thread_time_ns()
        for document in documents:
            slip_of(read_pod(document), state.nodes["h100"], world)
        return time.thread_time_ns() - started

    assert min(once() for _ in range(5)) < 20e6
