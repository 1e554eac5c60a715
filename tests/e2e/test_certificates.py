# SPDX-License-Identifier: Apache-2.0
"""The certificate controller on a real API server, with the identity and the rights of deploy/ and no others."""

import asyncio
import base64
import json
import sys
from collections.abc import Iterator

import pytest
import yaml

from app.cluster.apiserver import ApiServer
from app.cluster.kubeconfig import find_cluster
from app.telemetry.logs import now
from app.tls.authority import make_authority
from app.tls.controller import API_SERVICE, Controller, Names
from app.tls.pem import read_bundle, signed_by
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process, wait_until
from tests.e2e.certificate_stage import (
    MUTATING,
    SECRETS,
    Mount,
    RunningController,
    data,
    pods_created_without_pause,
    published,
    start_certificate_controller,
)
from tests.e2e.stage import DEPLOY, SOON_SECONDS, Service, grant, serving

COMPONENT = DEPLOY / "components" / "self-signed"


@pytest.fixture(scope="module")
def prepared(plane: ControlPlane) -> ControlPlane:
    """A control plane with the rights and the empty Secrets of deploy/."""
    grant(plane)
    for name in ("rbac.yaml", "objects.yaml"):
        result = plane.kubectl("apply", "-f", str(COMPONENT / name))
        assert result.code == 0, result.err
    return plane


@pytest.fixture(scope="module")
def stage(prepared: ControlPlane) -> Iterator[RunningController]:
    plane = prepared
    controller = start_certificate_controller(plane, "controller")
    try:
        wait_until("there is a certificate", lambda: data(plane, "tls", "tls.crt"), SOON_SECONDS, controller)
        mount = Mount(plane, plane.folder / "mount")
        try:
            certificate, key = mount.folder / "tls.crt", mount.folder / "tls.key"
            with serving(plane, cert=str(certificate), key=str(key)) as service:
                install_without_trust(plane, service)
                yield (built := RunningController(plane, controller, service))
                built.controller.stop()
        finally:
            mount.stop()
    finally:
        controller.stop()


def install_without_trust(plane: ControlPlane, service: Service) -> None:
    """Install the webhooks of deploy/ with the URL of the process; the controller writes the CA bundle."""
    for document in yaml.safe_load_all((DEPLOY / "base" / "webhooks.yaml").read_text("utf-8")):
        for webhook in document["webhooks"]:
            webhook["clientConfig"] = {"url": service.url + webhook["clientConfig"]["service"]["path"]}
            webhook["failurePolicy"] = "Fail"
        result = plane.kubectl("apply", "-f", "-", stdin=json.dumps(document))
        assert result.code == 0, result.err


def test_keeper_fills_the_secrets_and_every_bundle(stage: RunningController) -> None:
    """TLS-01: with webhooks that fail closed, a pod can be created as soon as their CA is trusted."""
    stage.run_controller()

    assert stage.passes()
    assert stage.service.calls("validate") > 0


def test_wiped_bundle_is_written_again(prepared: ControlPlane, stage: RunningController) -> None:
    """Fault 45: a tool that applies the manifest again removes the CA bundle."""
    stage.run_controller()
    prepared.api.client.patch(
        MUTATING,
        content=json.dumps([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]),
        headers={"Content-Type": "application/json-patch+json"},
    ).raise_for_status()

    wait_until("it is there again", lambda: published(prepared), SOON_SECONDS, stage.controller)


def test_rotation_breaks_no_creation_of_a_pod(prepared: ControlPlane, stage: RunningController) -> None:
    """P44, TLS-06, fault 44: the CLI requests the rotation while pods are created without a pause."""
    plane = prepared
    stage.run_controller()
    before = data(plane, "ca", "ca.crt")
    served = stage.service.metric("gpu_usher_cert_reload_total", result="success")

    with pods_created_without_pause(plane) as outcome:
        command = ["certs", "rotate", f"--kubeconfig={plane.kubeconfig('admin')}"]
        rotation = Process("rotate", [sys.executable, "-m", "app.cli.main", *command], plane.folder / "rotate.log")
        wait_until("two CAs are trusted", lambda: len(read_bundle(data(plane, "ca", "ca.crt"))) == 2, SOON_SECONDS)
        new = read_bundle(data(plane, "ca", "ca.crt"))[0]
        wait_until("the new one signs", lambda: signed_by(data(plane, "tls", "tls.crt"), new), SOON_SECONDS)
        wait_until(
            "its leaf is served",
            lambda: stage.service.metric("gpu_usher_cert_reload_total", result="success") >= served + 2,
            SOON_SECONDS,
        )
        wait_until("some more pods are created", lambda: published(plane), SOON_SECONDS)

    *errors, count = outcome
    assert rotation.stop() == 0
    assert errors == []
    assert int(count) > 100
    assert new not in read_bundle(before)
    assert stage.service.metric("gpu_usher_cert_reload_total", result="error") == 0


