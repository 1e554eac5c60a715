# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher certs`: make, rotate and look at serving certificates; keep those of a cluster."""

import base64
import signal
import ssl
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.markup import escape

from app.cli.help import Verb, VerbGroup
from app.cli.output import Output, show
from app.cli.probes import answering
from app.cluster.access import find_cluster
from app.telemetry.clock import now
from app.telemetry.logs import start_logging
from app.tls.authority import LOCAL_NAMES, service_names
from app.tls.ca_rotation import WAIT_SECONDS
from app.tls.certificate_report import CertificateTexts, DescribedCertificate, describe, problems
from app.tls.controller import ROTATE, Controller, Names
from app.tls.kube_objects import MERGE, KubeClient
from app.tls.pem import read_bundle, read_certificate, read_file
from app.tls.serving_certificates import issue_if_needed
from app.values.errors import ApiError, BadInput

certs = typer.Typer(
    help="Make, rotate and look at serving certificates; keep those of a cluster.", no_args_is_help=True, cls=VerbGroup
)
ADDRESS_SECONDS = 10
"""Bound on one TLS handshake."""

Folder = Annotated[Path, typer.Option("--certs", help="Directory with ca.crt, tls.crt, tls.key.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="The cluster; in a pod its service account does.")]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; its current one by default.")]
Namespace = Annotated[str, typer.Option(envvar="GPU_USHER_NAMESPACE", help="Where gpu-usher runs.")]


@dataclass(frozen=True, slots=True)
class CertificateCheck:
    """A certificate, those who may have signed it, and what is wrong with it, worst first."""

    certificate: DescribedCertificate
    trusted: tuple[DescribedCertificate, ...]
    problems: tuple[str, ...]


@certs.command(cls=Verb)
def issue(
    folder: Folder = Path("certs"),
    name: Annotated[list[str] | None, typer.Option(help="DNS name or address besides those of the Service.")] = None,
    namespace: Namespace = "gpu-usher",
    service: Annotated[str, typer.Option(help="Name of the Service.")] = "gpu-usher",
    output: Output = "text",
) -> None:
    """Make a CA and a certificate in a directory, unless those there are young and right."""
    names = (*LOCAL_NAMES, *service_names(service, namespace), *(name or ()))
    issue_if_needed(folder, now(), tuple(dict.fromkeys(names)))
    _show(_files(folder), None, output)


@certs.command(cls=Verb)
def rotate(
    folder: Annotated[Path | None, typer.Option("--certs", help="Rotate in a directory, not in a cluster.")] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "gpu-usher",
) -> None:
    """Begin a new CA now: both are trusted, after a minute the new one signs, after a week the old one goes."""
    if folder is not None:
        issue_if_needed(folder, now(), rotate=True)
        print(f"{folder}/ca.crt has a new CA beside the old; `serve`, or `certs issue` after a minute, does the rest")
        return
    kube = KubeClient(find_cluster(kubeconfig, context))
    path = Names(namespace).secret("ca")
    kube.patch(path, {"metadata": {"annotations": {ROTATE: now().isoformat(timespec="seconds")}}}, MERGE)
    kube.close()
    print("asked: the controller begins within seconds; `certs show --secret gpu-usher-tls` tells")


@certs.command("show", cls=Verb)
def show_(
    folder: Folder = Path("certs"),
    secret: Annotated[str | None, typer.Option(help="A Secret of the namespace, as gpu-usher-tls.")] = None,
    url: Annotated[str | None, typer.Option(help="An https address; --ca says whom to trust.")] = None,
    ca: Annotated[Path | None, typer.Option(help="Whom clients trust; else the ca.crt found beside.")] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "gpu-usher",
    output: Output = "text",
) -> None:
    """Show dates, names and signer of a directory, a Secret or an address; exit 1 if expired or mismatched."""
    asked = None
    if url is not None:
        asked, found = _address(url)
    elif secret is not None:
        found = _secret(KubeClient(find_cluster(kubeconfig, context)), namespace, secret)
    else:
        found = _files(folder)
    if ca is not None:
        found = CertificateTexts(found.certificate, found.key, _read(ca))
    raise typer.Exit(1 if _show(found, asked, output) else 0)


