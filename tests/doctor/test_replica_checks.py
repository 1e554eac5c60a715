# SPDX-License-Identifier: Apache-2.0
"""Whether somebody is ready to answer: a Service without a ready endpoint is found, whatever took its replicas away."""

from typing import Any

import pytest

from app.doctor.cluster_checks import examine_cluster
from app.doctor.fleet_checks import Finding, FindingLevel, by_urgency
from app.doctor.replica_checks import creation_now
from app.policy.problems import NAMESPACE_NAME
from tests.doctor.healthy_cluster import (
    MUTATING,
    VALIDATING,
    A,
    Break,
    Object,
    P,
    cluster,
    deployment,
    endpoint_slice,
    put,
)


def all_of(*breaks: Break) -> Break:
    return lambda objects: [change(objects) for change in breaks]


def service(**spec: Any) -> Object:
    return {"metadata": {"name": "gpu-usher", "namespace": "gpu-usher"}, "spec": spec}


def scaled(replicas: int, available: int = 0) -> Break:
    return put("Deployment", deployment("gpu-usher", available, replicas=replicas))


NO_ENDPOINT = put("EndpointSlice")


@pytest.mark.parametrize(
    ("broken", "cause", "remedy"),
    [
        pytest.param(all_of(scaled(0), NO_ENDPOINT), "is scaled to 0", "gpu-usher --replicas=3", id="scaled to 0"),
        pytest.param(all_of(put("Deployment"), NO_ENDPOINT), "no Deployment in", "--server-side", id="no Deployment"),
        pytest.param(all_of(put("Service"), NO_ENDPOINT), "no such Service", "--server-side", id="no Service"),
        pytest.param(
            all_of(put("Service", service(selector={"app": "gpu-user"})), NO_ENDPOINT),
            "its selector app=gpu-user matches the pods of no Deployment",
            "--server-side",
            id="another selector",
        ),
        pytest.param(
            all_of(scaled(3), put("EndpointSlice", endpoint_slice(False, False))), "none of the 3", "describe pods",
            id="unready pods",
        ),
        pytest.param(
            put("EndpointSlice", endpoint_slice(True, ports=0)), "targetPort", "--server-side", id="no such port"
        ),
    ],
)  # fmt: skip
def test_service_without_a_ready_endpoint_is_one_problem_that_names_the_cause(
    broken: Break, cause: str, remedy: str
) -> None:
    """F87: /validate fails closed, so that GPU pods are refused."""
    [finding] = examine_cluster(cluster(broken))

    assert (finding.check, finding.level) == ("NoReadyEndpoint", P)
    assert "GPU pods are refused" in finding.what
    assert cause in finding.what
    assert remedy in finding.remedy
    assert finding.objects == ("Service gpu-usher/gpu-usher",)


def test_one_ready_endpoint_answers_and_null_counts_as_ready() -> None:
    """F87: conditions of discovery.k8s.io/v1."""
    broken = all_of(scaled(3, 1), put("EndpointSlice", endpoint_slice(False, None, False)))

    [finding] = examine_cluster(cluster(broken))

    assert (finding.check, finding.level) == ("ReplicasUnavailable", A)


def test_webhooks_that_fail_open_admit_pods_without_a_review() -> None:
    """F87: what happens to pods is told by the failure policies of the cluster."""
    open_and_empty = all_of(each_webhook(failurePolicy="Ignore"), NO_ENDPOINT)

    finding = next(each for each in examine_cluster(cluster(open_and_empty)) if each.check == "NoReadyEndpoint")

    assert "GPU pods are admitted without being reviewed" in finding.what


def each_webhook(**fields: Any) -> Break:
    """Set fields of each of our webhooks; those of `clientConfig` are added to it."""

    def change(objects: dict[str, list[Object]]) -> None:
        for webhook in (*objects[MUTATING][0]["webhooks"], *objects[VALIDATING][0]["webhooks"]):
            client = {**webhook["clientConfig"], **fields.get("clientConfig", {})}
            webhook.update({**fields, "clientConfig": client})

    return change


def only(kind: str, **fields: Any) -> Break:
    """Set fields of the first webhook of a configuration."""
    return lambda objects: objects[kind][0]["webhooks"][0].update(fields)


