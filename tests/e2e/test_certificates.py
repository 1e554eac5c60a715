# SPDX-License-Identifier: Apache-2.0
"""The keeper of certificates on a real API server, with the identity and rights of deploy/ and nothing more."""

import base64
import contextlib
import datetime as dt
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml

from app.authority import read_bundle, signed_by
from app.certs.controller import REGISTRATION, Controller, Names
from app.certs.kube import CONFLICT, Kube
from app.cluster.access import find_cluster
from app.errors import ApiError
from app.service import now
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process, wait_until
from tests.e2e.stage import DEPLOY, SOON_SECONDS, Service, grant, plain_pod, serving

SECRETS = "/api/v1/namespaces/gpu-usher/secrets"
MUTATING = f"{REGISTRATION}mutatingwebhookconfigurations/gpu-usher"
VALIDATING = f"{REGISTRATION}validatingwebhookconfigurations/gpu-usher"
WAIT_SECONDS = 8.0
"""Instead of the minute; the mirrored mount and the service take up to 5.3 s to serve a new leaf."""
PODS = "/api/v1/namespaces/default/pods?dryRun=All"
COMPONENT = DEPLOY / "components" / "self-signed"
EMPTY: Object = {"data": None, "metadata": {"annotations": None}}


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

    keeper: Process
    service: Service


@pytest.fixture(scope="module")
def prepared(plane: ControlPlane) -> ControlPlane:
    """Rights, the Lease and the empty Secrets of deploy/."""
    grant(plane)
    for name in ("rbac.yaml", "objects.yaml"):
        said = plane.kubectl("apply", "-f", str(COMPONENT / name))
        assert said.code == 0, said.err
    return plane


@pytest.fixture(scope="module")
def stage(prepared: ControlPlane) -> Iterator[Stage]:
    plane = prepared
    keeper = start_keeper(plane, "keeper")
    try:
        wait_until("there is a certificate", lambda: data(plane, "tls", "tls.crt"), SOON_SECONDS, keeper)
        mount = Mount(plane, plane.folder / "mount")
        try:
            where = mount.folder
            with serving(plane, cert=str(where / "tls.crt"), key=str(where / "tls.key")) as service:
                install_without_trust(plane, service)
                yield Stage(keeper, service)
        finally:
            mount.stop()
    finally:
        keeper.stop()


def start_keeper(plane: ControlPlane, name: str) -> Process:
    flags = [f"--kubeconfig={plane.kubeconfig('certificates')}", f"--wait-seconds={WAIT_SECONDS}", "--name=127.0.0.1"]
    command = [sys.executable, "-m", "app.cli.main", "certs", "controller", *flags]
    return Process(name, command, plane.folder / f"{name}.log")


def install_without_trust(plane: ControlPlane, service: Service) -> None:
    """Install the webhooks of deploy/, pointed at the process; whom to trust is the keeper's to write."""
    for document in yaml.safe_load_all((DEPLOY / "base" / "webhooks.yaml").read_text("utf-8")):
        for webhook in document["webhooks"]:
            webhook["clientConfig"] = {"url": service.url + webhook["clientConfig"]["service"]["path"]}
            webhook["failurePolicy"] = "Fail"
        said = plane.kubectl("apply", "-f", "-", stdin=json.dumps(document))
        assert said.code == 0, said.err


@contextmanager
def creating(plane: ControlPlane) -> Iterator[list[str]]:
    """Create GPU pods without a pause, as dry runs; gives the errors, and after the block, last, the count."""
    said: list[str] = []
    stop = threading.Event()
    count = 0

    def go() -> None:
        nonlocal count
        with plane.api.like() as api:
            while not stop.wait(0.01):
                answer = api.try_create(PODS, plain_pod("default"))
                count += 1
                if not answer.is_success:
                    said.append(answer.text[:300])

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield said
    finally:
        stop.set()
        thread.join(SOON_SECONDS)
        said.append(str(count))


def test_keeper_fills_the_secrets_and_every_caBundle(prepared: ControlPlane, stage: Stage) -> None:  # noqa: N802
    """TLS-01: with webhooks that fail closed, a pod can be created as soon as they are trusted."""
    wait_until("all places trust it", lambda: published(prepared), SOON_SECONDS, stage.keeper)

    wait_until(
        "a pod passes",
        lambda: prepared.api.try_create(PODS, plain_pod("default")).is_success,
        SOON_SECONDS,
        stage.service.process,
    )
    assert stage.service.calls("validate") > 0


