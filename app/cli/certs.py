# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher certs`: issues, rotates and shows serving certificates; keeps those of a cluster."""

import asyncio
import base64
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.markup import escape

from app.cli.options import ClusterOptions, refuse_several
from app.cli.output import show
from app.cli.probes import run_controller
from app.cli.source import load_of, telling
from app.cluster.apiserver import MERGE, ApiServer, read_object
from app.telemetry.logs import now
from app.tls.authority import LOCAL_NAMES, service_names
from app.tls.certificate_report import CertificateTexts, DescribedCertificate, describe, problems
from app.tls.controller import ROTATE, Controller, Names
from app.tls.pem import read_bundle, read_certificate, read_file
from app.tls.serving_certificates import issue_if_needed
from app.values.errors import ApiError, BadInput

ADDRESS_SECONDS = 10
"""Limit of one TLS handshake."""

Folder = Annotated[Path, typer.Option("--certs", help="Directory with ca.crt, tls.crt, tls.key.")]


@dataclass(frozen=True, slots=True)
class CertificateCheck:
    """A certificate, the CAs that may have signed it, and its problems, the worst first."""

    certificate: DescribedCertificate
    trusted: tuple[DescribedCertificate, ...]
    problems: tuple[str, ...]


def issue(*, folder: Path, name: list[str] | None, namespace: str, service: str, output: str) -> None:
    names = (*LOCAL_NAMES, *service_names(service, namespace), *(name or ()))
    issue_if_needed(folder, now(), tuple(dict.fromkeys(names)))
    _show(_files(folder), None, output)


def rotate(*, folder: Path | None, cluster: ClusterOptions, namespace: str) -> None:
    refuse_several(("--certs", folder), ("--kubeconfig or --context", cluster.given))
    if folder is not None:
        issue_if_needed(folder, now(), rotate=True)
        print(f"{folder}/ca.crt has a new CA beside the old; `serve`, or `certs issue` after a minute, does the rest")
        return
    load, change = load_of(cluster), {"metadata": {"annotations": {ROTATE: now().isoformat(timespec="seconds")}}}

    async def request() -> None:
        async with ApiServer(load) as server:
            await server.patch(Names(namespace).secret("ca"), change, MERGE)

    with telling(cluster):
        asyncio.run(request())
    print("requested: the controller creates a new CA within seconds; see `certs show --secret gpu-usher-tls`")


def show_(
    *,
    folder: Path | None,
    secret: str | None,
    url: str | None,
    ca: Path | None,
    cluster: ClusterOptions,
    namespace: str,
    output: str,
) -> None:
    refuse_several(("--certs", folder), ("--secret", secret), ("--url", url))
    if cluster.given and not secret:
        raise BadInput("certs show: got --kubeconfig or --context without --secret, wants the name of a Secret too")
    server_name = None
    if url is not None:
        server_name, texts = _address(url)
    elif secret is not None:
        texts = _secret(cluster, namespace, secret)
    else:
        texts = _files(folder or Path("certs"))
    if ca is not None:
        texts = CertificateTexts(texts.certificate, texts.key, _read(ca))
    raise typer.Exit(1 if _show(texts, server_name, output) else 0)


def controller(
    *,
    cluster: ClusterOptions,
    namespace: str,
    service: str,
    name: list[str] | None,
    wait_seconds: float,
    probe_port: int | None,
) -> None:
    server = ApiServer(load_of(cluster))
    names = Names(namespace, service, tuple(name or ()))
    keeper = Controller(server, names, now, wait_seconds=wait_seconds)
    run_controller(keeper, server, probe_port)


def _files(folder: Path) -> CertificateTexts:
    ca = folder / "ca.crt"
    return CertificateTexts(_read(folder / "tls.crt"), _read(folder / "tls.key"), _read(ca) if ca.exists() else None)


def _secret(cluster: ClusterOptions, namespace: str, name: str) -> CertificateTexts:
    path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
    with telling(cluster):
        secret = asyncio.run(read_object(load_of(cluster), path))
    if secret is None:
        raise ApiError(404, f"Secret {namespace}/{name} is not there, wants one of type kubernetes.io/tls")
    try:
        data = {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}
    except ValueError as error:
        raise BadInput(f"{path}: {error}: wants base64") from error
    return CertificateTexts(data.get("tls.crt", b""), data.get("tls.key", b""), data.get("ca.crt"))


def _address(url: str) -> tuple[str, CertificateTexts]:
    parts = urlsplit(url if "//" in url else f"https://{url}")
    host = parts.hostname
    try:
        if host is None or parts.scheme != "https":
            raise ValueError("wants https://host:port")
        pem = ssl.get_server_certificate((host, parts.port or 443), timeout=ADDRESS_SECONDS)
    except (OSError, ValueError) as error:
        raise BadInput(f"--url {url[:100]}: {error}") from error
    return host, CertificateTexts(pem.encode())


def _read(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}: wants a readable file") from error
    except ValueError as error:
        raise BadInput(f"{path}: {error}: wants PEM") from error


def _show(texts: CertificateTexts, server_name: str | None, output: str) -> tuple[str, ...]:
    """Print a certificate and the CAs that may have signed it; return its problems."""
    try:
        leaf = describe(read_certificate(texts.certificate))
        found_problems = tuple(problems(texts, now(), server_name))
    except ValueError as error:
        raise BadInput(f"the certificate: {error}") from error
    trusted = tuple(describe(read_certificate(ca)) for ca in read_bundle(texts.bundle or b""))
    check = CertificateCheck(leaf, trusted, found_problems)
    show(check, output, lambda console: _print(console, check))
    return found_problems


def _print(console: Console, check: CertificateCheck) -> None:
    leaf = check.certificate
    console.print(f"certificate  {leaf.subject}, signed by {leaf.signed_by}", markup=False)
    console.print(f"valid        {leaf.begins:%Y-%m-%d %H:%M}Z to {leaf.ends:%Y-%m-%d %H:%M}Z", markup=False)
    console.print(f"names        {', '.join(leaf.names)}", markup=False)
    for ca in check.trusted:
        console.print(f"trusted      {ca.subject}, until {ca.ends:%Y-%m-%d %H:%M}Z", markup=False)
    for problem in check.problems:
        console.print(f"[red]wrong[/]        {escape(problem)}")
