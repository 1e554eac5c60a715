# SPDX-License-Identifier: Apache-2.0
"""Templates of workloads that Kueue queues: which are read, what is written into them, and what is said."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.preview import preview
from app.admission.queued_jobs import MOST_TEMPLATES, review_templates, template_targets_of
from app.admission.review import ReviewResult, mutate, validate
from app.admission.review_targets import QUEUE_LABEL, review_target_of
from app.admission.reviewed_pod import ReviewContext
from app.knowledge.workload_templates import read_path, values_at
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from tests.builders import container, fleet, gpus, knowledge, node, policies, policy, setting, shipped

H100, T4 = "NVIDIA-H100-80GB-HBM3", "Tesla-T4"
GPU, PRODUCT, MEMORY = "nvidia.com/gpu", "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
TAINT = [{"key": GPU, "value": "present", "effect": "NoSchedule"}]
UPGRADED = {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}
NODES = (node("h100", labels=UPGRADED, taints=TAINT), node("t4", product=T4, taints=TAINT))
WRITES = policies(
    policy(
        "base",
        "admission: {affinity: {mode: Required}, tolerations: {fromNodeTaints: true}, queuedTemplates: Write, "
        "extendedResources: {requestsOnly: CopyToLimits, fractional: Deny}}",
    )
)
LEAVES = policies(policy("base", "admission: {affinity: {mode: Required}, queuedTemplates: Leave}"))
ONLY_H100 = {"gpu-usher.io/products": "H100"}


def template(*containers: Mapping[str, Any], **annotations: str) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}, "spec": {"containers": list(containers) or [gpus(1)]}}


def wanting_h100() -> dict[str, Any]:
    return template(**ONLY_H100)


def replica(name: str, made: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "template": {"spec": {"template": made}}}


def job_set(made: dict[str, Any]) -> dict[str, Any]:
    return {"replicatedJobs": [replica("leader", template(container({"cpu": "1"}))), replica("workers", made)]}


SHAPES: Mapping[str, tuple[str, str, str, Any]] = {
    "JobSet": (
        "jobset.x-k8s.io",
        "v1alpha2",
        "jobsets",
        job_set,
    ),
    "RayJob": (
        "ray.io",
        "v1",
        "rayjobs",
        lambda t: {"rayClusterSpec": {"headGroupSpec": {"template": t}, "workerGroupSpecs": [{"template": t}]}},
    ),
    "RayCluster": (
        "ray.io",
        "v1",
        "rayclusters",
        lambda t: {"headGroupSpec": {"template": t}, "workerGroupSpecs": [{"template": t}]},
    ),
    "RayService": (
        "ray.io",
        "v1",
        "rayservices",
        lambda t: {"rayClusterConfig": {"headGroupSpec": {"template": t}, "workerGroupSpecs": []}},
    ),
    "LeaderWorkerSet": (
        "leaderworkerset.x-k8s.io",
        "v1",
        "leaderworkersets",
        lambda t: {"leaderWorkerTemplate": {"workerTemplate": t}},
    ),
    "MPIJob": (
        "kubeflow.org",
        "v2beta1",
        "mpijobs",
        lambda t: {
            "mpiReplicaSpecs": {"Launcher": {"template": template(container({"cpu": "1"}))}, "Worker": {"template": t}}
        },
    ),
    "PyTorchJob": (
        "kubeflow.org",
        "v1",
        "pytorchjobs",
        lambda t: {"pytorchReplicaSpecs": {"Master": {"template": t}}},
    ),
    "TrainingRuntime": (
        "trainer.kubeflow.org",
        "v1alpha1",
        "trainingruntimes",
        lambda t: {"template": {"spec": {"replicatedJobs": [replica("node", t)]}}},
    ),
    "AppWrapper": (
        "workload.codeflare.dev",
        "v1beta2",
        "appwrappers",
        lambda t: {
            "components": [
                {"template": {"apiVersion": "v1", "kind": "Service", "spec": {}}},
                {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": t}}},
                {"template": {"apiVersion": "v1", "kind": "Pod", **t}},
                {
                    "template": {
                        "apiVersion": "jobset.x-k8s.io/v1alpha2",
                        "kind": "JobSet",
                        "spec": SHAPES["JobSet"][3](t),
                    }
                },
            ]
        },
    ),
}
"""Kind → its API group, version and resource, and its spec around a template."""


def workload(kind: str, made: dict[str, Any], queue: str | None = "queue") -> dict[str, Any]:
    group, version, _, spec = SHAPES[kind]
    metadata = {"name": "w", "namespace": "team-a", "labels": {QUEUE_LABEL: queue} if queue else {}}
    return {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": metadata, "spec": spec(made)}


def request_of(document: dict[str, Any], operation: str = "CREATE") -> dict[str, Any]:
    group, _, resource, _ = SHAPES[document["kind"]]
    return {"resource": {"group": group, "resource": resource}, "operation": operation, "object": document}


def context(policy_set: PolicySet, nodes: tuple[Node, ...] = NODES) -> ReviewContext:
    return setting(policy_set, fleet(*nodes))


def reviewed(document: dict[str, Any], policy_set: PolicySet = WRITES, nodes: tuple[Node, ...] = NODES) -> ReviewResult:
    targets = template_targets_of(request_of(document), knowledge().workloads)
    return review_templates(targets, mutate, "team-a", {}, context(policy_set, nodes))


def pod_specs(document: Any) -> list[dict[str, Any]]:
    """Find every pod spec of a document of any structure."""
    if isinstance(document, list):
        return [spec for item in document for spec in pod_specs(item)]
    if not isinstance(document, dict):
        return []
    if "containers" in document:
        return [document]
    return [spec for value in document.values() for spec in pod_specs(value)]


def asks_for_gpus(spec: dict[str, Any]) -> bool:
    return any(GPU in (one["resources"].get("limits") or {}) for one in spec["containers"])


@pytest.mark.parametrize("kind", SHAPES)
def test_needs_are_written_into_every_gpu_template_and_into_no_other(kind: str) -> None:
    """F153: at the paths of each kind."""
    document = workload(kind, wanting_h100())

    changed = apply(document, reviewed(document).operations)

    for spec in pod_specs(changed):
        terms = (spec.get("affinity") or {}).get("nodeAffinity", {})
        assert ("requiredDuringSchedulingIgnoredDuringExecution" in terms) is asks_for_gpus(spec)
        assert ("tolerations" in spec) is asks_for_gpus(spec)
    assert any(map(asks_for_gpus, pod_specs(changed)))


def expressions(result: ReviewResult, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the expressions of the one required term of the last pod spec."""
    affinity = pod_specs(apply(document, result.operations))[-1]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return list(term["matchExpressions"])