IGNORE, NO_CA = each_webhook(failurePolicy="Ignore"), each_webhook(clientConfig={"caBundle": ""})
REFUSED, UNCHANGED = "each creation of a GPU pod is refused now: ", "each GPU pod is created unchanged now: "
NO_REPLICA = "no replica of gpu-usher is ready to answer (Service gpu-usher/gpu-usher)"


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        pytest.param(NO_ENDPOINT, REFUSED + NO_REPLICA, id="no endpoint"),
        pytest.param(put("EndpointSlice", endpoint_slice(False)), REFUSED + NO_REPLICA, id="unready endpoints"),
        pytest.param(put("EndpointSlice", endpoint_slice(True, ports=0)), REFUSED + NO_REPLICA, id="no such port"),
        pytest.param(all_of(NO_ENDPOINT, IGNORE), UNCHANGED + NO_REPLICA, id="Ignore"),
        pytest.param(NO_CA, REFUSED + "the webhook has no caBundle", id="no CA"),
        pytest.param(all_of(NO_CA, IGNORE), UNCHANGED + "the webhook has no caBundle", id="no CA, Ignore"),
        pytest.param(
            all_of(NO_ENDPOINT, only(MUTATING, failurePolicy="Fail"), only(VALIDATING, failurePolicy="Ignore")),
            REFUSED + NO_REPLICA, id="the mutating one fails closed",
        ),
        pytest.param(
            all_of(NO_ENDPOINT, IGNORE, put(MUTATING)), "each GPU pod is not validated now", id="nothing changes pods"
        ),
        pytest.param(put("EndpointSlice", endpoint_slice(False, None)), "", id="one of two is ready"),
        pytest.param(lambda objects: objects.pop("EndpointSlice"), "", id="EndpointSlices may not be read"),
        pytest.param(all_of(NO_ENDPOINT, put(MUTATING), put(VALIDATING)), "", id="no webhooks"),
        pytest.param(
            all_of(NO_ENDPOINT, each_webhook(clientConfig={"service": None, "url": "https://x/"})), "", id="by URL"
        ),
        pytest.param(all_of(NO_ENDPOINT, each_webhook(rules=[])), "", id="not asked about pods"),
    ],
)  # fmt: skip
def test_creation_of_a_gpu_pod_is_said_to_fail_only_where_the_call_must(broken: Break, told: str) -> None:
    """F87: what becomes of the pod is told by failurePolicy."""
    said = creation_now(cluster(broken), {NAMESPACE_NAME: "ml"})

    assert said.startswith(told) if told else said == ""


@pytest.mark.parametrize("label", ["gpu-usher.io/ignore", "gpu-usher.io/infrastructure"])
def test_pods_of_an_exempt_namespace_are_created_while_nobody_answers(label: str) -> None:
    """F21, F87: the API server does not call the webhooks for them."""
    down = cluster(NO_ENDPOINT)

    assert creation_now(down, {NAMESPACE_NAME: "ml", label: "true"}) == ""
    assert creation_now(down, {NAMESPACE_NAME: "kube-system"}) == ""


def test_services_of_another_namespace_than_the_one_read_are_not_judged() -> None:
    """F87: nothing is known of their endpoints."""
    assert creation_now(cluster(NO_ENDPOINT, namespace="gpus"), {NAMESPACE_NAME: "ml"}) == ""


@pytest.mark.parametrize("host", ["gpu-usher.gpu-usher.svc", "gpu-usher.gpu-usher.svc.cluster.local", "10.96.0.7"])
def test_service_that_only_the_scheduler_calls_counts_too(host: str) -> None:
    """F87, F117: by its name, or by the ClusterIP of the recipe for kubeadm."""
    broken = all_of(
        put(MUTATING), put(VALIDATING), put("Service", service(clusterIP="10.96.0.7", selector={})), NO_ENDPOINT
    )

    finding = examine_cluster(cluster(broken, extender_hosts=(host,)))[0]

    assert finding.check == "NoReadyEndpoint"
    assert "the scheduler's calls fail" in finding.what


def test_webhooks_at_a_url_need_no_deployment() -> None:
    """F87: as in `make cluster`, where the service is a process of its own."""

    def elsewhere(objects: dict[str, list[Object]]) -> None:
        for webhook in (*objects[MUTATING][0]["webhooks"], *objects[VALIDATING][0]["webhooks"]):
            webhook["clientConfig"] = {"url": "https://127.0.0.1:8443/x", "caBundle": "Q0E="}
        for kind in ("Deployment", "Service", "EndpointSlice"):
            objects[kind] = []

    assert examine_cluster(cluster(elsewhere)) == ()


def test_service_of_another_namespace_is_told_to_be_looked_at() -> None:
    """F87: --namespace says where gpu-usher runs."""
    findings = examine_cluster(cluster(namespace="gpus", rules=None))

    (finding,) = [each for each in findings if each.check == "NotLookedAt"]
    assert "--namespace gpu-usher" in finding.remedy


@pytest.mark.parametrize(
    ("name", "level", "words"),
    [("gpu-usher-scheduler", P, "stay Pending"), ("gpu-usher-certificates", A, "certificates")],
)
def test_other_deployment_that_is_scaled_to_zero_is_found(name: str, level: FindingLevel, words: str) -> None:
    """F87: its wish is met, and nobody does its work."""
    broken = put("Deployment", deployment("gpu-usher"), deployment(name, 0, replicas=0))

    [finding] = examine_cluster(cluster(broken))

    assert (finding.check, finding.level) == ("ReplicasUnavailable", level)
    assert words in finding.what


def test_findings_are_read_by_what_hurts_now() -> None:
    """F87: what stops pods, then all other problems, then advice; else in the order of the checks."""
    found = [
        Finding(check, level, "", "")
        for check, level in (("FailurePolicy", A), ("GPUUnhealthy", P), ("ReplicasUnavailable", A), ("Certificate", P))
    ]

    names = [finding.check for finding in by_urgency(found)]

    assert names == ["Certificate", "GPUUnhealthy", "ReplicasUnavailable", "FailurePolicy"]
