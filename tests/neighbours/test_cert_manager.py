# SPDX-License-Identifier: Apache-2.0
"""cert-manager's own controllers and its cainjector with the certificates that deploy/components/cert-manager asks for.

The webhooks stay as deploy/ has them, at a Service, so that the API server asks for the Service's name in our
certificate. cert-manager's own webhook, which validates its objects, does not run.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml
from cryptography import x509

from app.telemetry.logs import now
from app.tls.pem import read_bundle, signed_by
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process, wait_until
from tests.e2e.certificate_stage import PODS, SECRETS, Mount, bundles, data, pods_created_without_pause
from tests.e2e.stage import DEPLOY, SOON_SECONDS, Service, plain_pod, serving
from tests.neighbours.programs import find
from tests.neighbours.running import apply, at_port, lead_service, rendered

NAME = "cert-manager"
CERTIFICATES = "/apis/cert-manager.io/v1/namespaces/gpu-usher/certificates"
ADDRESS = "::ffff:127.0.0.1"
"""Loopback as an address that the service does not know as such: on loopback it answers to no Service's name."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A control plane on which cert-manager issues our certificate, and the service that serves it."""

    plane: ControlPlane
    controller: Process
    service: Service

    def leaf(self) -> bytes:
        return data(self.plane, "tls", "tls.crt")

    def bundle(self) -> tuple[bytes, ...]:
        """Read the CAs that every webhook trusts; none as long as they differ."""
        (bundle, *others) = bundles(self.plane)
        return () if others else read_bundle(base64.b64decode(bundle or ""))

    def trusted(self) -> bool:
        """Tell whether cainjector has written the CA of our certificate into every webhook."""
        return self.authority() in self.bundle()

    def authority(self) -> bytes:
        (authority,) = read_bundle(data(self.plane, "tls", "ca.crt"))
        return authority

    def renew(self, certificate: str) -> None:
        """Ask for a renewal as `cmctl renew` does: by the condition Issuing of the Certificate."""
        path = f"{CERTIFICATES}/{certificate}"
        condition = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by a test"}
        stamped = {**condition, "lastTransitionTime": f"{now():%Y-%m-%dT%H:%M:%SZ}"}
        conditions = self.plane.api.get(path)["status"]["conditions"]
        self.plane.api.patch(f"{path}/status", {"status": {"conditions": [*conditions, stamped]}})

    def renewed(self, certificate: str, secret: str) -> None:
        """Renew a certificate, and wait until another one is in its Secret."""
        before = data(self.plane, secret, "tls.crt")
        self.renew(certificate)
        another = f"another certificate is in gpu-usher-{secret}"
        wait_until(another, lambda: data(self.plane, secret, "tls.crt") != before, SOON_SECONDS, self.controller)

    def serve_another(self) -> None:
        """Renew the certificate of the service, and wait until it serves the new one."""
        due = self._reloads() + 1
        self.renewed("gpu-usher", "tls")
        wait_until("it is served", lambda: self._reloads() >= due, SOON_SECONDS, self.service.process)

    def _reloads(self) -> float:
        return self.service.metric("gpu_usher_cert_reload_total", result="success")


