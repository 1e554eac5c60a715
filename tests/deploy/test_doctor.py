# SPDX-License-Identifier: Apache-2.0
"""The doctor on what each overlay installs: it finds nothing, so that no advice of it undoes a component of ours."""

import pytest

from app.doctor.cluster_checks import examine_cluster
from tests.deploy.rendering import DEPLOY, OVERLAYS, Object, kustomized
from tests.doctor.healthy_cluster import cluster, daemon, endpoint_slice, namespace

EXAMINED = ("Deployment", "Service", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ConfigMap")
GUARDED = "overlays/production with components/cpu-guard"


def installed(objects: list[Object]) -> dict[str, list[Object]]:
    """Return the rendered objects by kind, as a cluster has them once all replicas and certificates are there."""
    kinds: dict[str, list[Object]] = {kind: [] for kind in (*EXAMINED, *POLICIES)}
    for document in objects:
        if document["kind"] in kinds:
            kinds[document["kind"]].append(document)
        for webhook in document.get("webhooks", ()):
            webhook["clientConfig"]["caBundle"] = "Q0E="
    for deployment in kinds["Deployment"]:
        deployment["status"] = {"availableReplicas": deployment["spec"]["replicas"]}
    return kinds


@pytest.mark.parametrize("overlay", [*OVERLAYS, GUARDED])
def test_doctor_finds_nothing_on_what_an_overlay_installs(overlay: str) -> None:
    """F87, F114: rights are read from the API server, and compared in tests/e2e."""
    objects = kustomized(DEPLOY / "overlays" / overlay) if overlay in OVERLAYS else kustomized("production")
    if overlay == GUARDED:
        objects += kustomized(DEPLOY / "components" / "cpu-guard")
    kinds = installed(objects)
    others = {
        "Namespace": [namespace("kube-system"), namespace("gpu-usher"), namespace("team-a")],
        "DaemonSet": [daemon("nvidia-device-plugin-daemonset"), daemon("gpu-feature-discovery")],
        "RuntimeClass": [{"metadata": {"name": "nvidia"}}],
        "EndpointSlice": [endpoint_slice(True)],
    }

    findings = examine_cluster(cluster(lambda objects: objects.update(kinds, **others), rules=None))

    assert findings == ()
