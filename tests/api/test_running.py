# SPDX-License-Identifier: Apache-2.0
"""The whole service on loopback: verified TLS, probes, the web UI listener, and edits of policies while it serves."""

import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.cluster.files import shipped_policies
from tests.builders import make_service, pod, policy, review
from tests.running import Running, running

PATIENCE_SECONDS = 60
"""Bound on waiting for an edit. The promise is 2 s and the usual time 0.1 s; a busy machine may need more."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(make_service(tmp_path_factory.mktemp("certs"))) as clients:
        yield clients


def seen(condition: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < PATIENCE_SECONDS
        time.sleep(0.02)


def test_verbs_answer_over_tls_that_verifies(demo: Running) -> None:
    """F99."""
    answer = demo.tls.post("/mutate", json=review(pod()))

    assert answer.status_code == 200
    assert answer.json()["response"]["allowed"] is True


def test_tls_below_1_2_is_refused(demo: Running) -> None:
    """F99, TLS-07."""
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    port = demo.tls.base_url.port

    with socket.create_connection(("127.0.0.1", port or 0), 5) as plain, pytest.raises((ssl.SSLError, OSError)):
        old.wrap_socket(plain).close()


def edited(folder: Path, text: str) -> None:
    """Change a mounted ConfigMap as the kubelet does: write new data aside, then rename the ..data link over."""
    version = folder / f"..{time.monotonic_ns()}"
    version.mkdir()
    for file in shipped_policies().glob("*.yaml"):
        shutil.copy(file, version)
    (version / "default.yaml").write_text(text, "utf-8")
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").replace(folder / "..data")


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    folder = tmp_path / "mounted"
    folder.mkdir()
    edited(folder, (shipped_policies() / "default.yaml").read_text("utf-8"))
    for file in shipped_policies().glob("*.yaml"):
        (folder / file.name).symlink_to(f"..data/{file.name}")
    return folder


def test_broken_edit_leaves_the_last_good_policies_and_shows_where(mounted: Path, tmp_path: Path) -> None:
    """F76, CFG-01, CFG-02, fault 12: no request fails, the error has its place, and the repaired file counts."""
    service = make_service(tmp_path / "certs", policies=mounted)
    with running(service) as clients:

        def class_given() -> str:
            response = clients.tls.post("/mutate", json=review(pod(annotations={"products": "H100"})))
            assert response.status_code == 200
            return str(response.json()["response"]["auditAnnotations"]["policies"])

        def error() -> str | None:
            error: str | None = clients.ops.get("/readyz").json()["policies"]["error"]
            return error

        assert class_given() == "default"
        edited(mounted, policy("default", "placement: {produts: {}}"))
        seen(lambda: class_given() == "default" and error() is not None)
        broken = error()
        ready = clients.ops.get("/readyz")
        edited(mounted, policy("mended", "priority: 0"))
        seen(lambda: class_given() == "mended")

        assert broken is not None
        assert broken.startswith("default.yaml:4:20: spec.placement.produts: unknown field, did you mean products?")
        assert (ready.status_code, clients.people.get("/statusz").json()["policies"]["error"]) == (200, None)
