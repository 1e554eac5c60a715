# SPDX-License-Identifier: Apache-2.0
"""The CNCF's registry: what an image in it carries decides where its pod may run, seconds after a pod names it."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.verbs import app
from app.images.reader import ImageReader
from app.images.registry import Registries, read_access
from app.server.composition import build
from app.server.service import Service
from app.settings import Settings
from tests.builders import gpus, node_document, pod, review
from tests.controlplane.processes import wait_until
from tests.images.published import CUDA_12_4, CUDA_12_4_ARM
from tests.neighbours.programs import find
from tests.neighbours.registry import PASSWORD, USER, Registry, registry
from tests.running import Running, running

NODES = (
    node_document("old", driver="515.43.04", labels={"kubernetes.io/arch": "amd64"}),
    node_document("named", driver="535.54.03", labels={"kubernetes.io/arch": "amd64"}),
    node_document("new", driver="570.26", labels={"kubernetes.io/arch": "amd64"}),
    node_document("grace", driver="535.54.03", labels={"kubernetes.io/arch": "arm64"}),
    node_document("grace-new", driver="570.26", labels={"kubernetes.io/arch": "arm64"}),
)
SECONDS = 30.0
"""For a fact, which takes one or two on a quiet machine."""
ALL = {"old", "named", "new", "grace", "grace-new"}


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with TLS, tokens and redirects."""
    folder = find("registry")
    if isinstance(folder, str):
        pytest.skip(folder)
    with registry(folder / "registry", tmp_path_factory.mktemp("registry")) as made:
        yield made


def service(company: Registry, folder: Path, **access: Any) -> Service:
    """Build a service as `serve` does, of five nodes and this registry; `access` replaces fields of the file."""
    for name in ("certs", "secret"):
        (folder / name).mkdir(exist_ok=True)
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (folder / "secret/.dockerconfigjson").write_text(json.dumps({"auths": {company.host: {"auth": auth}}}), "ascii")
    file = {
        "registries": [company.host],
        "redirects": [company.beside.host],
        "private": [company.host, company.beside.host],
        "ca": company.ca,
        "credentials": str(folder / "secret/.dockerconfigjson"),
        **access,
    }
    (folder / "registries.yaml").write_text(json.dumps(file), "ascii")
    (folder / "nodes.json").write_text(json.dumps({"kind": "List", "items": list(NODES)}), "ascii")
    return build(
        Settings(
            snapshots=(folder / "nodes.json",),
            certs=folder / "certs",
            port=0,
            ops_port=0,
            ui_address="127.0.0.1:0",
            filter_answer="all",
            image_registries=folder / "registries.yaml",
        )
    )


def fitting(server: Running, image: str, **more: Any) -> set[str]:
    """Ask filter for the nodes that fit a pod of this image."""
    asked = {"Pod": pod(gpus(1, image=image, **more)), "NodeNames": sorted(ALL)}
    return set(server.tls.post("/scheduler/filter", json=asked).raise_for_status().json()["NodeNames"])


def images(server: Running) -> dict[str, Any]:
    status: dict[str, Any] = server.people.get("/statusz").raise_for_status().json()["images"]
    return status


def test_pod_leads_to_a_fact_and_the_fact_to_a_verdict(company: Registry, tmp_path: Path) -> None:
    company.push("team/serve", "v1", {"amd64": CUDA_12_4, "arm64": CUDA_12_4_ARM})
    image = f"{company.host}/team/serve:v1"

    with running(service(company, tmp_path)) as server:
        first = fitting(server, image)
        wait_until("the fact", lambda: fitting(server, image) != first, SECONDS)
        later = fitting(server, image)
        lifted = fitting(server, image, env=[{"name": "NVIDIA_DISABLE_REQUIRE", "value": "1"}])
        admitted = server.tls.post("/mutate", json=review(pod(gpus(1, image=image)))).json()["response"]
        metrics = server.ops.get("/metrics").text
        explained = server.people.post("/explain", json=pod(gpus(1, image=image))).json()

    assert first == ALL
    assert later == ALL - {"old", "grace"}
    assert lifted == ALL
    assert admitted["allowed"]
    assert 'gpu_usher_image_readings_total{outcome="read"} 1.0' in metrics
    assert "image's config" in json.dumps(explained)


def test_image_of_one_platform_alone_leaves_the_other_machines(company: Registry, tmp_path: Path) -> None:
    company.push("team/x86", "v1", {"amd64": ("PATH=/bin",)}, index=False)

    with running(service(company, tmp_path)) as server:
        wait_until(
            "the fact", lambda: fitting(server, f"{company.host}/team/x86:v1") == {"old", "named", "new"}, SECONDS
        )