async def turns(server: ApiServer, number: int) -> None:
    """Let a certificate controller with this client take turns."""
    async with server:
        writer = Controller(server, Names(others=("127.0.0.1",)), now, wait_seconds=0)
        for _ in range(number):
            await writer.turn()


def test_webhook_of_another_server_keeps_its_ca(prepared: ControlPlane, stage: RunningController) -> None:
    """Fault 45: a URL that our certificate is not for is that of another installation, which has a CA of its own."""
    stage.run_controller()
    wait_until("the bundle is there", lambda: published(prepared), SOON_SECONDS, stage.controller)
    stage.controller.stop()
    other = base64.b64encode(make_authority(now()).certificate).decode()
    elsewhere = {"url": "https://gpu-usher.elsewhere.example/mutate", "caBundle": other}
    before = prepared.api.get(MUTATING)["webhooks"][0]["clientConfig"]
    replace_client(prepared, elsewhere)

    asyncio.run(turns(ApiServer(find_cluster(prepared.kubeconfig("certificates"), None)), 1))

    assert prepared.api.get(MUTATING)["webhooks"][0]["clientConfig"] == elsewhere
    replace_client(prepared, before)


def replace_client(plane: ControlPlane, client: Object) -> None:
    plane.api.client.patch(
        MUTATING,
        content=json.dumps([{"op": "replace", "path": "/webhooks/0/clientConfig", "value": client}]),
        headers={"Content-Type": "application/json-patch+json"},
    ).raise_for_status()


def test_two_controllers_at_once_agree(prepared: ControlPlane, stage: RunningController) -> None:
    """Fault 48: as in a rollout. Each write names the version that was read, so that neither undoes the other's."""
    plane = prepared
    stage.controller.stop()
    for name in ("ca", "tls"):
        plane.api.patch(f"{SECRETS}/gpu-usher-{name}", {"data": None})
    both = [start_certificate_controller(plane, name) for name in ("first", "second")]
    try:
        wait_until("they publish one CA", lambda: published(plane), SOON_SECONDS, both[0])
        wait_until(
            "they sign with it",
            lambda: signed_by(data(plane, "tls", "tls.crt"), read_bundle(data(plane, "ca", "ca.crt"))[0]),
            SOON_SECONDS,
            both[1],
        )

        assert len(read_bundle(data(plane, "ca", "ca.crt"))) == 1
        assert [controller.tail().count("not maintained") for controller in both] == [0, 0]
    finally:
        for controller in both:
            controller.stop()


def test_keeper_writes_the_ca_into_the_api_service_of_explanations(stage: RunningController) -> None:
    """TLS-06: where components/explain-api is installed, also when somebody has emptied it."""
    stage.run_controller()
    result = stage.plane.kubectl("apply", "-f", str(DEPLOY / "components" / "explain-api" / "apiservice.yaml"))
    assert result.code == 0, result.err

    def trusted() -> bool:
        ca_bundle = stage.plane.api.get(API_SERVICE)["spec"].get("caBundle")
        return bool(ca_bundle == base64.b64encode(data(stage.plane, "ca", "ca.crt")).decode())

    try:
        wait_until("the APIService has the CA", trusted, SOON_SECONDS, stage.controller)
        stage.plane.api.patch(API_SERVICE, {"spec": {"caBundle": None, "insecureSkipTLSVerify": False}})
        wait_until("the APIService has the CA again", trusted, SOON_SECONDS, stage.controller)
    finally:
        stage.plane.api.delete(API_SERVICE)
