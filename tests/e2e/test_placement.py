# SPDX-License-Identifier: Apache-2.0
"""Five hundred mixed pods over two hundred mixed nodes: the twin agrees with every binding and every refusal."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.load import spread
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import kubelets
from tests.e2e.crowd import POOLS, PRIORITIES, nodes, pods, policy_texts, pool_namespace
from tests.e2e.settling import QUICK, Run, create, every_pod, read_outcome, settle
from tests.e2e.stage import (
    OURS,
    Service,
    create_namespace,
    eventually,
    install_webhooks,
    scheduler_configuration,
    serving,
)
from tests.e2e.verdicts import (
    false_refusals,
    in_tree_refusals,
    over_committed,
    read_nodes,
    reason_counts,
    untrue_messages,
    wrong_bindings,
)
from tests.placement.twin import class_causes

SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3)))
NODES = 200
FIRST, THEN = 380, 120
"""Pods without a priority, and then others, two in five of a high priority, which must preempt."""
NAMESPACES = [pool_namespace(pool, admitted) for pool in POOLS for admitted in (True, False)]


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Namespaces, a policy for most, priorities, webhooks and the service; kubelets finish the deletion of pods."""
    folder = tmp_path_factory.mktemp("policies")
    default = Path(__file__).parent.parent.parent / "policies" / "default.yaml"
    for name, text in (("default.yaml", default.read_text("utf-8")), *policy_texts()):
        (folder / name).write_text(text, "utf-8")
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name, spec in PRIORITIES.items():
        plane.api.create(classes, {"metadata": {"name": name}, **spec})
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    for pool in POOLS:
        create_namespace(plane, pool_namespace(pool, admitted=True), pool=pool)
        create_namespace(plane, pool_namespace(pool, admitted=False), **{"pool": pool, "gpu_usher.io__ignore": "true"})
    with serving(plane, policies=str(folder)) as running, kubelets(plane.api):
        install_webhooks(plane, running)
        yield running


@pytest.fixture(scope="module", params=SEEDS)
def run(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Play one seed: its nodes, a scheduler, and its pods in two waves, until nothing changes any more."""
    prefix, draw = f"s{request.param}", random.Random(request.param)
    spread(plane.api, lambda own, document: own.create("/api/v1/nodes", document), nodes(draw, prefix, NODES))
    eventually("all nodes are known", lambda: service.health()["caches"]["nodes"]["objects"] == NODES)
    configuration = scheduler_configuration(service, "--kubeconfig", str(plane.kubeconfig("gpu-usher")))
    scheduler = plane.start_scheduler({**configuration, **QUICK}, OURS)
    calls = {verb: -service.calls(verb) for verb in ("filter", "prioritize", "preempt")}
    outcome = Run(read_nodes(plane.api.items("/api/v1/nodes")), {})
    for wave in (pods(draw, f"{prefix}-a", FIRST, 0.0), pods(draw, f"{prefix}-b", THEN, 0.4)):
        outcome.drawn.update({pod.name: pod for pod in wave})
        outcome.denied.update(create(plane.api, wave))
        settle(plane, scheduler)
    read_outcome(plane.api, outcome)
    print(summary(outcome, {verb: count + service.calls(verb) for verb, count in calls.items()}))
    yield outcome
    plane.stop(OURS)
    for name in NAMESPACES:
        plane.api.delete(f"/api/v1/namespaces/{name}/pods")
    plane.api.delete("/api/v1/nodes")
    eventually("the pods are gone", lambda: not every_pod(plane.api))
    eventually("the nodes are forgotten", lambda: not service.health()["caches"]["nodes"]["objects"])


def summary(run: Run, calls: dict[str, float]) -> str:
    """Write the figures of a seed."""
    codes: Counter[str] = Counter()
    for text in run.cluster.refused.values():
        codes.update(reason_counts(text).keys() or {"in-tree alone"})
    preemptors = {preemptor for preemptor, _ in run.evicted.values()}
    return (
        f"{len(run.cluster.bound)} bound, {len(run.cluster.refused)} refused, {len(run.denied)} denied at admission, "
        f"{len(run.lost)} evicted for {len(preemptors)}; pods refused, by reason: "
        f"{', '.join(f'{code} {count}' for code, count in codes.most_common())}; calls: {calls}"
    )


def test_every_binding_is_one_that_the_twin_allows(run: Run) -> None:
    """P22, F27 to F46, F54, F57, F62, F63, F65, F67 to F70: each node can serve its pods and is not over-committed."""
    assert wrong_bindings(run.cluster) == []
    assert over_committed(run.cluster) == []
    assert len(run.cluster.bound) > NODES


def test_every_refusal_is_one_that_the_twin_shares(run: Run) -> None:
    """F27 to F46: for a refused pod the twin knows a cause on every node, so no refusal is false."""
    assert false_refusals(run.cluster) == []
    assert len(run.cluster.refused) > 20


def test_every_reason_that_is_spoken_is_true(run: Run) -> None:
    """F39: each reason holds for at least as many nodes as FailedScheduling says."""
    assert list(untrue_messages(run.cluster)) == []


def test_admission_denies_only_what_could_run_nowhere(run: Run) -> None:
    """F10: an annotation that does not parse, or products of which the policy allows none.

    See docs/reference/policy.md#merge.
    """
    nodes = run.cluster.nodes.values()
    assert [
        f"{run.drawn[name]}: {text}"
        for name, text in run.denied.items()
        if not all(class_causes(run.drawn[name].wish, node) for node in nodes)
    ] == []


def test_evictions_happen_only_where_they_helped(run: Run) -> None:
    """F43: a pod that preempted others runs on their node, and no other pod is gone.

    Another node may have come free meanwhile and been chosen; then the node of the victims would have fitted too.
    """
    places = {pod.name: node for pod, node in run.cluster.bound.items()}
    elsewhere = {
        name: (run.drawn[preemptor], node)
        for name, (preemptor, node) in run.evicted.items()
        if places.get(preemptor) != node
    }

    assert run.lost == run.evicted.keys()
    assert [preemptor for preemptor, _ in elsewhere.values() if preemptor.name not in places] == []
    assert [
        f"{preemptor} not on {node}: {sorted(causes)}"
        for preemptor, node in elsewhere.values()
        if (
            causes := class_causes(preemptor.wish, run.cluster.nodes[node])
            | in_tree_refusals(preemptor, run.cluster, node)
        )
    ] == []
    assert len(run.evicted) > 2 * len(elsewhere)