def test_facts_are_read_anew_after_a_restart(company: Registry, tmp_path: Path) -> None:
    company.push("team/again", "v1", {"amd64": CUDA_12_4})

    for _ in range(2):
        with running(service(company, tmp_path)) as server:
            assert fitting(server, f"{company.host}/team/again:v1") == ALL
            wait_until(
                "the fact", lambda: fitting(server, f"{company.host}/team/again:v1") == {"named", "new"}, SECONDS
            )


def test_tag_that_moves_is_resolved_again(company: Registry, tmp_path: Path) -> None:
    """A tag is looked up each second here, not each hour."""
    image = f"{company.host}/team/moved:latest"
    company.push("team/moved", "latest", {"amd64": ("CUDA_VERSION=11.7.1",)})
    made = service(company, tmp_path)
    source = Registries(read_access(tmp_path / "registries.yaml"))
    made.images = ImageReader(source, made.state.images, made.metrics, resolve_seconds=1.0)

    with running(made) as server:
        fitting(server, image)
        wait_until("the first fact", lambda: images(server)["known"] == 1, SECONDS)
        before = fitting(server, image)
        company.push("team/moved", "latest", {"amd64": CUDA_12_4})
        wait_until("the moved tag", lambda: fitting(server, image) == {"named", "new"}, SECONDS)

    assert before == {"old", "named", "new"}


def test_registry_that_is_down_delays_nothing_and_is_told(company: Registry, tmp_path: Path) -> None:
    company.push("team/down", "v1", {"amd64": CUDA_12_4})
    image = f"{company.host}/team/down:v1"
    company.stop()
    try:
        with running(service(company, tmp_path)) as server:
            answers = [fitting(server, image) for _ in range(20)]
            wait_until(
                "the failure",
                lambda: company.host in images(server)["registries"],
                SECONDS,
            )
            status, metrics = images(server), server.ops.get("/metrics").text
    finally:
        company.start()

    assert answers == [ALL] * 20
    assert "Cannot connect" in status["registries"][company.host]["problem"]
    assert 'gpu_usher_image_readings_total{outcome="unreachable"}' in metrics


def test_image_verb_shows_what_an_image_carries_and_where_it_runs(
    company: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    company.push("team/shown", "v1", {"amd64": CUDA_12_4, "arm64": CUDA_12_4_ARM})
    image = f"{company.host}/team/shown:v1"
    service(company, tmp_path)
    (tmp_path / "secret/config.json").write_bytes((tmp_path / "secret/.dockerconfigjson").read_bytes())
    (tmp_path / "pod.json").write_text(json.dumps(pod(gpus(1, image=image))), "ascii")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "secret"))
    monkeypatch.setenv("SSL_CERT_FILE", company.ca)
    fleet = ["--snapshot", str(tmp_path / "nodes.json")]

    shown = CliRunner().invoke(app, ["image", image, *fleet, "-o", "json"])
    words = ["explain", "-f", str(tmp_path / "pod.json"), *fleet, "--registry", "--details"]
    explained = CliRunner().invoke(app, words)
    mutated = CliRunner().invoke(app, ["mutate", "-f", str(tmp_path / "pod.json"), *fleet, "--registry"])
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    without = CliRunner().invoke(app, ["explain", "-f", str(tmp_path / "pod.json"), *fleet, "--registry"])

    report = json.loads(shown.stdout)
    assert report["explanation"]["fits"] == 3
    assert report["architectures"] == ["amd64", "arm64"]
    assert report["variables"]["NV_CUDA_COMPAT_PACKAGE"] == "cuda-compat-12-4"
    assert "image's config, CUDA 12.4.1" in explained.output
    assert mutated.exit_code == 0
    assert f"{image} is judged by its name: " in without.output


@pytest.mark.parametrize(
    ("access", "outcome"),
    [
        ({"redirects": []}, "redirect"),
        ({"private": []}, "address"),
        ({"registries": []}, "not_allowed"),
        ({"credentials": ""}, "unauthorized"),
        ({"ca": ""}, "unreachable"),
    ],
    ids=["host of blobs is not listed", "loopback is not listed", "registry is not listed", "no credentials", "no CA"],
)
def test_what_the_operator_does_not_list_is_not_read(
    company: Registry, tmp_path: Path, access: dict[str, Any], outcome: str
) -> None:
    company.push("team/closed", "v1", {"amd64": CUDA_12_4})

    with running(service(company, tmp_path, **access)) as server:
        fitting(server, f"{company.host}/team/closed:v1")
        line = f'gpu_usher_image_readings_total{{outcome="{outcome}"}} 1.0'
        wait_until(outcome, lambda: line in server.ops.get("/metrics").text, SECONDS)
        assert fitting(server, f"{company.host}/team/closed:v1") == ALL
