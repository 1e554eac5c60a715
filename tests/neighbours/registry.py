# SPDX-License-Identifier: Apache-2.0
"""The CNCF's registry on loopback, as a company runs it: with TLS, tokens, and blobs that another host has.

A service beside it issues the tokens, and is the host to which the registry redirects for blobs: it serves them from
the registry's folder.
"""

import base64
import json
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.authorities import make_authority, write_leaf
from tests.controlplane.processes import Process, free_port, wait_until
from tests.images.fake_registry import FakeRegistry, fake_registry, send
from tests.images.published import Published, publish

USER, PASSWORD = "puller", "open-sesame"
ISSUER, SERVICE = "tokens.example", "registry.example"


@dataclass
class Registry:
    """A registry. `host` is its name in references, `beside` the service of tokens and blobs, `ca` signs both."""

    host: str
    beside: FakeRegistry
    folder: Path
    ca: str
    command: Sequence[str]
    signer: "Signer"
    process: Process | None = None

    def start(self) -> None:
        self.process = Process("registry", self.command, self.folder / "registry.log")
        with httpx.Client(verify=ssl.create_default_context(cafile=self.ca), trust_env=False) as client:
            wait_until("the registry", lambda: _answers(client, f"https://{self.host}/v2/"), 30, self.process)

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()
            self.process = None

    def push(
        self, repository: str, tag: str, environments: Mapping[str, tuple[str, ...]], index: bool = True
    ) -> Published:
        """Push an image under a tag, as `docker push` does."""
        published = publish(environments, index)
        token = self.signer.token(repository, "push", "pull")
        with httpx.Client(
            base_url=f"https://{self.host}",
            verify=ssl.create_default_context(cafile=self.ca),
            trust_env=False,
            headers={"Authorization": f"Bearer {token}"},
        ) as client:
            for digest, body in published.blobs.items():
                begun = client.post(f"/v2/{repository}/blobs/uploads/").raise_for_status()
                target = httpx.URL(urljoin(f"https://{self.host}", begun.headers["Location"])).copy_add_param(
                    "digest", digest
                )
                client.put(target, content=body).raise_for_status()
            for digest, (media_type, body) in published.manifests.items():
                name = tag if digest == published.top else digest
                headers = {"Content-Type": media_type}
                client.put(f"/v2/{repository}/manifests/{name}", content=body, headers=headers).raise_for_status()
        return published


class Signer:
    """Signs tokens as distribution/distribution registry/auth/token checks them; `certificate` is of its key."""

    def __init__(self) -> None:
        authority = make_authority("tokens")
        self._key = authority.key
        self.certificate = authority.pem
        der = x509.load_pem_x509_certificate(authority.pem.encode()).public_bytes(serialization.Encoding.DER)
        self._header = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(der).decode()]}

    def token(self, repository: str, *actions: str) -> str:
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": USER,
            "aud": SERVICE,
            "nbf": now - 60,
            "iat": now,
            "exp": now + 300,
            "jti": str(now),
            "access": [{"type": "repository", "name": repository, "actions": list(actions)}],
        }
        signed = f"{_part(json.dumps(self._header).encode())}.{_part(json.dumps(claims).encode())}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_part(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).status_code == 401
    except httpx.TransportError:
        return False


@contextmanager
def registry(program: Path, folder: Path) -> Iterator[Registry]:
    """Run a registry for a test."""
    (folder / "beside").mkdir()
    (folder / "blobs").mkdir()
    signer, authority = Signer(), make_authority("registries")
    write_leaf(authority, folder)
    (folder / "tokens.crt").write_text(signer.certificate, "ascii")
    with fake_registry(folder / "beside", Published()) as beside:
        (folder / "ca.crt").write_text(authority.pem + Path(beside.ca).read_text("ascii"), "ascii")
        beside.answers = {"/token": _tokens(signer), "/docker/registry/v2/blobs/": _blobs(folder / "blobs")}
        port = free_port()
        (folder / "config.yml").write_text(yaml.safe_dump(_config(folder, port, beside.host)), "ascii")
        made = Registry(
            f"localhost:{port}",
            beside,
            folder,
            str(folder / "ca.crt"),
            (str(program), "serve", str(folder / "config.yml")),
            signer,
        )
        try:
            made.start()
            yield made
        finally:
            made.stop()


def _config(folder: Path, port: int, beside: str) -> dict[str, Any]:
    token = {"realm": f"https://{beside}/token", "service": SERVICE, "issuer": ISSUER}
    return {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
        "http": {
            "addr": f"127.0.0.1:{port}",
            "tls": {"certificate": str(folder / "tls.crt"), "key": str(folder / "tls.key")},
        },
        "auth": {"token": {**token, "rootcertbundle": str(folder / "tokens.crt")}},
        "middleware": {"storage": [{"name": "redirect", "options": {"baseurl": f"https://{beside}"}}]},
    }


def _tokens(signer: Signer) -> Any:
    expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        scope = parse_qs(urlsplit(handler.path).query)["scope"][0]
        if handler.headers.get("Authorization") != expected:
            send(b"{}", status=401)(handler)
            return
        send(json.dumps({"token": signer.token(scope.split(":")[1], "pull"), "expires_in": 300}).encode())(handler)

    return answer


def _blobs(folder: Path) -> Any:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        file = (folder / urlsplit(handler.path).path.lstrip("/")).resolve()
        known = file.is_relative_to(folder.resolve()) and file.is_file()
        send(file.read_bytes() if known else b"", status=200 if known else 404)(handler)

    return answer
