# SPDX-License-Identifier: Apache-2.0
"""Reading an image ends in time, goes nowhere that is not listed, and tells why it failed."""

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from app.images.documents import Reference, credential_for, read_credentials, read_reference
from app.images.registry import Registries, RegistryAccess, may_connect, read_access
from app.knowledge.image_configs import ImageFacts
from app.values.errors import BadInput, SourceError
from tests.images.fake_registry import Answer, FakeRegistry, endless, fake_registry, redirect, send, slow
from tests.images.published import CUDA_12_4, CUDA_12_4_ARM, digest_of, facts, publish

METADATA = "https://169.254.169.254/latest/meta-data/iam/security-credentials/"


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeRegistry]:
    with fake_registry(tmp_path, publish({"amd64": CUDA_12_4, "arm64": CUDA_12_4_ARM})) as made:
        yield made


def access(
    fake: FakeRegistry, redirects: frozenset[str] = frozenset(), private: frozenset[str] = frozenset()
) -> RegistryAccess:
    hosts = frozenset({fake.host})
    return RegistryAccess(registries=hosts, redirects=redirects, private=hosts | private, ca=fake.ca)


def read(access: RegistryAccess, image: str, known: ImageFacts | None = None, seconds: float = 20.0) -> ImageFacts:
    async def once() -> ImageFacts:
        registries = Registries(access, seconds)
        try:
            return await registries.read(image, known)
        finally:
            await registries.close()

    return asyncio.run(once())


def refused(access: RegistryAccess, image: str, seconds: float = 20.0) -> SourceError:
    with pytest.raises(SourceError) as caught:
        read(access, image, seconds=seconds)
    return caught.value


def test_index_and_configs_of_both_architectures_are_read(fake: FakeRegistry) -> None:
    expected = facts(fake.published.top, amd64=CUDA_12_4, arm64=CUDA_12_4_ARM)

    assert read(access(fake), fake.image) == expected
    assert read(access(fake), f"{fake.host}/team/serve@{fake.published.top}") == expected


def test_manifest_without_index_is_read(tmp_path: Path) -> None:
    with fake_registry(tmp_path, publish({"amd64": CUDA_12_4}, index=False)) as fake:
        assert read(access(fake), fake.image) == facts(fake.published.top, amd64=CUDA_12_4)


def test_tag_whose_digest_is_known_costs_one_head(fake: FakeRegistry) -> None:
    known = facts(fake.published.top)

    assert read(access(fake), fake.image, known) is known
    assert [method for method, _, _ in fake.asked] == ["HEAD"]


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        pytest.param({"/v1": send(b" " * (10 << 20))}, "too_large", id="manifest of 10 MB"),
        pytest.param({"/v1": endless}, "too_large", id="10 MB without a length"),
        pytest.param({"/blobs/": endless}, "too_large", id="config of 10 MB"),
        pytest.param({"/v1": slow}, "timeout", id="a byte now and then"),
        pytest.param({"/v1": send(b"{}", digest="sha256:" + "0" * 64)}, "digest", id="another manifest"),
        pytest.param({"/blobs/": send(b'{"os": "linux"}')}, "digest", id="another config"),
        pytest.param({"/v1": redirect(METADATA)}, "redirect", id="to a metadata address"),
        pytest.param({"/v1": redirect("https://10.0.0.1/x")}, "redirect", id="to a private address"),
        pytest.param({"/v1": redirect("http://localhost/x")}, "redirect", id="to plain HTTP"),
        pytest.param({"/v1": redirect("https://user@localhost/x")}, "redirect", id="with a user name"),
        pytest.param({"/v1": redirect("https://[oops/")}, "redirect", id="to no URL"),
        pytest.param({"/v1": redirect("v1")}, "redirect", id="a loop"),
        pytest.param({"/v1": send(b"", status=404)}, "not_found", id="no such tag"),
        pytest.param({"/v1": send(b"", status=403)}, "unauthorized", id="forbidden"),
        pytest.param({"/v1": send(b"", status=401)}, "unauthorized", id="no challenge"),
        pytest.param(
            {"/v1": send(b"", status=401, WWW_Authenticate=f'Bearer realm="{METADATA}"')},
            "redirect",
            id="a token from a metadata address",
        ),
        pytest.param({"/v1": send(b"", status=429)}, "http_error", id="too many requests"),
        pytest.param({"/v1": send(b"[" * 500_000)}, "malformed", id="deep JSON"),
        pytest.param({"/v1": send(b"\xff\xfe")}, "malformed", id="no text"),
        pytest.param({"/v1": send(b'{"manifests": [{"digest": "sha256:../../x"}]}')}, "malformed", id="no digest"),
        pytest.param({"/v1": send(b'{"layers": []}')}, "malformed", id="no image"),
        pytest.param(
            {"/v1": send(json.dumps({"manifests": [{"digest": digest_of(b"")}] * 65}).encode())},
            "malformed",
            id="many platforms",
        ),
    ],
)
def test_attack_ends_with_its_outcome(fake: FakeRegistry, answers: dict[str, Answer], outcome: str) -> None:
    fake.answers = answers

    error = refused(access(fake), fake.image, seconds=1.0 if outcome == "timeout" else 20.0)

    assert error.outcome == outcome
    assert "security-credentials" not in str(error)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "[::1]", "localhost"])
def test_listed_registry_with_a_private_address_is_not_read_unless_that_is_listed(
    fake: FakeRegistry, host: str
) -> None:
    at = f"{host}:{fake.host.rpartition(':')[2]}"
    only = RegistryAccess(frozenset({at}), frozenset(), frozenset(), fake.ca)

    error = refused(only, f"{at}/team/serve:v1")

    assert error.outcome == "address"
    assert not fake.asked


