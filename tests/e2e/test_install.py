# SPDX-License-Identifier: Apache-2.0
"""Every overlay on a real API server: applied in the order of deploy/README, deleted, and its accounts' rights."""

import json
from collections.abc import Iterator, Mapping

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.stage import DEPLOY, eventually

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
OTHERS = "app.kubernetes.io/component!=webhook"
COMPONENTS = ("admission", "scheduler", "certificates", "controller")
REPLICAS = {
    "dev": (1, 0, 1, 1),
    "webhook-only": (3, 0, 1, 1),
    "production-self-signed": (3, 2, 1, 1),
    "production": (3, 2, 0, 1),
}
"""Pods of each of COMPONENTS."""
FOREIGN = {
    "certificates.cert-manager.io": "Certificate",
    "issuers.cert-manager.io": "Issuer",
    "podmonitors.monitoring.coreos.com": "PodMonitor",
    "prometheusrules.monitoring.coreos.com": "PrometheusRule",
}
"""Kinds of other operators, of which the tests create only the definition, without a schema."""
READS = {"get", "list", "watch"}
EVERYBODY = ("selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews")
"""What every account may ask about itself (system:basic-user)."""
SERVING = {
    "nodes": READS,
    "pods": READS,
    "namespaces": READS,
    "runtimeclasses": READS,
    "configmaps": READS,
    **dict.fromkeys(("resourcequotas", "limitranges", "serviceaccounts", "priorityclasses"), READS),
    "noderesourcetopologies": READS,
    "podgroups": {"get"},
    "gpupolicies": READS,
    "deviceclasses": READS,
    "devicetaintrules": READS,
    "resourceclaims": READS,
    "resourceclaimtemplates": READS,
    "resourceslices": READS,
}
CERTIFICATES = {
    "secrets gpu-usher-ca": {"get", "update"},
    "secrets gpu-usher-tls": {"get", "update"},
    "mutatingwebhookconfigurations gpu-usher": {"get", "patch"},
    "mutatingwebhookconfigurations gpu-usher-cpu-guard": {"get", "patch"},
    "mutatingwebhookconfigurations gpu-usher-queued-jobs": {"get", "patch"},
    "validatingwebhookconfigurations gpu-usher": {"get", "patch"},
    "validatingwebhookconfigurations gpu-usher-policies": {"get", "patch"},
    "apiservices v1alpha1.explain.gpu-usher.io": {"get", "patch"},
}


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> ControlPlane:
    """A control plane that knows the kinds of cert-manager and of the Prometheus operator."""
    define(plane, FOREIGN)
    return plane


def define(plane: ControlPlane, kinds: Mapping[str, str]) -> None:
    """Create definitions without a schema, by their names, and wait until they are served."""
    result = plane.kubectl.create(*(_definition(name, kind) for name, kind in kinds.items()))
    assert result.code == 0, result.err
    for name in kinds:
        result = plane.kubectl("wait", "--for=condition=established", f"crd/{name}", "--timeout=30s")
        assert result.code == 0, result.err


@pytest.fixture
def overlay(cluster: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """Install an overlay up to its webhooks, and take it down afterwards."""
    name: str = request.param
    result = apply(cluster, name, "-l", OTHERS)
    assert (result.code, result.warnings) == (0, []), result.err
    yield name
    kustomization = ("-k", str(DEPLOY / "overlays" / name))
    cluster.kubectl("delete", *kustomization, "--ignore-not-found", "--wait=false")
    eventually("every object of it is gone", lambda: cluster.kubectl.gone(*kustomization))


def _definition(name: str, kind: str) -> Object:
    plural, _, group = name.partition(".")
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


def apply(plane: ControlPlane, name: str, *words: str) -> KubectlResult:
    """Apply an overlay server-side, as README says."""
    return plane.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(DEPLOY / "overlays" / name), *words)


def configurations(plane: ControlPlane) -> list[Object]:
    return [configuration for kind in CONFIGURATIONS for configuration in plane.api.items(f"{REGISTRATION}/{kind}")]


def pods(plane: ControlPlane, component: str) -> int:
    selector = f"app.kubernetes.io/name=gpu-usher,app.kubernetes.io/component={component}"
    return len(plane.api.items("/api/v1/namespaces/gpu-usher/pods", labelSelector=selector))


def rights(plane: ControlPlane, account: str) -> dict[str, set[str]]:
    """Return an account's verbs in our namespace by resource, with the name where a rule is limited to one."""
    review: Object = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": "gpu-usher"},
    }
    identity = ["--as", f"system:serviceaccount:gpu-usher:{account}", "--as-group", "system:authenticated"]
    result = plane.kubectl("create", "-f", "-", "-o", "json", "--validate=false", *identity, stdin=json.dumps(review))
    assert result.code == 0, result.err
    verbs: dict[str, set[str]] = {}
    for rule in json.loads(result.out)["status"]["resourceRules"]:
        for resource in set(rule["resources"]) - set(EVERYBODY):
            for name in rule.get("resourceNames") or [""]:
                verbs.setdefault(f"{resource} {name}".strip(), set()).update(rule["verbs"])
    return verbs


@pytest.mark.parametrize("overlay", REPLICAS, indirect=True)
def test_overlay_is_taken_without_a_warning_and_its_pods_are_restricted(cluster: ControlPlane, overlay: str) -> None:
    """F133, F114, PSS-01: Pod Security warns on apply, and refuses pods that are not restricted."""
    expected = REPLICAS[overlay]

    def made() -> tuple[int, ...]:
        return tuple(pods(cluster, component) for component in COMPONENTS)

    eventually(f"{overlay} has its pods", lambda: made() == expected)
    assert configurations(cluster) == []

    result = apply(cluster, overlay)

    assert (result.code, result.warnings) == (0, []), result.err
    assert configurations(cluster)


@pytest.mark.parametrize("overlay", ["production"], indirect=True)
def test_emergency_line_takes_every_webhook_away_and_nothing_else(cluster: ControlPlane, overlay: str) -> None:
    """ADM-10: the command is the one of deploy/README."""
    assert apply(cluster, overlay).code == 0
    line = next(
        text for text in (DEPLOY / "README.md").read_text("utf-8").splitlines() if "kubectl delete mutating" in text
    )

    result = cluster.kubectl(*line.removeprefix("$ ").split()[1:])

    assert result.code == 0, result.err
    assert configurations(cluster) == []
    assert cluster.kubectl("-n", "gpu-usher", "get", "deployment", "gpu-usher").code == 0


@pytest.mark.parametrize("overlay", ["webhook-only"], indirect=True)
def test_each_identity_may_do_what_is_listed_and_nothing_else(cluster: ControlPlane, overlay: str) -> None:
    """P9, P10, F104: the serving replicas read; the certificate controller writes its own objects, by name."""
    assert overlay

    eventually("the rights are in force", lambda: rights(cluster, "gpu-usher") == SERVING)

    assert rights(cluster, "gpu-usher") == SERVING
    assert rights(cluster, "gpu-usher-certificates") == CERTIFICATES
