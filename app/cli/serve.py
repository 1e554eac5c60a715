# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher serve`: runs the service, and prints its addresses and what to try."""

import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
import uvloop
from rich.console import Console

from app.cli.source import refuse_several
from app.demo.notation import fleet_names
from app.server.composition import build
from app.server.listeners import Addresses, Listeners
from app.server.process import raise_descriptor_limit, return_large_blocks
from app.server.service import Service
from app.settings import SHORTLIST, FilterAnswer, Recount, Role, Settings
from app.telemetry.logs import start_logging
from app.values.errors import BadInput

POD_TO_TRY = {
    "metadata": {"annotations": {"gpu-usher.io/products": "A10"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "nvcr.io/nvidia/pytorch:24.05-py3",
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }
        ]
    },
}


def _flag(help_text: str, name: str, **more: Any) -> typer.models.OptionInfo:
    variable = f"GPU_USHER_{name.upper().replace('-', '_')}"
    option: typer.models.OptionInfo = typer.Option(f"--{name}", envvar=variable, help=help_text, **more)
    return option


def serve(
    demo: Annotated[bool, _flag("Serve a sample fleet.", "demo")] = False,
    demo_fleet: Annotated[
        str,
        _flag(f"The sample fleet of --demo: {', '.join(fleet_names())}.", "demo-fleet", autocompletion=fleet_names),
    ] = "mixed",
    snapshot: Annotated[
        list[Path] | None,
        _flag("Serve a file of `kubectl get nodes,pods,namespaces,runtimeclasses -A -o json`.", "snapshot"),
    ] = None,
    policies: Annotated[Path | None, _flag("Directory of policies; the shipped ones by default.", "policies")] = None,
    knowledge: Annotated[
        Path | None, _flag("Directory of your own fact tables, laid over the shipped ones.", "knowledge")
    ] = None,
    role: Annotated[str, _flag("all, admission, extender or controller.", "role")] = "all",
    kubeconfig: Annotated[
        Path | None, _flag("Follow the cluster of this kubeconfig; in a pod its service account is used.", "kubeconfig")
    ] = None,
    context: Annotated[str | None, _flag("Context of the kubeconfig; its current one by default.", "context")] = None,
    namespace: Annotated[str, _flag("Our own namespace, for policies in ConfigMaps.", "namespace")] = "gpu-usher",
    host: Annotated[
        str | None, _flag("Address of the TLS and operations listeners; loopback, or :: with a live cluster.", "host")
    ] = None,
    port: Annotated[int, _flag("Port of the TLS listener.", "port")] = 8443,
    ops_host: Annotated[
        str | None, _flag("Address of the operations listener; that of --host by default.", "ops-host")
    ] = None,
    ops_port: Annotated[int, _flag("Port of the operations listener.", "ops-port")] = 8080,
    ui_address: Annotated[str, _flag("Address of the web UI listener, or off.", "ui-address")] = "127.0.0.1:8081",
    scheduler_address: Annotated[
        str, _flag("Loopback address for a scheduler in the same pod, over plain HTTP, or off.", "scheduler-address")
    ] = "off",
    explain_address: Annotated[
        str,
        _flag(
            "Address for kube-apiserver's aggregation layer, which asks for tenants' explanations, or off.",
            "explain-address",
        ),
    ] = "off",
    certs: Annotated[Path, _flag("Directory to make certificates in.", "certs")] = Path("certs"),
    cert: Annotated[Path | None, _flag("Your own certificate.", "cert")] = None,
    key: Annotated[Path | None, _flag("Your own key.", "key")] = None,
    client_ca: Annotated[
        Path | None, _flag("CAs of client certificates, which /scheduler/* then requires.", "client-ca")
    ] = None,
    client_subject: Annotated[
        list[str] | None, _flag("Common name that may call, with --client-ca; repeatable.", "client-subject")
    ] = None,
    require_webhook_client_cert: Annotated[
        bool, _flag("Require a client certificate of the API server too.", "require-webhook-client-cert")
    ] = False,
    prometheus: Annotated[
        str | None, _flag("URL of a Prometheus that has DCGM's metrics: the health and the use of GPUs.", "prometheus")
    ] = None,
    prometheus_token_file: Annotated[
        Path | None, _flag("File with a bearer token for the Prometheus.", "prometheus-token-file")
    ] = None,
    dcgm_exporters: Annotated[
        list[str] | None,
        _flag("URL of DCGM exporters, instead of a Prometheus; a headless Service gives all.", "dcgm-exporters"),
    ] = None,
    recount: Annotated[str, _flag("Repeat the scheduler's counts: auto, true or false.", "recount")] = "auto",
    shadow: Annotated[bool, _flag("Answer allow, no patch, all nodes; log the real verdict.", "shadow")] = False,
    events: Annotated[
        bool,
        typer.Option(
            "--events/--no-events",
            envvar="GPU_USHER_EVENTS",
            help="Write Events that say why GPU pods stay Pending, on them and on their workloads.",
        ),
    ] = False,
    decision_log: Annotated[
        str, _flag("Record decisions so that they can be replayed: a file, stdout or off.", "decision-log")
    ] = "off",
    tracing: Annotated[bool, _flag("Send OpenTelemetry traces to OTEL_EXPORTER_OTLP_ENDPOINT.", "tracing")] = False,
    filter_answer: Annotated[
        str, _flag("Answer filter with all nodes that fit, a shortlist of the best, or the best.", "filter-answer")
    ] = "shortlist",
    shortlist: Annotated[int, _flag("Most nodes of a shortlist.", "shortlist")] = SHORTLIST,
    drain_seconds: Annotated[
        float | None,
        _flag("Seconds to answer on after SIGTERM; 5 with a live cluster, else 0.", "drain-seconds"),
    ] = None,
) -> None:
    """Serve admission and scheduling: for the live cluster, the demo fleet or a snapshot."""
    refuse_several(
        ("--demo", demo),
        ("--snapshot", snapshot),
        ("--kubeconfig" if kubeconfig else "--context", kubeconfig or context),
    )
    settings = Settings(
        demo=demo,
        demo_fleet=demo_fleet,
        snapshots=tuple(snapshot or ()),
        policies=policies,
        knowledge=knowledge,
        role=_one_of(role, get_args(Role), "--role"),
        kubeconfig=kubeconfig,
        context=context,
        namespace=namespace,
        listen=host,
        port=port,
        ops_listen=ops_host,
        ops_port=ops_port,
        ui_address=ui_address,
        scheduler_address=scheduler_address,
        explain_address=explain_address,
        certs=certs,
        cert=cert,
        key=key,
        client_ca=client_ca,
        client_subjects=tuple(client_subject or ()),
        require_webhook_client_cert=require_webhook_client_cert,
        prometheus=prometheus,
        prometheus_token_file=prometheus_token_file,
        dcgm_exporters=tuple(dcgm_exporters or ()),
        recount=_one_of(recount, get_args(Recount), "--recount"),
        filter_answer=_one_of(filter_answer, get_args(FilterAnswer), "--filter-answer"),
        shortlist=shortlist,
        shadow=shadow,
        events=events,
        drain_seconds=drain_seconds,
        decision_log=decision_log,
        tracing=tracing,
        log_json=not sys.stderr.isatty() and not demo,
    )
    if bool(cert) != bool(key):
        raise BadInput("--cert, --key: got one of them, wants both or none")
    if bool(client_ca) != bool(client_subject) or (require_webhook_client_cert and not client_ca):
        raise BadInput("--client-ca, --client-subject: got one of them, wants both, or neither and no requirement")
    if shortlist < 1:
        raise BadInput(f"--shortlist: got {shortlist}, wants at least 1")
    if client_ca and scheduler_address != "off":
        raise BadInput("--scheduler-address: got --client-ca too, wants one: plain HTTP has no client certificates")
    if explain_address != "off" and not settings.live:
        raise BadInput("--explain-address: wants a live cluster, whose API server checks who asks")
    run(settings)