@pytest.fixture(scope="module")
def controller(plane: ControlPlane) -> Iterator[Process]:
    """cert-manager with its kinds; the tests skip, with the remedy, where it is not built."""
    folder = find(NAME)
    if isinstance(folder, str):
        pytest.skip(folder)
    definitions = sorted((folder / "deploy" / "crds").glob("*.yaml"))
    apply(plane, (yaml.safe_load(path.read_text("utf-8")) for path in definitions))
    command = [str(folder / NAME), f"--kubeconfig={plane.kubeconfig('admin')}"]
    process = Process(NAME, command, plane.folder / f"{NAME}.log")
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="module")
def scene(plane: ControlPlane, controller: Process) -> Iterator[Scene]:
    """The overlay `production`: its namespace and certificates, and its webhooks at the port of the process."""
    objects = rendered(plane, DEPLOY / "overlays" / "production")
    apply(plane, (one for one in objects if one["kind"] in ("Namespace", "Issuer", "Certificate")))
    wait_until("a certificate is issued", lambda: has_certificate(plane), SOON_SECONDS, controller)
    mount = Mount(plane, plane.folder / "mount")
    try:
        certificate, key = mount.folder / "tls.crt", mount.folder / "tls.key"
        with serving(plane, host=ADDRESS, ops_host="127.0.0.1", cert=str(certificate), key=str(key)) as service:
            lead_service(plane, "gpu-usher", "gpu-usher")
            apply(plane, map(closed, webhooks_at(objects, service.port)))
            scene = Scene(plane, controller, service)
            wait_until("all webhooks trust the CA", scene.trusted, SOON_SECONDS, controller)
            yield scene
    finally:
        mount.stop()


def has_certificate(plane: ControlPlane) -> bool:
    """Tell whether cert-manager has filled the Secret that the service mounts."""
    return plane.api.client.get(f"{SECRETS}/gpu-usher-tls").is_success and bool(data(plane, "tls", "tls.crt"))


def webhooks_at(objects: list[Object], port: int) -> Iterator[Object]:
    """Give the configurations with our webhooks, which call a port."""
    for document in objects:
        if document["kind"].endswith("WebhookConfiguration") and document["metadata"]["name"] == "gpu-usher":
            yield at_port(document, port)


def closed(document: Object) -> Object:
    """Let every webhook fail closed, so that a certificate that is not trusted fails a creation."""
    for webhook in document["webhooks"]:
        webhook["failurePolicy"] = "Fail"
    return document


def test_certificate_is_issued_trusted_and_served(scene: Scene) -> None:
    """F102, TLS-01: for the Service's name, signed by the CA that cainjector wrote into every webhook."""
    leaf = x509.load_pem_x509_certificate(scene.leaf())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    def called() -> bool:
        answer = scene.plane.api.try_create(PODS, plain_pod("default"))
        return answer.is_success and scene.service.calls("mutate") > 0 and scene.service.calls("validate") > 0

    assert "gpu-usher.gpu-usher.svc" in names.get_values_for_type(x509.DNSName)
    assert signed_by(scene.leaf(), scene.authority())
    wait_until("the API server calls the service", called, SOON_SECONDS, scene.service.process)


def test_renewals_fail_no_creation_of_a_pod(scene: Scene) -> None:
    """F102, TLS-06: the certificate, its CA, and the certificate again, while pods are created without a pause.

    cainjector adds the new CA to the former one, which it removes when it has expired (its feature gate
    CAInjectorMerging, on from cert-manager 1.19; internal/cainjector/feature).
    """
    former = scene.authority()

    with pods_created_without_pause(scene.plane) as outcome:
        scene.serve_another()
        scene.renewed("gpu-usher-ca", "ca")
        scene.serve_another()
        wait_until("all webhooks trust the new CA", scene.trusted, SOON_SECONDS, scene.controller)

    *errors, created = outcome
    assert errors == []
    assert int(created) > 100
    assert scene.bundle() == (former, scene.authority())
    assert scene.service.metric("gpu_usher_cert_reload_total", result="error") == 0


def test_wiped_bundle_is_injected_again(scene: Scene) -> None:
    """F102, fault 45: who applies the manifest again without the CA breaks the webhooks for a moment only."""
    objects = rendered(scene.plane, DEPLOY / "overlays" / "production")
    for document in webhooks_at(objects, scene.service.port):
        for webhook in closed(document)["webhooks"]:
            webhook["clientConfig"]["caBundle"] = ""
        result = scene.plane.kubectl("replace", "-f", "-", stdin=yaml.safe_dump(document))
        assert result.code == 0, result.err

    wait_until("it is there again", scene.trusted, SOON_SECONDS, scene.controller)