def test_wiped_bundle_is_written_again(prepared: ControlPlane, stage: Stage) -> None:
    """Fault 45: a tool that applies the manifest again takes it away."""
    wait_until("all places trust it", lambda: published(prepared), SOON_SECONDS, stage.keeper)
    prepared.api.client.patch(
        MUTATING,
        content=json.dumps([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]),
        headers={"Content-Type": "application/json-patch+json"},
    ).raise_for_status()

    wait_until("it is there again", lambda: published(prepared), SOON_SECONDS, stage.keeper)


def test_rotation_breaks_no_creation_of_a_pod(prepared: ControlPlane, stage: Stage) -> None:
    """TLS-06, fault 44: asked for with the CLI, while pods are created without a pause."""
    plane = prepared
    wait_until("all places trust it", lambda: published(plane), SOON_SECONDS, stage.keeper)
    wait_until("pods pass", lambda: plane.api.try_create(PODS, plain_pod("default")).is_success, SOON_SECONDS)
    before = data(plane, "ca", "ca.crt")
    served = stage.service.metric("gpu_usher_cert_reload_total", result="success")

    with creating(plane) as said:
        command = ["certs", "rotate", f"--kubeconfig={plane.kubeconfig('admin')}"]
        asked = Process("rotate", [sys.executable, "-m", "app.cli.main", *command], plane.folder / "rotate.log")
        wait_until("two CAs are trusted", lambda: len(read_bundle(data(plane, "ca", "ca.crt"))) == 2, SOON_SECONDS)
        new = read_bundle(data(plane, "ca", "ca.crt"))[0]
        wait_until("the new one signs", lambda: signed_by(data(plane, "tls", "tls.crt"), new), SOON_SECONDS)
        wait_until(
            "its leaf is served",
            lambda: stage.service.metric("gpu_usher_cert_reload_total", result="success") >= served + 2,
            SOON_SECONDS,
        )
        wait_until("some more pods are created", lambda: published(plane), SOON_SECONDS)

    *errors, count = said
    assert asked.stop() == 0
    assert errors == []
    assert int(count) > 100
    assert new not in read_bundle(before)
    assert stage.service.metric("gpu_usher_cert_reload_total", result="error") == 0


class Watched:
    """Every version of the served leaf and of a published bundle, in the order in which they came to be."""

    def __init__(self, plane: ControlPlane) -> None:
        self.versions: list[tuple[int, str, bytes]] = []
        self._plane = plane
        self._threads = [
            threading.Thread(target=self._follow, args=args)
            for args in ((SECRETS, "gpu-usher-tls"), (f"{REGISTRATION}mutatingwebhookconfigurations", "gpu-usher"))
        ]
        for each in self._threads:
            each.start()

    def _follow(self, path: str, name: str) -> None:
        query = {"watch": "1", "fieldSelector": f"metadata.name={name}", "timeoutSeconds": "25"}
        with self._plane.api.like() as api, api.client.stream("GET", path, params=query) as answer:
            for line in answer.iter_lines():
                found = json.loads(line)["object"]
                version = int(found["metadata"]["resourceVersion"])
                if "webhooks" in found:
                    bundle = found["webhooks"][0]["clientConfig"].get("caBundle", "")
                    self.versions.append((version, "bundle", base64.b64decode(bundle)))
                elif found.get("data"):
                    self.versions.append((version, "leaf", base64.b64decode(found["data"]["tls.crt"])))

    def ended(self) -> list[tuple[int, str, bytes]]:
        for each in self._threads:
            each.join(SOON_SECONDS)
        return sorted(self.versions)


def signed_by_other(plane: ControlPlane, known: set[bytes]) -> bool:
    """Tell whether the certificate in the Secret is of a CA that was not there before."""
    leaf = data(plane, "tls", "tls.crt")
    return any(signed_by(leaf, each) for each in read_bundle(data(plane, "ca", "ca.crt")) if each not in known)


