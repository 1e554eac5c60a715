# SPDX-License-Identifier: Apache-2.0
"""The settings of `gpu-usher serve`; each but `log_json` is a flag and an environment variable GPU_USHER_<FLAG>.

`listen` is the flag --host, and the other flags have the names of their fields, as app/cli/serve.py shows. See
docs/reference/listeners.md#routes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["all", "admission", "extender", "controller"]
"""Which routes of the TLS listener are served: all, those of the API server, those of kube-scheduler, or none, where
the process only writes (`events`)."""
Recount = Literal["auto", "true", "false"]
FilterAnswer = Literal["all", "shortlist", "best"]
SHORTLIST = 16
"""Most nodes of a shortlist by default: five in each of three zones. A guess; no more are named than a pod's soft
constraints can tell apart."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process. Port 0 stands for any free port."""

    demo: bool = False
    """Serve a sample fleet instead of a live cluster."""
    demo_fleet: str = "mixed"
    """The name of the sample fleet, a file of app/demo/fleets without its suffix."""
    snapshots: tuple[Path, ...] = ()
    """Files of `kubectl get nodes,pods,namespaces,runtimeclasses -A -o json` that are served instead of a live
    cluster. Without snapshots and `demo` a live cluster is followed."""
    policies: Path | None = None
    """Directory of policy files; None stands for the shipped ones."""
    knowledge: Path | None = None
    """Directory of your own fact tables, which override the shipped ones of app/knowledge."""
    role: Role = "all"
    """Which routes of the TLS listener this process serves. With `admission` it is ready before the lists of the
    cluster have arrived."""
    kubeconfig: Path | None = None
    """The kubeconfig of the live cluster. Without it and `context`, the pod's service account is used, or else the
    user's kubeconfig."""
    context: str | None = None
    """The context of the kubeconfig; None stands for its current one."""
    namespace: str = "gpu-usher"
    """The namespace of gpu-usher, whose ConfigMaps may hold policies. The default is that of deploy/base."""
    listen: str | None = None
    """Address of the TLS and operations listeners; None is loopback, or every address with a live cluster."""
    ops_listen: str | None = None
    """Address of the operations listener alone; None is that of `listen`. Beside a scheduler it serves only probes."""
    port: int = 8443
    """Port of the TLS listener, which the API server and kube-scheduler call."""
    ops_port: int = 8080
    """Port of the operations listener, which serves probes and metrics over plain HTTP."""
    ui_address: str = "127.0.0.1:8081"
    """Address and port of the web UI listener; `off` turns it off. The default is loopback, because the page has no
    login."""
    scheduler_address: str = "off"
    """Loopback address and port of a listener that serves /scheduler/* over plain HTTP, for a scheduler in the same
    pod; `off` makes none (docs/reference/listeners.md#scheduler)."""
    explain_address: str = "off"
    """Address and port of the listener that kube-apiserver's aggregation layer asks for explanations, which it gives to
    users with the right to `get` them in a namespace; `off` makes none (docs/reference/listeners.md#explanations)."""
    certs: Path = Path("certs")
    """Directory in which a CA and a certificate are issued if there are no valid ones and `cert` is None."""
    cert: Path | None = None
    """The operator's own serving certificate as PEM; None uses the one in `certs`. Either `cert` and `key` are both
    set, or neither is."""
    key: Path | None = None
    """The private key of `cert` as PEM."""
    client_ca: Path | None = None
    """CAs of client certificates as PEM, which /scheduler/* then requires; None requests no client certificates."""
    client_subjects: tuple[str, ...] = ()
    """Common names of client certificates that may call /scheduler/*. They are set if and only if `client_ca` is."""
    require_webhook_client_cert: bool = False
    """Require a client certificate of the API server too, which must be configured for it (AdmissionConfiguration)."""
    prometheus: str | None = None
    """URL of a Prometheus with the metrics of DCGM exporter, from which the health of GPUs is read. None uses none."""
    prometheus_token_file: Path | None = None
    """File with a bearer token for Prometheus."""
    dcgm_exporters: tuple[str, ...] = ()
    """URLs of DCGM exporters that are scraped instead of a Prometheus. Every address of a host name is one exporter."""
    recount: Recount = "auto"
    """Whether filter repeats kube-scheduler's own checks of free units; see `recounting` for what `auto` means."""
    filter_answer: FilterAnswer = "shortlist"
    """Whether filter answers with all nodes that fit, with a shortlist of the best ones, or with the best one alone
    (docs/reference/scores.md#shortlist)."""
    shortlist: int = SHORTLIST
    """The most nodes of a shortlist."""
    shadow: bool = False
    """Answer allow, no patch, all nodes; log the real answer."""
    events: bool = False
    """Write Events on GPU pods that stay Pending, and on their workloads, by one process of all. It needs a live
    cluster and the rights of deploy/components/events, whose controller has it; with `shadow` none are written."""
    drain_seconds: float | None = None
    """Seconds for which requests are still answered after SIGTERM, while /readyz is 503. None stands for the value of
    `draining_seconds`."""
    decision_log: str = "off"
    """File or `stdout` for records from which each request can be decided again; `off` writes none."""
    tracing: bool = False
    """Send a span of each request to OTEL_EXPORTER_OTLP_ENDPOINT of the environment."""
    log_json: bool = True
    """Write the log as JSON, one object a line, instead of text for people. It has no flag: `serve` sets it unless
    stderr is a terminal or a sample fleet is served."""

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