@certs.command(cls=Verb)
def controller(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "gpu-usher",
    service: Annotated[str, typer.Option(help="Name of the Service that the webhooks call.")] = "gpu-usher",
    name: Annotated[list[str] | None, typer.Option(help="Name or address besides, as 127.0.0.1 for a sidecar.")] = None,
    wait_seconds: Annotated[float, typer.Option(help="How long a new CA is published before it signs.")] = WAIT_SECONDS,
    probe_port: Annotated[int | None, typer.Option(help="Answer /livez and /readyz there; else nowhere.")] = None,
) -> None:
    """Keep the CA, the certificate and the webhooks' caBundle of a cluster; the only part of gpu-usher that writes."""
    kube = KubeClient(find_cluster(kubeconfig, context))
    keeper = Controller(kube, Names(namespace, service, tuple(name or ())), now, wait_seconds=wait_seconds)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    writer = start_logging(not sys.stderr.isatty())
    try:
        with answering(probe_port, {"/livez": keeper.alive, "/readyz": keeper.ready}):
            keeper.run(stop)
    finally:
        kube.close()
        writer.finish()


def _files(folder: Path) -> CertificateTexts:
    ca = folder / "ca.crt"
    return CertificateTexts(_read(folder / "tls.crt"), _read(folder / "tls.key"), _read(ca) if ca.exists() else None)


def _secret(kube: KubeClient, namespace: str, name: str) -> CertificateTexts:
    path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
    found = kube.read(path)
    kube.close()
    if found is None:
        raise ApiError(404, f"{path}: not there")
    try:
        data = {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    except ValueError as error:
        raise BadInput(f"{path}: {error}: wants base64") from error
    return CertificateTexts(data.get("tls.crt", b""), data.get("tls.key", b""), data.get("ca.crt"))


def _address(url: str) -> tuple[str, CertificateTexts]:
    parts = urlsplit(url if "//" in url else f"https://{url}")
    host = parts.hostname
    try:
        if host is None or parts.scheme != "https":
            raise ValueError("wants https://host:port")
        shown = ssl.get_server_certificate((host, parts.port or 443), timeout=ADDRESS_SECONDS)
    except (OSError, ValueError) as error:
        raise BadInput(f"--url {url[:100]}: {error}") from error
    return host, CertificateTexts(shown.encode())


def _read(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}: wants a readable file") from error
    except ValueError as error:
        raise BadInput(f"{path}: {error}: wants PEM") from error


def _show(found: CertificateTexts, asked: str | None, output: str) -> tuple[str, ...]:
    """Print a certificate and those who may have signed it; gives what is wrong."""
    try:
        leaf = describe(read_certificate(found.certificate))
        wrong = tuple(problems(found, now(), asked))
    except ValueError as error:
        raise BadInput(f"the certificate: {error}") from error
    trusted = tuple(describe(read_certificate(each)) for each in read_bundle(found.bundle or b""))
    shown = CertificateCheck(leaf, trusted, wrong)
    show(shown, output, lambda console: _print(console, shown))
    return wrong


def _print(console: Console, shown: CertificateCheck) -> None:
    leaf = shown.certificate
    console.print(f"certificate  {leaf.subject}, signed by {leaf.signed_by}", markup=False)
    console.print(f"valid        {leaf.begins:%Y-%m-%d %H:%M}Z to {leaf.ends:%Y-%m-%d %H:%M}Z", markup=False)
    console.print(f"names        {', '.join(leaf.names)}", markup=False)
    for each in shown.trusted:
        console.print(f"trusted      {each.subject}, until {each.ends:%Y-%m-%d %H:%M}Z", markup=False)
    for words in shown.problems:
        console.print(f"[red]wrong[/]        {escape(words)}")
