# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher image` shows what an image carries and where it runs, with the credentials that docker has."""

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.verbs import app
from app.values.errors import BadInput
from tests.builders import node_document
from tests.cli.test_answers import complaints
from tests.images.fake_registry import FakeRegistry, fake_registry, send
from tests.images.published import CUDA_12_4, CUDA_12_4_ARM, publish

RUN = CliRunner()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    """A registry whose CA the system trusts, and a fleet of three machines."""
    nodes = [
        node_document("old", driver="515.43.04", labels={"kubernetes.io/arch": "amd64"}),
        node_document("new", driver="570.26", labels={"kubernetes.io/arch": "amd64"}),
        node_document("cpu", product=None, driver=None, offers={}),
    ]
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": nodes}), "ascii")
    with fake_registry(tmp_path, publish({"amd64": CUDA_12_4, "arm64": CUDA_12_4_ARM})) as made:
        monkeypatch.setenv("SSL_CERT_FILE", made.ca)
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
        yield made


def test_answer_says_where_the_image_runs(fake: FakeRegistry, tmp_path: Path) -> None:
    words = ["image", fake.image, "--snapshot", str(tmp_path / "nodes.json")]

    text, answer = RUN.invoke(app, words), RUN.invoke(app, [*words, "-o", "json"])

    assert "NVIDIA_REQUIRE_CUDA=cuda>=12.4" in text.stdout
    assert "image fits on 1 of 3 nodes" in text.stdout
    assert complaints("image", json.loads(answer.stdout)) == []
    assert json.loads(answer.stdout)["explanation"]["fits"] == 1


def test_image_that_cannot_be_read_is_bad_input(fake: FakeRegistry, tmp_path: Path) -> None:
    fleet = ["--snapshot", str(tmp_path / "nodes.json")]

    absent = RUN.invoke(app, ["image", f"{fake.host}/team/serve:none", *fleet])
    wrong = RUN.invoke(app, ["image", "No/Reference", *fleet])

    assert isinstance(absent.exception, BadInput)
    assert "HTTP 404 for team/serve" in str(absent.exception)
    assert "wants one such as" in str(wrong.exception)


def test_credentials_are_those_in_the_files_of_docker_and_podman(fake: FakeRegistry, tmp_path: Path) -> None:
    wanted = "Basic " + base64.b64encode(b"user:word").decode()
    serve, auths = fake.serve, json.dumps({"auths": {fake.host: {"auth": wanted[6:]}}, "credsStore": "desktop"})

    def answer(handler: BaseHTTPRequestHandler) -> None:
        closed = handler.headers.get("Authorization") != wanted
        (send(b"", status=401, WWW_Authenticate='Basic realm="r"') if closed else serve)(handler)

    fake.answers = {"/v2/": answer}
    words = ["image", fake.image, "--snapshot", str(tmp_path / "nodes.json")]
    without = RUN.invoke(app, words)
    (tmp_path / "auth.json").write_text(auths, "ascii")
    podman = RUN.invoke(app, words)
    (tmp_path / "auth.json").rename(tmp_path / "config.json")
    docker = RUN.invoke(app, words)

    assert "wants credentials" in str(without.exception)
    assert [podman.exit_code, docker.exit_code] == [0, 0]
