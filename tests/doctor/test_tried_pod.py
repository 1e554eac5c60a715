# SPDX-License-Identifier: Apache-2.0
"""The doctor on what became of a GPU pod by dry run: a webhook that cannot be called is the first problem, once."""

import pytest

from app.doctor.cluster_checks import examine_cluster
from app.doctor.cluster_objects import Certificate, GPUPodTried
from app.doctor.fleet_checks import Finding, FindingLevel, by_urgency
from app.doctor.webhook_checks import pod_to_try
from tests.builders import node, pod
from tests.doctor.healthy_cluster import (
    GPU,
    MUTATING,
    VALIDATING,
    Break,
    add,
    change_webhook,
    cluster,
    endpoint_slice,
    foreign_webhook,
    namespace,
    put,
)

OURS, THEIRS = "validate.gpu-usher.io", "quotas.example.com"
UNKNOWN_CA = (
    "tls: failed to verify certificate: x509: certificate signed by unknown authority (possibly because of "
    '"crypto/rsa: verification error" while trying to verify candidate authority certificate "ca")'
)


def failure(cause: str, webhook: str = THEIRS) -> str:
    """Write what the API server says of a webhook that fails closed and that it could not call."""
    url = f'Post "https://hook.ns.svc:443/validate?timeout=3s": {cause}'
    return f'500: Internal error occurred: failed calling webhook "{webhook}": failed to call webhook: {url}'


def examined(tried: GPUPodTried | None, broken: Break = lambda _: None, **more: object) -> list[Finding]:
    return list(by_urgency(examine_cluster(cluster(broken, tried=tried, **more))))


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (UNKNOWN_CA, "its caBundle holds another CA than the one that signed the certificate of its server"),
        ("x509: certificate has expired or is not yet valid: current time", "has expired, or is not valid yet"),
        ("x509: certificate is valid for a.b.svc, not hook.ns.svc", "does not accept the certificate"),
        ("x509: certificate relies on legacy Common Name field, use SANs instead", "does not accept the certificate"),
        ('service "hook" not found', "the Service that it names does not exist"),
        ('no endpoints available for service "hook"', "no pod behind its Service is ready"),
        ("dial tcp 10.0.0.7:443: connect: connection refused", "nothing listens at the address"),
        ("dial tcp: lookup hook.example.com: no such host", "knows no address for the host"),
        ("context deadline exceeded", "did not answer in time"),
        ("dial tcp 10.244.2.18:9443: i/o timeout", "did not answer in time"),
        ("net/http: TLS handshake timeout", "did not answer in time"),
        ("dial tcp 172.20.1.9:443: connect: no route to host", "no route leads"),
        ("could not get REST client: unable to load root certificates: unable to parse bytes", "no certificate in PEM"),
        ("Address is not allowed", "addresses of the VPC alone"),
        ("http: server gave HTTP response to HTTPS client", "the API server could not call it"),
        ("EOF", "the API server could not call it"),
    ],
)
def test_webhook_that_cannot_be_called_is_the_first_problem_in_the_api_servers_words(cause: str, why: str) -> None:
    """F87."""
    other = foreign_webhook("quotas", kind=VALIDATING)

    first = examined(GPUPodTried("team-a", failure(cause)), other)[0]

    assert (first.check, first.level) == ("GPUPodRefused", FindingLevel.Problem)
    assert why in first.what
    assert cause in first.what
    assert "created by dry run in namespace team-a" in first.what
    assert first.objects == (f"{VALIDATING} quotas: {THEIRS}",)


def no_replica(objects: dict[str, list[dict[str, object]]]) -> None:
    objects["EndpointSlice"] = [endpoint_slice(False)]


EXPIRED = (Certificate(f"{VALIDATING} gpu-usher: {OURS} (Secret gpu-usher-tls)", 1.1, "2026-01-08", ("expired",)),)


@pytest.mark.parametrize(
    ("broken", "certificates", "check"),
    [
        pytest.param(no_replica, (), "NoReadyEndpoint", id="no replica is ready"),
        pytest.param(lambda _: None, EXPIRED, "Certificate", id="certificate has expired"),
        pytest.param(
            change_webhook({"clientConfig": {"service": {"name": "gpu-usher", "namespace": "gpu-usher"}}}, VALIDATING),
            (),
            "CABundleAbsent",
            id="caBundle is gone",
        ),
    ],
)
def test_cause_that_a_check_has_found_is_one_problem_with_the_api_servers_words(
    broken: Break, certificates: tuple[Certificate, ...], check: str
) -> None:
    tried = GPUPodTried("default", failure("context deadline exceeded", OURS))

    [found] = examined(tried, broken, certificates=certificates)

    assert found.check == check
    assert "a GPU pod created by dry run in namespace default is refused: 500: Internal error" in found.what


def test_cause_in_our_webhook_does_not_explain_another_ones_failure() -> None:
    found = examined(GPUPodTried("default", failure("EOF")), no_replica)

    assert [finding.check for finding in found] == ["GPUPodRefused", "NoReadyEndpoint"]


def test_answer_that_names_no_webhook_is_said_of_the_api_server() -> None:
    words = "504: Timeout: request did not complete within requested timeout - context deadline exceeded"

    [found] = examined(GPUPodTried("default", words))

    assert (found.check, found.objects) == ("GPUPodRefused", ("API server",))
    assert words in found.what


@pytest.mark.parametrize("tried", [None, GPUPodTried("default")])
def test_pod_that_is_decided_about_is_no_finding(tried: GPUPodTried | None) -> None:
    assert examined(tried) == []


def test_pod_admitted_without_our_review_is_advice_unless_a_check_knows_why() -> None:
    unreviewed = GPUPodTried("team-a", reviewed=False)

    [alone] = examined(unreviewed)
    [known] = examined(unreviewed, no_replica)

    assert (alone.check, alone.level) == ("GPUPodNotReviewed", FindingLevel.Advice)
    assert known.check == "NoReadyEndpoint"
    assert [finding.check for finding in examined(unreviewed, put(MUTATING))] == ["WebhookAbsent"]


def gpu_pod_in(name: str, **labels: str) -> Break:
    def change(objects: dict[str, list[dict[str, object]]]) -> None:
        document = pod()
        document["metadata"]["namespace"] = name
        add("Pod", document)(objects)
        add("Namespace", namespace(name, **labels))(objects)

    return change


def test_namespace_to_try_is_default_unless_more_webhooks_take_part_elsewhere() -> None:
    opted_in = change_webhook({"namespaceSelector": {"matchLabels": {"gpus": "yes"}}}, VALIDATING)

    def selected(objects: dict[str, list[dict[str, object]]]) -> None:
        for change in (opted_in, gpu_pod_in("a"), gpu_pod_in("b", gpus="yes"), gpu_pod_in("gpu-operator", gpus="yes")):
            change(objects)

    assert pod_to_try(cluster()) == ("default", GPU)
    assert pod_to_try(cluster(selected, nodes=(node("m", offers={"amd.com/gpu": 8}),))) == ("b", "amd.com/gpu")