def test_two_writers_at_once_never_leave_a_leaf_untrusted(prepared: ControlPlane, stage: Stage) -> None:
    """Fault 48: without any Lease, both write what they can; resourceVersions alone keep the order."""
    plane = prepared
    stage.keeper.stop()
    wait_until("all places trust it", lambda: published(plane), 1)
    watched = Watched(plane)
    stop = threading.Event()
    conflicts = 0

    def write() -> None:
        nonlocal conflicts
        kube = Kube(find_cluster(plane.kubeconfig("certificates"), None))
        writer = Controller(kube, Names(others=("127.0.0.1",)), now, wait_seconds=0.5)
        while not stop.wait(0.05):
            try:
                writer.turn()
            except ApiError as error:
                if error.status != CONFLICT:
                    raise
                conflicts += 1
        kube.close()

    writers = [threading.Thread(target=write) for _ in range(2)]
    for each in writers:
        each.start()
    for _ in range(4):
        known = set(read_bundle(data(plane, "ca", "ca.crt")))
        plane.api.patch(f"{SECRETS}/gpu-usher-ca", {"metadata": {"annotations": {"gpu-usher.io/rotate": "now"}}})
        wait_until("a new CA signs", partial(signed_by_other, plane, known), SOON_SECONDS)
    stop.set()
    for each in writers:
        each.join(SOON_SECONDS)

    leaf = bundle = b""
    for _, kind, content in watched.ended():
        leaf, bundle = (content, bundle) if kind == "leaf" else (leaf, content)
        assert not (leaf and bundle) or any(signed_by(leaf, each) for each in read_bundle(bundle))
    assert len({content for _, kind, content in watched.versions if kind == "leaf"}) >= 5
    assert conflicts > 0


def test_old_ca_goes_after_a_leafs_life(prepared: ControlPlane, stage: Stage) -> None:
    """TLS-06, the last step, by a clock that is set forward; the lost Secret before it is mended with overlap."""
    plane = prepared
    stage.keeper.stop()
    before = read_bundle(data(plane, "ca", "ca.crt"))
    plane.api.patch(f"{SECRETS}/gpu-usher-ca", EMPTY)
    clock = [now()]
    kube = Kube(find_cluster(plane.kubeconfig("certificates"), None))
    writer = Controller(kube, Names(), lambda: clock[0], clock=lambda: clock[0].timestamp())
    counts = []

    for hours in (0, 0, 0, 1, 1, 7 * 24 + 2, 0):
        clock[0] += dt.timedelta(hours=hours)
        writer.turn()
        counts.append(len(read_bundle(data(plane, "ca", "ca.crt"))))

    kube.close()
    last = read_bundle(data(plane, "ca", "ca.crt"))
    assert [1 + len(before)] * 5 == counts[:5]
    assert counts[-1] == 1
    assert not set(last) & set(before)
    assert published(plane)


def test_second_keeper_waits_for_the_lease_and_takes_over(prepared: ControlPlane, stage: Stage) -> None:
    """Fault 48."""
    plane = prepared
    stage.keeper.stop()
    first = start_keeper(plane, "first")
    second = None
    try:
        wait_until("the first leads", lambda: '"leading"' in first.tail(), SOON_SECONDS, first)
        second = start_keeper(plane, "second")
        wait_until("the first works", lambda: published(plane), SOON_SECONDS, first)
        assert '"leading"' not in second.tail()
        first.stop()

        wait_until("the second leads", lambda: second and '"leading"' in second.tail(), SOON_SECONDS, second)
    finally:
        first.stop()
        if second is not None:
            second.stop()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", SECRETS),
        ("POST", SECRETS),
        ("DELETE", f"{SECRETS}/gpu-usher-ca"),
        ("GET", "/api/v1/namespaces/kube-system/secrets/gpu-usher-ca"),
        ("GET", "/api/v1/nodes"),
        ("GET", "/api/v1/namespaces/gpu-usher/configmaps"),
        ("DELETE", MUTATING),
        ("PUT", MUTATING),
        ("PATCH", f"{REGISTRATION}mutatingwebhookconfigurations/other"),
    ],
)
def test_keeper_may_do_nothing_else(prepared: ControlPlane, method: str, path: str) -> None:
    """INTERFACES §10, two identities."""
    answer = prepared.api.client.request(
        method,
        path,
        json={"metadata": {"name": "x"}},
        headers={
            "Authorization": "Bearer certificates-token",
            "Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json",
        },
    )

    assert answer.status_code == 403