def run(settings: Settings) -> None:
    """Build the service and serve until a signal."""
    raise_descriptor_limit()
    return_large_blocks()
    service = build(settings)
    writer = start_logging(settings.log_json)
    try:
        uvloop.run(_serve(service))
    finally:
        if service.tracing is not None:
            service.tracing.stop()
        written = writer.finish()
    if not written:  # nobody reads stderr, and Python's own exit would wait for that thread's lock
        os._exit(0)


async def _serve(service: Service) -> None:
    listeners = Listeners(service)
    threading.Thread(target=_announce, args=(service, listeners.addresses), daemon=True).start()
    await listeners.run()


def _announce(service: Service, addresses: Addresses) -> None:
    """Announce in a thread, because a blocked stdout must not keep us from serving (fault 49)."""
    with contextlib.suppress(OSError):
        announce(service, addresses)


def announce(service: Service, addresses: Addresses) -> None:
    """Print the addresses of the listeners, and what to try."""
    console = Console(highlight=False, soft_wrap=True)
    tls, ops = map(authority, (addresses.tls, addresses.ops))
    nodes = service.nodes.values()
    policies = ", ".join(policy.name for policy in service.policies.policies)
    if service.cluster is not None:
        console.print("[bold]gpu-usher[/] is following a live cluster; /readyz says when it is in view")
    else:
        gpu_nodes = sum(node.has_gpus for node in nodes)
        console.print(f"[bold]gpu-usher[/] is serving {len(nodes)} nodes, {gpu_nodes} with GPUs")
    console.print(f"  policies                  {policies}")
    if service.absent:
        console.print(f"  [yellow]not in the snapshot       {', '.join(service.absent)}[/]")
    console.print(f"  API server and scheduler  https://{tls}   POST /mutate /validate /scheduler/filter …")
    if addresses.scheduler:
        beside = f"http://{authority(addresses.scheduler)}"
        console.print(f"  scheduler in this pod     {beside}    POST /scheduler/filter …")
    console.print(f"  probes and metrics        http://{ops}    GET /readyz /metrics")
    if addresses.web:
        web = f"http://{authority(addresses.web)}"
        console.print(f"  web UI                    {web}    a browser; POST /explain /dry-run")
    console.print("try, in another terminal:")
    if service.settings.demo:
        console.print("  make demo")
    console.print(f"  curl -s http://{ops}/readyz")
    if addresses.web:
        console.print(f"  curl -s {web}/explain -d '{json.dumps(POD_TO_TRY)}'", markup=False)


def authority(address: tuple[str, int]) -> str:
    """Write a host and a port as URLs have them: an IPv6 address stands in brackets (RFC 3986, 3.2.2)."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _one_of(value: str, choices: tuple[Any, ...], flag: str) -> Any:
    if value not in choices:
        raise BadInput(f"{flag}: got {value[:40]!r}, wants {' or '.join(choices)}")
    return value
