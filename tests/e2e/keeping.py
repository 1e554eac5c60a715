# SPDX-License-Identifier: Apache-2.0
"""What the keeper of certificates is watched with: a mount as a kubelet makes it, a watch, somebody who interrupts."""

import base64
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.cluster.access import Load
from app.telemetry.clock import now
from app.tls.controller import REGISTRATION
from app.tls.kube_objects import KubeClient
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process, wait_until
from tests.e2e.stage import SOON_SECONDS, Service, plain_pod

SECRETS = "/api/v1/namespaces/gpu-usher/secrets"
MUTATING = f"{REGISTRATION}mutatingwebhookconfigurations/gpu-usher"
VALIDATING = f"{REGISTRATION}validatingwebhookconfigurations/gpu-usher"
WAIT_SECONDS = 8.0
"""Instead of the minute; the mirrored mount and the service take up to 5.3 s to serve a new leaf."""
PODS = "/api/v1/namespaces/default/pods?dryRun=All"


def data(plane: ControlPlane, secret: str, key: str) -> bytes:
    return base64.b64decode((plane.api.get(f"{SECRETS}/gpu-usher-{secret}").get("data") or {}).get(key, ""))


def bundles(plane: ControlPlane) -> set[str | None]:
    found = (plane.api.get(path)["webhooks"] for path in (MUTATING, VALIDATING))
    return {each["clientConfig"].get("caBundle") for webhooks in found for each in webhooks}


def published(plane: ControlPlane) -> bool:
    ca = data(plane, "ca", "ca.crt")
    return bool(ca) and bundles(plane) == {base64.b64encode(ca).decode()} and data(plane, "tls", "ca.crt") == ca


class Mount:
    """What a kubelet does with a Secret: a folder whose `..data` is swapped, some time after it changed."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.folder = folder
        self._plane = plane
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
                    self._swap(api.get(f"{SECRETS}/gpu-usher-tls"))

    def _swap(self, secret: Object | None = None) -> None:
        secret = secret or self._plane.api.get(f"{SECRETS}/gpu-usher-tls")
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


@dataclass
class Stage:
    """The keeper as its own process, the service with what it made."""

    plane: ControlPlane
    keeper: Process
    service: Service

    def keep(self) -> None:
        """Let the keeper run, whatever an earlier test did to it, and everything be as it wants it."""
        if not self.keeper.running:
            self.keeper = start_keeper(self.plane, "keeper")
        wait_until("all places trust it", lambda: published(self.plane), SOON_SECONDS, self.keeper)
        wait_until("pods pass", self.passes, SOON_SECONDS, self.service.process)

    def passes(self) -> bool:
        """Tell whether the webhooks let a pod through."""
        return self.plane.api.try_create(PODS, plain_pod("default")).is_success


def start_keeper(plane: ControlPlane, name: str) -> Process:
    flags = [f"--kubeconfig={plane.kubeconfig('certificates')}", f"--wait-seconds={WAIT_SECONDS}", "--name=127.0.0.1"]
    command = [sys.executable, "-m", "app.cli.main", "certs", "controller", *flags]
    return Process(name, command, plane.folder / f"{name}.log")


class Watched:
    """Every version of the served leaf and of a published bundle, in the order in which they came to be."""

    PATHS = ((SECRETS, "gpu-usher-tls"), (f"{REGISTRATION}mutatingwebhookconfigurations", "gpu-usher"))

    def __init__(self, plane: ControlPlane) -> None:
        self.versions: list[tuple[int, str, bytes]] = []
        self._plane = plane
        self._end = f"{now():%H-%M-%S.%f}"
        self._threads = [threading.Thread(target=self._follow, args=each) for each in self.PATHS]
        for each in self._threads:
            each.start()

    def _follow(self, path: str, name: str) -> None:
        query = {"watch": "1", "fieldSelector": f"metadata.name={name}", "timeoutSeconds": "120"}
        with self._plane.api.like() as api, api.client.stream("GET", path, params=query) as answer:
            for line in answer.iter_lines():
                found = json.loads(line)["object"]
                version = int(found["metadata"]["resourceVersion"])
                if "webhooks" in found:
                    bundle = found["webhooks"][0]["clientConfig"].get("caBundle", "")
                    self.versions.append((version, "bundle", base64.b64decode(bundle)))
                elif found.get("data"):
                    self.versions.append((version, "leaf", base64.b64decode(found["data"]["tls.crt"])))
                if (found["metadata"].get("labels") or {}).get("end") == self._end:
                    return

    def ended(self) -> list[tuple[int, str, bytes]]:
        for path, name in self.PATHS:
            self._plane.api.patch(f"{path}/{name}", {"metadata": {"labels": {"end": self._end}}})
        for each in self._threads:
            each.join(SOON_SECONDS)
            assert not each.is_alive()
        return sorted(self.versions)


class Interrupted(KubeClient):
    """Lets somebody else act before the request of a given number, the first being 1."""

    def __init__(self, load: Load, number: int, act: Callable[[], None]) -> None:
        super().__init__(load)
        self._left = number
        self._act = act

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None, kind: str) -> Object:
        self._left -= 1
        if not self._left:
            self._act()
        return super()._request(method, path, body, kind)
