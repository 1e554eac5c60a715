# SPDX-License-Identifier: Apache-2.0
"""The settings of `gpu-usher serve`; each is a flag and an environment variable GPU_USHER_<FLAG>.

See docs/reference/listeners.md#routes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["all", "admission", "extender"]
Recount = Literal["auto", "true", "false"]
FilterAnswer = Literal["all", "best"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process. Port 0 stands for any free port."""

    demo: bool = False
    """Serve a sample fleet."""
    demo_fleet: str = "mixed"
    """The name of the sample fleet."""
    snapshots: tuple[Path, ...] = ()
    """Files of `kubectl get nodes,pods,namespaces,runtimeclasses -A -o json`."""
    policies: Path | None = None
    """Directory of policy files; None stands for the shipped ones."""
    knowledge: Path | None = None
    """Directory of your own fact tables, which override the shipped ones."""
    role: Role = "all"
    kubeconfig: Path | None = None
    context: str | None = None
    """How to reach a live cluster; without both the pod's service account, or else the user's kubeconfig."""
    namespace: str = "gpu-usher"
    """The namespace of gpu-usher, whose ConfigMaps may hold policies."""
    listen: str | None = None
    """Address of the TLS and operations listeners; None is loopback, or every address with a live cluster."""
    ops_listen: str | None = None
    """Address of the operations listener alone; None is that of `listen`. Beside a scheduler it serves only probes."""
    port: int = 8443
    ops_port: int = 8080
    ui_address: str = "127.0.0.1:8081"
    """Address of the web UI listener; `off` turns it off."""
    certs: Path = Path("certs")
    """Directory in which a CA and a certificate are issued if there are no valid ones."""
    cert: Path | None = None
    key: Path | None = None
    """Your own certificate and key; both or none."""
    client_ca: Path | None = None
    """CAs of client certificates; None requests none."""
    client_subjects: tuple[str, ...] = ()
    """Common names that may call /scheduler/*, with client_ca."""
    require_webhook_client_cert: bool = False
    """Require a client certificate of the API server too, which must be configured for it (AdmissionConfiguration)."""
    prometheus: str | None = None
    """URL of a Prometheus with DCGM's metrics; None uses none."""
    prometheus_token_file: Path | None = None
    """File with a bearer token for Prometheus."""
    dcgm_exporters: tuple[str, ...] = ()
    """URLs of DCGM exporters that are scraped directly; every address of a host name is one."""
    recount: Recount = "auto"
    filter_answer: FilterAnswer = "all"
    shadow: bool = False
    """Answer allow, no patch, all nodes; log the real verdict."""
    drain_seconds: float | None = None
    """How long requests are answered after SIGTERM, while /readyz is 503; None is 5 with a live cluster, else 0."""
    decision_log: str = "off"
    """File or `stdout` for records from which each request can be decided again; `off` writes none."""
    tracing: bool = False
    """Send a span of each request to OTEL_EXPORTER_OTLP_ENDPOINT of the environment."""
    log_json: bool = True

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
        """The seconds to answer after SIGTERM: 5 with a live cluster, whose endpoints lag (HA-03)."""
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