def test_what_a_node_is_going_through_is_not_written() -> None:
    """F153: a job may wait for days, and the pods get it when they are made."""
    document = workload("JobSet", wanting_h100())

    keys = {expression["key"] for expression in expressions(reviewed(document), document)}

    assert keys == {PRODUCT}


@pytest.mark.parametrize("kind", SHAPES)
def test_second_pass_changes_nothing(kind: str) -> None:
    """F23, F153."""
    document = workload(kind, wanting_h100())
    once = apply(document, reviewed(document).operations)

    assert reviewed(once).operations == ()


def test_pods_get_what_is_added_for_pods_and_nothing_twice() -> None:
    """F23, F153: the pod of a written template has one term, which says also what nodes are going through."""
    document = workload("JobSet", wanting_h100())
    spec = pod_specs(apply(document, reviewed(document).operations))[-1]
    pod = {"kind": "Pod", "metadata": {"name": "p", "annotations": ONLY_H100}, "spec": spec}

    result = mutate(pod, "team-a", {}, context(WRITES))

    made = apply(pod, result.operations)["spec"]
    [term] = made["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    written = term["matchExpressions"]
    assert written.count(next(one for one in written if one["key"] == PRODUCT)) == 1
    assert "nvidia.com/gpu-driver-upgrade-state" in {one["key"] for one in written}
    assert made["tolerations"] == spec["tolerations"]


@pytest.mark.parametrize(
    ("queue", "policy_set"),
    [(None, WRITES), ("queue", LEAVES), ("queue", shipped())],
    ids=["no queue", "Leave", "unset"],
)
def test_nothing_is_written_without_queue_and_policy(queue: str | None, policy_set: PolicySet) -> None:
    """F153: what is written into templates is a difference that GitOps tools see."""
    document = workload("JobSet", wanting_h100(), queue)

    assert reviewed(document, policy_set).operations == ()


def test_author_hears_at_apply_what_kueue_does_not_see() -> None:
    """F153: the warning names the nodeSelector to add."""
    result = reviewed(workload("JobSet", wanting_h100()), shipped())

    [warning] = [one for one in result.warnings if "Kueue chooses" in one]
    assert f"add nodeSelector {PRODUCT}: {H100}, or set policy queuedTemplates: Write" in warning
    assert len(warning) <= 256


@pytest.mark.parametrize(
    ("queue", "policy_set", "tainted", "warned"),
    [
        pytest.param("queue", shipped(), True, True, id="queued"),
        pytest.param(None, shipped(), True, False, id="no queue"),
        pytest.param("queue", LEAVES, True, False, id="left by policy"),
        pytest.param("queue", WRITES, True, False, id="written"),
        pytest.param("queue", shipped(), False, False, id="no taint"),
    ],
)
@pytest.mark.parametrize("kind", SHAPES)
def test_author_hears_of_the_toleration_that_kueue_does_not_see(
    kind: str, queue: str | None, policy_set: PolicySet, tainted: bool, warned: bool
) -> None:
    """F153: Kueue gives a workload no flavor whose taints its template does not tolerate."""
    taints = [{"key": GPU, "value": "present", "effect": "NoSchedule"}] if tainted else None

    warnings = reviewed(workload(kind, template(), queue), policy_set, (node("t", taints=taints),)).warnings

    assert warned is any(f"does not tolerate {GPU}: Kueue gives it no flavor" in warning for warning in warnings)


def test_need_that_two_products_meet_is_told_as_affinity() -> None:
    """F153: a nodeSelector has one value."""
    document = workload("JobSet", template(**{"gpu-usher.io/gpu-memory": "70Gi"}))
    large = (node(name, product=name, labels={MEMORY: "141000"}) for name in ("NVIDIA-H200", "NVIDIA-B200"))
    nodes = (*large, node("t4", product=T4, labels={MEMORY: "15360"}))

    [warning] = reviewed(document, shipped(), nodes).warnings

    assert f"add node affinity on {PRODUCT}, {MEMORY}, or" in warning


@pytest.mark.parametrize(
    ("made", "nodes"),
    [
        (template(), NODES),
        (wanting_h100(), (NODES[0],)),
        ({**wanting_h100(), "spec": {"containers": [gpus(1)], "nodeSelector": {PRODUCT: H100}}}, (NODES[0],)),
        (wanting_h100(), (NODES[1],)),
    ],
    ids=["no need", "one kind of nodes", "selector", "no node fits"],
)
def test_nothing_is_said_where_flavors_cannot_differ(made: dict[str, Any], nodes: tuple[Node, ...]) -> None:
    """F153."""
    warnings = reviewed(workload("JobSet", made), shipped(), nodes).warnings

    assert not any("Kueue chooses" in warning for warning in warnings)


def test_job_of_kubernetes_is_treated_alike_when_it_is_created() -> None:
    """F153: it has a review of its own, which repairs amounts too."""
    document = {"metadata": {"name": "j", "labels": {QUEUE_LABEL: "q"}}, "spec": {"template": wanting_h100()}}
    request = {"resource": {"group": "batch", "resource": "jobs"}, "operation": "CREATE", "object": document}
    target, unqueued = review_target_of(request), review_target_of({**request, "object": {**document, "metadata": {}}})

    assert target is not None
    assert unqueued is not None
    assert (target.queued, unqueued.queued) == (True, False)
    assert review_target_of({**request, "operation": "UPDATE"}) is None


def updated(old: dict[str, Any], new: dict[str, Any]) -> ReviewResult:
    request = {**request_of(new, "UPDATE"), "oldObject": old}
    return review_templates(template_targets_of(request, knowledge().workloads), mutate, "team-a", {}, context(WRITES))


@pytest.mark.parametrize("kind", SHAPES)
def test_manifest_that_is_applied_again_leaves_the_stored_object_as_it_is(kind: str) -> None:
    """F23, F153: lists of these kinds are replaced as a whole."""
    document = workload(kind, wanting_h100())
    stored = apply(document, reviewed(document).operations)

    assert apply(document, updated(stored, document).operations) == stored
    assert updated(stored, stored).operations == ()


def test_stored_object_with_amounts_as_text_is_left_as_it_is_too() -> None:
    """F153: JobSet's webhook writes them so, with an empty creationTimestamp."""
    made = template(container({GPU: 1}), **ONLY_H100)
    document = workload("JobSet", made)
    stored = apply(document, reviewed(document).operations)
    text = json.loads(json.dumps(stored).replace(f'"{GPU}": 1', f'"{GPU}": "1"'))
    text["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]["creationTimestamp"] = None

    assert updated(text, document).operations == updated(stored, document).operations != ()


def test_edit_by_the_author_is_neither_completed_nor_refused() -> None:
    """F153: an edit of a template may restart pods, and a running job forbids it."""
    stored = apply(workload("JobSet", wanting_h100()), reviewed(workload("JobSet", wanting_h100())).operations)
    other = workload("JobSet", template(container({GPU: "0.5"}), **ONLY_H100))

    result = updated(stored, other)

    assert (result.operations, result.reasons) == ((), ())


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT"])
def test_workload_that_exists_is_never_changed(operation: str) -> None:
    """F153: a running one forbids it, and an edit of a template restarts pods."""
    assert template_targets_of(request_of(workload("JobSet", template()), operation), knowledge().workloads) == ()


SUSPENDED: dict[str, Any] = {"suspend": True}


@pytest.mark.parametrize("kind", SHAPES)
def test_suspended_workload_that_gets_its_queue_later_is_written_where_the_kind_allows_it(kind: str) -> None:
    """F153: only where its pods may run is changed, nothing of one that runs, and nothing where the kind forbids it."""
    old, new = (workload(kind, wanting_h100(), queue=queue) for queue in (None, "queue"))
    created = apply(new, reviewed(new).operations)
    for document in (old, new, created):
        document["spec"] = {**document["spec"], **SUSPENDED}
    running = {**old, "spec": {**old["spec"], "suspend": False}}

    late = kind in ("RayJob", "RayCluster", "MPIJob")
    assert apply(new, updated(old, new).operations) == (created if late else new)
    assert updated(running, new).operations == ()
    assert updated(old, {**new, "metadata": {**new["metadata"], "labels": {}}}).operations == ()


def test_suspended_job_of_kubernetes_that_gets_a_queue_later_is_written_where_it_has_not_started() -> None:
    """F153: the API server lets the placement of a suspended Job change, and its amounts not."""
    made = wanting_h100()
    made["spec"]["containers"][0]["resources"] = {"requests": {GPU: "1"}}  # refused by an API server, repaired by us
    old = {"metadata": {"name": "j"}, "spec": {"suspend": True, "template": made}}
    new = {**old, "metadata": {"name": "j", "labels": {QUEUE_LABEL: "q"}}}
    request = {"resource": {"group": "batch", "resource": "jobs"}, "operation": "UPDATE", "object": new}
    started = {**old, "status": {"startTime": "2026-11-26T12:00:00Z"}}

    targets = template_targets_of({**request, "oldObject": old}, knowledge().workloads)
    result = review_templates(targets, mutate, "team-a", {}, context(WRITES))

    assert {one.path[:4] for one in result.operations} == {
        ("spec", "template", "spec", "affinity"),
        ("spec", "template", "spec", "tolerations"),
    }
    assert template_targets_of({**request, "oldObject": started}, knowledge().workloads) == ()
    assert template_targets_of({**request, "oldObject": new}, knowledge().workloads) == ()


def test_requests_only_is_repaired_in_templates_of_every_kind_and_queue() -> None:
    """F18: with and without a queue, and whatever else the policy says."""
    document = workload("MPIJob", template(container(None, {GPU: "2"})), queue=None)

    changed = apply(document, reviewed(document).operations)

    assert [spec["containers"][0]["resources"].get("limits") for spec in pod_specs(changed)] == [
        {"cpu": "1"},
        {GPU: "2"},
    ]


@pytest.mark.parametrize("verb", [mutate, validate])
def test_one_template_that_is_refused_refuses_the_whole_object(verb: Any) -> None:
    """F18: with every reason once, and no operation."""
    halves = template(container({GPU: "0.5"}))
    document = workload("RayCluster", halves)
    targets = template_targets_of(request_of(document), knowledge().workloads)

    result = review_templates(targets, verb, "team-a", {}, context(WRITES))

    assert [reason.code.name for reason in result.reasons] == ["QuantityFractional"]
    assert result.operations == ()


def test_object_of_very_many_templates_is_reviewed_in_part() -> None:
    """F153: the pods of the rest are reviewed when they are made."""
    document = workload("JobSet", template())
    document["spec"]["replicatedJobs"] = [replica(str(index), template()) for index in range(MOST_TEMPLATES + 5)]

    assert len(template_targets_of(request_of(document), knowledge().workloads)) == MOST_TEMPLATES


@pytest.mark.parametrize(
    "spec", [{}, {"replicatedJobs": None}, {"replicatedJobs": {}}, {"replicatedJobs": [1, {}]}, None]
)
def test_spec_without_templates_is_left_alone(spec: Any) -> None:
    """F153: the kind's own schema judges it."""
    document = {**workload("JobSet", template()), "spec": spec}

    assert template_targets_of(request_of(document), knowledge().workloads) == ()


@pytest.mark.parametrize("kind", SHAPES)
def test_preview_shows_what_the_webhook_answers(kind: str) -> None:
    """F85, F153."""
    document = workload(kind, wanting_h100())

    shown = preview(document, "team-a", lambda _: {}, context(WRITES))

    assert shown.object == apply(document, reviewed(document).operations)
    assert shown.actions


def test_path_is_followed_through_lists_and_mappings() -> None:
    document = {"a": [{"b": {"x": {"c": {"n": 1}}, "y": {"c": {"n": 2}}}}, {"b": 3}]}

    found = list(values_at(document, read_path("a[].b{}.c")))

    assert found == [(("a", "0", "b", "x", "c"), {"n": 1}), (("a", "0", "b", "y", "c"), {"n": 2})]
