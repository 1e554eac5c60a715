# SPDX-License-Identifier: Apache-2.0
"""What the tests of the certificate controller run it on: a mounted Secret, a watch, a client that is interrupted."""

import base64
import contextlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.tls.controller import REGISTRATION
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process, wait_until
from tests.e2e.stage import SOON_SECONDS, Service, plain_pod

SECRETS = "/api/v1/namespaces/gpu-usher/secrets"
MUTATING = f"{REGISTRATION}mutatingwebhookconfigurations/gpu-usher"
VALIDATING = f"{REGISTRATION}validatingwebhookconfigurations/gpu-usher"
WAIT_SECONDS = 8.0
"""Seconds instead of a minute; the mirrored mount and the service take up to 5.3 s to serve a new leaf."""
PODS = "/api/v1/namespaces/default/pods?dryRun=All"


def data(plane: ControlPlane, secret: str, key: str) -> bytes:
    return base64.b64decode((plane.api.get(f"{SECRETS}/gpu-usher-{secret}").get("data") or {}).get(key, ""))


def bundles(plane: ControlPlane) -> set[str | None]:
    configurations = (plane.api.get(path)["webhooks"] for path in (MUTATING, VALIDATING))
    return {webhook["clientConfig"].get("caBundle") for webhooks in configurations for webhook in webhooks}


def published(plane: ControlPlane) -> bool:
    ca = data(plane, "ca", "ca.crt")
    return bool(ca) and bundles(plane) == {base64.b64encode(ca).decode()} and data(plane, "tls", "ca.crt") == ca


class Mount:
    """A mounted Secret as a kubelet makes it: a folder whose `..data` is swapped some time after the Secret changed."""

    def __init__(self, plane: ControlPlane, folder: Path, secret: str = f"{SECRETS}/gpu-usher-tls") -> None:
        self.folder = folder
        self._plane = plane
        self._path = secret
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        folder.mkdir()
        self._shown: dict[str, str] = {}
        self._swap()
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (folder / name).symlink_to(f"..data/{name}")
        self._thread.start()

    def _follow(self) -> None:
        with self._plane.api.like() as api:
            while not self._stop.wait(0.3):
                with contextlib.suppress(httpx.HTTPError, AssertionError):
                    self._swap(api.get(self._path))

    def _swap(self, secret: Object | None = None) -> None:
        secret = secret or self._plane.api.get(self._path)
        version = secret["metadata"]["resourceVersion"]
        target = self.folder / f"..{version}"
        if target.exists() or not secret.get("data"):
            return
        target.mkdir()
        for name, content in secret["data"].items():
            (target / name).write_bytes(base64.b64decode(content))
        (self.folder / "..new").symlink_to(target.name)
        (self.folder / "..new").rename(self.folder / "..data")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(SOON_SECONDS)


@contextmanager
def pods_created_without_pause(plane: ControlPlane) -> Iterator[list[str]]:
    """Create GPU pods without a pause, as dry runs; yields the list of errors, to which the count is added last."""
    errors: list[str] = []
    stop = threading.Event()
    count = 0

    def go() -> None:
        nonlocal count
        with plane.api.like() as api:
            while not stop.wait(0.01):
                answer = api.try_create(PODS, plain_pod("default"))
                count += 1
                if not answer.is_success:
                    errors.append(answer.text[:300])

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield errors
    finally:
        stop.set()
        thread.join(SOON_SECONDS)
        errors.append(str(count))


@dataclass
class RunningController:
    """The certificate controller as its own process, and the service with the certificate that it issued."""

    plane: ControlPlane
    controller: Process
    service: Service

    def run_controller(self) -> None:
        """Run the controller, whatever an earlier test did to it, and wait until all that it publishes is in place."""
        if not self.controller.running:
            self.controller = start_certificate_controller(self.plane, "controller")
        wait_until("all places trust it", lambda: published(self.plane), SOON_SECONDS, self.controller)
        wait_until("pods pass", self.passes, SOON_SECONDS, self.service.process)

    def passes(self) -> bool:
        """Tell whether the webhooks admit a pod."""
        return self.plane.api.try_create(PODS, plain_pod("default")).is_success


def start_certificate_controller(plane: ControlPlane, name: str) -> Process:
    flags = [f"--kubeconfig={plane.kubeconfig('certificates')}", f"--wait-seconds={WAIT_SECONDS}", "--name=127.0.0.1"]
    command = [sys.executable, "-m", "app.cli.main", "certs", "controller", *flags]
    return Process(name, command, plane.folder / f"{name}.log")
