# SPDX-License-Identifier: Apache-2.0
"""The settings of `gpu-usher serve`: each field is a flag, its help text, and an environment variable GPU_USHER_<FLAG>.

`log_json` alone has no flag. See docs/reference/listeners.md#routes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import typer

from app.values.errors import BadInput

Role = Literal["all", "admission", "extender", "controller"]
"""Which routes of the TLS listener are served: all, those of the API server, those of kube-scheduler, or none, where
the process only writes (`events`)."""
Recount = Literal["auto", "true", "false"]
FilterAnswer = Literal["all", "shortlist"]
FLEETS = tuple(sorted(path.stem for path in Path(__file__).parent.glob("demo/fleets/*.yaml")))
SHORTLIST = 16
"""Most nodes of a shortlist by default: five in each of three zones. A guess; no more are named than a pod's soft
constraints can tell apart."""


def _flag(name: str, help_text: str, *more_names: str, **more: Any) -> Any:
    """Make an option with its environment variable."""
    variable = f"GPU_USHER_{name.upper().replace('-', '_')}"
    return typer.Option(f"--{name}", *more_names, envvar=variable, help=help_text, **more)


def _one_of(name: str, choices: tuple[str, ...], help_text: str) -> Any:
    """Make an option with a few values; others are refused before the verb runs."""

    def check(value: str) -> str:
        if value not in choices:
            raise BadInput(f"--{name}: got {value[:40]!r}, wants {' or '.join(choices)}")
        return value

    return _flag(name, help_text, callback=check, autocompletion=lambda: list(choices))


def filter_answer_of(value: str) -> FilterAnswer:
    """Check a value of --filter-answer, of this and of other commands.

    Raises BadInput.
    """
    if value in get_args(FilterAnswer):
        return cast(FilterAnswer, value)
    former = ", with `serve --shortlist 1` for one node" if value == "best" else ""
    raise BadInput(f"--filter-answer: got {value[:40]!r}, wants {' or '.join(get_args(FilterAnswer))}{former}")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process. Port 0 stands for any free port."""

    demo: Annotated[bool, _flag("demo", "Serve a sample fleet.")] = False
    demo_fleet: Annotated[
        str,
        _flag("demo-fleet", f"The sample fleet of --demo: {', '.join(FLEETS)}.", autocompletion=lambda: list(FLEETS)),
    ] = "mixed"
    snapshots: Annotated[
        tuple[Path, ...],
        _flag("snapshot", "Serve a file of `kubectl get nodes,pods,namespaces,runtimeclasses -A -o json`."),
    ] = ()
    policies: Annotated[Path | None, _flag("policies", "Directory of policies; the shipped ones by default.")] = None
    knowledge: Annotated[
        Path | None, _flag("knowledge", "Directory of your own fact tables, laid over the shipped ones.")
    ] = None
    role: Annotated[Role, _one_of("role", get_args(Role), "all, admission, extender or controller.")] = "all"
    """With `admission` the process is ready before the lists of the cluster have arrived."""
    kubeconfig: Annotated[
        Path | None, _flag("kubeconfig", "Follow the cluster of this kubeconfig; in a pod its service account is used.")
    ] = None
    context: Annotated[str | None, _flag("context", "Context of the kubeconfig; its current one by default.")] = None
    namespace: Annotated[str, _flag("namespace", "Our own namespace, for policies in ConfigMaps.")] = "gpu-usher"
    listen: Annotated[
        str | None,
        _flag("host", "Address of the TLS and operations listeners; loopback, or :: with a live cluster."),
    ] = None
    port: Annotated[int, _flag("port", "Port of the TLS listener.")] = 8443
    ops_listen: Annotated[
        str | None, _flag("ops-host", "Address of the operations listener; that of --host by default.")
    ] = None
    ops_port: Annotated[int, _flag("ops-port", "Port of the operations listener.")] = 8080
    ui_address: Annotated[str, _flag("ui-address", "Address of the web UI listener, or off.")] = "127.0.0.1:8081"
    """The default is loopback, because the page has no login."""
    scheduler_address: Annotated[
        str, _flag("scheduler-address", "Loopback address for a scheduler in the same pod, over plain HTTP, or off.")
    ] = "off"
    explain_address: Annotated[
        str,
        _flag(
            "explain-address",
            "Address for kube-apiserver's aggregation layer, for explanations that tenants ask for, or off.",
        ),
    ] = "off"
    certs: Annotated[Path, _flag("certs", "Directory to make certificates in.")] = Path("certs")
    cert: Annotated[Path | None, _flag("cert", "Your own certificate.")] = None
    key: Annotated[Path | None, _flag("key", "Your own key.")] = None
    client_ca: Annotated[
        Path | None, _flag("client-ca", "CAs of client certificates, which /scheduler/* then requires.")
    ] = None
    client_subjects: Annotated[
        tuple[str, ...], _flag("client-subject", "Common name that may call, with --client-ca; repeatable.")
    ] = ()
    require_webhook_client_cert: Annotated[
        bool, _flag("require-webhook-client-cert", "Require a client certificate of the API server too.")
    ] = False
    prometheus: Annotated[
        str | None, _flag("prometheus", "URL of a Prometheus that has DCGM's metrics: the health and the use of GPUs.")
    ] = None
    prometheus_token_file: Annotated[
        Path | None, _flag("prometheus-token-file", "File with a bearer token for the Prometheus.")
    ] = None
    dcgm_exporters: Annotated[
        tuple[str, ...],
        _flag(
            "dcgm-exporters",
            "URL of DCGM exporters for the health of GPUs, instead of a Prometheus; a headless Service gives all.",
        ),
    ] = ()
    image_registries: Annotated[
        Path | None,
        _flag(
            "image-registries", "File that lists the registries whose images are read, for the CUDA that they carry."
        ),
    ] = None
    recount: Annotated[
        Recount, _one_of("recount", get_args(Recount), "Repeat the scheduler's counts: auto, true or false.")
    ] = "auto"
    shadow: Annotated[bool, _flag("shadow", "Answer allow, no patch, all nodes; log the real verdict.")] = False
    events: Annotated[
        bool,
        _flag(
            "events", "Write Events that say why GPU pods stay Pending, on them and on their workloads.", "--no-events"
        ),
    ] = False
    """It needs a live cluster and the rights of deploy/components/events; with `shadow` none are written."""
    decision_log: Annotated[
        str, _flag("decision-log", "Record decisions so that they can be replayed: a file, stdout or off.")
    ] = "off"
    tracing: Annotated[bool, _flag("tracing", "Send OpenTelemetry traces to OTEL_EXPORTER_OTLP_ENDPOINT.")] = False
    filter_answer: Annotated[
        FilterAnswer,
        _flag(
            "filter-answer",
            "Answer filter with all nodes that fit, or a shortlist of the best.",
            callback=filter_answer_of,
            autocompletion=lambda: list(get_args(FilterAnswer)),
        ),
    ] = "shortlist"
    shortlist: Annotated[int, _flag("shortlist", "Most nodes of a shortlist.")] = SHORTLIST
    drain_seconds: Annotated[
        float | None, _flag("drain-seconds", "Seconds to answer on after SIGTERM; 5 with a live cluster, else 0.")
    ] = None
    log_json: bool = True
    """Write the log as JSON, one object a line, instead of text for people: unless stderr is a terminal or a sample
    fleet is served."""

    def check(self) -> None:
        """Refuse settings that contradict each other.

        Raises BadInput.
        """
        cluster = "--kubeconfig" if self.kubeconfig else "--context"
        sources = {"--demo": self.demo, "--snapshot": self.snapshots, cluster: self.kubeconfig or self.context}
        if len(given := [name for name, value in sources.items() if value]) > 1:
            raise BadInput(f"got {' and '.join(given)}, wants one of them")
        if bool(self.cert) != bool(self.key):
            raise BadInput("--cert, --key: got one of them, wants both or none")
        if bool(self.client_ca) != bool(self.client_subjects) or (
            self.require_webhook_client_cert and not self.client_ca
        ):
            raise BadInput("--client-ca, --client-subject: got one of them, wants both, or neither and no requirement")
        if self.shortlist < 1:
            raise BadInput(f"--shortlist: got {self.shortlist}, wants at least 1")
        if self.client_ca and self.scheduler_address != "off":
            raise BadInput("--scheduler-address: got --client-ca too, wants one: plain HTTP has no client certificates")
        if self.explain_address != "off" and not self.live:
            raise BadInput("--explain-address: wants a live cluster, whose API server authenticates the callers")

    @property
    def live(self) -> bool:
        """Whether a live cluster is followed."""
        return not self.demo and not self.snapshots

    @property
    def host(self) -> str:
        """The address of the TLS and operations listeners."""
        return self.listen or ("::" if self.live else "127.0.0.1")

    @property
    def draining_seconds(self) -> float:
        """Seconds to answer after SIGTERM, by default 5 with a live cluster, whose endpoints lag, else 0."""
        return (5.0 if self.live else 0.0) if self.drain_seconds is None else self.drain_seconds

    @property
    def ops_host(self) -> str:
        """The address of the operations listener."""
        return self.ops_listen or self.host

    @property
    def recounting(self) -> bool:
        """Whether filter repeats the scheduler's checks: by default only if no live scheduler has made them."""
        return self.recount == "true" or (self.recount == "auto" and not self.live)

    @property
    def own_certificate(self) -> tuple[Path, Path] | None:
        """The operator's own certificate and key; None if we issue them."""
        return (self.cert, self.key) if self.cert and self.key else None