@pytest.mark.parametrize(
    ("address", "listed", "expected"),
    [
        ("8.8.8.8", False, True),
        ("2606:4700::1111", False, True),
        ("10.1.2.3", False, False),
        ("10.1.2.3", True, True),
        ("127.0.0.1", False, False),
        ("100.64.0.1", False, False),
        ("0.0.0.0", True, False),
        ("169.254.169.254", True, False),
        ("::ffff:169.254.169.254", True, False),
        ("::ffff:10.0.0.1", False, False),
        ("64:ff9b::a9fe:a9fe", True, False),
        ("2002:a9fe:a9fe::1", True, False),
        ("fe80::1%eth0", True, False),
        ("fd00:ec2::254", True, False),
        ("fd00::1", True, True),
        ("100.100.100.200", True, False),
        ("168.63.129.16", False, False),
        ("224.0.0.1", True, False),
    ],
)
def test_addresses_that_may_be_connected_to(address: str, listed: bool, expected: bool) -> None:
    assert may_connect(address, listed) is expected


def test_registry_that_is_not_listed_is_not_asked(fake: FakeRegistry) -> None:
    assert refused(RegistryAccess(), fake.image).outcome == "not_allowed"
    assert refused(access(fake), "nginx").outcome == "not_allowed"
    assert refused(access(fake), "UPPER/case").outcome == "not_allowed"
    assert not fake.asked


def test_certificate_of_another_authority_is_refused(fake: FakeRegistry) -> None:
    error = refused(replace(access(fake), ca=""), fake.image)

    assert error.outcome == "unreachable"
    assert not fake.asked


def test_credentials_go_to_the_registry_and_to_no_host_that_it_refers_to(fake: FakeRegistry, tmp_path: Path) -> None:
    """The second registry stands for one's storage of blobs."""
    config = next(iter(fake.published.blobs))
    (tmp_path / "storage").mkdir()
    with fake_registry(tmp_path / "storage", fake.published) as storage:
        authorities = "".join(Path(each.ca).read_text("ascii") for each in (fake, storage))
        (tmp_path / "both.crt").write_text(authorities, "ascii")
        fake.answers = {
            "/token": send(b'{"token": "t0"}'),
            config: redirect(f"https://{storage.host}/v2/team/serve/blobs/{config}"),
        }
        challenge = send(
            b"", status=401, WWW_Authenticate=f'Bearer realm="https://{fake.host}/token",service="r",scope="x"'
        )
        serve = fake.serve
        fake.answers["/manifests/"] = lambda one: (
            serve(one) if one.headers.get("Authorization") == "Bearer t0" else challenge(one)
        )
        login = base64.b64encode(b"user:word").decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {fake.host: {"auth": login}}}), "ascii")
        both = replace(
            access(fake, frozenset({storage.host}), frozenset({storage.host})),
            ca=str(tmp_path / "both.crt"),
            credentials=str(tmp_path / "config.json"),
        )

        known = read(both, fake.image)

    assert known is not None
    assert [authorization for _, _, authorization in storage.asked] == [""]
    token = [(path, authorization) for _, path, authorization in fake.asked if "/token" in path]
    assert token == [("/token?scope=repository:team/serve:pull&service=r", f"Basic {login}")]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("pytorch", Reference("docker.io", "library/pytorch", "latest", False)),
        ("vllm/vllm-openai:v0.11.0", Reference("docker.io", "vllm/vllm-openai", "v0.11.0", False)),
        ("index.docker.io/a/b", Reference("docker.io", "a/b", "latest", False)),
        ("nvcr.io/nvidia/pytorch:24.05-py3", Reference("nvcr.io", "nvidia/pytorch", "24.05-py3", False)),
        ("localhost/x", Reference("localhost", "x", "latest", False)),
        ("r.example:5000/a/b:c@sha256:" + "a" * 64, Reference("r.example:5000", "a/b", "sha256:" + "a" * 64, True)),
        ("[::1]:5000/a", Reference("[::1]:5000", "a", "latest", False)),
    ],
)
def test_reference_is_read_as_runtimes_do(image: str, expected: Reference) -> None:
    assert read_reference(image) == expected


@pytest.mark.parametrize(
    "image", ["", "A/b", "a/../b", "r.example/a?x=1", "r.example/a#b", "a b", "a:", "u:p@r.example/a", "a" * 2000]
)
def test_other_texts_are_no_references(image: str) -> None:
    with pytest.raises(SourceError):
        read_reference(image)


def test_credentials_are_those_of_the_longest_prefix() -> None:
    encoded = base64.b64encode(b"hub:h").decode()
    document = {
        "auths": {
            "https://index.docker.io/v1/": {"auth": encoded},
            "r.example": {"username": "all", "password": "a"},
            "r.example/team": {"username": "team", "password": "t"},
            "helper.example": {},
            "broken.example": {"auth": "%"},
        }
    }
    found = read_credentials(json.dumps(document).encode())

    assert credential_for(found, read_reference("pytorch")) == "hub:h"
    assert credential_for(found, read_reference("r.example/team/x")) == "team:t"
    assert credential_for(found, read_reference("r.example/teams/x")) == "all:a"
    assert credential_for(found, read_reference("helper.example/x")) == ""


def test_operators_file_is_read_strictly(tmp_path: Path) -> None:
    file = tmp_path / "registries.yaml"
    file.write_text("registries: [nvcr.io]\nredirects: []\n", "ascii")
    assert read_access(file) == RegistryAccess(frozenset({"nvcr.io"}))

    for text in ("registry: [nvcr.io]", "registries: nvcr.io", "credentials: /no/such/file"):
        file.write_text(text, "ascii")
        with pytest.raises(BadInput):
            read_access(file)
